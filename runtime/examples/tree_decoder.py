#!/usr/bin/env python3
"""A tree decoder in small: draft, tree, verify, accept, compact, all on the device, a step being one graph replay. torch and draftwood.

usage: tree_decoder.py [--model mla|gqa] [--tokens N] [--prompts N] [--budget N] [--depth N] [--layers N] [--seed N] [--limits TARGET]
                       [--json FILE] [--device cuda|cpu] [--ranks N]

The target is a model of random weights with latent attention (MLA) or with two KV heads for eight of q (GQA). The draft is the target
without its attention, which gives a distribution for each of the next `depth` tokens; the tree is the `budget` - 1 most probable
beginnings of sequences under their product, best first. The same target decodes greedily, a token a step, with attention written in
torch: that is what the tree has to return. Where the target's best two logits are nearer than the bound, rounding may decide, and after
that two sequences part; so the tree's own text is also put through the target at once (teacher forcing), and each of its tokens has to be
the best one, or nearer to the best than the bound.

--ranks N: tensor parallelism, a process and a GPU each, which share a cold start. A rank has its part of the heads and of the layers'
columns; partial sums meet by NCCL, in the same graph. The ranks' text is held against that of the whole model on one of them as well.

--device cpu runs on a GPU made of software, which DRAFTWOOD_DRIVER names, without graphs. Exit status 0: as it should be, 1: not.
"""
import argparse
import copy
import ctypes
import datetime
import json
import math
import os
import sys
import tempfile
import time

import torch
from torch import distributed, nn

import draftwood as dw
from draftwood.engines.absorbed_mla import AbsorbedMLA, rotate

VOCABULARY, HIDDEN, HEADS, KV_HEADS, PAGE, CHOICES = 1024, 512, 8, 2, 64, 8
SCALE = 4 / math.sqrt(128)  # sharper than a trained model's, so that it matters which tokens a row sees
CONTEXT = 0.25  # of what a layer adds, how much is attention's: the draft does without
BOUND = 0.02    # of two logits, whose spread is 1; what rounding of q, KV and P may do to their difference
PHASES = ("draft", "tree", "verify", "accept", "compact")


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def cut(module, dim, rank, ranks):
    """A rank's rows (0) or columns (1) of a linear layer."""
    module.weight = nn.Parameter(module.weight.detach().chunk(ranks, dim)[rank].clone())


class Latent:
    """MLA: a token's record in the cache is its latent and a rotated part; V is the latent."""

    rope, qk, v, record = 64, 576, 512, 576

    def __init__(self, ranks=1):
        self.heads = HEADS // ranks
        self.shape = f"mla:h={self.heads}"

    def attention(self):
        nope, rope, latent = 64, self.rope, self.v
        kv_up = torch.randn(self.heads * (nope + nope), latent) / math.sqrt(latent)
        return AbsorbedMLA(heads=self.heads, latent=latent, rope=rope, nope=nope, v=nope, q=linear(HIDDEN, self.heads * (nope + rope)),
                           kv=linear(HIDDEN, latent + rope), kv_norm=nn.RMSNorm(latent), kv_up=kv_up,
                           out=linear(self.heads * nope, HIDDEN), scale=SCALE)

    @staticmethod
    def shard(attention, rank, ranks):
        """q and the up-projections by heads; each rank makes the records, which all heads share."""
        cut(attention.q, 0, rank, ranks)
        attention.k_up, attention.v_up = (nn.Parameter(up.chunk(ranks)[rank].clone(), False) for up in (attention.k_up, attention.v_up))
        attention.heads //= ranks

    @staticmethod
    def shard_records(records, rank, ranks):
        return records

    @staticmethod
    def planes(pool):
        return {"kv": pool}

    def split(self, records):
        """K and V of each head of q: [b, tokens, record] -> two of [b, tokens, 1 or heads, ..]."""
        return records.unsqueeze(2), records[..., :self.v].unsqueeze(2)


