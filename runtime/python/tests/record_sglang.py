#!/usr/bin/env python3
"""Records the metadata that SGLang's Triton backend builds for TARGET_VERIFY, on a machine without a GPU.

usage: record_sglang.py OUT.json

Opt-in: .ci/engines runs it. Nothing of SGLang is replaced: its plug-in loader finds draftwood by the entry
point, its registry makes the backend, its test kit the model runner, pools and batches, and its Triton kernels (slots, tree masks,
attention) run in Triton's interpreter. draftwood's kernels run on the software GPU that DRAFTWOOD_DRIVER names, in the backend's
own forward. Both results have to agree, row by row, before a step is written down. Decode, the switch, the fallback and the hook for draft
workers are checked on the way.

Steps of ranks that share requests (decode context parallelism) are recorded, too: each rank's metadata by SGLang's own kernels, its KV by
SGLang's pool, the results merged by SGLang's kernel and held against fp64.
"""
import json
import os
import sys
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"
os.environ["DRAFTWOOD_VERIFY"] = "on"

import sglang
import torch
from sglang.kernels.ops.attention.dcp_kernels import dcp_lse_combine_triton
from sglang.kernels.ops.speculative.spec_tree import sgl_build_tree_kernel_triton
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.models.deepseek_common.attention_forward_methods.forward_mla import is_mla_dcp_lse_base_on_e
from sglang.srt.models.deepseek_common.utils import FORWARD_ABSORB_CORE_ATTENTION_BACKENDS
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.draft_utils import DraftBackendFactory
from sglang.srt.speculative.eagle_info import EagleVerifyInput
from sglang.srt.speculative.eagle_utils import TreeMaskMode
from sglang.test.kits.attention_unittest.attention_methods import mla_attention as kit
from support import on_the_software_gpu

from draftwood.engines import sglang_backend
from draftwood.engines.common import Shadow, VerifyMode
from draftwood.errors import BadArgument

