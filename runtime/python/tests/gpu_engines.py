#!/usr/bin/env python3
"""The package on a real GPU, with torch: prepared calls, graphs, cost, what SGLang recorded through its Triton kernels and ours, what vLLM
recorded through ours, alone and as ranks that share the requests (decode context parallelism), merged by SGLang's kernel and by ours.

usage: gpu_engines.py [--sglang FOLDER] [--out FILE.jsonl] [--limits TARGET]

FOLDER: SGLang's sglang/kernels/ops/attention, of which extend_attention.py, decode_attention.py, score_mod.py and dcp_kernels.py are used
as they are; what else of SGLang they import (environment, kind of GPU) is stated here. Also runs on the CPU with DRAFTWOOD_DRIVER naming
the software GPU and TRITON_INTERPRET=1. Prints a table of checks; exit status 0: all right, 1: not.
"""
import argparse
import glob
import importlib.util
import json
import os
import statistics
import sys
import time
import types

import torch

import draftwood as dw
from draftwood.engines import sglang, vllm
from draftwood.engines.common import workspace

QK, V, SCALE = 576, 512, 192**-0.5
ROW_BOUND, APART = 3e-3, 4e-3  # from fp64; two right kernels from one another
CPU = "DRAFTWOOD_DRIVER" in os.environ
DEVICE = "cpu" if CPU else "cuda"
DTYPE = torch.float16 if CPU else torch.bfloat16  # Triton's interpreter has no bf16 products
NAMES = {torch.int32: "i32", torch.int64: "i64", torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.uint8: "u8",
         torch.bool: "bool"}
TORCH = {name: dtype for dtype, name in NAMES.items()}


def on_device(tensor):
    """A tensor as an argument: as it is, or as memory of the software GPU."""
    return dw.Array(tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), NAMES[tensor.dtype], tensor) if CPU else tensor


def launch(call):
    call.launch(None if CPU else torch.cuda.current_stream())


def launch_and_replay(call, out):
    """Eager, and where there is a GPU by a graph, whose result stays."""
    launch(call)
    if CPU:
        return
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(call)
    out.fill_(torch.nan)
    graph.replay()


def exact(q, keys, visible):
    """q [rows, heads, qk], keys [tokens, qk], visible [rows, tokens] -> (out, natural log-sum-exp) in fp64."""
    scores = torch.einsum("rhd,kd->rhk", q.double(), keys.double()) * SCALE
    scores = scores.masked_fill(~visible.unsqueeze(1), -torch.inf)
    return torch.einsum("rhk,kd->rhd", scores.softmax(-1), keys[:, :V].double()), scores.logsumexp(-1)


def distance(found, right):
    """The largest relative L2 distance of a row."""
    return float(((found.double() - right).norm(dim=-1) / right.norm(dim=-1)).max())


class Checks:
    def __init__(self, path):
        self.rows, self.failed = [], 0
        self.file = open(path, "w", encoding="utf-8") if path else None

    def __call__(self, name, value, bound, unit=""):
        right = value <= bound
        self.failed += not right
        self.rows.append(f"{'ok  ' if right else 'FAIL'}  {name:66} {value:10.3g} of {bound:g} {unit}")
        print(self.rows[-1], flush=True)
        if self.file:
            self.file.write(json.dumps({"check": name, "value": value, "bound": bound, "right": right}) + "\n")
            self.file.flush()


# ---- prepared calls -----------------------------------------------------------------------------------------------

