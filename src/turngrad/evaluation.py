"""Evaluation: several attempts at each of a set of tasks under one snapshot, as one metrics row.

In: rows, a session, a snapshot. Out: the groups, and a row with `"kind": "eval"`. Nothing here trains, and the tasks of the
held-out split appear here only (C10).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from turngrad.costs import price_of_row
from turngrad.display import Display
from turngrad.metrics import evaluation_metrics, rollout_metrics
from turngrad.rollout import Group, Player, Rollouts
from turngrad.tasksets import TaskRow

if TYPE_CHECKING:
    from turngrad.config import TrainConfig
    from turngrad.episodes import Episode
    from turngrad.policy import Policy


class Arena(Protocol):
    """What of a session an evaluation needs."""

    config: TrainConfig
    rollouts: Rollouts
    on_progress: Callable[[Episode], None]


async def evaluate(
    session: Arena,
    rows: Sequence[TaskRow],
    policy: Policy | Player,
    *,
    split: str,
    step: int,
    samples: int,
    display: Display,
) -> tuple[list[Group], dict[str, Any]]:
    """Play every row `samples` times. The seeds depend on run seed, split and attempt, not on the step: before and after
    meet the same draws wherever the sampler honours seeds."""
    started = time.monotonic()
    groups = []
    with display.phase(f"evaluation, {split.replace('_', ' ')}", len(rows) * samples):
        session.on_progress = lambda episode: display.advance(session.rollouts.in_flight)
        async for group in session.rollouts.groups(rows, samples, policy, seed=f"{session.config.seed}/eval/{split}"):
            groups.append(group)
    episodes = [group.episodes for group in groups]
    counts = session.rollouts.take_counts()
    rolled = rollout_metrics(episodes)
    row = {
        "kind": "eval",
        "step": step,
        "split": split,
        **evaluation_metrics(episodes),
        "snapshot": policy.snapshot,
        "turns_per_episode": rolled["turns_per_episode"],
        "tool_calls_per_episode": rolled["tool_calls_per_episode"],
        "bad_call_rate": rolled["bad_call_rate"],
        "sampled_tokens": rolled["sampled_tokens"],
        "prompt_tokens": rolled["prompt_tokens"],
        "failures": dict(counts.failures),
        "seconds": round(time.monotonic() - started, 3),
    }
    row["cost"] = price_of_row(session.config, row)
    return groups, row