HEADS, LATENT, ROPE, CONTEXT = 2, 512, 64, 96
BOUND = 4e-3
DTYPES = {torch.float16: "f16", torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8", torch.bool: "bool"}


def drafted(random, width, topk):
    """(parent_list, top_scores_index) of one request as EAGLE's draft steps number them: candidate c is a child of the entry
    c // topk of the list, which names a candidate of the step before; entry 0 is the root."""
    steps = width - 1 if topk == 1 else 4
    parents, entries = [-1, *range(topk)], range(1, topk + 1)
    for _ in range(steps - 2):
        candidates = [topk * entry + child for entry in entries for child in range(topk)]
        entries = range(len(parents), len(parents) + topk)
        parents += [candidates[i] for i in torch.randperm(len(candidates), generator=random)[:topk].tolist()]
    chosen, open_ = [], list(range(topk))
    while len(chosen) < width - 1:
        chosen.append(open_.pop(int(torch.randint(len(open_), (), generator=random))))
        if chosen[-1] in parents:
            entry = parents.index(chosen[-1])
            open_ += [topk * entry + child for child in range(topk)]
    return parents, sorted(chosen), steps


def build_trees(random, prefix, width, topk, mask):
    """Fills mask as SGLang's worker does after drafting; returns positions."""
    trees = [drafted(random, width, topk) for _ in prefix]
    index = torch.full((3, len(prefix), width), -1, dtype=torch.int64)
    positions = torch.empty(len(prefix) * width, dtype=torch.int64)
    mask.fill_(1)
    sgl_build_tree_kernel_triton(torch.tensor([tree[0] for tree in trees]), torch.tensor([tree[1] for tree in trees]),
                                 torch.tensor(prefix), mask, positions, *index, topk, trees[0][2], width, TreeMaskMode.FULL_MASK)
    return positions


class Step:
    """A runner of SGLang's test kit and steps on it. Slots are shuffled; length 1, request 0 and slot 0 pad a graph's batch."""

    def __init__(self, width, requests, seed):
        self.random = torch.Generator().manual_seed(seed)
        self.width = width
        case = kit.MLAAttentionCase(name="verify", backend="draftwood", forward_mode=ForwardMode.TARGET_VERIFY, num_heads=HEADS,
                                    page_size=1, prefix_lens=(1,) * requests, extend_lens=(width,) * requests)
        config = kit.TinyMLAModelConfig(num_heads=HEADS, kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, hidden_size=64, context_len=CONTEXT)
        self.runner = kit.MockMLAModelRunner(case=case, model_config=config, dtype=torch.float16, device="cpu", max_context_len=CONTEXT,
                                             kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, disable_cuda_graph=False)
        pool = self.runner.token_to_kv_pool
        pool.kv_buffer[0].copy_(torch.randn(pool.kv_buffer[0].shape, generator=self.random).to(torch.float16))
        table = self.runner.req_to_token_pool.req_to_token
        slots = 1 + torch.randperm(requests * CONTEXT, generator=self.random)
        table[:requests] = slots.view(requests, CONTEXT).to(table.dtype)
        self.backend = ATTENTION_BACKENDS["draftwood"](self.runner)
        assert type(self.backend) is sglang_backend.DraftwoodAttnBackend, type(self.backend)
        self.layer = RadixAttention(num_heads=HEADS, head_dim=LATENT + ROPE, scaling=192**-0.5, num_kv_heads=1, layer_id=0,
                                    v_head_dim=LATENT)

    def batch(self, prefix, padded, topk, masked, mask=None):
        live, width = len(prefix), self.width
        lengths = [*prefix, *[1] * (padded - live)]
        requests = [*range(live), *[0] * (padded - live)]
        table = self.runner.req_to_token_pool.req_to_token
        slots = [int(table[b, prefix[b] + i]) for b in range(live) for i in range(width)]
        if mask is None:
            mask = torch.zeros(width * (sum(lengths) + width * padded), dtype=torch.bool)
        positions = build_trees(self.random, prefix, width, topk, mask)
        batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY, batch_size=padded, input_ids=torch.zeros(padded * width, dtype=torch.int64),
            req_pool_indices=torch.tensor(requests), seq_lens=torch.tensor(lengths), seq_lens_cpu=None, seq_lens_sum=None,
            out_cache_loc=torch.tensor([*slots, *[0] * (padded - live) * width]), positions=positions)
        self.runner.kv_index_translator.bind_own_plan(batch)
        batch.spec_info = EagleVerifyInput(
            draft_token=batch.input_ids, custom_mask=mask if masked else None, positions=positions, retrieve_index=None,
            retrieve_next_token=None, retrieve_next_sibling=None, retrieve_cum_len=None, spec_steps=width - 1, topk=topk,
            draft_token_num=width, capture_hidden_mode=CaptureHiddenMode.FULL, seq_lens_sum=None, seq_lens_cpu=None)
        return batch

    def decode_batch(self, prefix):
        slots, requests = self.runner.req_to_token_pool.req_to_token, len(prefix)
        batch = ForwardBatch(
            forward_mode=ForwardMode.DECODE, batch_size=requests, input_ids=torch.zeros(requests, dtype=torch.int64),
            req_pool_indices=torch.arange(requests), seq_lens=torch.tensor(prefix), seq_lens_cpu=torch.tensor(prefix),
            seq_lens_sum=sum(prefix), out_cache_loc=torch.tensor([int(slots[b, n - 1]) for b, n in enumerate(prefix)]),
            positions=torch.tensor(prefix) - 1)
        self.runner.kv_index_translator.bind_own_plan(batch)
        return batch

    def eager(self, name, prefix, topk, masked=True):
        return self.record(name, self.set_up(prefix, len(prefix), topk, masked), len(prefix), topk)

    def graph(self, name, prefix, padded, topk):
        return self.record(name, self.set_up(prefix, padded, topk, graph=True), len(prefix), topk)

    def set_up(self, prefix, padded, topk, masked=True, graph=False):
        """A batch with its metadata made. graph: captured with fill values, replayed with the step's, as SGLang's graph runner calls the
        hooks."""
        backend = self.backend
        if not graph:
            batch = self.batch(prefix, padded, topk, masked)
            backend.init_forward_metadata(batch)
            return batch
        if backend.verify_mask is None:
            backend.init_cuda_graph_state(padded, padded * self.width)
        mask = backend.verify_mask.buffer
        mask.copy_(torch.randint(0, 2, mask.shape, generator=self.random))
        fill = backend.get_cuda_graph_seq_len_fill_value()
        backend.init_forward_metadata_out_graph(self.batch([fill] * padded, padded, topk, True, mask), in_capture=True)
        batch = self.batch(prefix, padded, topk, True, mask)
        backend.init_forward_metadata_out_graph(batch)
        backend.init_forward_metadata_in_graph(batch)
        return batch

    def record(self, name, batch, live, topk):
        rows = batch.batch_size * self.width
        q = torch.randn(rows, HEADS * (LATENT + ROPE), generator=self.random).to(torch.float16)
        k = torch.randn(rows, 1, LATENT + ROPE, generator=self.random).to(torch.float16)
        theirs = TritonAttnBackend.forward_extend(self.backend, q, k, k[..., :LATENT], self.layer, batch)
        ours = self.backend.forward_extend(q, k, k[..., :LATENT], self.layer, batch)
        theirs, ours = (result.view(batch.batch_size, -1, LATENT)[:live].float() for result in (theirs, ours))
        distance = ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max().item()
        assert distance <= BOUND, (name, distance)
        assert self.backend._calls, "SGLang's kernel ran in place of ours"
        metadata = self.backend.forward_metadata
        used = int(metadata.kv_indptr[-1])
        print(f"{name}: batch {batch.batch_size}, {live} live, {used} slots; ours from SGLang's {distance:.1e}")
        row = {"name": name, "batch": batch.batch_size, "live": live, "width": self.width, "topk": topk,
               "kv_indices_size": metadata.kv_indices.numel(), "kv_indices_dtype": DTYPES[metadata.kv_indices.dtype],
               "kv_indices": metadata.kv_indices[:used].tolist(), "out_cache_loc_dtype": DTYPES[batch.out_cache_loc.dtype],
               "out_cache_loc": batch.out_cache_loc.tolist(), "seq_lens": self.backend._lengths[:batch.batch_size].tolist()}
        for field in ("kv_indptr", "qo_indptr", "mask_indptr"):
            value = getattr(metadata, field)
            row[field], row[field + "_dtype"] = value.tolist(), DTYPES[value.dtype]
        mask = metadata.custom_mask
        row["custom_mask"] = None if mask is None else bytes(mask[:int(metadata.mask_indptr[-1])].to(torch.uint8).tolist()).hex()[1::2]
        row["custom_mask_dtype"] = None if mask is None else DTYPES[mask.dtype]
        return row


