#!/usr/bin/env python3
"""Records the metadata that vLLM's MLA builder makes for decode batches, on a machine without a GPU.

usage: record_vllm.py OUT.json

Opt-in: .ci/engines runs it. vLLM's plug-in loader finds draftwood by its entry point, its registry gives the
backend, the backend's own builder makes the metadata, and forward_mqa of the backend and of vLLM's Triton backend, in Triton's
interpreter, take it; draftwood's kernels run on the software GPU that DRAFTWOOD_DRIVER names. Both results have to agree, row by row,
before a batch is written down. The switch, the fallback and a rank of several are checked on the way. What vLLM reads of its
configuration is stated here as plain values: without a GPU there is no model runner to make one.
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
from draftwood.engines.common import Shadow

HEADS, LATENT, ROPE, PAGE, MODEL_LEN, REQUESTS = 2, 512, 64, 16, 128, 8
SCALE = 192**-0.5
BOUND = 4e-3
LAYER = SimpleNamespace(_k_scale=torch.ones(1), _q_scale=torch.ones(1))


def apart(found, right):
    found, right = found.float(), right.float()
    return ((found - right).norm(dim=-1) / right.norm(dim=-1)).max().item()


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

    def batch(self, lengths, padded=0, local=None):
        """lengths: tokens of each request, drafts included; local: those of this rank. padded: requests of the graph, of which the others
        have length 0 and no rows."""
        requests, width = padded or len(lengths), self.width
        rows = [width] * len(lengths) + [0] * (requests - len(lengths))
        lengths = [*lengths, *[0] * (requests - len(lengths))]
        starts = torch.tensor([0, *torch.tensor(rows).cumsum(0).tolist()], dtype=torch.int32)
        total = requests * width if padded else sum(rows)
        common = CommonAttentionMetadata(
            query_start_loc=starts, query_start_loc_cpu=starts, seq_lens=torch.tensor(lengths, dtype=torch.int32), num_reqs=len(rows),
            num_actual_tokens=total, max_query_len=max(rows), max_seq_len=max(lengths), block_table_tensor=self.table[:len(rows)],
            slot_mapping=torch.zeros(total, dtype=torch.int64), seq_lens_cpu_upper_bound=torch.tensor(lengths, dtype=torch.int32),
            dcp_local_seq_lens=None if local is None else torch.tensor(local, dtype=torch.int32))
        build = self.builder.build_for_cudagraph_capture if padded else lambda common: self.builder.build(0, common)
        metadata = build(common)
        assert metadata.num_decodes == requests, metadata.num_decodes
        return metadata

    def recorded(self, name, lengths, padded=0):
        return self.record(name, self.batch(lengths, padded), len(lengths))

    def both(self, metadata, heads=HEADS):
        """Results of vLLM's kernel and of what the backend gives, with their log-sum-exp where there is one."""
        q = torch.randn(metadata.num_decode_tokens, heads, LATENT + ROPE, generator=self.random).to(torch.float16)
        return TritonMLAImpl.forward_mqa(self.impl, q, self.cache, metadata, LAYER), self.impl.forward_mqa(q, self.cache, metadata, LAYER)

    def record(self, name, metadata, live):
        decode, rows = metadata.decode, metadata.num_decode_tokens
        q = torch.randn(rows, HEADS, LATENT + ROPE, generator=self.random).to(torch.float16)
        theirs, _ = TritonMLAImpl.forward_mqa(self.impl, q, self.cache, metadata, LAYER)
        worst = 0.0
        for given in (q, (q[..., :LATENT].contiguous(), q[..., LATENT:])):
            decode.calls.clear()
            ours, lse = self.impl.forward_mqa(given, self.cache, metadata, LAYER)
            assert decode.calls, "vLLM's kernel ran in place of ours"
            assert lse is None and ours[live * self.width:].eq(0).all()
            a, b = (result[:live * self.width].float() for result in (ours, theirs))
            worst = max(worst, apart(a, b))
        assert worst <= BOUND, (name, worst)
        print(f"{name}: {decode.seq_lens.shape[0]} requests, {live} live, {rows} rows; ours from vLLM's {worst:.1e}")
        return {"name": name, "requests": decode.seq_lens.shape[0], "live": live, "width": self.width, "rows": rows, "page": PAGE,
                "pages": self.cache.shape[0], "seq_lens": decode.seq_lens.tolist(), "block_table": decode.block_table.tolist()}


