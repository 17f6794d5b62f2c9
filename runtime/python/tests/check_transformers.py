#!/usr/bin/env python3
"""Attention layers of transformers' DeepSeek models against ours on the same weights: AbsorbedMLA with draftwood's kernel, a prompt in one
call and a token at a time; and a Llama with draftwood as its attention function. Opt-in: needs transformers. On the CPU with
DRAFTWOOD_DRIVER naming the software GPU, else on a GPU. Exit status 0: the same within the bound, 1: not.
"""
import copy
import sys

import torch
import transformers
from gpu_engines import CPU, DEVICE, launch, on_device
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.deepseek_v3 import DeepseekV3Config, modeling_deepseek_v3
from transformers.models.llama import LlamaConfig, LlamaForCausalLM

import draftwood as dw
from draftwood.engines.absorbed_mla import AbsorbedMLA
from draftwood.engines.common import VerifyMode, workspace
from draftwood.engines.transformers_attention import GroupedAttention, register

ROWS, HEADS, BOUND = 33, 4, 6e-3  # rounding of q and KV to bf16 comes on top of a row's 3e-3


def layers(q_lora_rank, interleaved):
    config = DeepseekV3Config(hidden_size=256, num_attention_heads=HEADS, num_key_value_heads=HEADS, kv_lora_rank=512,
                              q_lora_rank=q_lora_rank, qk_rope_head_dim=64, qk_nope_head_dim=64, v_head_dim=64, rope_interleave=interleaved,
                              max_position_embeddings=4096, attn_implementation="eager")
    attention = modeling_deepseek_v3.DeepseekV3Attention(config, 0).to(DEVICE).eval()
    for parameter in attention.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return config, attention, AbsorbedMLA.of_transformers(attention)


def theirs(config, attention, hidden):
    rotary = modeling_deepseek_v3.DeepseekV3RotaryEmbedding(config).to(DEVICE)
    positions = torch.arange(ROWS, device=DEVICE).unsqueeze(0)
    mask = torch.full((ROWS, ROWS), -torch.inf, device=DEVICE).triu(1)[None, None]
    return attention(hidden.unsqueeze(0), rotary(hidden.unsqueeze(0), positions), mask)[0][0], rotary.inv_freq


class Cache:
    """A request's records in one pool of slots, and the calls for as many rows as come."""

    def __init__(self, context, layer):
        limits = "limits=sm_120" if CPU else "limits=native"
        major, minor = (9, 0) if CPU else torch.cuda.get_device_capability()
        shape = f"mla:h={HEADS},t={ROWS},page=1,o=fp32,target=sm_{major}{minor},{limits}"
        self.kernel, self.layer = context.kernel(shape, dw.Bounds(batch=1, kv_len=ROWS)), layer
        self.pool = torch.zeros(ROWS, 576, dtype=torch.bfloat16, device=DEVICE)
        self.room = workspace(self.kernel.workspace_size, DEVICE)
        self.length = 0

    def attend(self, q, records):
        rows = len(q)
        self.pool[self.length:self.length + rows] = records.bfloat16()
        self.length += rows
        out = torch.empty(rows, HEADS, 512, device=DEVICE)
        slots = torch.arange(self.length, dtype=torch.int32, device=DEVICE)
        ends = torch.tensor([0, self.length], dtype=torch.int32, device=DEVICE)
        launch(self.kernel.bind(q=on_device(q.bfloat16()), out=on_device(out), kv=on_device(self.pool), kv_len=on_device(ends[1:]),
                                kv_indptr=on_device(ends), kv_indices=on_device(slots), softmax_scale=self.layer.scale,
                                workspace=on_device(self.room)))
        return out


