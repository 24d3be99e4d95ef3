"""Keys and values of open sequences: one slot a sequence, and long common prefixes held once.

In: the keys and values a forward pass computes, layer by layer. Out: attention over them. A slot is an optional shared
prefix (`Shared`, immutable, read by many slots) followed by a tail of its own in a pool of equal buffers. A finished
slot keeps its content until the room is needed, so the next turn of an episode continues where it stopped. Invariant: a
slot's keys and values are those of exactly the tokens it lists, computed by this cache's weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from turngrad.local.decoder import Spec

MIN_SHARED = 96
"""A common prefix of at least this many tokens becomes a shared one; a shorter one is copied into the tail."""
_LIKE_LENGTH = 192
"""Tails that differ by more than this are attended to in separate calls."""
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(eq=False)
class Shared:
    """A prefix held once: `keys[layer]` and `values[layer]` are [1, kv_heads, length, d]."""

    tokens: list[int]
    keys: list[Tensor]
    values: list[Tensor]
    users: int = 0
    used_at: int = 0


@dataclass(eq=False)
class Slot:
    """One sequence. `tokens` are those whose keys and values are held: shared prefix first, tail after."""

    index: int
    tokens: list[int] = field(default_factory=list)
    shared: Shared | None = None
    busy: bool = False
    used_at: int = 0
    cache_key: str | None = None

    @property
    def base(self) -> int:
        return len(self.shared.tokens) if self.shared is not None else 0

    @property
    def tail(self) -> int:
        return len(self.tokens) - self.base


class KVCache:
    """The pool: per layer keys and values [slots, kv_heads, capacity, d], grown as needed up to `budget` bytes."""

    def __init__(self, spec: Spec, device: torch.device, dtype: torch.dtype, budget: int) -> None:
        self.spec, self._device, self._dtype = spec, device, dtype
        self._token_bytes = 2 * spec.layers * spec.kv_heads * spec.head_dim * dtype.itemsize
        self._budget_tokens = max(spec.max_positions, budget // self._token_bytes)
        self.slots: list[Slot] = []
        self.shared: list[Shared] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._capacity = 0
        self._clock = 0
        self._resize(8, 128)

    # -- room ---------------------------------------------------------------------------------------------------------

    def _resize(self, slots: int, capacity: int) -> None:
        shape = (slots, self.spec.kv_heads, capacity, self.spec.head_dim)
        held = max((slot.tail for slot in self.slots), default=0)
        for pool in (self.keys, self.values):
            grown = []
            for layer in range(self.spec.layers):
                fresh = _zeros(shape, self._device, self._dtype)
                if pool:
                    fresh[: len(self.slots), :, :held] = pool[layer][:, :, :held]
                    pool[layer] = torch.empty(0)
                grown.append(fresh)
            pool[:] = grown
        self.slots += [Slot(index) for index in range(len(self.slots), slots)]
        self._capacity = capacity

    def _tokens_held(self, slots: int, capacity: int) -> int:
        return slots * capacity + sum(len(shared.tokens) for shared in self.shared)

    def reserve(self, tail: int) -> bool:
        """Room for a tail of `tail` tokens in every slot; False if the budget forbids it."""
        if tail <= self._capacity:
            return True
        capacity = max(tail, self._capacity + self._capacity // 2)
        capacity = -(-capacity // 64) * 64
        if self._tokens_held(len(self.slots), capacity) > self._budget_tokens:
            return False
        self._resize(len(self.slots), capacity)
        return True

    def shrink_to(self, tail: int) -> bool:
        """Forgets everything and holds a few slots of `tail` tokens instead; False if even one is over the budget."""
        count = min(8, self._budget_tokens // tail)
        if count < 1 or any(slot.busy for slot in self.slots):
            return False
        self.slots, self.shared, self.keys, self.values, self._capacity = [], [], [], [], 0
        self._resize(count, tail)
        return True

    def free_slot(self) -> Slot | None:
        """An empty slot, a new one, or the longest unused idle one, emptied; None when all are busy and no room is left."""
        idle = [slot for slot in self.slots if not slot.busy]
        empty = next((slot for slot in idle if not slot.tokens), None)
        if empty is None and self._tokens_held(2 * len(self.slots), self._capacity) <= self._budget_tokens:
            self._resize(2 * len(self.slots), self._capacity)
            empty = next(slot for slot in self.slots if not slot.busy and not slot.tokens)
        if empty is None and idle:
            empty = min(idle, key=lambda slot: slot.used_at)
            self.release(empty)
        return empty

    def release(self, slot: Slot) -> None:
        """Forgets what the slot holds."""
        if slot.shared is not None:
            slot.shared.users -= 1
        slot.tokens, slot.shared, slot.cache_key = [], None, None

    def touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.used_at = self._clock
        if slot.shared is not None:
            slot.shared.used_at = self._clock

    # -- prefixes -----------------------------------------------------------------------------------------------------

    def truncate(self, slot: Slot, length: int) -> None:
        """Keeps the first `length` tokens, which must not cut the shared prefix."""
        if length < slot.base:
            raise ValueError(f"cannot cut slot {slot.index} to {length} tokens inside its shared prefix of {slot.base}")
        del slot.tokens[length:]

    def adopt(self, slot: Slot, source: Slot | Shared, length: int) -> None:
        """Gives an empty `slot` the first `length` tokens of `source`: shared where long, copied where short."""
        shared = source if isinstance(source, Shared) else source.shared
        if shared is not None and len(shared.tokens) > length:
            shared = None
        base = len(shared.tokens) if shared is not None else 0
        if length - base >= MIN_SHARED:
            shared = self._share(source, length)
            base = length
            if isinstance(source, Slot):
                self._rebase(source, shared)
        if shared is not None:
            shared.users += 1
        slot.shared, slot.tokens = shared, list(source.tokens[:length])
        if length > base:
            for pool, spare in ((self.keys, "keys"), (self.values, "values")):
                for layer in range(self.spec.layers):
                    pool[layer][slot.index, :, : length - base] = self._read(source, spare, layer, base, length)

    def _rebase(self, slot: Slot, shared: Shared) -> None:
        """Lets the slot a prefix was taken from read it too: its long tail would pad everyone's attention."""
        move = len(shared.tokens) - slot.base
        for pool in (self.keys, self.values):
            for layer in pool:
                layer[slot.index, :, : slot.tail - move] = layer[slot.index, :, move : slot.tail].clone()
        if slot.shared is not None:
            slot.shared.users -= 1
        slot.shared = shared
        shared.users += 1

    def _read(self, source: Slot | Shared, which: str, layer: int, start: int, stop: int) -> Tensor:
        """Keys or values [kv_heads, stop - start, d] of `source`."""
        if isinstance(source, Shared):
            return getattr(source, which)[layer][0, :, start:stop]
        base = source.base
        tail = getattr(self, which)[layer][source.index, :, max(start - base, 0) : max(stop - base, 0)]
        if start >= base or source.shared is None:
            return tail
        return torch.cat((getattr(source.shared, which)[layer][0, :, start : min(stop, base)], tail), dim=1)

    def _share(self, source: Slot | Shared, length: int) -> Shared:
        keys, values = (
            [self._read(source, which, layer, 0, length).clone().unsqueeze(0) for layer in range(self.spec.layers)]
            for which in ("keys", "values")
        )
        shared = Shared(list(source.tokens[:length]), keys, values, used_at=self._clock)
        unused = sorted((s for s in self.shared if not s.users), key=lambda s: s.used_at)
        while unused and self._tokens_held(len(self.slots), self._capacity) + length > self._budget_tokens:
            self.shared.remove(unused.pop(0))
        self.shared.append(shared)
        return shared


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros. On CPUs they take memory, and time, only where something is written: numpy asks for pages that are zero already."""
    if device.type == "cpu" and dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.zeros(shape, np.float32 if dtype == torch.float32 else np.float64))
    return torch.zeros(shape, device=device, dtype=dtype)


class CacheAttention:
    """`decoder.Attend` of one sampler step: `decoding` slots add one token each, then `chunks` add several each.

    The flat token order is one token of every decoding slot, then the chunks in order. Slots list their tokens before
    this step. Only the arithmetic is here; the caller appends the tokens to the slots afterwards.
    """

    def __init__(self, cache: KVCache, decoding: Sequence[Slot], chunks: Sequence[tuple[Slot, int]]) -> None:
        self._cache, self._chunks = cache, chunks
        self._count = len(decoding)
        device = cache.keys[0].device
        if decoding:
            _, kv_heads, capacity, _ = cache.keys[0].shape
            first = torch.tensor([slot.index * kv_heads * capacity + slot.tail for slot in decoding], device=device)
            self._rows = (first[:, None] + torch.arange(kv_heads, device=device) * capacity).flatten()
            self._runs = self._decode_runs(decoding, device, cache.keys[0].dtype)
            groups: dict[int, tuple[Shared, list[int]]] = {}
            for row, slot in enumerate(decoding):
                if slot.shared is not None:
                    groups.setdefault(id(slot.shared), (slot.shared, []))[1].append(row)
            self._groups = [(shared, torch.tensor(rows, device=device)) for shared, rows in groups.values()]

    @staticmethod
    def _decode_runs(
        decoding: Sequence[Slot], device: torch.device, dtype: torch.dtype
    ) -> list[tuple[slice, slice, int, Tensor]]:
        """Runs of consecutive slots of like length, by (rows, slots, longest tail, additive mask [n, 1, 1, longest]).

        The caller sorts by index. A run is read up to its longest tail, hence the split where lengths jump.
        """
        runs = []
        start = 0
        for stop in range(1, len(decoding) + 1):
            if (
                stop < len(decoding)
                and decoding[stop].index == decoding[stop - 1].index + 1
                and abs(decoding[stop].tail - decoding[start].tail) <= _LIKE_LENGTH
            ):
                continue
            members = decoding[start:stop]
            lengths = torch.tensor([slot.tail + 1 for slot in members], device=device)
            longest = int(lengths.max())
            hidden = torch.arange(longest, device=device) >= lengths.unsqueeze(1)
            mask = torch.zeros(hidden.shape, device=device, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None, None]
            runs.append((slice(start, stop), slice(members[0].index, members[-1].index + 1), longest, mask))
            start = stop
        return runs

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = self._count
        parts = []
        if n:
            parts.append(self._decode(layer, q[:n], k[:n], v[:n]))
        for slot, length in self._chunks:
            span = slice(n, n + length)
            parts.append(self._prefill(layer, slot, q[span], k[span], v[span]))
            n += length
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        n, heads, d = q.shape
        for pool, new in ((keys, k), (values, v)):
            pool.view(-1, d).index_copy_(0, self._rows, new.reshape(-1, d))
        kv_heads = k.shape[1]
        grouped = q.view(n, kv_heads, heads // kv_heads, d)
        mixes, sums = [], []
        for rows, slots, longest, mask in self._runs:
            mix, lse = _flash(grouped[rows], keys[slots, :, :longest], values[slots, :, :longest], mask=mask)
            mixes.append(mix)
            sums.append(lse)
        mixed, total = (mixes[0], sums[0]) if len(mixes) == 1 else (torch.cat(mixes), torch.cat(sums))
        for shared, rows in self._groups:
            together = len(rows) == n
            own = grouped if together else grouped[rows]
            folded = own.transpose(0, 1).reshape(1, kv_heads, -1, d)
            mix, lse = _flash(folded, shared.keys[layer], shared.values[layer])
            mix = mix.view(kv_heads, len(rows), -1, d).transpose(0, 1)
            lse = lse.view(kv_heads, len(rows), -1).transpose(0, 1)
            if together:
                mixed, _ = _merge((mixed, total), (mix, lse))
            else:
                mixed[rows] = _merge((mixed[rows], total[rows]), (mix, lse))[0]
        return mixed.reshape(n, heads * d)

    def _prefill(self, layer: int, slot: Slot, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._cache.keys[layer][slot.index], self._cache.values[layer][slot.index]
        tail, n = slot.tail, len(q)
        keys[:, tail : tail + n] = k.transpose(0, 1)
        values[:, tail : tail + n] = v.transpose(0, 1)
        _, heads, d = q.shape
        kv_heads = k.shape[1]
        group = heads // kv_heads
        grouped = q.view(n, kv_heads, group, d).permute(2, 1, 0, 3)
        expanded = [x.transpose(0, 1).unsqueeze(0).expand(group, -1, -1, -1) for x in (k, v)]
        part = _flash(grouped, *expanded, causal=True)
        folded = grouped.transpose(0, 1).reshape(1, kv_heads, group * n, d)
        past = [(keys[None, :, :tail], values[None, :, :tail])] if tail else []
        if slot.shared is not None:
            past.append((slot.shared.keys[layer], slot.shared.values[layer]))
        for past_keys, past_values in past:
            mix, lse = _flash(folded, past_keys, past_values)
            mix = mix.view(kv_heads, group, n, d).transpose(0, 1)
            part = _merge(part, (mix, lse.view(kv_heads, group, n).transpose(0, 1)))
        return part[0].permute(2, 1, 0, 3).reshape(n, heads * d)


def _flash(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Softmax attention and its log-sum-exp: q [b, h, n, d], k and v [b, h, m, d] -> [b, h, n, d], [b, h, n] in fp32."""
    if q.device.type == "cpu":
        return _FLASH(q, k, v, 0.0, causal, attn_mask=mask)
    return _plain(q, k, v, causal=causal, mask=mask)


def _plain(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same where no kernel gives the log-sum-exp."""
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + mask
    if causal:
        scores = scores + torch.full(scores.shape[-2:], float("-inf"), device=q.device).triu(1)
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp().to(v.dtype) @ v, lse


def _merge(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Two attentions over disjoint keys as the one over both: weights are the softmax of their log-sum-exps."""
    share = torch.sigmoid(b[1] - a[1]).unsqueeze(-1).to(a[0].dtype)
    return torch.lerp(a[0], b[0], share), torch.logaddexp(a[1], b[1])
