"""Multi-head latent attention with the up-projections of K and V absorbed, as DeepSeek's models have it: the cache holds one record a
token, and attention runs on those. transformers' own DeepSeek code makes K and V for each head instead. Needs torch."""
from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor, nn

Attend = Callable[[Tensor, Tensor], Tensor]  # (q [rows, heads, latent + rope], records [rows, latent + rope]) -> [rows, heads, latent]


def rotate(x: Tensor, angles: Tensor, interleaved: bool) -> Tensor:
    """Rotary embedding of [rows, heads, rope] by angles [rows, rope / 2]. interleaved: pairs are neighbours, and come out as halves."""
    if interleaved:
        x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    cos, sin = angles.cos().unsqueeze(1).to(x.dtype), angles.sin().unsqueeze(1).to(x.dtype)
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


class AbsorbedMLA(nn.Module):
    """A layer's attention but for the attention itself, which `attend` does: it stores the records and lets q look at the cache.

    heads, latent, rope, nope, v  heads of this rank; widths of record, of its rotary part, and of a head's q and v without it
    q                    hidden states -> [rows, heads x (nope + rope)]; kv: -> [rows, latent + rope]; kv_norm: of the latent part
    kv_up                [heads x (nope + v), latent]: what is absorbed; out: [rows, heads x v] -> hidden states
    scale                of the scores; pass it to the kernel as softmax_scale
    """

    def __init__(self, *, heads: int, latent: int, rope: int, nope: int, v: int, q: nn.Module, kv: nn.Module, kv_norm: nn.Module,
                 kv_up: Tensor, out: nn.Module, scale: float, interleaved: bool = False) -> None:
        super().__init__()
        self.heads, self.latent, self.rope, self.nope, self.v = heads, latent, rope, nope, v
        self.q, self.kv, self.kv_norm, self.out = q, kv, kv_norm, out
        self.scale, self.interleaved = scale, interleaved
        k_up, v_up = kv_up.detach().view(heads, nope + v, latent).split([nope, v], 1)
        self.k_up, self.v_up = nn.Parameter(k_up.clone(), False), nn.Parameter(v_up.clone(), False)

    @classmethod
    def of_transformers(cls, attention: Any) -> AbsorbedMLA:
        """From a DeepseekV2Attention or DeepseekV3Attention of transformers, whose projections it shares."""
        config = attention.config
        q = attention.q_proj if config.q_lora_rank is None else nn.Sequential(attention.q_a_proj, attention.q_a_layernorm,
                                                                              attention.q_b_proj)
        return cls(heads=config.num_attention_heads, latent=config.kv_lora_rank, rope=config.qk_rope_head_dim,
                   nope=config.qk_nope_head_dim, v=config.v_head_dim, q=q, kv=attention.kv_a_proj_with_mqa,
                   kv_norm=attention.kv_a_layernorm, kv_up=attention.kv_b_proj.weight, out=attention.o_proj, scale=attention.scaling,
                   interleaved=bool(getattr(config, "rope_interleave", True)))

    def forward(self, hidden: Tensor, angles: Tensor, attend: Attend) -> Tensor:
        """hidden [rows, width], angles [rows, rope / 2] of the rows' positions -> [rows, width]."""
        q, q_rope = self.q(hidden).unflatten(-1, (self.heads, -1)).split([self.nope, self.rope], -1)
        latent, k_rope = self.kv(hidden).split([self.latent, self.rope], -1)
        record = torch.cat([self.kv_norm(latent), rotate(k_rope.unsqueeze(1), angles, self.interleaved).squeeze(1)], -1)
        q = torch.cat([torch.einsum("rhn,hnl->rhl", q, self.k_up), rotate(q_rope, angles, self.interleaved)], -1)
        seen = torch.einsum("rhl,hvl->rhv", attend(q, record), self.v_up)
        return self.out(seen.flatten(1))
