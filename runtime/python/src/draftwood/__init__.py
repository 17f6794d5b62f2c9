"""draftwood: tree-verify attention kernels for speculative decoding, made to order for one shape.

    context = draftwood.Context()
    kernel = context.kernel("kimi-k2.6-tp8,t=9,page=64", draftwood.Bounds(batch=8, kv_len=131072))
    call = kernel.bind(q=q, out=out, kv=kv, kv_len=kv_len, block_table=table, mask=parents,
                       mask_kind=draftwood.Mask.PARENTS, softmax_scale=0.0721688, workspace=workspace)
    call.launch(torch.cuda.current_stream())

`build` and everything on the host need neither GPU nor torch.
"""
from ._abi import (Accumulate, Addressing, Attention, CallKind, Combine, DType, Effort, Family, Fault, Feature, LogLevel,
                   Mask, Source, Status)
from ._version import __version__
from .arrays import Array, stream_handle, view
from .calls import REPORT_WORDS, Call, VerifyCall
from .companions import Companions, Planes, States
from .context import (Choice, Context, Cubin, Kernel, Progress, Request, Resources, Stats, TuneProgress, build,
                      check_report)
from .errors import (BadArgument, BadBundle, BadCubin, BadShape, Cancelled, CompileError, DraftwoodError, DriverError,
                     FileError, Frozen, HostExecution, InternalError, NoCompiler, NoDriver, NotApplicable, NotFound,
                     OutOfMemory, TemplateError, UnsupportedTarget, WrongArch, WrongResult)
from .pools import Defrag, MoveList, Pool, move_plan
from .shapes import Bounds, Shape, Variant, presets
from .trees import (Accepted, accept_check, tree_check, tree_depths, tree_from_paths, tree_from_sets, tree_mask,
                    tree_positions, tree_walk)

__all__ = [
    "__version__", "accept_check", "Accepted", "Accumulate", "Addressing", "Array", "Attention", "BadArgument", "BadBundle",
    "BadCubin", "BadShape", "Bounds", "build", "Call", "CallKind", "Cancelled", "check_report", "Choice", "Combine", "Companions",
    "CompileError", "Context", "Cubin", "Defrag", "DraftwoodError", "DriverError", "DType", "Effort", "Family", "Fault",
    "Feature", "FileError", "Frozen", "HostExecution", "InternalError", "Kernel", "LogLevel", "Mask", "move_plan",
    "MoveList", "NoCompiler", "NoDriver", "NotApplicable", "NotFound", "OutOfMemory", "Planes", "Pool", "presets",
    "Progress", "REPORT_WORDS", "Request", "Resources", "Shape", "Source", "States", "Stats", "Status", "stream_handle",
    "TemplateError", "tree_check", "tree_depths", "tree_from_paths", "tree_from_sets", "tree_mask", "tree_positions",
    "tree_walk", "TuneProgress", "UnsupportedTarget", "Variant", "VerifyCall", "view", "WrongArch", "WrongResult"
]
