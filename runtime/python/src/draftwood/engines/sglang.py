"""SGLang's metadata of a TARGET_VERIFY step, as its Triton backend lays it out, bound to a kernel. SGLang is not imported.

A verify step of SGLang: every request has `num_draft_tokens` rows, a chain or a tree. kv_indptr and kv_indices name the token slots of
the prefixes alone; the drafts' KV was written to out_cache_loc before. custom_mask has, for each request, a row of prefix + drafts
bytes for each draft; mask_indptr counts its elements. In a graph, requests are padded up to the captured batch: with a length of 1 and
slots that nobody else uses; mask bytes of those are whatever an earlier step left, and their rows of out mean nothing.

Under decode context parallelism a token is on the rank that its slot modulo the ranks says, there in row slot // ranks of the pool. Each
rank has the q of all ranks' heads, sees its own tokens, and SGLang merges the results by their log-sum-exp in base 2.
"""
from __future__ import annotations

from typing import Any

from .._abi import Attention, Mask
from ..arrays import Array, view
from ..calls import VerifyCall
from ..context import Kernel
from ..errors import bad_argument


def _heads_apart(name: str, value: Any, heads: int, width: int) -> Array:
    """[rows, heads x width] or [rows, heads, width] as the latter."""
    array = view(value, name=name)
    if len(array.shape) == 3:
        return array
    if len(array.shape) != 2 or array.shape[1] != heads * width or (array.shape[1] > 1 and array.strides[1] != 1):
        raise bad_argument(name, f"a shape of {list(array.shape)} with strides of {list(array.strides)} elements",
                           f"[rows, {heads}, {width}] or [rows, {heads * width}] without gaps in a row")
    return Array(array.pointer, (array.shape[0], heads, width), (array.strides[0], width, 1), array.dtype, array.owner)


def _check_kernel(kernel: Kernel, num_draft_tokens: int) -> None:
    shape = kernel.shape
    if shape.attention != Attention.MLA or shape.page != 1:
        raise bad_argument("kernel", str(shape), "one for MLA with page=1: the metadata names token slots")
    if not 1 <= num_draft_tokens <= shape.width:
        raise bad_argument("num_draft_tokens", num_draft_tokens, f"1 to the kernel's {shape.width}")


def owned_drafts(slots: Any, sees: Any, rank: int, ranks: int) -> tuple[Any, Any]:
    """A rank's part of a verify step under decode context parallelism, of torch's or NumPy's arrays: rows of its pool for out_cache_loc,
    and draft_mask.

    slots  [batch x drafts] as all ranks have them
    sees   bool [drafts, drafts] or [batch, drafts, drafts]: the tree or chain
    """
    drafts = sees.shape[-1]
    return slots // ranks, sees & (slots % ranks == rank).reshape(-1, 1, drafts)


def bind_target_verify(kernel: Kernel, *, q: Any, kv_buffer: Any, out: Any, kv_indptr: Any, kv_indices: Any, seq_lens: Any,
                       out_cache_loc: Any, num_draft_tokens: int, softmax_scale: float, workspace: Any,
                       custom_mask: Any = None, mask_indptr: Any = None, draft_mask: Any = None, qo_indptr: Any = None,
                       logit_cap: float = 0.0, lse: Any = None, lse_base: Any = 2, overlap_prologue: bool = False, report: Any = None) -> VerifyCall:
    """A layer's call. All arrays are on the device; contents may change between launches and graph replays.

    q              [rows, heads, 576] or [rows, heads x 576]: latent and rope concatenated; rows = batch x num_draft_tokens
    kv_buffer      the layer's pool [slots, 1, 576 or more]
    out            [rows, heads, 512] or [rows, heads x 512]
    kv_indptr      i32 [batch + 1]; its length says the batch
    kv_indices     i64 or i32 slots of the prefixes; may be longer, as a graph's buffer is
    seq_lens       i32 [batch or more]: prefix lengths, without the drafts. Where SGLang has i64: a copy of the graph's own
    out_cache_loc  slots of the drafts, of the type of kv_indices [rows or more]
    custom_mask    bool or u8, with mask_indptr i64 [batch + 1]; None: a chain
    draft_mask     bool or u8 [batch, num_draft_tokens, num_draft_tokens] in place of both: whether a row sees a draft. For a rank of
                   several, see owned_drafts; kv_indptr, kv_indices, seq_lens and out_cache_loc are then the rank's, too
    qo_indptr      i32 [batch + 1] or None. Graphs of SGLang keep it as i64: then, too, it is num_draft_tokens for each request and
                   is not read
    logit_cap      0: none; needs Feature.SOFT_CAP in the kernel's bounds
    lse            f32 [rows, heads], lse_base 2 (as SGLang merges under decode context parallel) or "e"

    The prefix's bytes of custom_mask are not read: TARGET_VERIFY sees all of it. Raises BadArgument.
    """
    _check_kernel(kernel, num_draft_tokens)
    shape = kernel.shape
    batch = view(kv_indptr, name="kv_indptr").shape[0] - 1
    if batch < 1:
        raise bad_argument("kv_indptr", f"{batch + 1} entries", "batch + 1, 2 or more")
    if custom_mask is not None and mask_indptr is None:
        raise bad_argument("mask_indptr", "None", "i64 [batch + 1] with a custom_mask")
    if custom_mask is not None and draft_mask is not None:
        raise bad_argument("draft_mask", "given with a custom_mask", "one of them")
    lengths = view(seq_lens, name="seq_lens")
    if lengths.dtype != "i32":
        raise bad_argument("seq_lens", f"elements of type {lengths.dtype}", "i32, e.g. a copy of seq_lens as int32")
    rows = None if qo_indptr is None or view(qo_indptr, name="qo_indptr").dtype == "i64" else qo_indptr
    return kernel.bind(
        q=_heads_apart("q", q, shape.heads, shape.head_dim_qk), out=_heads_apart("out", out, shape.heads, shape.head_dim_v),
        kv=kv_buffer, kv_len=lengths, lengths="prefix", kv_indptr=kv_indptr, kv_indices=kv_indices, draft_slots=out_cache_loc,
        qo_indptr=rows, batch=batch, total_q=batch * num_draft_tokens,
        mask=custom_mask if draft_mask is None else draft_mask,
        mask_kind=Mask.BYTES_QLEN if draft_mask is not None else Mask.NONE if custom_mask is None else Mask.BYTES_FULL,
        mask_indptr=None if custom_mask is None else mask_indptr, softmax_scale=softmax_scale, soft_cap=logit_cap, lse=lse,
        lse_base=lse_base, workspace=workspace, overlap_prologue=overlap_prologue, report=report)
