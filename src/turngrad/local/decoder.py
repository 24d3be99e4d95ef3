"""A dense decoder over a flat list of tokens, with attention handed in by the caller.

In: token ids and positions, both [N], of any mix of sequences, and `attend`, which alone knows what sees what (a padded
training batch, or a sampler's cache). Out: fp32 logits [M, vocab] of the M positions asked for. `Decoder` is the
trainable form, with Hugging Face parameter names; `frozen.FrozenDecoder` is the sampler's form of the same weights with
fused projections. Both run `forward_pass`, so that their numbers agree to rounding. Llama, Mistral, Qwen2 and Qwen3 live here
because importing transformers costs six seconds; other architectures go through `foreign`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from turngrad.local.lowrank import project

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


class Layer(Protocol):
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

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin [N, 1, head_dim] of `positions` [N]."""
        longest = int(positions.max()) + 1
        if longest > self._size:
            self._grow(max(longest, 2 * self._size))
        return self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((x[..., half:], x[..., :half]), -1) * sin


def forward_pass(
    spec: Spec,
    rotary: RotaryTable,
    embedding: Tensor,
    layers: Sequence[Layer],
    final_norm: Tensor,
    head: Callable[[Tensor], Tensor],
    tokens: Tensor,
    positions: Tensor,
    attend: Attend,
    keep: Tensor | None,
    compute: torch.dtype,
) -> Tensor:
    """Logits [M, vocab] of the positions `keep`; `compute` is what matrix products of the layers take."""
    eps, width = spec.norm_eps, (spec.hidden,)
    low = compute != torch.float32
    alone = False
    if low and keep is not None and len(keep) == 1:
        # A matrix product of one row goes through another kernel, which rounds differently.
        keep, alone = keep.expand(2), True
    with torch.autocast(tokens.device.type, compute) if low else nullcontext():
        x = _hidden(spec, rotary, embedding, layers, tokens, positions, attend, keep, attention_dtype(compute, tokens.device))
    # The head stays in fp32: bf16 logits are an eighth apart at 20, and no logprob could agree to better.
    return head(F.rms_norm(x[:1] if alone else x, width, final_norm, eps))


def attention_dtype(compute: torch.dtype, device: torch.device) -> torch.dtype:
    """What attention computes in: fp32, and fp64 on CPUs where the layers are bf16.

    Which keys are summed first depends on what is cached and shared. In fp32 that moves a result by its last bit, which bf16
    rounds to a neighbouring value now and then, and thirty layers make 0.02 nats of it. In fp64 it is lost in the rounding, so
    sampler and trainer agree bit for bit: torch's matrix products there give a row the same bits among any number of rows.
    """
    return torch.float64 if compute != torch.float32 and device.type == "cpu" else torch.float32


def _hidden(
    spec: Spec,
    rotary: RotaryTable,
    embedding: Tensor,
    layers: Sequence[Layer],
    tokens: Tensor,
    positions: Tensor,
    attend: Attend,
    keep: Tensor | None,
    attention: torch.dtype,
) -> Tensor:
    """The last layer's output [M, hidden]. The residual stream, norms and rotary angles are fp32 in any case."""
    n, eps, width = len(tokens), spec.norm_eps, (spec.hidden,)
    cos, sin = rotary.at(positions)
    x = F.embedding(tokens, embedding)
    for index, layer in enumerate(layers):
        q, k, v = layer.qkv(F.rms_norm(x, width, layer.input_norm, eps))
        q = q.view(n, spec.heads, spec.head_dim)
        k = k.view(n, spec.kv_heads, spec.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = F.rms_norm(q.float(), (spec.head_dim,), layer.q_norm, eps)
            k = F.rms_norm(k.float(), (spec.head_dim,), layer.k_norm, eps)
        v = v.view(n, spec.kv_heads, spec.head_dim)
        q, k, v = _rotate(q, cos, sin).to(attention), _rotate(k, cos, sin).to(attention), v.to(attention)
        mixed = attend(index, q, k, v).float()
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

    def __init__(self, block: _Block, compute: torch.dtype) -> None:
        self._attn, self._mlp, self._compute = block.self_attn, block.mlp, compute
        self.input_norm = block.input_layernorm.weight
        self.post_norm = block.post_attention_layernorm.weight
        self.q_norm = block.self_attn.q_norm.weight if hasattr(block.self_attn, "q_norm") else None
        self.k_norm = block.self_attn.k_norm.weight if hasattr(block.self_attn, "k_norm") else None

    def _through(self, layer: nn.Module, x: Tensor) -> Tensor:
        return project(layer, x, self._compute)

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attn = self._attn
        return self._through(attn.q_proj, x), self._through(attn.k_proj, x), self._through(attn.v_proj, x)

    def out(self, x: Tensor) -> Tensor:
        return self._through(self._attn.o_proj, x)

    def mlp(self, x: Tensor) -> Tensor:
        gate, up = self._through(self._mlp.gate_proj, x), self._through(self._mlp.up_proj, x)
        return self._through(self._mlp.down_proj, F.silu(gate) * up)


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
        layers = [_Trainable(block, self.compute) for block in self.model.layers]  # pyright: ignore[reportArgumentType]
        norm, head = self.model.norm.weight, self.lm_head
        return forward_pass(self.spec, self._rotary, embedding, layers, norm, head, tokens, positions, attend, keep, self.compute)
