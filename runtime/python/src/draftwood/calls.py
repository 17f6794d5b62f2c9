"""Calls whose arguments were laid out once: a launch is one foreign call, with nothing looked at again in Python."""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from . import _abi
from ._abi import Addressing, Attention, DType, Mask
from ._library import call, lib, raise_error
from .arrays import Array, stream_handle, take, view
from .errors import bad_argument

if TYPE_CHECKING:
    from .context import Kernel

REPOINTED = ("q", "q_rope", "out", "kv", "kv_rope", "v", "lse")
REPORT_WORDS = _abi.DW_FAULT_WORDS * len(_abi.Fault)  # u32 words of a checked kernel's report
RECORD_BYTES = 656  # of a token, as an array of bytes
DTYPE_NAMES = {DType.BF16: "bf16", DType.F16: "f16", DType.F32: "f32", DType.E4M3: "e4m3", DType.RECORD656: "u8"}


class Call:
    """A prepared call: its arguments, and the arrays that they name, which it keeps alive.

    launch(stream) may be repeated and captured. Contents of arrays may change between launches, the arrays themselves by
    `update` where there is one. Not for several threads at once.
    """

    __slots__ = ("args", "_keep", "_function", "_handle", "_reference", "_error", "_error_reference", "__weakref__")

    def __init__(self, function: str, handle: ctypes.c_void_p, args: ctypes.Structure, keep: list[Array]) -> None:
        self.args = args
        self._keep = keep
        self._function = getattr(lib, function)
        self._handle = handle
        self._reference = ctypes.byref(args)
        self._error = _abi.Error()
        self._error_reference = ctypes.byref(self._error)

    def launch(self, stream: Any = None) -> None:
        """Enqueues the call on a stream: an int, None (the default stream), or a stream of torch, CuPy, Numba or cuda-python.

        Never compiles, allocates, waits or takes a lock; safe during capture. Raises BadArgument and DriverError."""
        handle = stream if stream is None or type(stream) is int else stream_handle(stream)
        status = self._function(self._handle, self._reference, handle, self._error_reference)
        if status:
            raise_error(self._error, status)


def pointer(array: Array | None) -> int | None:
    return array.pointer if array else None


def log_base(value: Any) -> int:
    """2 -> 0, "e" -> 1, as lse_base_e."""
    if value not in (2, "e"):
        raise bad_argument("lse_base", value, '2 or "e"')
    return int(value == "e")


class Taken:
    """Takes arrays, keeping them."""

    def __init__(self) -> None:
        self.keep: list[Array] = []

    def __call__(self, name: str, value: Any, dtypes: str, dims: tuple[int | None, ...], *, dense: int = 1) -> Array:
        array = take(name, value, dtypes, dims, dense=dense)
        self.keep.append(array)
        return array

    def maybe(self, name: str, value: Any, dtypes: str, dims: tuple[int | None, ...], *, dense: int = 1) -> Array | None:
        return None if value is None else self(name, value, dtypes, dims, dense=dense)

    def pool(self, name: str, value: Any, shape: Any, width: int) -> tuple[Array, int, int, int]:
        """A KV pool and its page, token and head strides: [pages, page, KV heads, width or more], with page 1 [slots, KV heads, width
        or more]; a single KV head's dimension may be missing."""
        array = view(value, name=name)
        if array.dtype != DTYPE_NAMES[shape.kv]:
            raise bad_argument(name, f"elements of type {array.dtype}", DTYPE_NAMES[shape.kv])
        sizes, strides = list(array.shape), list(array.strides)
        inner = [shape.page] * (shape.page > 1) + [shape.kv_heads]
        if shape.kv_heads == 1 and len(sizes) == len(inner) + 1:
            sizes.insert(-1, 1)
            strides.insert(-1, 0)
        if sizes[1:-1] != inner or sizes[-1] < width or strides[-1] != 1:
            inner = inner if shape.kv_heads > 1 else inner[:-1]
            layout = ", ".join(["slots" if shape.page == 1 else "pages", *map(str, inner), f"{width} or more"])
            raise bad_argument(name, f"a shape of {list(array.shape)} with strides of {list(array.strides)} elements",
                               f"[{layout}] without gaps in the last dimension")
        self.keep.append(array)
        return array, strides[0], strides[-3], strides[-2]


def _layout(array: Array) -> tuple[Any, ...]:
    return array.shape, array.strides, array.dtype


def _indices(dtype: str) -> int:
    return int(dtype == "i64")