def checks():
    """What is not recorded."""
    engine = Engine(4)
    serving = engine.builder._serving
    (theirs, _), (ours, _) = engine.both(engine.batch([30, 41]))
    assert not torch.equal(theirs, ours) and apart(ours, theirs) <= BOUND
    uneven = engine.batch([30, 41])
    uneven.decode.seq_lens = torch.tensor([30, 41, 8], dtype=torch.int32)  # eight rows for three requests: neither kernel can
    try:
        engine.both(uneven)
        raise AssertionError("rows that do not part evenly")
    except AssertionError as error:
        assert "non-uniform" in str(error), error
    scale, engine.impl.scale = engine.impl.scale, float("nan")
    metadata = engine.batch([30, 41])
    engine.both(metadata)
    assert not metadata.decode.calls, "a scale that draftwood refuses"
    engine.impl.scale = scale
    print("what draftwood refuses: vLLM's kernel")

    shadow = Shadow("vLLM", "cpu")
    serving.shadow = shadow
    metadata = engine.batch([30, 41])
    (theirs, _), (ours, _) = engine.both(metadata)
    rows, beyond, largest = shadow.report()
    assert torch.equal(theirs, ours) and metadata.decode.calls and (rows, beyond) == (8 * HEADS, 0) and 0 < largest <= BOUND
    serving.shadow = None
    print(f"shadow: {rows} rows, {beyond} beyond the bound, largest {largest:.1e}; vLLM's result is used")

    os.environ["DRAFTWOOD_VERIFY"] = "off"
    engine.builder._serving = vllm_backend.Serving.of_builder(engine.builder)
    assert engine.builder._serving is None
    (theirs, _), (ours, _) = engine.both(engine.batch([30, 41]))
    assert torch.equal(theirs, ours)
    os.environ["DRAFTWOOD_VERIFY"] = "on"
    engine.builder.kv_cache_spec.dtype = torch.uint8
    assert vllm_backend.Serving.of_builder(engine.builder) is None
    print("off, KV of bytes: vLLM's kernel")

    engine = Engine(1)
    engine.builder.dcp_world_size = engine.impl.dcp_world_size = 2
    engine.builder._serving = vllm_backend.Serving.of_builder(engine.builder)
    metadata = engine.batch([30, 41, 1], local=[15, 20, 0])
    (theirs, their_lse), (ours, lse) = engine.both(metadata, 2 * HEADS)
    assert metadata.decode.calls and apart(ours[:2], theirs[:2]) <= BOUND and ours[2].eq(0).all() and lse[2].eq(-torch.inf).all()
    assert (lse[:2] - their_lse[:2]).abs().max() <= 4e-3  # vLLM keeps it in fp16
    print(f"a rank of two: ours from vLLM's {apart(ours[:2], theirs[:2]):.1e}, with its log-sum-exp")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    on_the_software_gpu()
    # There is no platform without a GPU: what Triton's backend asks of it.
    type(current_platform).num_compute_units = classmethod(lambda *_: 8)
    load_general_plugins()
    checks()
    rows = []
    for width in (1, 4, 9):
        engine = Engine(width)
        lengths = [int(n) for n in torch.randint(width, MODEL_LEN, (REQUESTS,), generator=engine.random)]
        kind = "decode" if width == 1 else f"chain of {width}"
        rows.append(engine.recorded(f"{kind}, batch 1", lengths[:1]))
        rows.append(engine.recorded(f"{kind}, batch 8", lengths))
        rows.append(engine.recorded(f"{kind}, batch 8, captured", lengths, padded=8))
        rows.append(engine.recorded(f"{kind}, 5 live in a graph for 8", lengths[:5], padded=8))
        rows.append(engine.recorded(f"{kind}, first token", [width, *lengths[:2]]))
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(f'{{"vllm": "{vllm.__version__}", "batches": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]}\n")


if __name__ == "__main__":
    main()
