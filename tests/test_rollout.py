"""The scheduler: what ends a run and what does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hud.eval import Task
from hud.eval.runtime import LocalRuntime, Runtime

from tests.families import family
from tests.scripted import ScriptedPolicy
from turngrad.agent import LoopSettings
from turngrad.episodes import Failure
from turngrad.errors import RunError
from turngrad.rollout import Group, Rollouts, RolloutSettings
from turngrad.tasksets import TaskRow

MODEL = family("qwen3")
ARITHMETIC = Path(__file__).parents[1] / "envs" / "arithmetic" / "env.py"


class Flaky:
    """A provider that refuses the first `refusals` leases."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.leases = 0

    @asynccontextmanager
    async def __call__(self, task: Task) -> AsyncIterator[Runtime]:
        self.leases += 1
        if self.leases <= self.refusals:
            raise ConnectionError("the environment is down")
        async with LocalRuntime(ARITHMETIC)(task) as runtime:
            yield runtime


async def play(provider: Flaky, *, tasks: int, size: int, concurrent: int) -> tuple[list[Group], Rollouts]:
    rollouts = Rollouts(MODEL, provider, LoopSettings(max_tokens=20), RolloutSettings(concurrent, retries=1))
    rows = [TaskRow(f"task-{n}", "arithmetic", "multiply", {"a": 6, "b": 7}, f"task-{n}", f"task-{n}") for n in range(tasks)]
    groups = rollouts.groups(rows, size, ScriptedPolicy(MODEL, ["42"]), seed="0")  # type: ignore[arg-type]
    return [group async for group in groups], rollouts


async def test_an_environment_that_is_down_for_good_ends_the_run_in_a_sentence() -> None:
    provider = Flaky(10**6)
    with pytest.raises(RunError, match=r"^\d+ rollouts in a row failed, .* the last as provision: .*the environment is down"):
        await play(provider, tasks=8, size=4, concurrent=4)
    assert provider.leases < 8 * 4 * 2


async def test_an_outage_that_ends_costs_at_most_its_own_rollouts() -> None:
    groups, rollouts = await play(Flaky(11), tasks=8, size=4, concurrent=4)
    episodes = [episode for group in groups for episode in group.episodes]
    lost = [episode for episode in episodes if episode.failure is not None]
    assert {episode.failure for episode in lost} <= {Failure.PROVISION}
    counts = rollouts.take_counts()
    assert counts.failures == {"provision": 11}
    assert counts.started == len(episodes) - len(lost) + 11
    assert all(episode.reward == 1.0 for episode in episodes if episode.failure is None)


async def test_one_task_that_never_starts_does_not_end_the_run() -> None:
    groups, rollouts = await play(Flaky(10**6), tasks=1, size=16, concurrent=1)
    assert [episode.failure for episode in groups[0].episodes] == [Failure.PROVISION] * 16
    assert rollouts.take_counts().started == 64


async def test_a_start_that_fails_costs_none_of_the_paid_tries() -> None:
    """The second try after a server's death may meet it dying: both of its failures are the environment's, one was paid for."""
    groups, rollouts = await play(Flaky(3), tasks=1, size=1, concurrent=1)
    assert [episode.reward for episode in groups[0].episodes] == [1.0]
    assert rollouts.take_counts().failures == {"provision": 3}
    groups, _ = await play(Flaky(4), tasks=1, size=1, concurrent=1)
    assert [episode.failure for episode in groups[0].episodes] == [Failure.PROVISION]
