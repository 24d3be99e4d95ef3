"""Sampling from a Qwen3 model for many episodes at once, in process: how a warm start is judged without a server.

In: a model, and episodes that give token ids and take completions. Out: finished episodes. Every episode owns a slot of one
key-value cache, so a turn costs its new tokens only. This is the plain form of what the embedded engine does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from transformers import Qwen3ForCausalLM


class Player(Protocol):
    """An episode in progress."""

    def prompt(self) -> list[int] | None:
        """The new prompt tokens since the last completion, or None when the episode is over."""
        ...

    def take(self, completion: list[int]) -> None:
        """The sampled tokens, with the stop token if it was sampled."""
        ...


class SlotSampler:
    """A Qwen3 model with a cache of `slots` sequences of up to `length` tokens. Full precision."""

    def __init__(self, model: Qwen3ForCausalLM, slots: int, length: int) -> None:
        self.config = model.config
        self.weights = {name: value.detach() for name, value in model.state_dict().items()}
        heads, size = self.config.num_key_value_heads, self.config.head_dim
        shape = (self.config.num_hidden_layers, 2, slots, heads, length, size)
        self.cache = torch.zeros(shape)
        self.filled = torch.zeros(slots, dtype=torch.long)
        self.length = length
        rotation = 1.0 / self.config.rope_parameters["rope_theta"] ** (torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(length), rotation)
        self.cos, self.sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    @torch.inference_mode()
    def extend(self, slots: torch.Tensor, chunks: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append a chunk of tokens to each of `slots`; logits [len(slots), vocabulary] after the last of each."""
        lengths = torch.tensor([len(chunk) for chunk in chunks])
        ids = torch.zeros(len(chunks), int(lengths.max()), dtype=torch.long)
        for row, chunk in enumerate(chunks):
            ids[row, : len(chunk)] = torch.tensor(chunk)
        start = self.filled[slots]
        positions = (start[:, None] + torch.arange(ids.shape[1])).clamp(max=self.length - 1)
        reach = int((start + lengths).max())
        mask = (torch.arange(reach) <= positions[:, :, None])[:, None]
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        hidden = self.weights["model.embed_tokens.weight"][ids]
        for layer in range(self.config.num_hidden_layers):
            hidden = self._layer(layer, hidden, slots, positions, reach, mask, cos, sin)
        self.filled[slots] = start + lengths
        last = hidden[torch.arange(len(chunks)), lengths - 1]
        return F.linear(self._norm(last, "model.norm.weight"), self.weights["model.embed_tokens.weight"])

    def _layer(
        self,
        layer: int,
        hidden: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        reach: int,
        mask: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        at = f"model.layers.{layer}."
        rows, length, _ = hidden.shape
        normed = self._norm(hidden, at + "input_layernorm.weight")

        def heads(kind: str) -> torch.Tensor:
            projected = F.linear(normed, self.weights[f"{at}self_attn.{kind}_proj.weight"])
            return projected.view(rows, length, -1, self.config.head_dim)

        query = self._rotate(self._norm(heads("q"), at + "self_attn.q_norm.weight").transpose(1, 2), cos, sin)
        key = self._rotate(self._norm(heads("k"), at + "self_attn.k_norm.weight").transpose(1, 2), cos, sin)
        cache = self.cache[layer]
        # Tokens of the padding land beyond the end, where the mask hides them until real ones overwrite them.
        cache[0][slots[:, None], :, positions] = key.transpose(1, 2)
        cache[1][slots[:, None], :, positions] = heads("v")
        seen = cache[:, slots, :, :reach]
        attended = F.scaled_dot_product_attention(query, seen[0], seen[1], attn_mask=mask, enable_gqa=True)
        attended = attended.transpose(1, 2).reshape(rows, length, -1)
        hidden = hidden + F.linear(attended, self.weights[at + "self_attn.o_proj.weight"])
        normed = self._norm(hidden, at + "post_attention_layernorm.weight")
        gate = F.silu(F.linear(normed, self.weights[at + "mlp.gate_proj.weight"]))
        up = F.linear(normed, self.weights[at + "mlp.up_proj.weight"])
        return hidden + F.linear(gate * up, self.weights[at + "mlp.down_proj.weight"])

    def _norm(self, value: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(value, value.shape[-1:], self.weights[name], self.config.rms_norm_eps)

    @staticmethod
    def _rotate(value: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = value.chunk(2, dim=-1)
        return value * cos + torch.cat((-second, first), dim=-1) * sin


def play_all(
    model: Qwen3ForCausalLM,
    players: Sequence[Player],
    *,
    stop_ids: set[int],
    temperature: float,
    seed: int = 0,
    max_tokens: int = 192,
    length: int = 1_536,
    slots: int = 128,
) -> None:
    """Play every episode to its end, `slots` at a time. Temperature 0 takes the likeliest token.

    An episode that would not fit `length` tokens is left as it stands.
    """
    generator = torch.Generator().manual_seed(seed)
    for first in range(0, len(players), slots):
        group = players[first : first + slots]
        sampler = SlotSampler(model, len(group), length)
        owed: dict[int, list[int]] = {index: [] for index in range(len(group))}
        while True:
            turn: dict[int, list[int]] = {}
            for index in list(owed):
                new = group[index].prompt()
                if new is None or int(sampler.filled[index]) + len(owed[index]) + len(new) + max_tokens > length:
                    del owed[index]
                else:
                    turn[index] = owed[index] + new
            if not turn:
                break
            for index, completion in _complete(sampler, turn, stop_ids, temperature, max_tokens, generator).items():
                # The last sampled token has not been through the model yet.
                owed[index] = completion[-1:]
                group[index].take(completion)


def _complete(
    sampler: SlotSampler,
    turn: dict[int, list[int]],
    stop_ids: set[int],
    temperature: float,
    max_tokens: int,
    generator: torch.Generator,
) -> dict[int, list[int]]:
    """One completion for each slot of `turn`, after its new tokens."""
    done: dict[int, list[int]] = {index: [] for index in turn}
    ordered = sorted(turn, key=lambda index: len(turn[index]))
    active: list[int] = []
    logits: list[torch.Tensor] = []
    for first in range(0, len(ordered), 32):
        part = ordered[first : first + 32]
        logits.append(sampler.extend(torch.tensor(part), [turn[index] for index in part]))
        active += part
    scores = torch.cat(logits)
    while active:
        if temperature > 0:
            chosen = torch.multinomial(F.softmax(scores / temperature, dim=-1), 1, generator=generator)[:, 0].tolist()
        else:
            chosen = scores.argmax(-1).tolist()
        for index, token in zip(active, chosen, strict=True):
            done[index].append(token)
        active = [i for i in active if done[i][-1] not in stop_ids and len(done[i]) < max_tokens]
        if active:
            scores = sampler.extend(torch.tensor(active), [done[index][-1:] for index in active])
    return done
