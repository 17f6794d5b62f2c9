"""vLLM's Triton backend for MLA with draftwood's kernels for its decode batches. Imports vLLM, of which 0.33.0 was read.

Metadata, prefill and graphs are the Triton backend's, from which these classes inherit; what draftwood does not serve goes to its
kernels. vLLM 0.33 verifies chains alone with MLA; trees: draftwood.engines.vllm.bind_decode.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import vllm.envs as envs
from vllm.model_executor.layers.attention.mla_attention import MLACommonDecodeMetadata
from vllm.v1.attention.backends.mla.triton_mla import TritonMLABackend, TritonMLAImpl, TritonMLAMetadataBuilder

from .._abi import CallKind, Feature
from ..calls import VerifyCall
from ..errors import BadArgument, DraftwoodError, DriverError, Frozen, bad_argument
from ..shapes import Shape
from .common import DETERMINISTIC_RANGE, OnDevice, Shadow, VerifyMode, Worker, dtype_name, warn_once, workspace
from .vllm import bind_decode


class Serving:
    """What layers of one form share: kernels, workspace, the switch. One a process and form."""

    _made: ClassVar[dict[tuple[Any, ...], Serving]] = {}

    def __init__(self, shape: str, width: int, mode: VerifyMode, device: Any, **bounds: Any) -> None:
        self.worker = Worker(Shape.parse(shape), (1, width), **bounds)
        self.workspace = workspace(self.worker.workspace_size, device)
        self.shadow = Shadow("vLLM", device) if mode == VerifyMode.SHADOW else None

    @classmethod
    def of_builder(cls, builder: Any) -> Serving | None:
        """None, with a warning unless it was wished: the Triton kernels serve. Raises BadArgument for a $DRAFTWOOD_VERIFY that there
        is not."""
        mode = VerifyMode.of_environment()
        if mode == VerifyMode.OFF:
            return None
        try:
            return cls._of_builder(builder, mode)
        except (DraftwoodError, OSError) as error:
            warn_once("vLLM", str(error))
            return None

    @classmethod
    def _of_builder(cls, builder: Any, mode: VerifyMode) -> Serving:
        config, dims, ranks = builder.vllm_config, builder.mla_dims, builder.dcp_world_size
        cache, width = builder.kv_cache_spec.dtype, builder.reorder_batch_threshold
        dtype = dtype_name(cache)
        if dtype is None or cache != builder.model_config.dtype:
            raise bad_argument("kv_cache_dtype", cache, "the model's own, bfloat16 or float16")
        shape = (f"mla:h={builder.num_heads * ranks},t={width},qk={dims.kv_lora_rank + dims.qk_rope_head_dim},v={dims.kv_lora_rank},"
                 f"page={builder.page_size},q={dtype},kv={dtype},o={dtype},target=sm_{OnDevice.target()}")
        bounds = {"batch": config.scheduler_config.max_num_seqs, "kv_len": config.model_config.max_model_len + width,
                  "features": Feature.Q_ROPE if ranks == 1 else Feature(0),
                  "call": CallKind.ANY if ranks > 1 or envs.VLLM_BATCH_INVARIANT else CallKind.TABLE,
                  "split_tokens": DETERMINISTIC_RANGE if envs.VLLM_BATCH_INVARIANT else 0}
        key = (shape, mode, str(builder.device), *bounds.values())
        if key not in cls._made:
            cls._made[key] = cls(shape, width, mode, builder.device, **bounds)
        return cls._made[key]


@dataclass
class DraftwoodDecodeMetadata(MLACommonDecodeMetadata):
    """serving None: the Triton kernels alone. calls: bound at the step's first layer, pointed at the arrays of the others."""

    serving: Serving | None = None
    calls: dict[Any, VerifyCall] = field(default_factory=dict)


class DraftwoodMLAMetadataBuilder(TritonMLAMetadataBuilder):
    """Graphs of uniform batches, as its base."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._serving = Serving.of_builder(self)

    def _build_decode(self, *given: Any, **more: Any) -> DraftwoodDecodeMetadata:
        base = super()._build_decode(*given, **more)
        if self._serving and self._serving.shadow:
            self._serving.shadow.step()
        return DraftwoodDecodeMetadata(base.block_table, base.seq_lens, base.dcp_tot_seq_lens, self._serving)


class DraftwoodMLAImpl(TritonMLAImpl):
    """The attention of a decode batch: [rows, heads, latent], and its log-sum-exp (base e) where ranks are merged."""

    def forward_mqa(self, q: Any, kv_c_and_k_pe_cache: Any, attn_metadata: Any, layer: Any) -> tuple[Any, Any]:
        serving = attn_metadata.decode.serving
        if serving is None:
            return super().forward_mqa(q, kv_c_and_k_pe_cache, attn_metadata, layer)
        try:
            ours = self._attend(serving, q, kv_c_and_k_pe_cache, attn_metadata)
        except (BadArgument, DriverError, Frozen) as error:
            warn_once("vLLM", str(error))
            return super().forward_mqa(q, kv_c_and_k_pe_cache, attn_metadata, layer)
        if serving.shadow is None:
            return ours
        right = super().forward_mqa(q, kv_c_and_k_pe_cache, attn_metadata, layer)
        serving.shadow.compare(ours[0], right[0])
        return right

    def _attend(self, serving: Serving, q: Any, cache: Any, metadata: Any) -> tuple[Any, Any]:
        first, rope = q if isinstance(q, tuple) else (q, None)
        out = first.new_empty(*first.shape[:2], self.kv_lora_rank)
        lse = first.new_empty(first.shape[:2], dtype=torch.float32) if self.dcp_world_size > 1 else None
        call = self._call(serving, first, rope, out, lse, cache, metadata)
        call.launch(OnDevice.stream())
        return out, lse

    def _call(self, serving: Serving, q: Any, rope: Any, out: Any, lse: Any, cache: Any, metadata: Any) -> VerifyCall:
        array, decode = OnDevice.array, metadata.decode
        arrays = {"q": q, "q_rope": rope, "out": out, "lse": lse}
        arrays = {name: array(tensor) for name, tensor in arrays.items() if tensor is not None}
        call = decode.calls.get(self.scale)
        if call is None or not call.repoint(kv=array(cache), **arrays):
            call = decode.calls[self.scale] = self._bind(serving, arrays, cache, metadata)
        return call

    def _bind(self, serving: Serving, arrays: dict[str, Any], cache: Any, metadata: Any) -> VerifyCall:
        array, decode = OnDevice.array, metadata.decode
        requests, rows = decode.seq_lens.shape[0], arrays["q"].shape[0]
        width, rest = divmod(rows, requests)
        kernel = serving.worker.kernel(width)
        if rest or kernel is None:
            raise bad_argument("rows of a decode batch", f"{rows} for {requests} requests",
                               f"the same for each, {serving.worker.widths[-1]} at most")
        if not metadata.causal and width > 1:
            raise bad_argument("causal", "False", "True, but for one row a request")
        return bind_decode(kernel, kv_cache=array(cache), block_table=array(decode.block_table), seq_lens=array(decode.seq_lens),
                           softmax_scale=self.scale, workspace=array(serving.workspace), other_ranks=self.dcp_world_size > 1, **arrays)


class DraftwoodMLABackend(TritonMLABackend):
    """`--attention-backend CUSTOM`."""

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[DraftwoodMLAImpl]:
        return DraftwoodMLAImpl

    @staticmethod
    def get_builder_cls() -> type[DraftwoodMLAMetadataBuilder]:
        return DraftwoodMLAMetadataBuilder