def exact(query, key, value, mask, scale):
    """[requests, rows, heads, v] in fp64; rows that see nothing are zeros."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.double().repeat_interleave(group, 1) for x in (key, value))
    tokens, rows = key.shape[2], query.shape[2]
    if mask is None:
        mask = torch.ones(rows, tokens, dtype=torch.bool, device=query.device).tril(tokens - rows)
    scores = (query.double() @ key.mT * scale).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1).nan_to_num(0.0) @ value).transpose(1, 2)


class Watched(GroupedAttention):
    """Compares each call with fp64, row by row; SDPA's, too. The bound of a row is 3e-3 or 1.5 times SDPA's largest distance."""

    worst, theirs, rows = 0.0, 0.0, 0

    def _attend(self, module, query, key, value, mask, more):
        out = super()._attend(module, query, key, value, mask, more)
        right = exact(query, key, value, mask, more["scaling"])
        theirs = sdpa_attention_forward(module, query, key, value, mask, **more)[0]
        norm = right.norm(dim=-1).clamp_min(1e-20)
        Watched.worst = max(Watched.worst, float(((out.double() - right).norm(dim=-1) / norm).max()))
        Watched.theirs = max(Watched.theirs, float(((theirs.double() - right).norm(dim=-1) / norm).max()))
        Watched.rows += norm.numel()
        return out


def llama(kind):
    """A model of transformers' own, its cache and its masks: prompts padded on the left by SDPA, then tokens, a chain and a tree. Returns
    calls that draftwood served and the largest distance of the logits from SDPA's."""
    torch.manual_seed(5)
    config = LlamaConfig(hidden_size=512, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=kind,
                         head_dim=64, vocab_size=256)
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).eval()
    attention = register(batch=3, kv_len=256, widths=(1, 8))
    attention.__class__ = Watched
    prompt = torch.randint(256, (3, 40), device=DEVICE)
    there = torch.ones(3, 40, dtype=torch.int64, device=DEVICE)
    there[1, :11] = 0
    there[2, :35] = 0
    tree = torch.zeros(5, 5, dtype=torch.bool, device=DEVICE)
    for node, path in enumerate(((), (0,), (0,), (0, 1), (0, 2))):
        tree[node, [*path, node]] = True
    steps = [torch.randint(256, (3, n), device=DEVICE) for n in (1, 4, 1, 5)]
    logits = {}
    for name in ("sdpa", "draftwood"):
        model.set_attn_implementation(name)
        cache, mask, found = transformers.DynamicCache(), there, []
        model(prompt, attention_mask=mask, past_key_values=cache)
        for tokens in steps:
            mask = torch.cat([mask, torch.ones_like(tokens)], 1)
            given, positions = mask, None
            if tokens.shape[1] == 5:
                whole = mask[:, None, None, :].bool().expand(3, 1, 5, -1).clone()
                whole[..., -5:] = tree
                given, positions = whole, (mask[:, :-5].sum(1, keepdim=True) + tree.sum(1) - 1)
            found.append(model(tokens, attention_mask=given, position_ids=positions, past_key_values=cache).logits.float())
        one = transformers.DynamicCache()
        model(prompt[:1], past_key_values=one)  # no mask at all
        found += [model(tokens[:1], past_key_values=one).logits.float() for tokens in steps[:2]]
        logits[name] = found
    served, mode = attention.calls, attention._mode
    last = lambda: model(steps[0][:1], past_key_values=copy.deepcopy(one)).logits
    model.set_attn_implementation("sdpa")
    plain = last()
    model.set_attn_implementation("draftwood")
    attention._mode = VerifyMode.OFF
    assert torch.equal(last(), plain) and attention.calls == served
    attention._mode = VerifyMode.SHADOW
    assert torch.equal(last(), plain) and attention.calls == served + 2
    rows, beyond, largest = attention._shadow.report()
    assert (rows, beyond) == (16, 0) and 0 < largest < 4e-3, (rows, beyond, largest)
    attention._mode, attention.calls = mode, served
    apart = max(float(((a - b).norm(dim=-1) / b.norm(dim=-1)).max()) for a, b in zip(logits["draftwood"], logits["sdpa"]))
    return attention.calls, apart


@torch.inference_mode()
def main():
    if CPU:
        import support

        support.on_the_software_gpu()
    else:
        torch.zeros(1, device="cuda")
    print("transformers", transformers.__version__)
    failed = 0
    with dw.Context() as context:
        for q_lora_rank, interleaved in ((128, True), (None, False)):
            torch.manual_seed(3)
            config, attention, ours = layers(q_lora_rank, interleaved)
            hidden = torch.randn(ROWS, 256, device=DEVICE)
            right, frequencies = theirs(config, attention, hidden)
            angles = torch.arange(ROWS, device=DEVICE).unsqueeze(1) * frequencies
            cache = Cache(context, ours)
            whole = ours(hidden, angles, cache.attend)
            cache = Cache(context, ours)
            single = torch.cat([ours(hidden[i:i + 1], angles[i:i + 1], cache.attend) for i in range(ROWS)])
            for name, found in (("at once", whole), ("a token at a time", single)):
                worst = float(((found - right).norm(dim=-1) / right.norm(dim=-1)).max())
                failed += worst > BOUND
                print(f"{'ok  ' if worst <= BOUND else 'FAIL'}  q_lora_rank {q_lora_rank}, interleaved {interleaved}, {name}: "
                      f"{worst:.1e} of {BOUND:g}")
    for heads in (2, 8):
        calls, apart = llama(heads)
        bound = max(3e-3, 1.5 * Watched.theirs)
        right = calls == 12 and Watched.worst <= bound and apart <= 0.03
        failed += not right
        print(f"{'ok  ' if right else 'FAIL'}  Llama, {heads} KV heads: {calls} calls, {Watched.rows} rows from fp64: "
              f"{Watched.worst:.1e} of {bound:.1e} (SDPA's {Watched.theirs:.1e}); logits from SDPA's: {apart:.1e} of 0.03")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
