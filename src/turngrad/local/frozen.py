"""The sampler's form of a decoder's weights: immutable, without autograd, projections fused.

In: weights by Hugging Face name. Out: the same logits as `decoder.Decoder` of these weights, to rounding in fp32 and bit for
bit in bf16 on CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from turngrad.local.decoder import Attend, RotaryTable, Spec, forward_pass


class _Fused:
    """One block's frozen weights: q, k, v in one matrix, gate and up in another."""

    def __init__(self, spec: Spec, weights: Mapping[str, Tensor], index: int, compute: torch.dtype) -> None:
        prefix = f"model.layers.{index}."
        attn, mlp = prefix + "self_attn.", prefix + "mlp."
        self._split = [spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.kv_heads * spec.head_dim]
        self._qkv = torch.cat([weights[f"{attn}{name}_proj.weight"] for name in "qkv"])
        self._qkv_bias = torch.cat([weights[f"{attn}{name}_proj.bias"] for name in "qkv"]) if spec.qkv_bias else None
        self._out, self._out_bias = weights[attn + "o_proj.weight"], weights.get(attn + "o_proj.bias")
        self._gate_up = torch.cat([weights[f"{mlp}{name}_proj.weight"] for name in ("gate", "up")])
        self._gate_up_bias = torch.cat([weights[f"{mlp}{name}_proj.bias"] for name in ("gate", "up")]) if spec.mlp_bias else None
        self._down, self._down_bias = weights[mlp + "down_proj.weight"], weights.get(mlp + "down_proj.bias")
        # What autocast would convert at every call is converted once; norms stay as they are.
        for field in ("_qkv", "_qkv_bias", "_out", "_out_bias", "_gate_up", "_gate_up_bias", "_down", "_down_bias"):
            matrix = getattr(self, field)
            setattr(self, field, matrix.to(compute) if matrix is not None else None)
        self.input_norm = weights[prefix + "input_layernorm.weight"]
        self.post_norm = weights[prefix + "post_attention_layernorm.weight"]
        self.q_norm, self.k_norm = weights.get(attn + "q_norm.weight"), weights.get(attn + "k_norm.weight")

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = _linear(x, self._qkv, self._qkv_bias).split(self._split, -1)
        return q, k, v

    def out(self, x: Tensor) -> Tensor:
        return _linear(x, self._out, self._out_bias)

    def mlp(self, x: Tensor) -> Tensor:
        gate, up = _linear(x, self._gate_up, self._gate_up_bias).chunk(2, -1)
        return _linear(F.silu(gate) * up, self._down, self._down_bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` whose rows do not depend on there being others; see `decoder.forward_pass` on a single one."""
    if len(x) == 1 and weight.dtype != torch.float32:
        return F.linear(x.expand(2, -1), weight, bias)[:1]
    return F.linear(x, weight, bias)


class FrozenDecoder:
    """The sampler's form of one set of weights: immutable, no autograd, fused projections."""

    def __init__(self, spec: Spec, weights: Mapping[str, Tensor], compute: torch.dtype = torch.float32) -> None:
        """`weights` by Hugging Face name; they must not change afterwards (unfused ones are not copied)."""
        self.spec, self.compute = spec, compute
        self._embedding = weights["model.embed_tokens.weight"]
        self._head = weights.get("lm_head.weight", self._embedding)
        self._layers = [_Fused(spec, weights, index, compute) for index in range(spec.layers)]
        self._norm = weights["model.norm.weight"]
        self._rotary = RotaryTable(spec, self._embedding.device)

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self._head)

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Attend, keep: Tensor | None) -> Tensor:
        shared = (self.spec, self._rotary, self._embedding, self._layers, self._norm, self._logits)
        return forward_pass(*shared, tokens, positions, attend, keep, self.compute)
