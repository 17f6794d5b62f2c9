"""draftwood as an attention function of transformers, for models with K and V a head (GQA, MHA, MQA): a few tokens after a cache, be
they the next one, a chain or a tree. Imports transformers, of which 5.17 to 5.19 were read.

    register(batch=8, kv_len=32768)
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="draftwood")

Long inputs (prefill), and what else draftwood does not serve, go to transformers' own SDPA.
"""
from __future__ import annotations

from typing import Any, Iterable

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .._abi import Mask
from ..arrays import Array, view
from ..errors import BadArgument, DraftwoodError, DriverError, Frozen, bad_argument
from ..shapes import Shape
from .common import OnDevice, Shadow, VerifyMode, Worker, dtype_name, warn_once, workspace

NAME = "draftwood"


def register(name: str = NAME, *, batch: int = 8, kv_len: int = 32768, widths: Iterable[int] = (1, 8, 32)) -> GroupedAttention:
    """Makes the function known to transformers as an attn_implementation. Kernels are compiled when a model first needs them.

    batch, kv_len  bounds of all calls; widths: most new tokens a request, a kernel each. Raises BadArgument for a $DRAFTWOOD_VERIFY
    that there is not."""
    attention = GroupedAttention(batch, kv_len, tuple(sorted(set(widths))), VerifyMode.of_environment())
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    return attention


class Columns:
    """Of a mask [requests, 1 or heads, rows, tokens], true where a row sees a token: the tokens that a request has at all, in order, and
    what each row sees of the last `rows` of them. Those before are seen by all rows. Made on the device, once for all layers."""

    def __init__(self, mask: Tensor | None, form: tuple[Any, ...]) -> None:
        self.mask, self.form = mask, form
        requests, rows, tokens, device, _ = form
        self.lengths = torch.full((requests,), tokens, dtype=torch.int32, device=device)
        self.order = torch.arange(tokens, device=device).expand(requests, tokens)
        self.bytes: Tensor | None = None
        if mask is None:
            return
        seen = mask[:, 0].expand(requests, rows, tokens)
        there = seen.any(1)
        self.lengths = there.sum(1, dtype=torch.int32)
        self.order = there.logical_not().to(torch.uint8).argsort(dim=1, stable=True)
        last = (self.lengths - rows).clamp_min(0).unsqueeze(1) + torch.arange(rows, device=device)
        drafts = self.order.gather(1, last.long())
        self.bytes = seen.gather(2, drafts.unsqueeze(1).expand(requests, rows, rows)).to(torch.uint8).contiguous()

    def slots(self, stride: int) -> Tensor:
        """Of each request's tokens, where requests are `stride` slots apart."""
        first = torch.arange(len(self.lengths), device=self.order.device).unsqueeze(1) * stride
        return (first + self.order).to(torch.int32).flatten()


def version_of(mask: Tensor | None) -> int | None:
    return 0 if mask is None else None if mask.is_inference() else mask._version


