"""A dense decoder over a flat list of tokens, with attention handed in by the caller.

In: token ids and positions, both [N], of any mix of sequences, and `attend`, which alone knows what sees what (a padded
training batch, or a sampler's cache). Out: fp32 logits [M, vocab] of the M positions asked for. `Decoder` is the
trainable form, with Hugging Face parameter names; `FrozenDecoder` is the sampler's form of the same weights with fused
projections. Both run `_forward`, so that their numbers agree to rounding. Llama, Mistral, Qwen2 and Qwen3 live here
because importing transformers costs six seconds; other architectures go through `foreign`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [N, heads, d], k [N, kv_heads, d], v [N, kv_heads, d]) -> [N, heads * d]; scores are scaled by d ** -0.5."""


class UnsupportedModel(ValueError):
    """This module cannot run the configuration; the message says which part."""


@dataclass(frozen=True)
class Spec:
    """The shape of a dense decoder, read from a Hugging Face config.json."""

    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    rope_theta: float
    norm_eps: float
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Spec:
        """Reads config.json as a dict. Raises UnsupportedModel where this module would compute something else."""
        kind = config.get("model_type", "")
        if kind not in ("llama", "mistral", "qwen2", "qwen3"):
            raise UnsupportedModel(f"model_type {kind!r} is not one of llama, mistral, qwen2, qwen3")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type != "default":
            raise UnsupportedModel(f"rope type {rope_type!r} is not the default one")
        if config.get("hidden_act", "silu") != "silu":
            raise UnsupportedModel(f"activation {config['hidden_act']!r} is not silu")
        sliding = config.get("sliding_window") if config.get("use_sliding_window", kind == "mistral") else None
        if sliding is not None or "sliding_attention" in (config.get("layer_types") or ()):
            raise UnsupportedModel("sliding-window attention")
        heads = config["num_attention_heads"]
        bias = bool(config.get("attention_bias", False))
        return cls(
            model_type=kind,
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate=config["intermediate_size"],
            vocab=config["vocab_size"],
            max_positions=config.get("max_position_embeddings", 2048),
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
            norm_eps=config.get("rms_norm_eps", 1e-6),
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=True if kind == "qwen2" else bias,
            out_bias=False if kind == "qwen2" else bias,
            mlp_bias=bool(config.get("mlp_bias", False)),
            qk_norm=kind == "qwen3",
        )

    @property
    def parameters(self) -> int:
        """Weights in matrices, a tied embedding once."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        block = attention + 3 * self.hidden * self.intermediate
        return self.layers * block + self.vocab * self.hidden * (1 if self.tied else 2)


class CausalLM(Protocol):
    """What trainer and sampler ask of a model."""

    spec: Spec

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Attend, keep: Tensor | None) -> Tensor:
        """Logits [len(keep), vocab] in fp32; every position where `keep` is None."""
        ...


class _Layer(Protocol):
    @property
    def input_norm(self) -> Tensor: ...
    @property
    def post_norm(self) -> Tensor: ...
    @property
    def q_norm(self) -> Tensor | None: ...
    @property
    def k_norm(self) -> Tensor | None: ...
    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...
    def out(self, x: Tensor) -> Tensor: ...
    def mlp(self, x: Tensor) -> Tensor: ...


class RotaryTable:
    """cos and sin of every position, [positions, head_dim], built once and grown on demand; fp32 whatever the model."""

    def __init__(self, spec: Spec, device: torch.device) -> None:
        self._spec, self._device = spec, device
        self._size = 0
        self._grow(512)

    def _grow(self, size: int) -> None:
        d = self._spec.head_dim
        inverse = 1.0 / (self._spec.rope_theta ** (torch.arange(0, d, 2, dtype=torch.int64).float() / d))
        angles = torch.outer(torch.arange(size).float(), inverse)
        self._cos = torch.cat((angles, angles), -1).cos().to(self._device)
        self._sin = torch.cat((-angles.sin(), angles.sin()), -1).to(self._device)
        self._size = size

    def at(self, positions: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """cos and signed sin [N, 1, head_dim] for positions below `longest`."""
        if longest > self._size:
            self._grow(max(longest, 2 * self._size))
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((x[..., half:], x[..., :half]), -1) * sin


def _forward(
    spec: Spec,
    rotary: RotaryTable,
    embedding: Tensor,
    layers: Sequence[_Layer],
    final_norm: Tensor,
    head: Callable[[Tensor], Tensor],
    tokens: Tensor,
    positions: Tensor,
    attend: Attend,
    keep: Tensor | None,
    compute: torch.dtype,
) -> Tensor:
    eps, width = spec.norm_eps, (spec.hidden,)
    low = compute != torch.float32
    with torch.autocast(tokens.device.type, compute, enabled=low):
        x = _hidden(spec, rotary, embedding, layers, tokens, positions, attend, keep)
    # The head stays in fp32: bf16 logits are an eighth apart at 20, and no logprob could agree to better.
    return head(F.rms_norm(x.float(), width, final_norm, eps))


def _hidden(
    spec: Spec,
    rotary: RotaryTable,
    embedding: Tensor,
    layers: Sequence[_Layer],
    tokens: Tensor,
    positions: Tensor,
    attend: Attend,
    keep: Tensor | None,
) -> Tensor:
    """The last layer's output [M, hidden]. The residual stream, norms and rotary angles are fp32 in any case."""
    n, eps, width = len(tokens), spec.norm_eps, (spec.hidden,)
    cos, sin = rotary.at(positions, int(positions.max()) + 1)
    x = F.embedding(tokens, embedding)
    for index, layer in enumerate(layers):
        q, k, v = layer.qkv(F.rms_norm(x, width, layer.input_norm, eps))
        q = q.view(n, spec.heads, spec.head_dim)
        k = k.view(n, spec.kv_heads, spec.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = F.rms_norm(q.float(), (spec.head_dim,), layer.q_norm, eps)
            k = F.rms_norm(k.float(), (spec.head_dim,), layer.k_norm, eps)
        # Attention is fp32 throughout: it is little work, and in bf16 it differs by how its keys are cut into parts.
        v = v.float().view(n, spec.kv_heads, spec.head_dim)
        mixed = attend(index, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
        if keep is not None and index == len(layers) - 1:
            # Nothing above mixes positions: what is not asked for can stop here.
            mixed, x = mixed[keep], x[keep]
        x = x + layer.out(mixed)
        x = x + layer.mlp(F.rms_norm(x, width, layer.post_norm, eps))
    return x


class _Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


class _Attention(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.q_proj = nn.Linear(spec.hidden, spec.heads * spec.head_dim, bias=spec.qkv_bias)
        self.k_proj = nn.Linear(spec.hidden, spec.kv_heads * spec.head_dim, bias=spec.qkv_bias)
        self.v_proj = nn.Linear(spec.hidden, spec.kv_heads * spec.head_dim, bias=spec.qkv_bias)
        self.o_proj = nn.Linear(spec.heads * spec.head_dim, spec.hidden, bias=spec.out_bias)
        if spec.qk_norm:
            self.q_norm = _Norm(spec.head_dim)
            self.k_norm = _Norm(spec.head_dim)


class _Mlp(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden, spec.intermediate, bias=spec.mlp_bias)
        self.up_proj = nn.Linear(spec.hidden, spec.intermediate, bias=spec.mlp_bias)
        self.down_proj = nn.Linear(spec.intermediate, spec.hidden, bias=spec.mlp_bias)


class _Block(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.self_attn = _Attention(spec)
        self.mlp = _Mlp(spec)
        self.input_layernorm = _Norm(spec.hidden)
        self.post_attention_layernorm = _Norm(spec.hidden)


class _Trainable:
    """One block's projections, each through its own module: peft may have wrapped it."""

    def __init__(self, block: _Block) -> None:
        self._attn, self._mlp = block.self_attn, block.mlp
        self.input_norm = block.input_layernorm.weight
        self.post_norm = block.post_attention_layernorm.weight
        self.q_norm = block.self_attn.q_norm.weight if hasattr(block.self_attn, "q_norm") else None
        self.k_norm = block.self_attn.k_norm.weight if hasattr(block.self_attn, "k_norm") else None

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self._attn.q_proj(x), self._attn.k_proj(x), self._attn.v_proj(x)

    def out(self, x: Tensor) -> Tensor:
        return self._attn.o_proj(x)

    def mlp(self, x: Tensor) -> Tensor:
        return self._mlp.down_proj(F.silu(self._mlp.gate_proj(x)) * self._mlp.up_proj(x))


class _Body(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(spec.vocab, spec.hidden)
        self.layers = nn.ModuleList(_Block(spec) for _ in range(spec.layers))
        self.norm = _Norm(spec.hidden)


class Decoder(nn.Module):
    """The trainable form. Parameter names are Hugging Face's, so checkpoints load and save unchanged."""

    def __init__(self, spec: Spec, compute: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.spec, self.compute = spec, compute
        self.model = _Body(spec)
        self.lm_head = nn.Linear(spec.hidden, spec.vocab, bias=False)
        if spec.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self._rotary: RotaryTable | None = None

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, keep: Tensor | None) -> Tensor:
        embedding = self.model.embed_tokens.weight
        if self._rotary is None:
            self._rotary = RotaryTable(self.spec, embedding.device)
        layers = [_Trainable(block) for block in self.model.layers]  # pyright: ignore[reportArgumentType]
        norm, head = self.model.norm.weight, self.lm_head
        return _forward(self.spec, self._rotary, embedding, layers, norm, head, tokens, positions, attend, keep, self.compute)


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
        q, k, v = F.linear(x, self._qkv, self._qkv_bias).split(self._split, -1)
        return q, k, v

    def out(self, x: Tensor) -> Tensor:
        return F.linear(x, self._out, self._out_bias)

    def mlp(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, self._gate_up, self._gate_up_bias).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self._down, self._down_bias)


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
        return _forward(*shared, tokens, positions, attend, keep, self.compute)
