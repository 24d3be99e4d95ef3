"""What changes from step to step by rule: the learning rate, and whether a run has collapsed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]

_WINDOW = 5
"""Steps whose mean reward is compared, for collapse: single steps draw different tasks."""


def learning_rate_at(step: int, *, peak: float, steps: int, warmup: int, schedule: Schedule) -> float:
    """The learning rate of step `step` (from 1) of `steps`.

    It rises linearly to `peak` over the first `warmup` steps, then stays (constant), or falls to a tenth of `peak` at the last
    step along a line or half a cosine. A function of the step alone, so that resume needs no state.
    """
    if step <= warmup:
        return peak * step / (warmup + 1)
    left = steps - warmup
    progress = (step - warmup - 1) / (left - 1) if left > 1 else 0.0
    if schedule == "linear":
        return peak * (1 - 0.9 * progress)
    if schedule == "cosine":
        return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))
    return peak


def has_collapsed(rewards: Sequence[float | None], share: float) -> bool:
    """Whether the mean reward of the last five steps is below `share` of the best five in a row before them."""
    known = [reward for reward in rewards if reward is not None]
    if len(known) < 2 * _WINDOW:
        return False
    means = [statistics.fmean(known[i : i + _WINDOW]) for i in range(len(known) - _WINDOW + 1)]
    return means[-1] < share * max(means[:-_WINDOW])
