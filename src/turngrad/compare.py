"""Two evaluations of the same tasks, task by task: is the second better, and by how much?

In: two results of `scripts/evaluate.py`. Out: the mean difference over common tasks with a 95 % interval by the paired
differences' standard error. Pairing takes the tasks' own difficulty out of the comparison.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turngrad.errors import UserError


@dataclass(frozen=True, slots=True)
class Comparison:
    """`difference` is second minus first, over `tasks` common tasks; `interval` is None for a single task."""

    tasks: int
    first: float
    second: float
    difference: float
    interval: tuple[float, float] | None


def read_result(path: Path) -> dict[str, Any]:
    """A result file. Raises UserError when it is none."""
    try:
        data = json.loads(path.read_text())
        _ = data["per_task"]
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a result of scripts/evaluate.py ({error!r})") from error
    return data


def compare(first: dict[str, float], second: dict[str, float]) -> Comparison:
    """Compare mean rewards by task id.

    Raises:
        UserError: no task in common.
    """
    common = sorted(first.keys() & second.keys())
    if not common:
        raise UserError("the two results have no task in common: evaluate both on the same --taskset, --split and --tasks")
    differences = [second[task] - first[task] for task in common]
    difference = statistics.fmean(differences)
    interval = None
    if len(common) > 1:
        half = 1.96 * statistics.stdev(differences) / math.sqrt(len(common))
        interval = (difference - half, difference + half)
    return Comparison(
        tasks=len(common),
        first=statistics.fmean(first[task] for task in common),
        second=statistics.fmean(second[task] for task in common),
        difference=difference,
        interval=interval,
    )
