"""The kernels around the attention call, each as a prepared call: trees, acceptance, compaction, moves, merging."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Sequence

from . import _abi
from ._abi import Addressing, DType
from .arrays import view
from .calls import DTYPE_NAMES, Call, Taken, log_base, pointer
from .errors import bad_argument

if TYPE_CHECKING:
    from .context import Context

_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True)
class States:
    """Partial results of the same rows: out [count, rows, heads, v] or, for one, [rows, heads, v]; lse f32 of the same
    dimensions without the last. lse_base: 2 or "e"."""

    out: Any
    lse: Any
    lse_base: Any = 2


@dataclass(frozen=True)
class Planes:
    """Planes of a KV pool, one a layer, laid out alike.

    bases         i64 or u64 [layers] on the device: addresses of token 0 of page 0 of each layer
    row_bytes     bytes of a token's row
    token_stride  bytes; 0: row_bytes
    page_stride   bytes; 0: page x token_stride
    """

    bases: Any
    row_bytes: int
    token_stride: int = 0
    page_stride: int = 0


def _fill_planes(args: Any, taken: Taken, planes: Planes | Sequence[Planes]) -> None:
    kinds = [planes] if isinstance(planes, Planes) else list(planes)
    if not 1 <= len(kinds) <= _abi.DW_PLANES_MAX:
        raise bad_argument("planes", f"{len(kinds)} kinds", f"1 to {_abi.DW_PLANES_MAX}")
    args.plane_kinds = len(kinds)
    for struct, kind in zip(args.planes, kinds):
        bases = taken("planes.bases", kind.bases, "i64 u64", (1,))
        struct.bases, struct.count, struct.row_bytes = bases.pointer, bases.shape[0], kind.row_bytes
        struct.token_stride, struct.page_stride = kind.token_stride, kind.page_stride


def _flag(lengths: str) -> int:
    if lengths not in ("with_drafts", "prefix"):
        raise bad_argument("lengths", lengths, '"with_drafts" or "prefix"')
    return int(lengths == "with_drafts")


class Companions:
    """The companion kernels of a context; made by `Context.companions`. Each method lays out a call once; its `launch(stream)`
    enqueues one kernel. Arrays are device memory, as `Kernel.bind` takes them. Methods raise BadArgument for shapes and types,
    launches for what the library sees.

    Requests have `width` rows each, or those of qo_indptr (i32 [batch + 1]), then at most `width`.
    """

    def __init__(self, context: Context, handle: ctypes.c_void_p) -> None:
        self.context = context
        self._handle = handle

    def merge_states(self, states: States | Sequence[States], out: Any, lse: Any = None, lse_base: Any = 2) -> Call:
        """The softmax-weighted sum of partial results, in fp32 and in a fixed order. out [rows, heads, v], lse f32
        [rows, heads]."""
        args, taken = _abi.MergeArgs(size=ctypes.sizeof(_abi.MergeArgs)), Taken()
        kinds = [states] if isinstance(states, States) else list(states)
        if not 1 <= len(kinds) <= _abi.DW_STATES_MAX:
            raise bad_argument("states", f"{len(kinds)} kinds", f"1 to {_abi.DW_STATES_MAX}")
        result = taken("out", out, "bf16 f16 f32", (None, None, None))
        args.rows, args.heads, args.v = result.shape
        args.out, args.dtype = result.pointer, _DTYPES[result.dtype]
        args.out_row_stride, args.out_head_stride = result.strides[:2]
        total = taken.maybe("lse", lse, "f32", (args.rows, args.heads), dense=0)
        if total:
            args.lse, args.lse_row_stride, args.lse_head_stride = total.pointer, *total.strides
        args.lse_base_e = log_base(lse_base)
        args.state_kinds = len(kinds)
        for struct, kind in zip(args.states, kinds):
            _fill_states(struct, taken, kind, result.shape)
        return Call("dw_merge_states", self._handle, args, taken.keep)

    def kv_compact(self, planes: Planes | Sequence[Planes], *, kv_len: Any, accept_index: Any, width: int = 0,
                   qo_indptr: Any = None, batch: int | None = None, page: int = 1, lengths: str = "with_drafts",
                   block_table: Any = None, kv_indptr: Any = None, kv_indices: Any = None, draft_slots: Any = None,
                   next_drafts: int = 0, new_len: Any = None, accept_count: Any = None,
                   overlap_prologue: bool = False) -> Call:
        """Moves accepted drafts behind the prefix, in all layers at once and in place.

        kv_len        i32 [batch or more], as the attention call had it
        accept_index  i32 [batch, columns]: accepted drafts, ascending, -1 ends
        block_table   i32 [batch, columns], or kv_indptr with kv_indices, or draft_slots (i32 or i64 [total_q]) alone
        new_len       i32 [batch]: prefix + accepted + next_drafts; accept_count i32 [batch]
        """
        args, taken = _abi.CompactArgs(size=ctypes.sizeof(_abi.CompactArgs)), Taken()
        _fill_planes(args, taken, planes)
        args.page, args.next_drafts, args.overlap_prologue = page, next_drafts, int(overlap_prologue)
        size = taken("kv_len", kv_len, "i32", (None,))
        args.kv_len, args.batch = size.pointer, size.shape[0] if batch is None else batch
        args.lengths_include_drafts = _flag(lengths)
        args.width, args.qo_indptr = width, pointer(taken.maybe("qo_indptr", qo_indptr, "i32", (args.batch + 1,)))
        if block_table is not None:
            table = taken("block_table", block_table, "i32", (args.batch, None))
            args.addressing = Addressing.BLOCK_TABLE
            args.block_table, args.block_table_stride, args.table_columns = table.pointer, table.strides[0], table.shape[1]
        indptr = taken.maybe("kv_indptr", kv_indptr, "i32", (args.batch + 1,))
        indices = taken.maybe("kv_indices", kv_indices, "i32 i64", (None,))
        slots = taken.maybe("draft_slots", draft_slots, indices.dtype if indices else "i32 i64", (None,))
        args.kv_indptr, args.kv_indices, args.draft_slots = pointer(indptr), pointer(indices), pointer(slots)
        args.index64 = int(any(array and array.dtype == "i64" for array in (indices, slots)))
        accepted = taken("accept_index", accept_index, "i32", (args.batch, 1))
        args.accept_index, args.accept_stride, args.accept_columns = accepted.pointer, accepted.strides[0], accepted.shape[1]
        args.new_len = pointer(taken.maybe("new_len", new_len, "i32", (args.batch,)))
        args.accept_count = pointer(taken.maybe("accept_count", accept_count, "i32", (args.batch,)))
        return Call("dw_kv_compact", self._handle, args, taken.keep)

    def kv_move(self, planes: Planes | Sequence[Planes], moves: Any, teams: int, *, page: int = 1,
                by_slot: bool = False) -> Call:
        """Moves rows in all layers as if all at once. moves: device copy of `MoveList.data` (u8), 16-byte aligned; teams:
        `MoveList.teams`, or more where a graph is to serve later lists."""
        args, taken = _abi.MoveArgs(size=ctypes.sizeof(_abi.MoveArgs)), Taken()
        _fill_planes(args, taken, planes)
        args.page, args.by_slot, args.teams = page, int(by_slot), teams
        args.list = taken("moves", moves, "u8 i8", (16,)).pointer
        return Call("dw_kv_move", self._handle, args, taken.keep)

    def tree_expand(self, parents: Any, *, batch: int, width: int, qo_indptr: Any = None, kv_len: Any = None,
                    lengths: str = "with_drafts", depths: Any = None, positions: Any = None, mask: Any = None) -> Call:
        """Parents (i32 [total_q]) to depths (i32), positions (i32 or i64, prefix + depth; needs kv_len i32 [batch]) and mask
        (u32 [total_q, words], what Mask.BITS takes), whichever are given."""
        args, taken = _abi.ExpandArgs(size=ctypes.sizeof(_abi.ExpandArgs)), Taken()
        rows = None if qo_indptr is not None else batch * width
        args.batch, args.width = batch, width
        args.parents = taken("parents", parents, "i32", (rows,)).pointer
        args.qo_indptr = pointer(taken.maybe("qo_indptr", qo_indptr, "i32", (batch + 1,)))
        args.kv_len = pointer(taken.maybe("kv_len", kv_len, "i32", (batch,)))
        args.lengths_include_drafts = _flag(lengths)
        args.depths = pointer(taken.maybe("depths", depths, "i32", (rows,)))
        place = taken.maybe("positions", positions, "i32 i64", (rows,))
        args.positions, args.positions64 = pointer(place), int(place is not None and place.dtype == "i64")
        words = taken.maybe("mask", mask, "u32 i32", (rows, (width + 31) // 32))
        if words:
            args.mask, args.mask_row_stride = words.pointer, words.strides[0]
        return Call("dw_tree_expand", self._handle, args, taken.keep)

    def tree_accept(self, parents: Any, draft_tokens: Any, target_tokens: Any, *, batch: int, width: int, accept_index: Any,
                    root_tokens: Any = None, qo_indptr: Any = None, accept_count: Any = None, bonus_tokens: Any = None) -> Call:
        """Which drafts the target model agrees with.

        parents       i32 [total_q]; draft_tokens, target_tokens: i32 or i64 [total_q], all token arrays of one type
        root_tokens   [batch]: the target's token after the committed one, whose KV was there before. None: the first root is
                      the committed token itself
        accept_index  i32 [batch, columns]: gets ids from the root on, ended by -1
        accept_count  i32 [batch]; bonus_tokens [batch]: the target's token after the last accepted node
        """
        args, taken = _abi.AcceptArgs(size=ctypes.sizeof(_abi.AcceptArgs)), Taken()
        rows = None if qo_indptr is not None else batch * width
        args.batch, args.width = batch, width
        args.parents = taken("parents", parents, "i32", (rows,)).pointer
        args.qo_indptr = pointer(taken.maybe("qo_indptr", qo_indptr, "i32", (batch + 1,)))
        drafts = taken("draft_tokens", draft_tokens, "i32 i64", (rows,))
        args.draft_tokens, args.tokens64 = drafts.pointer, int(drafts.dtype == "i64")
        args.target_tokens = taken("target_tokens", target_tokens, drafts.dtype, (rows,)).pointer
        args.root_tokens = pointer(taken.maybe("root_tokens", root_tokens, drafts.dtype, (batch,)))
        accepted = taken("accept_index", accept_index, "i32", (batch, 1))
        args.accept_index, args.accept_stride, args.accept_columns = accepted.pointer, accepted.strides[0], accepted.shape[1]
        args.accept_count = pointer(taken.maybe("accept_count", accept_count, "i32", (batch,)))
        args.bonus_tokens = pointer(taken.maybe("bonus_tokens", bonus_tokens, drafts.dtype, (batch,)))
        return Call("dw_tree_accept", self._handle, args, taken.keep)


def _fill_states(struct: Any, taken: Taken, states: States, shape: tuple[int, ...]) -> None:
    parts = len(view(states.out, name="states.out").shape) == 4
    out = taken("states.out", states.out, "bf16 f16 f32", (1, *shape) if parts else shape)
    lse = taken("states.lse", states.lse, "f32", (out.shape[0], *shape[:2]) if parts else shape[:2], dense=0)
    struct.out, struct.lse, struct.dtype = out.pointer, lse.pointer, _DTYPES.get(out.dtype, DType.F32)
    struct.count, struct.lse_base_e = out.shape[0] if parts else 1, log_base(states.lse_base)
    if parts:
        struct.out_part_stride, struct.lse_part_stride = out.strides[0], lse.strides[0]
    struct.out_row_stride, struct.out_head_stride = out.strides[-3:-1]
    struct.lse_row_stride, struct.lse_head_stride = lse.strides[-2:]
