#!/usr/bin/env python3
"""Records the metadata that vLLM's MLA builder makes for decode batches, on a machine without a GPU.

usage: record_vllm.py OUT.json

Opt-in; docs/vllm.md says which packages it needs. vLLM's plug-in loader finds draftwood by its entry point, its registry gives the
backend, the backend's own builder makes the metadata, and forward_mqa of the backend and of vLLM's Triton backend, in Triton's
interpreter, take it; draftwood's kernels run on the software GPU that DRAFTWOOD_DRIVER names. Both results have to agree, row by row,
before a batch is written down. What vLLM reads of its configuration is stated here as plain values: without a GPU there is no model
runner to make one.
"""
import json
import os
import sys
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else vLLM puts Triton aside where there is no GPU
os.environ["DRAFTWOOD_VERIFY"] = "on"

import torch
import vllm
from support import on_the_software_gpu
from vllm.config import set_current_vllm_config
from vllm.platforms import current_platform
from vllm.plugins import load_general_plugins
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.attention.backends.mla.triton_mla import TritonMLAImpl
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from draftwood.engines import vllm_backend

HEADS, LATENT, ROPE, PAGE, MODEL_LEN, REQUESTS = 2, 512, 64, 16, 128, 8
SCALE = 192**-0.5
BOUND = 4e-3


def config_for(width):
    """What the builder and the attention read."""
    layer = SimpleNamespace(q_lora_rank=None, kv_lora_rank=LATENT, qk_nope_head_dim=128, qk_rope_head_dim=ROPE, v_head_dim=128,
                            prefill_backend=SimpleNamespace(clone=lambda: None))
    model = SimpleNamespace(dtype=torch.float16, max_model_len=MODEL_LEN, get_num_attention_heads=lambda _: HEADS,
                            get_head_size=lambda: LATENT + ROPE)
    speculative = SimpleNamespace(num_speculative_tokens=width - 1, parallel_drafting=False, method="eagle") if width > 1 else None
    return SimpleNamespace(
        model_config=model, cache_config=SimpleNamespace(cache_dtype="auto", block_size=PAGE),
        parallel_config=SimpleNamespace(prefill_context_parallel_size=1, decode_context_parallel_size=1, cp_kv_cache_interleave_size=1),
        scheduler_config=SimpleNamespace(max_num_seqs=REQUESTS, max_num_batched_tokens=MODEL_LEN),
        compilation_config=SimpleNamespace(static_forward_context={"layer": layer}, cudagraph_mode=None), speculative_config=speculative,
        attention_config=SimpleNamespace(use_prefill_query_quantization=False), use_v2_model_runner=True)