class VerifyCall(Call):
    """A prepared attention call; made by `Kernel.bind`."""

    __slots__ = ("kernel", "_given", "_layouts")

    def __init__(self, kernel: Kernel, given: dict[str, Any]) -> None:
        args = _abi.Args(size=ctypes.sizeof(_abi.Args))
        super().__init__("dw_launch", kernel._handle, args, [])
        self.kernel = kernel
        self._given = given
        self.update()

    def update(self, **changes: Any) -> None:
        """Other arrays or numbers for some arguments of `Kernel.bind`. Raises as bind does; then nothing has changed."""
        known = set(self._given)
        for name in changes:
            if name not in known:
                raise bad_argument(name, "no such argument", ", ".join(sorted(known)))
        given = {**self._given, **changes}
        fresh, keep = _abi.Args(size=ctypes.sizeof(_abi.Args)), Taken()
        _fill(fresh, keep, self.kernel, given)
        call("dw_args_check", self._handle, ctypes.byref(fresh))
        ctypes.pointer(self.args)[0] = fresh  # in place: the reference that launches use stays
        self._given, self._keep, self._layouts = given, keep.keep, {}

    def repoint(self, **arrays: Any) -> bool:
        """`update` of q, out, kv, v or lse by arrays that are laid out as those they replace: only addresses change, and these arrays
        are not kept alive. For the layers of a step. False, and nothing has changed, where a shape, stride or type differs."""
        addresses = {}
        for name, value in arrays.items():
            if name not in REPOINTED:
                raise bad_argument(name, "no such argument", ", ".join(REPOINTED))
            array = view(value, name=name)
            if name not in self._layouts:
                bound = self._given[name]
                self._layouts[name] = None if bound is None else _layout(view(bound))
            if _layout(array) != self._layouts[name]:
                return False
            addresses[name] = array.pointer
        for name, address in addresses.items():
            setattr(self.args, name, address)
        return True

    def pack_mask(self, bits: Any, stream: Any = None) -> None:
        """Packs the call's mask to bits, once for all layers of a step. bits: u32 or i32 [total_q, words]. Raises
        NotApplicable for kernels that need none."""
        array = take("bits", bits, "u32 i32", (None, None))
        call("dw_pack_mask", self._handle, self._reference, array.pointer, array.strides[0], stream_handle(stream))


def _fill(args: Any, take_array: Taken, kernel: Kernel, given: dict[str, Any]) -> None:
    _fill_rows(args, take_array, kernel, given)
    _fill_vectors(args, take_array, kernel, given)
    _fill_kv(args, take_array, kernel, given)
    _fill_addresses(args, take_array, given)
    _fill_mask(args, take_array, given)
    _fill_rest(args, take_array, kernel, given)


def _fill_rows(args: Any, taken: Taken, kernel: Kernel, given: dict[str, Any]) -> None:
    """Batch, rows and lengths."""
    lengths = taken("kv_len", given["kv_len"], "i32", (None,))
    args.kv_len, args.kv_len_count = lengths.pointer, lengths.shape[0]
    args.batch = lengths.shape[0] if given["batch"] is None else given["batch"]
    if given["lengths"] not in ("with_drafts", "prefix"):
        raise bad_argument("lengths", given["lengths"], '"with_drafts" or "prefix"')
    args.lengths_include_drafts = int(given["lengths"] == "with_drafts")
    args.drafts_elsewhere = int(given["drafts_elsewhere"])
    rows = view(given["q"], name="q").shape[0]
    indptr = taken.maybe("qo_indptr", given["qo_indptr"], "i32", (None,))
    if indptr:
        args.qo_indptr, args.qo_indptr_count = indptr.pointer, indptr.shape[0]
    args.total_q = rows if given["total_q"] is None else given["total_q"]
    if not indptr:
        if args.batch < 1 or args.total_q % args.batch:
            raise bad_argument("q", f"{args.total_q} rows for {args.batch} requests",
                               "the same number of rows for each, or qo_indptr")
        args.width = args.total_q // args.batch


def _fill_vectors(args: Any, taken: Taken, kernel: Kernel, given: dict[str, Any]) -> None:
    """q, out and lse."""
    shape, rows = kernel.shape, args.total_q
    rope = given["q_rope"] is not None
    q = taken("q", given["q"], DTYPE_NAMES[shape.q], (rows, shape.heads, shape.head_dim_v if rope else shape.head_dim_qk))
    args.q, args.q_row_stride, args.q_head_stride = q.pointer, q.strides[0], q.strides[1]
    if rope:
        part = taken("q_rope", given["q_rope"], DTYPE_NAMES[shape.q],
                     (rows, shape.heads, shape.head_dim_qk - shape.head_dim_v))
        args.q_rope, args.q_rope_row_stride, args.q_rope_head_stride = part.pointer, part.strides[0], part.strides[1]
    out = taken("out", given["out"], DTYPE_NAMES[shape.out], (rows, shape.heads, shape.head_dim_v))
    args.out, args.out_row_stride, args.out_head_stride = out.pointer, out.strides[0], out.strides[1]
    lse = taken.maybe("lse", given["lse"], "f32", (rows, shape.heads))
    if lse:
        args.lse, args.lse_row_stride = lse.pointer, lse.strides[0]
    args.lse_base_e = log_base(given["lse_base"])


