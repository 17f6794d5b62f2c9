"""vLLM's metadata of a decode batch with MLA, as its MLACommonMetadataBuilder lays it out, bound to a kernel. vLLM is not imported.

All requests of the batch have the same number of rows: the last token and its drafts. seq_lens count them, block_table names pages of the
layer's cache. In a graph, requests are padded up to the captured batch with a length of 0: their rows of out are zeros.
"""
from __future__ import annotations

from typing import Any

from .._abi import Attention, Mask
from ..arrays import view
from ..calls import VerifyCall
from ..context import Kernel
from ..errors import bad_argument


def bind_decode(kernel: Kernel, *, q: Any, kv_cache: Any, out: Any, block_table: Any, seq_lens: Any, softmax_scale: float, workspace: Any,
                q_rope: Any = None, bias: Any = None, other_ranks: bool = False, lse: Any = None, lse_base: Any = "e",
                overlap_prologue: bool = False, report: Any = None) -> VerifyCall:
    """A layer's call. All arrays are on the device; contents may change between launches and graph replays.

    q            [rows, heads, 576], rows = requests x rows of each; or its first 512 elements with
    q_rope       [rows, heads, 64], the others (Feature.Q_ROPE in the kernel's bounds)
    kv_cache     [pages, page, 576]
    out          [rows, heads, 512]
    block_table  i32 [requests, columns]
    seq_lens     i32 [requests]: with the rows
    bias         f32 [width, width] for all requests or [requests, width, width]: 0 where a row sees a draft, else -inf: a tree, as
                 vLLM's unified attention has it. None: a chain
    other_ranks  decode context parallelism: seq_lens count this rank's tokens, and each row sees all of them. With lse
    lse          f32 [rows, heads], base "e", as vLLM merges ranks, or 2

    Raises BadArgument.
    """
    if kernel.shape.attention != Attention.MLA:
        raise bad_argument("kernel", str(kernel.shape), "one for MLA")
    if other_ranks and bias is not None:
        raise bad_argument("bias", "a tree", "None with other_ranks: drafts may lie elsewhere")
    requests, rows = view(block_table, name="block_table").shape[0], view(q, name="q").shape[0]
    return kernel.bind(
        q=q, q_rope=q_rope, out=out, kv=kv_cache, kv_len=seq_lens, block_table=block_table, batch=requests, total_q=rows,
        lengths="prefix" if other_ranks else "with_drafts", drafts_elsewhere=other_ranks,
        mask=bias, mask_kind=Mask.NONE if bias is None else Mask.BIAS_F32, softmax_scale=softmax_scale, lse=lse, lse_base=lse_base,
        workspace=workspace, overlap_prologue=overlap_prologue, report=report)