class Problem:
    """Requests of random lengths with a random tree each, by a block table over shuffled pages; NaN where nobody looks."""

    def __init__(self, seed, heads=8, batch=4, width=9, page=64, longest=3000):
        random = torch.Generator().manual_seed(seed)
        pages = -(-longest // page)
        self.batch, self.width, self.heads = batch, width, heads
        lengths = torch.randint(width, longest + 1, (batch,), generator=random)
        self.table = torch.randperm(batch * pages, generator=random).int().view(batch, pages)
        self.kv = torch.full((batch * pages, page, QK), torch.nan, dtype=DTYPE)
        for b, n in enumerate(lengths.tolist()):
            at = torch.arange(n)
            self.kv.view(-1, QK)[self.table[b, at // page].long() * page + at % page] = torch.randn(n, QK, generator=random).to(DTYPE)
        self.parents = torch.stack([torch.tensor([-1, *[int(torch.randint(i + 1, (), generator=random)) for i in range(width - 1)]])
                                    for _ in range(batch)]).int()
        self.q = torch.randn(batch * width, heads, QK, generator=random).to(DTYPE)
        self.lengths, self.page = lengths.int(), page
        for name in ("lengths", "table", "kv", "parents", "q"):
            setattr(self, name, getattr(self, name).to(DEVICE))
        self.out = torch.full((batch * width, heads, V), torch.nan, dtype=DTYPE, device=DEVICE)
        self.lse = torch.full((batch * width, heads), torch.nan, dtype=torch.float32, device=DEVICE)

    def bind(self, kernel, room):
        given = {name: on_device(getattr(self, name)) for name in ("q", "out", "kv", "lse")}
        return kernel.bind(**given, kv_len=on_device(self.lengths), block_table=on_device(self.table), lse_base="e",
                           mask=on_device(self.parents.view(-1)), mask_kind=dw.Mask.PARENTS, softmax_scale=SCALE, workspace=on_device(room))

    def check(self, check, name):
        worst, worst_lse = 0.0, 0.0
        for b, n in enumerate(self.lengths.tolist()):
            at = torch.arange(n, device=DEVICE)
            keys = self.kv.view(-1, QK)[self.table[b, at // self.page].long() * self.page + at % self.page]
            visible = torch.ones(self.width, n, dtype=torch.bool, device=DEVICE)
            parents = self.parents[b].tolist()
            for i in range(self.width):
                path, node = set(), i
                while node >= 0:
                    path.add(node)
                    node = parents[node]
                visible[i, n - self.width:] = torch.tensor([j in path for j in range(self.width)])
            rows = slice(b * self.width, (b + 1) * self.width)
            out, lse = exact(self.q[rows], keys, visible)
            worst = max(worst, distance(self.out[rows], out))
            worst_lse = max(worst_lse, float((self.lse[rows].double() - lse).abs().max()))
        check(f"{name}: rows from fp64", worst, ROW_BOUND)
        check(f"{name}: log-sum-exp from fp64", worst_lse, 1e-4)


def prepared_calls(check, given):
    text = f"mla:h=8,t=9,page=64,q={given.type},kv={given.type},o={given.type},target=sm_{given.target},limits={given.limits}"
    longest = 200 if CPU else 3000
    with dw.Context() as context:
        kernel = context.kernel(text, dw.Bounds(batch=4, kv_len=longest, call=dw.CallKind.TABLE))
        context.freeze()
        room = workspace(kernel.workspace_size, DEVICE)
        p = Problem(1, longest=longest)
        call = p.bind(kernel, room)
        launch(call)
        p.check(check, "torch tensors")
        if CPU:
            return
        other = torch.cuda.Stream()
        p.out.fill_(torch.nan)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            launch(call)
        torch.cuda.current_stream().wait_stream(other)
        p.check(check, "another stream")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch(call)
        for seed in (2, 3):
            new = Problem(seed, longest=longest)
            for name in ("lengths", "table", "kv", "parents", "q"):
                getattr(p, name).copy_(getattr(new, name))
            p.out.fill_(torch.nan)
            graph.replay()
            p.check(check, f"graph, replayed with other contents ({seed})")
        cost(check, kernel, room)


def cost(check, kernel, room):
    """Host time of a prepared call, with the driver's own. 10,000 calls in rounds that its queue holds."""
    p = Problem(4, batch=1, longest=16)
    p.table = p.table[:, :1]
    call, stream = p.bind(kernel, room), torch.cuda.current_stream()

    def measure(name, function):
        rounds = []
        for _ in range(50):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(200):
                function()
            rounds.append(1e6 * (time.perf_counter() - begin) / 200)
        check(f"host cost of a call, driver included: {name}", statistics.median(rounds), 24, "us")

    def pointed():
        call.repoint(q=p.q, out=p.out, kv=p.kv)
        call.launch(stream)

    measure("prepared", lambda: call.launch(stream))
    measure("pointed at a layer's arrays", pointed)


# ---- what SGLang recorded -------------------------------------------------------------------------------------------

def load_sglang(folder):
    """extend_attention_fwd and dcp_lse_combine_triton of the folder's files, with the few facts that they import."""
    def never():
        return False

    facts = {"sglang.srt.environ": {"envs": types.SimpleNamespace()},
             "sglang.srt.utils": {"is_cuda": lambda: not CPU, "is_hip": never, "is_gfx95_supported": never, "is_gfx1250_supported": never,
                                  "get_device_core_count": lambda *_: 132}}
    for name in ("sglang", "sglang.srt", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.attention", *facts):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
        sys.modules[name].__dict__.update(facts.get(name, {}))
    for name in ("score_mod", "decode_attention", "extend_attention", "dcp_kernels"):
        full = f"sglang.kernels.ops.attention.{name}"
        spec = importlib.util.spec_from_file_location(full, os.path.join(folder, f"{name}.py"))
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return (sys.modules["sglang.kernels.ops.attention.extend_attention"].extend_attention_fwd,
            sys.modules["sglang.kernels.ops.attention.dcp_kernels"].dcp_lse_combine_triton)


class Step:
    """A recorded step with KV and q of our own, on slots of a larger pool."""

    def __init__(self, row, heads, seed):
        random = torch.Generator().manual_seed(seed)
        self.row, self.live, self.width, self.batch, self.heads = row, row["live"], row["width"], row["batch"], heads
        for name in ("kv_indptr", "qo_indptr", "mask_indptr", "out_cache_loc"):
            setattr(self, name, torch.tensor(row[name], dtype=TORCH[row[name + "_dtype"]], device=DEVICE))
        self.kv_indices = torch.zeros(row["kv_indices_size"], dtype=torch.int64, device=DEVICE)
        self.kv_indices[:len(row["kv_indices"])] = torch.tensor(row["kv_indices"], device=DEVICE)
        self.lengths = torch.tensor(row["seq_lens"], dtype=torch.int32, device=DEVICE)
        slots = max(*row["kv_indices"], *row["out_cache_loc"]) + 1
        self.kv = torch.randn(slots, 1, QK, generator=random).to(DTYPE).to(DEVICE)
        self.q = torch.randn(self.batch * self.width, heads, QK, generator=random).to(DTYPE).to(DEVICE)
        self.mask = None
        if row["custom_mask"] is not None:
            self.mask = torch.tensor([int(c) for c in row["custom_mask"]], dtype=torch.uint8).to(TORCH[row["custom_mask_dtype"]]).to(DEVICE)

    def ours(self, kernel, room):
        out = torch.full((self.q.shape[0], self.heads, V), torch.nan, dtype=DTYPE, device=DEVICE)
        lse = torch.empty(self.q.shape[:2], dtype=torch.float32, device=DEVICE)
        mask = {} if self.mask is None else {"custom_mask": on_device(self.mask), "mask_indptr": on_device(self.mask_indptr)}
        call = sglang.bind_target_verify(
            kernel, q=on_device(self.q), kv_buffer=on_device(self.kv), out=on_device(out), lse=on_device(lse),
            kv_indptr=on_device(self.kv_indptr), kv_indices=on_device(self.kv_indices), seq_lens=on_device(self.lengths),
            out_cache_loc=on_device(self.out_cache_loc), num_draft_tokens=self.width, softmax_scale=SCALE, workspace=on_device(room),
            qo_indptr=on_device(self.qo_indptr), **mask)
        launch_and_replay(call, out)
        return out, lse

    def theirs(self, function):
        out = torch.empty(self.q.shape[0], self.heads, V, dtype=DTYPE, device=DEVICE)
        drafts = self.kv[self.out_cache_loc]
        function(self.q, drafts, drafts[..., :V].contiguous(), out, self.kv, self.kv[..., :V], self.qo_indptr, self.kv_indptr,
                 self.kv_indices, self.mask, True, None if self.mask is None else self.mask_indptr, self.width, 1.0, 1.0, sm_scale=SCALE)
        return out

    def right(self):
        """Of the live requests, with custom_mask applied as it is, prefix and drafts."""
        out, lse = [], []
        for b in range(self.live):
            rows = slice(b * self.width, (b + 1) * self.width)
            slots = torch.cat([self.kv_indices[self.kv_indptr[b]:self.kv_indptr[b + 1]], self.out_cache_loc[rows]])
            prefix = len(slots) - self.width
            if self.mask is None:
                visible = torch.ones(self.width, len(slots), dtype=torch.bool, device=DEVICE).tril(prefix)
            else:
                visible = self.mask[self.mask_indptr[b]:self.mask_indptr[b + 1]].view(self.width, -1).bool()
            for results, value in zip((out, lse), exact(self.q[rows], self.kv[slots, 0], visible)):
                results.append(value)
        return torch.cat(out), torch.cat(lse)


class RankStep:
    """A recorded step of ranks that share requests, all on one device: each has its own pool, NaN where nothing of its own is."""

    def __init__(self, row, heads, seed):
        random = torch.Generator().manual_seed(seed)
        self.row, self.live, self.width, self.batch, self.heads = row, row["live"], row["width"], row["batch"], heads
        self.q = torch.randn(self.batch * self.width, heads, QK, generator=random).to(DTYPE).to(DEVICE)
        self.tokens = [torch.randn(len(slots), QK, generator=random).to(DTYPE).to(DEVICE) for slots in row["slots"]]

    def ours(self, kernel, room, rank):
        part, ranks, width = self.row["ranks"][rank], len(self.row["ranks"]), self.width
        pool = torch.full((1 + max(max(slots) for slots in self.row["slots"]) // ranks, 1, QK), torch.nan, dtype=DTYPE, device=DEVICE)
        for slots, tokens in zip(self.row["slots"], self.tokens):
            slots = torch.tensor(slots, device=DEVICE)
            pool[slots[slots % ranks == rank] // ranks, 0] = tokens[slots % ranks == rank]
        out = torch.full((*self.q.shape[:2], V), torch.nan, dtype=DTYPE, device=DEVICE)
        lse = torch.full(self.q.shape[:2], torch.nan, dtype=torch.float32, device=DEVICE)
        on = lambda values, dtype: torch.tensor(values, dtype=dtype, device=DEVICE)
        arrays = {"q": self.q, "kv_buffer": pool, "out": out, "lse": lse, "kv_indptr": on(part["kv_indptr"], torch.int32),
                  "kv_indices": on(part["kv_indices"] or [0], torch.int64), "seq_lens": on(part["seq_lens"], torch.int32),
                  "out_cache_loc": on(part["out_cache_loc"], torch.int64), "workspace": room,
                  "draft_mask": on([int(c) for c in part["draft_mask"]], torch.bool).view(self.batch, width, width)}
        call = sglang.bind_target_verify(kernel, **{name: on_device(tensor) for name, tensor in arrays.items()}, num_draft_tokens=width,
                                         softmax_scale=SCALE)
        launch_and_replay(call, out)
        return out, lse

    def right(self):
        sees = torch.tensor([int(c) for c in self.row["sees"]], dtype=torch.bool, device=DEVICE).view(-1, self.width, self.width)
        out, lse = [], []
        for b in range(self.live):
            keys, rows = self.tokens[b], slice(b * self.width, (b + 1) * self.width)
            visible = torch.cat([torch.ones(self.width, len(keys) - self.width, dtype=torch.bool, device=DEVICE), sees[b]], 1)
            for results, value in zip((out, lse), exact(self.q[rows], keys, visible)):
                results.append(value)
        return torch.cat(out), torch.cat(lse)


def recorded_ranks(check, given, combine):
    with dw.Context() as context:
        companions = context.companions()
        for seed, row in enumerate(load_recorded(check, "sglang", "ranks")):
            count = len(row["ranks"])
            heads = count * (2 if CPU else 8)
            kernel = context.kernel(f"mla:h={heads},t={row['width']},page=1,q={given.type},kv={given.type},o={given.type},"
                                    f"target=sm_{given.target},limits={given.limits}", dw.Bounds(batch=8, kv_len=128))
            step = RankStep(row, heads, seed)
            room = workspace(kernel.workspace_size, DEVICE)
            outs, lses = map(torch.stack, zip(*(step.ours(kernel, room, rank) for rank in range(count))))
            out, lse = torch.empty_like(outs[0]), torch.empty_like(lses[0])
            launch(companions.merge_states(dw.States(on_device(outs), on_device(lses), 2), on_device(out), on_device(lse), "e"))
            (right, right_lse), live, name = step.right(), step.live * step.width, f"{row['name']}, {count} ranks"
            check(f"{name}: merged by ours, from fp64", distance(out[:live], right), APART)
            check(f"{name}: their log-sum-exp", float((lse[:live].double() - right_lse).abs().max()), 1e-4)
            if combine:
                theirs = combine(outs, lses, is_lse_base_on_e=False)[0]
                check(f"{name}: merged by SGLang's, from fp64", distance(theirs[:live], right), APART)


def load_recorded(check, engine, field):
    rows, where = [], os.path.dirname(os.path.abspath(__file__))
    for name in glob.glob(os.path.join(where, "data", f"{engine}-*.json")):
        with open(name, encoding="utf-8") as file:
            rows += json.load(file)[field]
    check(f"{engine}: {field} were recorded", -len(rows), -1)
    return rows


def recorded_sglang(check, given):
    function, combine = load_sglang(given.sglang) if given.sglang else (None, None)
    recorded_ranks(check, given, combine)
    steps = load_recorded(check, "sglang", "steps")
    with dw.Context() as context:
        for heads in (2,) if CPU else (8, 16):
            for seed, row in enumerate(steps):
                text = (f"mla:h={heads},t={row['width']},page=1,q={given.type},kv={given.type},o={given.type},target=sm_{given.target},"
                        f"limits={given.limits}")
                kernel = context.kernel(text, dw.Bounds(batch=8, kv_len=128))
                step = Step(row, heads, seed)
                ours, lse = step.ours(kernel, workspace(kernel.workspace_size, DEVICE))
                right, right_lse = step.right()
                live, name = step.live * step.width, f"{row['name']}, {heads} heads"
                check(f"{name}: ours from fp64", distance(ours[:live], right), ROW_BOUND)
                base_two = float((lse[:live].double() - right_lse / torch.log(torch.tensor(2.0, dtype=torch.float64))).abs().max())
                check(f"{name}: log-sum-exp, base 2", base_two, 1e-4)
                if function:
                    theirs = step.theirs(function)
                    check(f"{name}: SGLang's from fp64", distance(theirs[:live], right), ROW_BOUND)
                    check(f"{name}: ours from SGLang's", distance(ours[:live], theirs[:live].double()), APART)


# ---- what vLLM recorded ---------------------------------------------------------------------------------------------

class Batch:
    """A recorded batch with a cache and q of our own: NaN wherever it has no business."""

    def __init__(self, row, heads, seed):
        random = torch.Generator().manual_seed(seed)
        self.row, self.live, self.width, self.heads, self.page = row, row["live"], row["width"], heads, row["page"]
        self.lengths = torch.tensor(row["seq_lens"], dtype=torch.int32, device=DEVICE)
        self.table = torch.tensor(row["block_table"], dtype=torch.int32, device=DEVICE)
        self.cache = torch.full((row["pages"], self.page, QK), torch.nan, dtype=DTYPE, device=DEVICE)
        for b in range(self.live):
            self.cache.view(-1, QK)[self.slots(b)] = torch.randn(row["seq_lens"][b], QK, generator=random).to(DTYPE).to(DEVICE)
        self.q = torch.randn(row["rows"], heads, QK, generator=random).to(DTYPE).to(DEVICE)

    def slots(self, b):
        at = torch.arange(int(self.lengths[b]), device=DEVICE)
        return self.table[b, at // self.page].long() * self.page + at % self.page

    def ours(self, kernel, room, **more):
        """q comes in two parts."""
        out = torch.full((self.q.shape[0], self.heads, V), torch.nan, dtype=DTYPE, device=DEVICE)
        lse = torch.full(self.q.shape[:2], torch.nan, dtype=torch.float32, device=DEVICE)
        parts = {"q": on_device(self.q)} if more else {"q": on_device(self.q[..., :V].contiguous()), "q_rope": on_device(self.q[..., V:])}
        call = vllm.bind_decode(kernel, kv_cache=on_device(self.cache), out=on_device(out), block_table=on_device(self.table),
                                seq_lens=on_device(self.lengths), softmax_scale=SCALE, workspace=on_device(room), lse=on_device(lse),
                                **parts, **more)
        launch_and_replay(call, out)
        return out, lse

    def right(self):
        out, lse = [], []
        for b in range(self.live):
            slots = self.slots(b)
            visible = torch.ones(self.width, len(slots), dtype=torch.bool, device=DEVICE).tril(len(slots) - self.width)
            rows = slice(b * self.width, (b + 1) * self.width)
            for results, value in zip((out, lse), exact(self.q[rows], self.cache.view(-1, QK)[slots], visible)):
                results.append(value)
        return torch.cat(out), torch.cat(lse)

    def ranks(self, kernel, room, companions, count):
        """Tokens dealt out in turns, each rank's result on its own, then merged."""
        outs, lses, lengths, cache = [], [], self.lengths, self.cache
        places = [self.slots(b) for b in range(self.live)]
        for rank in range(count):
            self.lengths, self.cache = ((lengths - rank + count - 1) // count).clamp_min(0).int(), torch.full_like(cache, torch.nan)
            for b in range(self.live):
                self.cache.view(-1, QK)[self.slots(b)] = cache.view(-1, QK)[places[b][rank::count]]
            out, lse = self.ours(kernel, room, other_ranks=True)
            outs.append(out)
            lses.append(lse)
        self.lengths, self.cache = lengths, cache
        outs, lses = torch.stack(outs), torch.stack(lses)
        out, lse = torch.empty_like(outs[0]), torch.empty_like(lses[0])
        launch(companions.merge_states(dw.States(on_device(outs), on_device(lses), "e"), on_device(out), on_device(lse), "e"))
        return out, lse


def recorded_vllm(check, given):
    with dw.Context() as context:
        companions = context.companions()
        for heads in (2,) if CPU else (8, 16):
            for seed, row in enumerate(load_recorded(check, "vllm", "batches")):
                text = (f"mla:h={heads},t={row['width']},page={row['page']},q={given.type},kv={given.type},o={given.type},"
                        f"target=sm_{given.target},limits={given.limits}")
                kernel = context.kernel(text, dw.Bounds(batch=8, kv_len=160, features=dw.Feature.Q_ROPE, call=dw.CallKind.TABLE))
                batch, room = Batch(row, heads, seed), workspace(kernel.workspace_size, DEVICE)
                right, right_lse = batch.right()
                live, name = batch.live * batch.width, f"{row['name']}, {heads} heads"
                out, lse = batch.ours(kernel, room)
                check(f"vLLM, {name}: ours from fp64", distance(out[:live], right), ROW_BOUND)
                check(f"vLLM, {name}: log-sum-exp", float((lse[:live].double() - right_lse).abs().max()), 1e-4)
                check(f"vLLM, {name}: rows of padding that are not zeros", int(out[live:].ne(0).sum()), 0)
                if row["width"] == 1:
                    kernel = context.kernel(text, dw.Bounds(batch=8, kv_len=160))
                    out, lse = batch.ranks(kernel, workspace(kernel.workspace_size, DEVICE), companions, 2)
                    check(f"vLLM, {name}: two ranks, merged, from fp64", distance(out[:live], right), APART)
                    check(f"vLLM, {name}: their log-sum-exp", float((lse[:live].double() - right_lse).abs().max()), 1e-4)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("--sglang")
    parser.add_argument("--out")
    parser.add_argument("--limits", default="sm_120" if CPU else "native")
    given = parser.parse_args()
    given.type = "fp16" if CPU else "bf16"
    if CPU:
        import support

        support.open_gpu()
        given.target = 90
    else:
        major, minor = torch.cuda.get_device_capability()
        given.target = 10 * major + minor
        torch.zeros(1, device="cuda")  # torch's CUDA context is current from here on
    check = Checks(given.out)
    prepared_calls(check, given)
    recorded_sglang(check, given)
    recorded_vllm(check, given)
    print(f"{len(check.rows) - check.failed} passed, {check.failed} failed")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