def as_rank(rank, ranks):
    return get_parallel().override(attn_dcp_rank=rank, attn_dcp_size=ranks, dcp_rank=rank, dcp_size=ranks, dcp_enabled=ranks > 1)


class Ranks:
    """The same requests on several ranks: a token's slot, modulo the ranks, says whose it is, and it is that of its position."""

    def __init__(self, ranks, width, requests, seed):
        self.ranks, self.width, self.random = ranks, width, torch.Generator().manual_seed(seed)
        rows = CONTEXT // ranks
        turns = 1 + torch.randperm(requests * rows, generator=self.random).view(requests, rows)
        self.table = (turns.repeat_interleave(ranks, 1) * ranks + torch.arange(rows * ranks) % ranks)
        self.steps = []
        for rank in range(ranks):
            with as_rank(rank, ranks):
                step = Step(width, requests, seed)
                step.runner.req_to_token_pool.req_to_token[:requests, :rows * ranks] = self.table.to(torch.int32)
                step.runner.token_to_kv_pool.kv_buffer[0].fill_(torch.nan)
                self.steps.append(step)
        self.layer = RadixAttention(num_heads=HEADS * ranks, head_dim=LATENT + ROPE, scaling=192**-0.5, num_kv_heads=1, layer_id=0,
                                    v_head_dim=LATENT)
        assert "draftwood" in FORWARD_ABSORB_CORE_ATTENTION_BACKENDS
        assert not is_mla_dcp_lse_base_on_e("draftwood")

    def place(self, prefix):
        """Random KV of the prefixes, in the pools of the ranks that own it."""
        self.kv = [torch.randn(n, LATENT + ROPE, generator=self.random).half() for n in prefix]
        for b, kv in enumerate(self.kv):
            for at, slot in enumerate(self.table[b, :len(kv)].tolist()):
                self.steps[slot % self.ranks].runner.token_to_kv_pool.kv_buffer[0][slot // self.ranks, 0] = kv[at]

    def run(self, name, prefix, topk, masked=True, padded=None, graph=False):
        live, width = len(prefix), self.width
        padded = padded or live
        rows = padded * width
        self.place(prefix)
        q = torch.randn(rows, HEADS * self.ranks, LATENT + ROPE, generator=self.random).half()
        k = torch.randn(rows, 1, LATENT + ROPE, generator=self.random).half()
        outs, lses, recorded = [], [], []
        trees = self.random.get_state()
        for rank, step in enumerate(self.steps):
            step.random.set_state(trees)  # the same trees on all
            with as_rank(rank, self.ranks):
                batch = step.set_up(prefix, padded, topk, masked, graph)
                out, lse = step.backend.forward_extend(q[..., :LATENT].contiguous(), k[..., :LATENT], k[..., :LATENT], self.layer, batch,
                                                       q_rope=q[..., LATENT:].contiguous(), k_rope=k[..., LATENT:])
                recorded.append(self.row(step.backend, batch))
            outs.append(out.view(rows, -1, LATENT))
            lses.append(lse)
        merged = dcp_lse_combine_triton(torch.stack(outs), torch.stack(lses), is_lse_base_on_e=False)[0]
        sees, first, worst = torch.ones(live, width, width, dtype=torch.bool).tril(), 0, 0.0
        for b, n in enumerate(prefix if masked else []):
            rows_of = batch.spec_info.custom_mask[first:first + width * (n + width)].view(width, n + width)
            sees[b], first = rows_of[:, n:], first + rows_of.numel()
        for b in range(live):
            these = slice(b * width, (b + 1) * width)
            keys = torch.cat([self.kv[b], k[these, 0]]).double()
            visible = torch.cat([torch.ones(width, prefix[b], dtype=torch.bool), sees[b]], 1)
            scores = torch.einsum("rhd,kd->rhk", q[these].double(), keys) * self.layer.scaling
            right = torch.einsum("rhk,kd->rhd", scores.masked_fill(~visible.unsqueeze(1), -torch.inf).softmax(-1), keys[:, :LATENT])
            worst = max(worst, float(((merged[these].double() - right).norm(dim=-1) / right.norm(dim=-1)).max()))
        assert worst <= BOUND, (name, worst)
        print(f"{name}, {self.ranks} ranks: batch {padded}, {live} live; merged by SGLang, from fp64 {worst:.1e}")
        return {"name": name, "batch": padded, "live": live, "width": width, "prefix": prefix, "ranks": recorded,
                "slots": [self.table[b, :n + width].tolist() for b, n in enumerate(prefix)],
                "sees": bytes(sees.flatten().to(torch.uint8).tolist()).hex()[1::2]}

    @staticmethod
    def row(backend, batch):
        metadata, rows, size = backend.forward_metadata, batch.out_cache_loc.numel(), batch.batch_size
        used = int(metadata.kv_indptr[size])
        mask = backend._draft_mask[:rows * rows // size].to(torch.uint8)
        return {"kv_indptr": metadata.kv_indptr[:size + 1].tolist(), "kv_indices": metadata.kv_indices[:used].tolist(),
                "seq_lens": backend._lengths[:size].tolist(), "out_cache_loc": backend._draft_rows[:rows].tolist(),
                "draft_mask": bytes(mask.tolist()).hex()[1::2]}

    def decode(self, prefix):
        """One row a request, whose own token is the last of the prefix."""
        self.place(prefix)
        q = torch.randn(len(prefix), HEADS * self.ranks, LATENT + ROPE, generator=self.random).half()
        k = torch.stack([kv[-1:] for kv in self.kv])
        outs, lses = [], []
        for rank, step in enumerate(self.steps):
            with as_rank(rank, self.ranks):
                batch = step.decode_batch(prefix)
                step.backend.init_forward_metadata(batch)
                out, lse = step.backend.forward_decode(q[..., :LATENT].contiguous(), k[..., :LATENT], k[..., :LATENT], self.layer, batch,
                                                       q_rope=q[..., LATENT:].contiguous(), k_rope=k[..., LATENT:])
            outs.append(out.view(len(prefix), -1, LATENT))
            lses.append(lse)
        merged = dcp_lse_combine_triton(torch.stack(outs), torch.stack(lses), is_lse_base_on_e=False)[0].double()
        for b, kv in enumerate(self.kv):
            weights = (q[b].double() @ kv.double().T * self.layer.scaling).softmax(-1)
            right = weights @ kv.double()[:, :LATENT]
            distance = float(((merged[b] - right).norm(dim=-1) / right.norm(dim=-1)).max())
            assert distance <= BOUND, (b, distance)
        print(f"decode, {self.ranks} ranks: merged by SGLang, right")


def record_ranks():
    rows = []
    for ranks, width in ((2, 8), (3, 5)):
        shared = Ranks(ranks, width, 8, seed=ranks)
        eight = [1, 2, *(int(n) for n in torch.randint(1, CONTEXT - width - ranks, (6,), generator=shared.random))]
        rows += [shared.run(f"chain of {width}, batch 1, eager", [37], 1), shared.run(f"chain of {width}, batch 8, eager", eight, 1),
                 shared.run(f"chain of {width}, batch 8, no mask", eight, 1, masked=False),
                 shared.run(f"chain of {width}, 5 live in a graph for 8", eight[:5], 1, padded=8, graph=True),
                 shared.run(f"tree of {width}, batch 8, eager", eight, 2)]
        shared.decode(eight)
    return rows


def checks():
    """What is not recorded."""
    step = Step(4, 3, seed=4)
    backend, prefix = step.backend, [20, 33, 41]
    batch = step.decode_batch(prefix)
    backend.init_forward_metadata(batch)
    q = torch.randn(3, HEADS * (LATENT + ROPE), generator=step.random).to(torch.float16)
    k = torch.randn(3, 1, LATENT + ROPE, generator=step.random).to(torch.float16)
    run = lambda backend: backend.forward_decode(q, k, k[..., :LATENT], step.layer, batch).view(3, HEADS, LATENT).float()
    theirs = TritonAttnBackend.forward_decode(backend, q, k, k[..., :LATENT], step.layer, batch).view(3, HEADS, LATENT).float()
    served = lambda: bool(backend._calls)
    distance = ((run(backend) - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max().item()
    assert served() and distance <= BOUND, distance
    print(f"decode: ours from SGLang's {distance:.1e}")

    backend._calls.clear()
    scaled, step.layer.k_scale = step.layer.k_scale, torch.ones(1)
    q_kept = q.clone()
    assert torch.equal(run(backend), theirs) and not served() and torch.equal(q, q_kept)
    step.layer.k_scale = scaled
    print("a layer with KV scales: SGLang's kernel")

    backend._mode, backend._shadow = VerifyMode.SHADOW, Shadow("SGLang", "cpu")
    assert torch.equal(run(backend), theirs) and served()
    rows, beyond, largest = backend._shadow.report()
    assert (rows, beyond) == (3 * HEADS, 0) and 0 < largest <= BOUND, (rows, beyond, largest)
    backend._shadow.compare(theirs, theirs + 1)
    assert backend._shadow.report()[1] == 3 * HEADS
    print(f"shadow: {rows} rows, {beyond} beyond the bound, largest {largest:.1e}; SGLang's result is used")

    make = ATTENTION_BACKENDS["draftwood"]
    os.environ["DRAFTWOOD_VERIFY"] = "off"
    assert type(make(step.runner)) is TritonAttnBackend
    os.environ["DRAFTWOOD_VERIFY"] = "perhaps"
    try:
        make(step.runner)
        raise AssertionError("a mode that there is not")
    except BadArgument as error:
        assert error.field == "DRAFTWOOD_VERIFY"
    os.environ["DRAFTWOOD_VERIFY"] = "on"
    with as_rank(0, 2):
        os.environ["DRAFTWOOD_VERIFY"] = "shadow"
        try:
            make(step.runner)
            raise AssertionError("shadow with nothing to compare with")
        except BadArgument as error:
            assert error.field == "DRAFTWOOD_VERIFY"
        os.environ["DRAFTWOOD_VERIFY"] = "on"
    print("off, a wrong mode, shadow of ranks that share a request: Triton's backend, an error, an error")

    made = []
    factory = SimpleNamespace(draft_attn_backend="draftwood", draft_model_runner=None)
    backends = {"triton": lambda: made.append("triton") or ("triton", None)}
    DraftBackendFactory._create_backend(factory, "decode_attention_backend", backends, "{backend_type}")
    assert made == ["triton"], made
    print("a draft worker: Triton's backend")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    on_the_software_gpu()
    load_plugins()
    with get_parallel().override(attn_dcp_rank=0):  # there are no process groups
        checks()
        rows, ranks = record_all(), record_ranks()
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(f'{{"sglang": "{sglang.__version__}", "steps": [\n' + ",\n".join(json.dumps(row) for row in rows) +
                   '\n], "ranks": [\n' + ",\n".join(json.dumps(row) for row in ranks) + "\n]}\n")


def record_all():
    rows = []
    for width, topk in ((8, 4), (9, 1), (16, 3)):
        step = Step(width, 8, seed=width)
        eight = [int(n) for n in torch.randint(1, CONTEXT - width, (8,), generator=step.random)]
        kind = "chain" if topk == 1 else "tree"
        rows.append(step.eager(f"{kind} of {width}, batch 1, eager", [37], topk))
        rows.append(step.eager(f"{kind} of {width}, batch 8, eager", eight, topk))
        rows.append(step.graph(f"{kind} of {width}, batch 8, graph", eight, 8, topk))
        rows.append(step.graph(f"{kind} of {width}, 5 live in a graph for 8", eight[:5], 8, topk))
        if topk == 1:
            rows.append(step.eager(f"{kind} of {width}, batch 8, no mask", eight, topk, masked=False))
    return rows


if __name__ == "__main__":
    main()