class GroupedAttention:
    """What `register` makes."""

    def __init__(self, batch: int, kv_len: int, widths: tuple[int, ...], mode: VerifyMode) -> None:
        self._batch, self._kv_len, self._widths, self._mode = batch, kv_len, widths, mode
        self._workers: dict[str, Worker] = {}
        self._workspace: Tensor | None = None
        self._columns: Columns | None = None
        self._shadow: Shadow | None = None
        self.calls = 0  # that draftwood served

    def __call__(self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
                 **more: Any) -> tuple[Tensor, None]:
        """query [requests, heads, rows, qk], key and value [requests, KV heads, tokens, ..] -> [requests, rows, heads, v]."""
        if self._mode == VerifyMode.OFF or query.shape[2] > self._widths[-1]:
            return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
        try:
            ours = self._attend(module, query, key, value, attention_mask, more)
        except (DraftwoodError, OSError) as error:
            warn_once("transformers", str(error))
            return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
        if self._mode == VerifyMode.ON:
            return ours, None
        right, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
        self._shadow = self._shadow or Shadow("transformers", query.device)
        self._shadow.compare(ours.flatten(0, 1), right.flatten(0, 1))
        self._shadow.step()
        return right, None

    def _attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, more: dict[str, Any]) -> Tensor:
        _refuse(module, query, key, value, mask, more)
        requests, heads, rows, _ = query.shape
        worker = self._worker(query, key, value)
        columns = self._columns_of(mask, requests, rows, key.shape[2], query.device)
        k, v, stride = _planes(OnDevice.array(key), OnDevice.array(value))
        q = query.transpose(1, 2).reshape(requests * rows, heads, -1)
        out = q.new_empty(requests * rows, heads, value.shape[3])
        starts = torch.arange(requests + 1, dtype=torch.int32, device=query.device) * key.shape[2]
        scale = more.get("scaling")
        kernel, array = worker.kernel(rows), OnDevice.array
        call = kernel.bind(
            q=array(q), out=array(out), kv=k, v=v, kv_len=array(columns.lengths), kv_indptr=array(starts),
            kv_indices=array(columns.slots(stride)), mask=None if columns.bytes is None else array(columns.bytes),
            mask_kind=Mask.NONE if columns.bytes is None else Mask.BYTES_QLEN,
            softmax_scale=query.shape[3]**-0.5 if scale is None else scale, workspace=array(self._workspace[:worker.workspace_size]))
        call.launch(OnDevice.stream())
        self.calls += 1
        return out.view(requests, rows, heads, -1)

    def _worker(self, query: Tensor, key: Tensor, value: Tensor) -> Worker:
        dtype, (_, heads, _, qk) = dtype_name(query.dtype), query.shape
        text = f"gqa:h={heads},hk={key.shape[1]},t={self._widths[-1]},qk={qk},v={value.shape[3]},page=1,q={dtype},kv={dtype},o={dtype}"
        if text not in self._workers:
            shape = Shape.parse(f"{text},target=sm_{OnDevice.target()}")
            worker = Worker(shape, self._widths, batch=self._batch, kv_len=self._kv_len)
            if self._workspace is None or len(self._workspace) < worker.workspace_size:
                self._workspace = workspace(worker.workspace_size, query.device)
            self._workers[text] = worker
        return self._workers[text]

    def _columns_of(self, mask: Tensor | None, requests: int, rows: int, tokens: int, device: Any) -> Columns:
        """The layers of a step have the same mask. One whose writes torch does not count is read for each layer anew."""
        kept, form = self._columns, (requests, rows, tokens, device, version_of(mask))
        if kept is None or kept.mask is not mask or kept.form != form or form[-1] is None:
            self._columns = kept = Columns(mask, form)
        return kept


def _refuse(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, more: dict[str, Any]) -> None:
    if dtype_name(query.dtype) is None or query.dtype != key.dtype or key.dtype != value.dtype:
        raise bad_argument("query", f"{query.dtype} and KV of {key.dtype}", "bfloat16 or float16, both the same")
    if more.get("is_causal") is False or (mask is None and getattr(module, "is_causal", True) is False):
        raise bad_argument("is_causal", "False", "True")
    for name in ("sliding_window", "softcap", "position_bias", "s_aux", "dropout", "cache"):
        value = more.get(name)
        if isinstance(value, Tensor) or value:
            raise bad_argument(name, "given", "none")
    if mask is not None and (mask.dtype != torch.bool or mask.shape[1] != 1):
        raise bad_argument("attention_mask", f"{mask.dtype} {list(mask.shape)}", "bool [requests, 1, rows, tokens]")
    if mask is None and query.shape[2] > 1 and query.shape[2] > key.shape[2]:
        raise bad_argument("query", f"{query.shape[2]} rows for {key.shape[2]} tokens", "as many at most")


def _planes(key: Any, value: Any) -> tuple[Array, Array, int]:
    """[requests, KV heads, tokens, ..] as pools of token slots, and how many slots requests are apart."""
    pools, strides = [], set()
    for name, given in (("key", key), ("value", value)):
        array = view(given, name=name)
        (requests, heads, tokens, width), (request, head, token, element) = array.shape, array.strides
        request = request if requests > 1 else token * tokens
        if element != 1 or token < width or request % token:
            raise bad_argument(name, f"strides of {list(array.strides)} elements",
                               "tokens without gaps, requests a whole number of tokens apart")
        strides.add(request // token)
        slots = (requests - 1) * (request // token) + tokens
        pools.append(Array(array.pointer, (slots, heads, width), (token, head, 1), array.dtype, array.owner))
    if len(strides) > 1:
        raise bad_argument("value", "requests at other distances than in key", "the same in tokens")
    return pools[0], pools[1], strides.pop()