def _fill_kv(args: Any, taken: Taken, kernel: Kernel, given: dict[str, Any]) -> None:
    shape = kernel.shape
    rope = given["kv_rope"] is not None
    width = shape.head_dim_v if rope else RECORD_BYTES if shape.kv == DType.RECORD656 else shape.head_dim_qk
    kv, args.kv_page_stride, args.kv_token_stride, head = taken.pool("kv", given["kv"], shape, width)
    args.kv, args.kv_pages = kv.pointer, kv.shape[0]
    if rope:
        part, args.kv_rope_page_stride, args.kv_rope_token_stride, _ = taken.pool("kv_rope", given["kv_rope"], shape,
                                                                                  shape.head_dim_qk - shape.head_dim_v)
        args.kv_rope = part.pointer
    if shape.attention == Attention.GQA:
        args.kv_head_stride = head
        v, args.v_page_stride, args.v_token_stride, args.v_head_stride = taken.pool("v", given["v"], shape, shape.head_dim_v)
        args.v = v.pointer
        if v.shape[0] < kv.shape[0]:
            raise bad_argument("v", f"{v.shape[0]} pages or slots", f"as many as of K, {kv.shape[0]}")
    elif given["v"] is not None:
        raise bad_argument("v", "an array", "None with MLA: V is part of a token's record")
    args.kv_scale = pointer(taken.maybe("kv_scale", given["kv_scale"], "f32", (1,)))
    args.v_scale = pointer(taken.maybe("v_scale", given["v_scale"], "f32", (1,)))


def _fill_addresses(args: Any, taken: Taken, given: dict[str, Any]) -> None:
    if (given["block_table"] is None) == (given["kv_indptr"] is None):
        raise bad_argument("block_table", "both or none of block_table and kv_indptr", "one of them")
    if given["block_table"] is not None:
        table = taken("block_table", given["block_table"], "i32", (args.batch, None))
        args.addressing = Addressing.BLOCK_TABLE
        args.block_table, args.block_table_stride, args.table_columns = table.pointer, table.strides[0], table.shape[1]
        args.block_table_count = (table.shape[0] - 1) * table.strides[0] + table.shape[1]
        return
    indptr = taken("kv_indptr", given["kv_indptr"], "i32", (None,))
    indices = taken("kv_indices", given["kv_indices"], "i32 i64", (None,))
    args.addressing = Addressing.CSR
    args.kv_indptr, args.kv_indptr_count = indptr.pointer, indptr.shape[0]
    args.kv_indices, args.kv_indices_count, args.index64 = indices.pointer, indices.shape[0], _indices(indices.dtype)
    drafts = taken.maybe("draft_slots", given["draft_slots"], indices.dtype, (None,))
    if drafts:
        args.draft_slots, args.draft_slots_count = drafts.pointer, drafts.shape[0]


def _fill_mask(args: Any, taken: Taken, given: dict[str, Any]) -> None:
    kind, value = Mask(given["mask_kind"]), given["mask"]
    args.mask_kind = kind
    if kind in (Mask.NONE, Mask.STATIC):
        if value is not None:
            raise bad_argument("mask", "an array", f"None with mask_kind {kind.name}")
        return
    if kind == Mask.PARENTS:
        args.mask = taken("mask", value, "i32", (args.total_q,)).pointer
    elif kind == Mask.BITS:
        bits = taken("mask", value, "u32 i32", (args.total_q, None))
        args.mask, args.mask_row_stride = bits.pointer, bits.strides[0]
    elif kind == Mask.BYTES_FULL:
        array = taken("mask", value, "u8 bool", (None,))
        indptr = taken("mask_indptr", given["mask_indptr"], "i64", (args.batch + 1,))
        args.mask, args.mask_size, args.mask_indptr = array.pointer, array.shape[0], indptr.pointer
    else:
        _fill_matrices(args, taken, value, "f32" if kind == Mask.BIAS_F32 else "u8 bool")


def _fill_matrices(args: Any, taken: Taken, value: Any, dtypes: str) -> None:
    """A matrix for each request, or one for all."""
    shared = len(view(value, name="mask").shape) == 2
    width = args.width or None
    array = taken("mask", value, dtypes, (width, width) if shared else (args.batch, width, width))
    args.mask, args.mask_shared, args.mask_row_stride = array.pointer, int(shared), array.strides[-2]
    args.mask_request_stride = 0 if shared else array.strides[0]
    rows, columns = array.shape[-2:]
    matrices = 1 if shared else array.shape[0]
    last = 0 if shared else (matrices - 1) * array.strides[0]
    args.mask_size = (last + (rows - 1) * array.strides[-2] + columns) * (4 if dtypes == "f32" else 1)


def _fill_rest(args: Any, taken: Taken, kernel: Kernel, given: dict[str, Any]) -> None:
    args.softmax_scale = given["softmax_scale"]
    args.soft_cap = given["soft_cap"]
    args.window = given["window"]
    args.positions = pointer(taken.maybe("positions", given["positions"], "i32", (args.total_q,)))
    args.sinks = pointer(taken.maybe("sinks", given["sinks"], "f32", (kernel.shape.heads,)))
    args.overlap_prologue = int(given["overlap_prologue"])
    if given["workspace"] is not None:
        workspace = view(given["workspace"], name="workspace")
        if not workspace.contiguous:
            raise bad_argument("workspace", f"strides of {list(workspace.strides)} elements", "an array without gaps")
        taken.keep.append(workspace)
        args.workspace, args.workspace_size = workspace.pointer, workspace.nbytes
    args.report = pointer(taken.maybe("report", given["report"], "u32 i32", (REPORT_WORDS,)))
