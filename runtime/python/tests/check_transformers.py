#!/usr/bin/env python3
"""Attention layers of transformers' DeepSeek models against ours on the same weights: AbsorbedMLA with draftwood's kernel, a prompt in
one call and a token at a time. Opt-in: needs transformers. On the CPU with DRAFTWOOD_DRIVER naming the software GPU, else on a GPU.
Exit status 0: the same within the bound, 1: not.
"""
import sys

import torch
import transformers
from gpu_engines import CPU, DEVICE, launch, on_device
from transformers.models.deepseek_v3 import DeepseekV3Config, modeling_deepseek_v3

import draftwood as dw
from draftwood.engines.absorbed_mla import AbsorbedMLA
from draftwood.engines.common import workspace

ROWS, HEADS, BOUND = 33, 4, 6e-3  # rounding of q and KV to bf16 comes on top of a row's 3e-3


def layers(q_lora_rank, interleaved):
    config = DeepseekV3Config(hidden_size=256, num_attention_heads=HEADS, num_key_value_heads=HEADS, kv_lora_rank=512, q_lora_rank=q_lora_rank,
                              qk_rope_head_dim=64, qk_nope_head_dim=64, v_head_dim=64, rope_interleave=interleaved,
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


@torch.inference_mode()
def main():
    if CPU:
        import support

        support.open_gpu()
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
                print(f"{'ok  ' if worst <= BOUND else 'FAIL'}  q_lora_rank {q_lora_rank}, interleaved {interleaved}, {name}: {worst:.1e} of {BOUND:g}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
