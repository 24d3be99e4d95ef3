"""Multiplication tasks: distinct operand pairs from a seed, without importing hud."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

ENVIRONMENT = "arithmetic"
TEMPLATE = "multiply"


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task: `id` names the operands, `scenario` is the row's index, `args` the template's arguments."""

    id: str
    scenario: int
    args: dict[str, Any]


def make_tasks(
    count: int,
    seed: int = 0,
    min_a: int = 10,
    max_a: int = 99,
    min_b: int = 10,
    max_b: int = 99,
    prompt: str = "work",
) -> list[TaskRow]:
    """`count` distinct pairs, a in [min_a, max_a] and b in [min_b, max_b], in an order that `seed` alone decides.

    Raises ValueError when the ranges hold fewer pairs, or for an unknown prompt.
    """
    width, height = max_a - min_a + 1, max_b - min_b + 1
    available = max(0, width) * max(0, height)
    if count > available:
        raise ValueError(f"{count} tasks asked of {available} pairs (a {min_a} to {max_a}, b {min_b} to {max_b}); widen a range")
    if prompt not in ("work", "direct"):
        raise ValueError(f"prompt={prompt!r}; expected 'work' or 'direct'")
    pairs = [(min_a + index % width, min_b + index // width) for index in random.Random(seed).sample(range(available), count)]
    return [TaskRow(f"multiply_{a}_{b}", scenario, {"a": a, "b": b, "prompt": prompt}) for scenario, (a, b) in enumerate(pairs)]
