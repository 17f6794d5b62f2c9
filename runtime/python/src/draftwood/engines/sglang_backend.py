"""SGLang's Triton backend with draftwood's kernels for MLA's TARGET_VERIFY and decode. Imports SGLang, of which 0.5.23 was read.

Both kernels read the same metadata, that of the Triton backend, from whose graph hooks this class inherits; it adds a copy of the
lengths as int32. What draftwood does not serve goes to the Triton kernels.

Under decode context parallelism metadata is this rank's, and a layer returns its log-sum-exp in base 2 beside the attention of all ranks'
heads, as SGLang's models merge them. SGLang's Triton backend has no such path for MLA: there is nothing to fall back on or to compare with.
"""
from __future__ import annotations

from typing import Any

import torch
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from .._abi import Feature, Mask
from ..calls import VerifyCall
from ..errors import BadArgument, DriverError, Frozen, bad_argument
from ..shapes import Shape
from .common import DETERMINISTIC_RANGE, OnDevice, Shadow, VerifyMode, Worker, dtype_name, warn_once, workspace
from .sglang import bind_target_verify, owned_drafts


class DraftwoodAttnBackend(TritonAttnBackend):
    """Made by draftwood.engines.sglang_plugin.create_backend."""

    needs_cpu_seq_lens = False

    def __init__(self, runner: Any, mode: VerifyMode, skip_prefill: bool = False) -> None:
        super().__init__(runner, skip_prefill)
        self._mode = mode
        self._dtype = runner.dtype
        self._soft_cap = float(getattr(runner.model_config.hf_text_config, "attn_logit_softcapping", None) or 0)
        self._worker = self._make_worker(runner)
        self._workspace = workspace(self._worker.workspace_size, self.device)
        self._room_for(self.req_to_token_pool.size)
        self._shadow = Shadow("SGLang", self.device) if mode == VerifyMode.SHADOW else None
        self._calls: dict[tuple[int, int], VerifyCall] = {}
        self._calls_of: Any = None  # the metadata that they were bound to

    @staticmethod
    def why_not(runner: Any) -> str | None:
        """A reason why draftwood cannot serve this model at all."""
        config = runner.model_config
        if config.attention_arch != AttentionArch.MLA:
            return "the model's attention is not MLA"
        if dtype_name(runner.kv_cache_dtype) is None or runner.dtype != runner.kv_cache_dtype:
            return f"KV of type {runner.kv_cache_dtype} for a model of type {runner.dtype}"
        return None

    def _width(self) -> int:
        """Most rows of a request in a verify step; 1 without speculation."""
        return max(self.target_verify_num_tokens_per_req or 0, self.num_draft_tokens or 0, 1)

    def _make_worker(self, runner: Any) -> Worker:
        config, dtype = runner.model_config, dtype_name(runner.dtype)
        width = self._width()
        shape = Shape.parse(f"mla:h={self.num_head},t={width},qk={config.kv_lora_rank + config.qk_rope_head_dim},"
                            f"v={config.kv_lora_rank},page=1,q={dtype},kv={dtype},o={dtype},target=sm_{OnDevice.target()}")
        features = Feature.SOFT_CAP if self._soft_cap else Feature(0)
        return Worker(shape, (1, width), batch=self.req_to_token_pool.size, kv_len=self.max_context_len + width,
                      features=features, split_tokens=DETERMINISTIC_RANGE if self.enable_deterministic else 0)

    # ---- metadata ---------------------------------------------------------------------------------------------

    def init_forward_metadata(self, forward_batch: Any) -> None:
        super().init_forward_metadata(forward_batch)
        self._copy_lengths(forward_batch)
        self._count_step()

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        super().init_forward_metadata_out_graph(forward_batch, in_capture)
        self._copy_lengths(forward_batch)
        if not in_capture:
            self._count_step()

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int, *rest: Any, **more: Any) -> None:
        super().init_cuda_graph_state(max_bs, max_num_tokens, *rest, **more)
        if max_bs > self._lengths.shape[0]:
            self._room_for(max_bs)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def _room_for(self, batch: int) -> None:
        """Where graphs find what this class adds to the metadata."""
        self._lengths = torch.zeros(batch, dtype=torch.int32, device=self.device)
        if self.dcp_size > 1:
            drafts = self._width()
            self._draft_rows = torch.zeros(batch * drafts, dtype=torch.int64, device=self.device)
            self._draft_mask = torch.zeros(batch * drafts * drafts, dtype=torch.bool, device=self.device)

    def _copy_lengths(self, forward_batch: Any) -> None:
        mode = forward_batch.forward_mode
        if mode.is_target_verify() or mode.is_decode():
            lengths = self._dcp_lens(forward_batch.seq_lens[:self._lengths.shape[0]])
            self._lengths[:lengths.shape[0]].copy_(lengths)
        if mode.is_target_verify() and self.dcp_size > 1:
            self._copy_drafts(forward_batch)

    def _copy_drafts(self, forward_batch: Any) -> None:
        slots, batch = forward_batch.out_cache_loc, forward_batch.batch_size
        rows, mask = owned_drafts(slots, self._sees(forward_batch.seq_lens[:batch], slots.shape[0] // batch), self.dcp_rank, self.dcp_size)
        self._draft_rows[:rows.numel()].copy_(rows)
        self._draft_mask[:mask.numel()].copy_(mask.flatten())

    def _sees(self, prefix: Any, width: int) -> Any:
        """The drafts that each row sees: the chain, or custom_mask without its prefix, [batch, width, width]."""
        custom_mask, node = self.forward_metadata.custom_mask, torch.arange(width, device=self.device)
        if custom_mask is None:
            return node <= node.unsqueeze(1)
        tokens = (prefix + width).view(-1, 1, 1)
        first = self.forward_metadata.mask_indptr[:len(prefix)].view(-1, 1, 1)
        return custom_mask[first + node.unsqueeze(1) * tokens + (tokens - width) + node].bool()

    def _fill_kv_indptr_and_indices(self, plan: Any, bs: int, seq_lens: Any, req_pool_indices: Any, kv_indices: Any,
                                    kv_indptr: Any = None) -> Any:
        """Of this rank's tokens under decode context parallelism, where the base has a verify step's whole prefixes."""
        if self.dcp_size == 1:
            return super()._fill_kv_indptr_and_indices(plan, bs, seq_lens, req_pool_indices, kv_indices, kv_indptr)
        kv_indptr = self.kv_indptr if kv_indptr is None else kv_indptr
        return self._dcp_kv_indices(req_pool_indices[:bs], seq_lens[:bs], kv_indptr, kv_indices)[0]

    def _count_step(self) -> None:
        if self._shadow:
            self._shadow.step()

    # ---- attention --------------------------------------------------------------------------------------------

    def forward_extend(self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **more: Any) -> Any:
        if not forward_batch.forward_mode.is_target_verify():
            if self.dcp_size > 1:
                raise NotImplementedError("draftwood: prefill under decode context parallelism, which SGLang's Triton backend does not "
                                          "serve for MLA; name another --prefill-attention-backend")
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache, **more)
        return self._forward(super().forward_extend, q, k, v, layer, forward_batch, save_kv_cache, more)

    def forward_decode(self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **more: Any) -> Any:
        return self._forward(super().forward_decode, q, k, v, layer, forward_batch, save_kv_cache, more)

    def _forward(self, triton: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool,
                 more: dict[str, Any]) -> Any:
        if self.dcp_size > 1:
            return self._forward_rank(q, k, layer, forward_batch, save_kv_cache, **more)
        reason = self._why_not_this(q, layer, more)
        if reason is None and self._mode == VerifyMode.ON:
            if save_kv_cache and k is not None:
                self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc.for_batch(forward_batch), k, v)
                save_kv_cache = False
            try:
                return self._attend(q, layer, forward_batch, getattr(forward_batch, "_attn_output", None))
            except (BadArgument, DriverError, Frozen) as error:
                reason = str(error)
        right = triton(q, k, v, layer, forward_batch, save_kv_cache, **more)
        if reason is not None:
            warn_once("SGLang", reason)
        elif self._shadow:
            self._compare(q, layer, forward_batch, right)
        return right

    def _forward_rank(self, q: Any, k: Any, layer: Any, forward_batch: Any, save_kv_cache: bool, q_rope: Any = None, k_rope: Any = None,
                      **more: Any) -> tuple[Any, Any]:
        """This rank's part under decode context parallelism: q of all ranks' heads -> ([rows, heads x v], log-sum-exp [rows, heads] in
        base 2). q and k with their rotary parts or apart from them."""
        heads = layer.tp_q_head_num
        if q_rope is not None:
            q = torch.cat([q.view(-1, heads, layer.v_head_dim), q_rope.view(-1, heads, layer.qk_head_dim - layer.v_head_dim)], -1)
        reason = self._why_not_this(q, layer, more)
        if reason is not None:
            raise NotImplementedError(f"draftwood under decode context parallelism: {reason}")
        if save_kv_cache and k is not None:
            latent, rope = (k, k_rope) if k_rope is not None else k.split([layer.v_head_dim, layer.qk_head_dim - layer.v_head_dim], -1)
            self.token_to_kv_pool.set_mla_kv_buffer(layer, KVWriteLoc.for_batch(forward_batch), latent, rope)
        lse = q.new_empty((q.shape[0], heads), dtype=torch.float32)
        return self._attend(q, layer, forward_batch, lse=lse), lse

    def _compare(self, q: Any, layer: Any, forward_batch: Any, right: Any) -> None:
        try:
            ours = self._attend(q, layer, forward_batch)
        except (BadArgument, DriverError, Frozen) as error:
            warn_once("SGLang", str(error))
            return
        shape = (q.shape[0], layer.tp_q_head_num, layer.v_head_dim)
        self._shadow.compare(ours.view(shape), right.view(shape))

    def _why_not_this(self, q: Any, layer: Any, more: dict[str, Any]) -> str | None:
        shape = self._worker.kernel(1).shape
        if (layer.qk_head_dim, layer.v_head_dim) != (shape.head_dim_qk, shape.head_dim_v) or layer.tp_q_head_num != shape.heads:
            return f"{layer.tp_q_head_num} heads of {layer.qk_head_dim} and {layer.v_head_dim} elements"
        if q.dtype != self._dtype:
            return f"q of type {q.dtype}"
        if layer.k_scale is not None or (layer.sliding_window_size or -1) > -1 or (layer.xai_temperature_len or 0) > 0:
            return "a layer with KV scales, a sliding window or a temperature by length"
        if layer.logit_cap not in (0, self._soft_cap):
            return f"a soft cap of {layer.logit_cap}"
        given = [name for name, value in more.items() if value is not None]
        return f"{', '.join(given)} given" if given else None

    def _attend(self, q: Any, layer: Any, forward_batch: Any, out: Any = None, lse: Any = None) -> Any:
        """The layer's attention, [rows, heads x v]; KV of the step is in the pool."""
        rows = q.shape[0]
        if out is None:
            out = q.new_empty(rows, layer.tp_q_head_num * layer.v_head_dim)
        q = q.reshape(rows, layer.tp_q_head_num, layer.qk_head_dim)
        heads = out.view(rows, layer.tp_q_head_num, layer.v_head_dim)
        pool = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        call = self._call({"q": q, "out": heads, "kv": pool} | ({} if lse is None else {"lse": lse}), layer, forward_batch)
        call.launch(OnDevice.stream())
        return out

    def _call(self, tensors: dict[str, Any], layer: Any, forward_batch: Any) -> VerifyCall:
        """Bound once a step and pointed at each layer's arrays."""
        metadata, arrays = self.forward_metadata, {name: OnDevice.array(tensor) for name, tensor in tensors.items()}
        if self._calls_of is not metadata:
            self._calls.clear()
            self._calls_of = metadata
        key = (tensors["q"].shape[0], layer.scaling)
        call = self._calls.get(key)
        if call is None or not call.repoint(**arrays):
            call = self._calls[key] = self._bind(arrays, layer, forward_batch)
        return call

    def _bind(self, arrays: dict[str, Any], layer: Any, forward_batch: Any) -> VerifyCall:
        metadata, array = self.forward_metadata, OnDevice.array
        batch, rows = forward_batch.batch_size, arrays["q"].shape[0]
        pool = arrays.pop("kv")
        common = {**arrays, "softmax_scale": layer.scaling, "workspace": array(self._workspace),
                  "kv_indptr": array(metadata.kv_indptr[:batch + 1]), "kv_indices": array(metadata.kv_indices)}
        lengths = array(self._lengths[:batch])
        if forward_batch.forward_mode.is_decode():
            kernel = self._worker.kernel(1)
            return kernel.bind(kv=pool, kv_len=lengths, mask_kind=Mask.NONE, soft_cap=layer.logit_cap, batch=batch,
                               total_q=batch, **common)
        width = rows // batch
        kernel = self._worker.kernel(width)
        if kernel is None:
            raise bad_argument("num_draft_tokens", width, f"1 to {self._width()}")
        if self.dcp_size > 1:
            mask = self._draft_mask[:rows * width].view(batch, width, width)
            drafts = {"out_cache_loc": array(self._draft_rows[:rows]), "draft_mask": array(mask)}
        else:
            drafts = {"out_cache_loc": array(forward_batch.out_cache_loc)}
            if metadata.custom_mask is not None:
                drafts |= {"custom_mask": array(metadata.custom_mask), "mask_indptr": array(metadata.mask_indptr[:batch + 1])}
        return bind_target_verify(kernel, kv_buffer=pool, seq_lens=lengths, num_draft_tokens=width, logit_cap=layer.logit_cap, **drafts,
                                  **common)
