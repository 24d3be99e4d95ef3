"""Headroom: what a policy has to gain on a task by doing always what it does at its best.

In: the rewards of several attempts at each task. Out: the tasks in order of what there is to gain, for `--train-ids`. A task
that always earns the same has nothing to teach a method that compares attempts; one whose best attempts are far above its
mean has most. The second best counts as the best: one attempt may be luck.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def headroom(rewards: Sequence[float]) -> float:
    """The second best of the attempts' rewards less their mean, at least 0."""
    if len(rewards) < 2:
        return 0.0
    return max(0.0, sorted(rewards)[-2] - math.fsum(rewards) / len(rewards))


def learnable(rewards: Mapping[str, Sequence[float]], count: int | None = None) -> list[str]:
    """The ids of at most `count` tasks with headroom, the largest first; ties by id."""
    room = {task: value for task, found in rewards.items() if (value := headroom(found)) > 1e-9}
    return sorted(room, key=lambda task: (-room[task], task))[:count]