class Engine:
    """Builder and attention of the backend for verify batches of a width, and a cache with a table for every request."""

    def __init__(self, width):
        self.random, self.width = torch.Generator().manual_seed(width), width
        backend = AttentionBackendEnum.CUSTOM.get_class()
        assert backend is vllm_backend.DraftwoodMLABackend, backend
        config = config_for(width)
        with set_current_vllm_config(config):
            spec = SimpleNamespace(block_size=PAGE, dtype=torch.float16)
            self.builder = backend.get_builder_cls()(spec, ["layer"], config, torch.device("cpu"))
            self.impl = backend.get_impl_cls()(
                HEADS, LATENT + ROPE, SCALE, 1, None, None, "auto", None, "decoder", None, q_lora_rank=None, kv_lora_rank=LATENT,
                qk_nope_head_dim=128, qk_rope_head_dim=ROPE, qk_head_dim=192, v_head_dim=128, kv_b_proj=None)
        assert self.builder._serving, "vLLM's kernels would run in place of ours"
        assert self.builder.get_cudagraph_support(config, spec) == AttentionCGSupport.UNIFORM_BATCH
        columns = MODEL_LEN // PAGE
        self.table = (1 + torch.randperm(REQUESTS * columns, generator=self.random)).int().view(REQUESTS, columns)
        self.cache = torch.randn(1 + self.table.numel(), PAGE, LATENT + ROPE, generator=self.random).to(torch.float16)

    def batch(self, name, lengths, padded=0):
        """lengths: tokens of each request, drafts included. padded: requests of the graph, of which the others have length 0 and no rows."""
        requests, width = padded or len(lengths), self.width
        rows = [width] * len(lengths) + [0] * (requests - len(lengths))
        lengths = [*lengths, *[0] * (requests - len(lengths))]
        starts = torch.tensor([0, *torch.tensor(rows).cumsum(0).tolist()], dtype=torch.int32)
        total = requests * width if padded else sum(rows)
        common = CommonAttentionMetadata(
            query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=torch.tensor(lengths, dtype=torch.int32), num_reqs=len(rows),
            num_actual_tokens=total, max_query_len=max(rows), max_seq_len=max(lengths), block_table_tensor=self.table[:len(rows)],
            slot_mapping=torch.zeros(total, dtype=torch.int64), seq_lens_cpu_upper_bound=torch.tensor(lengths, dtype=torch.int32))
        build = self.builder.build_for_cudagraph_capture if padded else lambda common: self.builder.build(0, common)
        metadata = build(common)
        assert metadata.num_decodes == requests, (name, metadata.num_decodes)
        return self.record(name, metadata, sum(n > 0 for n in lengths))

    def record(self, name, metadata, live):
        decode, rows = metadata.decode, metadata.num_decode_tokens
        q = torch.randn(rows, HEADS, LATENT + ROPE, generator=self.random).to(torch.float16)
        layer = SimpleNamespace(_k_scale=torch.ones(1), _q_scale=torch.ones(1))
        theirs, _ = TritonMLAImpl.forward_mqa(self.impl, q, self.cache, metadata, layer)
        worst = 0.0
        for given in (q, (q[..., :LATENT].contiguous(), q[..., LATENT:])):
            decode.calls.clear()
            ours, lse = self.impl.forward_mqa(given, self.cache, metadata, layer)
            assert decode.calls, "vLLM's kernel ran in place of ours"
            assert lse is None and ours[live * self.width:].eq(0).all()
            a, b = (result[:live * self.width].float() for result in (ours, theirs))
            worst = max(worst, ((a - b).norm(dim=-1) / b.norm(dim=-1)).max().item())
        assert worst <= BOUND, (name, worst)
        print(f"{name}: {decode.seq_lens.shape[0]} requests, {live} live, {rows} rows; ours from vLLM's {worst:.1e}")
        return {"name": name, "requests": decode.seq_lens.shape[0], "live": live, "width": self.width, "rows": rows, "page": PAGE,
                "pages": self.cache.shape[0], "seq_lens": decode.seq_lens.tolist(), "block_table": decode.block_table.tolist()}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    on_the_software_gpu()
    # There is no platform without a GPU: what Triton's backend asks of it.
    type(current_platform).num_compute_units = classmethod(lambda *_: 8)
    load_general_plugins()
    rows = []
    for width in (1, 4, 9):
        engine = Engine(width)
        lengths = [int(n) for n in torch.randint(width, MODEL_LEN, (REQUESTS,), generator=engine.random)]
        kind = "decode" if width == 1 else f"chain of {width}"
        rows.append(engine.batch(f"{kind}, batch 1", lengths[:1]))
        rows.append(engine.batch(f"{kind}, batch 8", lengths))
        rows.append(engine.batch(f"{kind}, batch 8, captured", lengths, padded=8))
        rows.append(engine.batch(f"{kind}, 5 live in a graph for 8", lengths[:5], padded=8))
        rows.append(engine.batch(f"{kind}, first token", [width, *lengths[:2]]))
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(f'{{"vllm": "{vllm.__version__}", "batches": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]}\n")


if __name__ == "__main__":
    main()