class Grouped:
    """GQA: a token's record is K and V of each KV head, beside each other."""

    rope, qk, v = 128, 128, 128

    def __init__(self, ranks=1):
        self.heads, self.kv_heads = HEADS // ranks, KV_HEADS // ranks
        self.record = self.kv_heads * (self.qk + self.v)
        self.shape = f"gqa:h={self.heads},hk={self.kv_heads},d={self.qk}"

    class Attention(nn.Module):
        def __init__(self, form):
            super().__init__()
            self.form, self.scale = form, SCALE
            self.q, self.out = linear(HIDDEN, form.heads * form.qk), linear(form.heads * form.v, HIDDEN)
            self.k, self.v = (linear(HIDDEN, form.kv_heads * width) for width in (form.qk, form.v))

        def forward(self, hidden, angles, attend):
            heads = ((self.q, self.form.heads), (self.k, self.form.kv_heads), (self.v, self.form.kv_heads))
            q, k, v = (part(hidden).unflatten(-1, (count, -1)) for part, count in heads)
            record = torch.cat([rotate(k, angles, False), v], -1).flatten(1)
            return self.out(attend(rotate(q, angles, False), record).flatten(1))

    def attention(self):
        return Grouped.Attention(self)

    @staticmethod
    def shard(attention, rank, ranks):
        for part in (attention.q, attention.k, attention.v):
            cut(part, 0, rank, ranks)
        attention.form = Grouped(ranks)

    @staticmethod
    def shard_records(records, rank, ranks):
        return records.chunk(ranks, -1)[rank]

    def planes(self, pool):
        pool = pool.unflatten(-1, (self.kv_heads, -1))
        return {"kv": pool[..., :self.qk], "v": pool[..., self.qk:]}

    def split(self, records):
        both = records.unflatten(-1, (self.kv_heads, -1)).repeat_interleave(self.heads // self.kv_heads, 2)
        return both[..., :self.qk], both[..., self.qk:]


class Layer(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.attention = form.attention()
        self.up, self.down = linear(HIDDEN, 2 * HIDDEN), linear(2 * HIDDEN, HIDDEN)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=1 / math.sqrt(module.in_features))


def norm(x):
    return nn.functional.rms_norm(x, x.shape[-1:])


class Target(nn.Module):
    """Takes rows of tokens at positions. attend(layer, q, record) is the attention; None: the draft, which has none."""

    def __init__(self, form, layers):
        super().__init__()
        self.form, self.sum_up = form, lambda partial: partial
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer(form) for _ in range(layers))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        nn.init.normal_(self.head.weight, std=1 / math.sqrt(HIDDEN))
        self.register_buffer("frequencies", 10000.0 ** -(torch.arange(form.rope // 2) * 2 / form.rope))

    def forward(self, tokens, positions=None, attend=None):
        x = self.embedding(tokens)
        angles = None if positions is None else positions.unsqueeze(-1).float() * self.frequencies
        for index, layer in enumerate(self.layers):
            if attend is not None:
                added = layer.attention(norm(x), angles, lambda q, record: attend(index, q, record))
                x = x + CONTEXT * norm(self.sum_up(added))
            x = x + (1 - CONTEXT) * norm(self.sum_up(layer.down(nn.functional.gelu(layer.up(norm(x))))))
        return self.head(norm(x))

    def shard(self, rank, ranks):
        """The rank's part; embedding and head are in all of them. Sums over the ranks are the same bits on each."""
        part = copy.deepcopy(self)
        part.form, part.sum_up = type(self.form)(ranks), sum_over_ranks
        for layer in part.layers:
            part.form.shard(layer.attention, rank, ranks)
            cut(layer.up, 0, rank, ranks)
            for module in (layer.attention.out, layer.down):
                cut(module, 1, rank, ranks)
        return part


def sum_over_ranks(partial):
    distributed.all_reduce(partial)
    return partial


def attend_in_torch(form, scale, q, records, visible):
    """q [b, rows, heads, qk], records [b, tokens, record], visible [b, rows, tokens]: in fp32, as plainly as can be."""
    k, v = (part.expand(-1, -1, form.heads, -1) for part in form.split(records))
    scores = torch.einsum("brhd,bkhd->brhk", q, k) * scale
    scores = scores.masked_fill(~visible.unsqueeze(2), -math.inf)
    return torch.einsum("brhk,bkhd->brhd", scores.softmax(-1), v)


def rounded(x):
    """To what the kernel gets, in fp32."""
    return x.bfloat16().float()


class Plain:
    """The target with attention in torch over a cache [layers, prompts, tokens, record], in which a row is where its position is."""

    def __init__(self, target, prompts, tokens, device):
        self.target = target
        self.cache = torch.zeros(len(target.layers), prompts, tokens, target.form.record, device=device)

    def logits(self, tokens, positions):
        """[prompts, rows] at those positions, each seeing all before it -> [prompts, rows, vocabulary]."""
        (prompts, rows), form = tokens.shape, self.target.form
        places = torch.arange(self.cache.shape[2], device=tokens.device)
        visible = places <= positions.unsqueeze(-1)
        batch = torch.arange(prompts, device=tokens.device).unsqueeze(1)

        def attend(layer, q, record):
            self.cache[layer][batch, positions] = rounded(record).view(prompts, rows, -1)
            seen = attend_in_torch(form, self.target.layers[layer].attention.scale,
                                   rounded(q).view(prompts, rows, form.heads, -1), self.cache[layer], visible)
            return seen.flatten(0, 1)

        return self.target(tokens.flatten(), positions.flatten(), attend).view(prompts, rows, VOCABULARY)


class Runner:
    """Runs a function again and again: by a captured graph where there is a GPU."""

    def __init__(self, function, device):
        self.function, self.graph = function, None
        if device == "cuda":
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):  # NCCL has threads of its own
                function()

    def __call__(self):
        self.graph.replay() if self.graph else self.function()


class TreeDecoder:
    """Eight prompts or so, decoded together. Lengths, trees, tokens and pages stay on the device; `out` and `written` have the text.

    Each request has pages of its own, in random order. A step's rows are the tree: node 0 is the last token that was decided, whose KV
    is written with the drafts'.
    """

    def __init__(self, target, cache, lengths, first, *, budget, depth, capacity, device, limits):
        self.target, self.device, self.budget, self.depth = target, device, budget, depth
        prompts, layers, form = len(lengths), len(target.layers), target.form
        new = lambda *shape, dtype=torch.int32: torch.zeros(shape, dtype=dtype, device=device)
        self.batch = prompts
        columns = -(-capacity // PAGE)
        self.capacity = columns * PAGE
        self.table = torch.randperm(prompts * columns, device=device).int().view(prompts, columns)
        self.pool = torch.full((layers, prompts * columns, PAGE, form.record), math.nan, dtype=torch.bfloat16, device=device)
        for b, length in enumerate(lengths.tolist()):
            at = torch.arange(length, device=device)
            self.pool.flatten(1, 2)[:, self.slots(b, at)] = cache[:, b, :length].bfloat16()
        self.kv_len = lengths.int() + budget
        self.next_len = new(prompts)
        self.current = first.int().clone()
        self.out, self.written = new(prompts, self.capacity), new(prompts)
        self.steps = 0

        self.log_p, self.choices = new(prompts, depth, CHOICES, dtype=torch.float32), new(prompts, depth, CHOICES, dtype=torch.int64)
        self.parents, self.tokens = new(prompts, budget), new(prompts, budget)
        self.positions, self.target_tokens = new(prompts, budget), new(prompts, budget)
        self.accepted, self.count, self.bonus = new(prompts, depth + 1), new(prompts), new(prompts)
        self.q = new(prompts * budget, form.heads, form.qk, dtype=torch.bfloat16)
        self.seen = new(prompts * budget, form.heads, form.v, dtype=torch.float32)
        self.runners = None
        self._prepare(limits)

    def slots(self, b, at):
        return self.table[b, at // PAGE].long() * PAGE + at % PAGE

    # ---- what draftwood does ----------------------------------------------------------------------------------

    def _prepare(self, limits):
        target, form = torch.cuda.get_device_capability() if self.device == "cuda" else (9, 0), self.target.form
        shape = dw.Shape.parse(f"{form.shape},t={self.budget},page={PAGE},o=fp32,target=sm_{target[0]}{target[1]},limits={limits}")
        bounds = dw.Bounds(batch=self.batch, kv_len=self.capacity, call=dw.CallKind.TABLE)
        self.context = dw.Context()
        self.context.prepare([dw.Request(shape, bounds)])
        companions = self.context.companions()
        self.context.freeze()
        kernel = self.context.kernel(shape, bounds)
        room = torch.empty(kernel.workspace_size + 256, dtype=torch.uint8, device=self.device)
        room = room[-room.data_ptr() % 256:]
        a = self._array
        self.verify_calls = [
            kernel.bind(q=a(self.q), out=a(self.seen), kv_len=a(self.kv_len), block_table=a(self.table), mask=a(self.parents.view(-1)),
                        mask_kind=dw.Mask.PARENTS, softmax_scale=layer.attention.scale, workspace=a(room[:kernel.workspace_size]),
                        **{name: a(plane) for name, plane in form.planes(pool).items()})
            for pool, layer in zip(self.pool, self.target.layers)]
        self.expand_call = companions.tree_expand(a(self.parents.view(-1)), batch=self.batch, width=self.budget, kv_len=a(self.kv_len),
                                                  positions=a(self.positions.view(-1)))
        self.accept_call = companions.tree_accept(
            a(self.parents.view(-1)), a(self.tokens.view(-1)), a(self.target_tokens.view(-1)), batch=self.batch, width=self.budget,
            accept_index=a(self.accepted), accept_count=a(self.count), bonus_tokens=a(self.bonus))
        self.bases = torch.tensor([pool.data_ptr() for pool in self.pool], device=self.device)
        self.compact_call = companions.kv_compact(
            dw.Planes(a(self.bases), row_bytes=2 * form.record), kv_len=a(self.kv_len), accept_index=a(self.accepted), width=self.budget,
            page=PAGE, block_table=a(self.table), new_len=a(self.next_len), next_drafts=self.budget)

    def _array(self, tensor):
        """Memory of the CPU is that of the software GPU."""
        if self.device == "cuda":
            return tensor
        names = {torch.int32: "i32", torch.int64: "i64", torch.bfloat16: "bf16", torch.float32: "f32", torch.uint8: "u8"}
        return dw.Array(tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), names[tensor.dtype], tensor)

    def _stream(self):
        return torch.cuda.current_stream() if self.device == "cuda" else None

    # ---- phases of a step -------------------------------------------------------------------------------------

    def draft(self):
        """A distribution for each of the next tokens, each after the most probable one before it."""
        token = self.current.long()
        for d in range(self.depth):
            log_p, choices = self.target(token).log_softmax(-1).topk(CHOICES)
            self.log_p[:, d], self.choices[:, d] = log_p.clamp_max(-1e-3), choices  # a child is less probable than its parent
            token = choices[:, 0]

    def tree(self):
        """The budget - 1 most probable beginnings. A beam of that many holds them all at each depth."""
        nodes = self.budget - 1
        total = torch.zeros(self.batch, 1, device=self.device)
        totals, tokens, parents, first = [], [], [], 0
        for d in range(self.depth):
            grown = (total.unsqueeze(2) + self.log_p[:, d].unsqueeze(1)).flatten(1)
            kept, index = grown.topk(min(nodes, grown.shape[1]))
            totals.append(kept)
            tokens.append(self.choices[:, d].gather(1, index % CHOICES))
            parents.append(index // CHOICES + (first - total.shape[1]) if d else torch.full_like(index, -1))
            total, first = kept, first + kept.shape[1]
        _, chosen = torch.cat(totals, 1).topk(nodes)
        rank = torch.zeros(self.batch, first + 1, dtype=torch.int64, device=self.device)  # of place -1: 0, the root
        rank.scatter_(1, chosen + 1, torch.arange(1, nodes + 1, device=self.device).expand(self.batch, nodes))
        self.parents[:, 0] = -1
        self.parents[:, 1:] = rank.gather(1, torch.cat(parents, 1).gather(1, chosen) + 1)
        self.tokens[:, 0] = self.current
        self.tokens[:, 1:] = torch.cat(tokens, 1).gather(1, chosen)
        self.expand_call.launch(self._stream())

    def verify(self):
        """The target's token after each node."""
        at = (self.kv_len - self.budget).unsqueeze(1) + torch.arange(self.budget, device=self.device)
        slots = (self.table.gather(1, at // PAGE).long() * PAGE + at % PAGE).flatten()

        def attend(layer, q, record):
            self.pool[layer].flatten(0, 1)[slots] = record.bfloat16()
            self.q.copy_(q)
            self.verify_calls[layer].launch(self._stream())
            return self.seen

        logits = self.target(self.tokens.flatten().long(), self.positions.flatten(), attend)
        self.target_tokens.copy_(logits.argmax(-1).view(self.batch, self.budget))

    def accept(self):
        """The accepted path and the target's token after it; the text grows by the path without its root, and by that token."""
        self.accept_call.launch(self._stream())
        path = torch.arange(self.depth + 1, device=self.device)
        last = self.count.unsqueeze(1) - 1
        after = self.accepted.roll(-1, 1)
        text = torch.where(path < last, self.tokens.gather(1, after.clamp_min(0).long()), self.bonus.unsqueeze(1))
        at = self.written.unsqueeze(1) + torch.minimum(path, last)  # past the end: the last token once more, where it is
        self.out.scatter_(1, at.long(), text)
        self.written += self.count
        self.current.copy_(self.bonus)

    def compact(self):
        self.compact_call.launch(self._stream())
        self.kv_len.copy_(self.next_len)

    def step(self):
        for phase in PHASES:
            getattr(self, phase)()

    # ---- decoding ---------------------------------------------------------------------------------------------

    def state(self):
        return [self.kv_len, self.current, self.written, self.out, self.pool]

    def capture(self):
        """Graphs of the step and of each phase. Warming up changes the state, which is put back."""
        saved = [tensor.clone() for tensor in self.state()]
        if self.device == "cuda":
            self.step()
            torch.cuda.synchronize()
        self.whole = Runner(self.step, self.device)
        self.runners = {phase: Runner(getattr(self, phase), self.device) for phase in PHASES}
        for tensor, value in zip(self.state(), saved):
            tensor.copy_(value)

    def decode(self, tokens):
        """Until each prompt has so many. Returns seconds."""
        if self.runners is None:
            self.capture()
        synchronize(self.device)
        begin = time.perf_counter()
        while True:
            for _ in range(16):
                self.whole()
            self.steps += 16
            if int(self.written.min()) >= tokens:
                return time.perf_counter() - begin
            if int(self.kv_len.max()) + 16 * (self.depth + 1) > self.capacity:
                sys.exit("tree_decoder.py: a request is far ahead of another, and the pool is full")

    def split(self, rounds=20):
        """Microseconds of each phase, in further steps, and of a whole step."""
        events = lambda: [torch.cuda.Event(enable_timing=True) for _ in range(len(PHASES) + 1)]
        us = {phase: [] for phase in PHASES}
        for _ in range(rounds):
            marks = events()
            marks[0].record()
            for phase, mark in zip(PHASES, marks[1:]):
                self.runners[phase]()
                mark.record()
            torch.cuda.synchronize()
            for i, phase in enumerate(PHASES):
                us[phase].append(1000 * marks[i].elapsed_time(marks[i + 1]))
        begin, end = events()[:2]
        begin.record()
        for _ in range(rounds):
            self.whole()
        end.record()
        torch.cuda.synchronize()
        return {**{phase: sorted(values)[len(values) // 2] for phase, values in us.items()},
                "whole step": 1000 * begin.elapsed_time(end) / rounds}


    def drop_graphs(self):
        """Before the communicator whose calls they hold is destroyed."""
        self.whole = self.runners = None
        synchronize(self.device)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def greedy(plain, first, lengths, tokens, device):
    """A token a step. Returns tokens [prompts, tokens], the margins between the best two logits, and seconds."""
    prompts = len(lengths)
    current, at, step = first.clone(), lengths.clone(), torch.zeros(1, dtype=torch.int64, device=device)
    out = torch.zeros(prompts, tokens, dtype=torch.int64, device=device)
    margins = torch.zeros(prompts, tokens, device=device)

    def one():
        best, token = plain.logits(current.unsqueeze(1), at.unsqueeze(1))[:, 0].topk(2)
        out.index_copy_(1, step, token[:, :1])
        margins.index_copy_(1, step, best[:, :1] - best[:, 1:])
        current.copy_(token[:, 0])
        at.add_(1)
        step.add_(1)

    if device == "cuda":
        saved = [tensor.clone() for tensor in (current, at, step)]
        one()
    run = Runner(one, device)
    if device == "cuda":
        for tensor, value in zip((current, at, step), saved):
            tensor.copy_(value)
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(tokens):
        run()
    synchronize(device)
    return out, margins, time.perf_counter() - begin


def forced(plain, first, lengths, text):
    """For each token of the text how far its logit is below the best one, whether it is the best, and how far apart the best two are."""
    given = torch.cat([first.unsqueeze(1), text[:, :-1]], 1)
    below, best, margins = [], [], []
    for begin in range(0, given.shape[1], 64):
        part = given[:, begin:begin + 64]
        positions = lengths.unsqueeze(1) + begin + torch.arange(part.shape[1], device=given.device)
        logits = plain.logits(part, positions)
        top, tokens = logits.topk(2)
        wanted = text[:, begin:begin + 64].unsqueeze(-1)
        below.append((top[..., :1] - logits.gather(-1, wanted)).squeeze(-1))
        best.append(tokens[..., :1].eq(wanted).squeeze(-1))
        margins.append(top[..., 0] - top[..., 1])
    return torch.cat(below, 1), torch.cat(best, 1), torch.cat(margins, 1)


def parting(text, other, margins):
    """(tokens before the first that differs, of each prompt; what differs: prompt, token, margin of the best two logits there)."""
    same = text == other
    agreed = torch.where(same.all(1), text.shape[1], (~same).int().argmax(1))
    return agreed, [{"prompt": b, "token": n, "margin": float(margins[b, n])}
                    for b, n in enumerate(agreed.tolist()) if n < text.shape[1]]


def open_software_gpu():
    driver, context = ctypes.CDLL(os.environ["DRAFTWOOD_DRIVER"]), ctypes.c_void_p()
    if driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or driver.cuCtxSetCurrent(context):
        sys.exit("tree_decoder.py: the driver that DRAFTWOOD_DRIVER names does not start")


@torch.inference_mode()
def run(given, rank=0):
    device, ranks = given.device, given.ranks
    torch.manual_seed(given.seed)
    if device == "cpu":
        open_software_gpu()
    else:
        torch.cuda.set_device(rank)
    target = Target({"mla": Latent, "gqa": Grouped}[given.model](), given.layers).to(device)
    lengths = torch.randint(5, 41, (given.prompts,)).to(device)
    prompt = torch.randint(VOCABULARY, (given.prompts, 41)).to(device)
    plain = Plain(target, given.prompts, 41 + given.tokens, device)
    positions = torch.arange(40, device=device).expand(given.prompts, 40)
    plain.logits(prompt[:, :40], positions)  # rows past a prompt's end are overwritten before they are seen
    first = prompt.gather(1, lengths.unsqueeze(1)).squeeze(1)  # the prompt's last token, whose KV is not in the cache yet
    cache = plain.cache.clone()

    expected, margins, plain_seconds = greedy(plain, first, lengths, given.tokens, device)

    def decoded(target, cache):
        decoder = TreeDecoder(target, cache, lengths, first, budget=given.budget, depth=given.depth, device=device, limits=given.limits,
                              capacity=41 + 6 * given.tokens + 64 * (given.depth + 1) + given.budget)
        seconds = decoder.decode(given.tokens)
        return decoder, decoder.out[:, :given.tokens].long(), seconds

    decoder, text, tree_seconds = (decoded(target, cache) if ranks == 1 else
                                   decoded(target.shard(rank, ranks), target.form.shard_records(cache, rank, ranks)))
    written = int(decoder.written.sum())
    us = decoder.split() if device == "cuda" else {}
    plain.cache.copy_(cache)
    below, best, text_margins = forced(plain, first, lengths, text)
    plain_below, *_ = forced(plain, first, lengths, expected)

    agreed, parted = parting(text, expected, margins)
    result = {
        "model": given.model, "ranks": ranks, "prompts": given.prompts, "tokens": given.tokens, "budget": given.budget,
        "depth": given.depth, "bound": BOUND, "acceptance": written / (decoder.steps * given.prompts), "steps": decoder.steps,
        "equal_to_greedy": int((agreed == given.tokens).sum()), "equal_tokens": int(agreed.sum()), "parted": parted,
        "forced_best": int(best.sum()), "forced_furthest_below_best": float(below.max()),
        "greedy_furthest_below_best": float(plain_below.max()), "margins_within_bound": int((margins <= BOUND).sum()),
        "greedy_us_a_token": 1e6 * plain_seconds / given.tokens, "tree_us_a_token": 1e6 * tree_seconds * given.prompts / written}
    if device == "cuda":
        result["device"], result["us"] = torch.cuda.get_device_name(), us
    result["right"] = all(row["margin"] <= BOUND for row in parted) and float(below.max()) <= BOUND and result["acceptance"] > 2
    if ranks > 1:
        alone, alone_text, _ = decoded(target, cache)
        agreed, parted = parting(text, alone_text, text_margins)
        stats, texts = [None] * ranks, [torch.empty_like(text) for _ in range(ranks)]
        own = decoder.context.stats()
        distributed.all_gather(texts, text)
        distributed.all_gather_object(stats, {"compiles": own.compiles, "found": own.hits_disk})
        result["ranks_agree"] = all(torch.equal(text, other) for other in texts)
        result["equal_to_one_rank"], result["parted_from_one_rank"] = int((agreed == given.tokens).sum()), parted
        result["cold_start"], result["one_cold_start"] = stats, one_cold_start(stats)
        if device == "cuda":
            result["us_one_rank"] = alone.split()
        decoder.drop_graphs()
        result["right"] &= result["ranks_agree"] and result["one_cold_start"] and all(row["margin"] <= BOUND for row in parted)
    return result


def one_cold_start(stats):
    """Whether each kernel was compiled by one of the ranks and found by the others."""
    kernels = {row["compiles"] + row["found"] for row in stats}
    return len(kernels) == 1 and kernels == {sum(row["compiles"] for row in stats)}


def run_rank(rank, given, folder, results):
    """A process of its own. The ranks meet by a file; their kernels come from a cache folder that was empty."""
    os.environ["DRAFTWOOD_CACHE_DIR"] = os.path.join(folder, "cache")
    if given.device == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group("nccl" if given.device == "cuda" else "gloo", init_method=f"file://{folder}/meeting", rank=rank,
                                   world_size=given.ranks, timeout=datetime.timedelta(seconds=90))
    result = run(given, rank)
    if rank == 0:
        with open(results, "w", encoding="utf-8") as file:
            json.dump(result, file)
    distributed.destroy_process_group()


def run_ranks(given):
    with tempfile.TemporaryDirectory(prefix="draftwood-ranks-") as folder:
        results = given.json or os.path.join(folder, "results.json")
        torch.multiprocessing.spawn(run_rank, args=(given, folder, results), nprocs=given.ranks)
        with open(results, encoding="utf-8") as file:
            return json.load(file)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    for name, value in (("tokens", 1000), ("prompts", 8), ("budget", 32), ("depth", 8), ("layers", 4), ("seed", 1), ("ranks", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--model", default="mla", choices=("mla", "gqa"))
    parser.add_argument("--limits", default="native")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--json")
    given = parser.parse_args()
    most = KV_HEADS if given.model == "gqa" else HEADS
    if given.ranks < 1 or most % given.ranks:
        parser.error(f"--ranks: {given.ranks}, not a divisor of {most}")
    result = run(given) if given.ranks == 1 else run_ranks(given)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(result, file)
    for name, value in result.items():
        print(f"{name:28} {value}")
    return 0 if result["right"] else 1


if __name__ == "__main__":
    sys.exit(main())
