"""Datums into micro-batches: like lengths together, a common prefix once, and only positions that carry weight scored.

In: datums and a token budget. Out: `MicroBatch`es that cover each datum exactly once. Invariant: the attention pattern
of a micro-batch is that of its datums run alone; padding sits on the right, where causal attention cannot see it, and a
shared prefix holds no position that carries weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MIN_SHARED = 24
"""A common prefix shorter than this is not worth a second attention call."""
_ROUND = 16


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """`prefix` tokens once, then `rows` x `width` tokens, right-padded: `tokens` and `positions` are [prefix + rows * width].

    `members[i]` is the datum of row i. `keep` [M] are the flat places whose logits are needed; `kept_row` and
    `kept_offset` say which row and which position of its datum each one is.
    """

    members: tuple[int, ...]
    prefix: int
    width: int
    tokens: np.ndarray
    positions: np.ndarray
    keep: np.ndarray
    kept_row: np.ndarray
    kept_offset: np.ndarray


def pack(
    tokens: Sequence[np.ndarray], active: Sequence[np.ndarray], token_budget: int, logit_budget: int, *, share: bool = True
) -> list[MicroBatch]:
    """Micro-batches of at most `token_budget` tokens and `logit_budget` scored positions (one datum may exceed them).

    `tokens[i]` is [n_i] ids, `active[i]` is [n_i] bool: the positions to score. What follows a datum's last scored
    position is left out.
    """
    ends = [int(np.flatnonzero(a)[-1]) + 1 if a.any() else 1 for a in active]
    tokens = [t[:end] for t, end in zip(tokens, ends, strict=True)]
    active = [a[:end] for a, end in zip(active, ends, strict=True)]
    batches: list[MicroBatch] = []
    for members, prefix in _clusters(tokens, active, share):
        rest = sorted(members, key=lambda i: -len(tokens[i]))
        while rest:
            width = _rounded(len(tokens[rest[0]]) - prefix)
            count, scored = 0, 0
            for i in rest:
                scored += int(active[i].sum())
                if count and (prefix + (count + 1) * width > token_budget or scored > logit_budget):
                    break
                count += 1
            batches.append(_micro_batch(tokens, active, tuple(rest[:count]), prefix, width))
            rest = rest[count:]
    return batches


def _clusters(tokens: Sequence[np.ndarray], active: Sequence[np.ndarray], share: bool) -> list[tuple[list[int], int]]:
    """Datums grouped by a common prefix worth sharing; the others in one group with prefix 0."""
    if not share:
        return [(list(range(len(tokens))), 0)]
    first_active = [int(np.argmax(a)) if a.any() else len(a) for a in active]
    order = sorted(range(len(tokens)), key=lambda i: tokens[i].astype(">i8").tobytes())
    clusters: list[tuple[list[int], int]] = []
    loose: list[int] = []
    current, prefix = [order[0]], min(first_active[order[0]], len(tokens[order[0]]) - 1)

    def close() -> None:
        if len(current) > 1:
            clusters.append((current, prefix))
        else:
            loose.extend(current)

    for i in order[1:]:
        common = min(_common(tokens[current[-1]], tokens[i]), first_active[i], len(tokens[i]) - 1, prefix)
        # Joining shortens everyone's prefix to `common`: worth it only while that loses less than the newcomer gains.
        if common >= MIN_SHARED and common * len(current) >= prefix * (len(current) - 1):
            current.append(i)
            prefix = common
        else:
            close()
            current, prefix = [i], min(first_active[i], len(tokens[i]) - 1)
    close()
    if loose:
        clusters.append((loose, 0))
    return clusters


def _common(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    return int(np.argmax(differ)) if differ.any() else n


def _rounded(width: int) -> int:
    """Few distinct shapes keep the allocator from growing by a new arena for each."""
    step = _ROUND if width <= 512 else 4 * _ROUND
    return -(-width // step) * step


def _micro_batch(
    tokens: Sequence[np.ndarray], active: Sequence[np.ndarray], members: tuple[int, ...], prefix: int, width: int
) -> MicroBatch:
    rows = len(members)
    flat = np.zeros(prefix + rows * width, np.int64)
    flat[:prefix] = tokens[members[0]][:prefix]
    keep, kept_row, kept_offset = [], [], []
    for row, i in enumerate(members):
        start = prefix + row * width
        flat[start : start + len(tokens[i]) - prefix] = tokens[i][prefix:]
        offsets = np.flatnonzero(active[i])
        # A scored position inside the prefix cannot happen by construction of the clusters, except with prefix 0.
        keep.append(start + offsets - prefix)
        kept_row.append(np.full(len(offsets), row))
        kept_offset.append(offsets)
    positions = np.concatenate([np.arange(prefix), np.tile(np.arange(prefix, prefix + width), rows)])
    return MicroBatch(
        members, prefix, width, flat, positions, np.concatenate(keep), np.concatenate(kept_row), np.concatenate(kept_offset)
    )
