"""Rollouts of the drill's accounts, and what must be true of them whatever broke: every try is counted, nothing crosses over."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.drill.left_running import Started, nothing_left
from tests.families import family
from tests.scripted import Line, ScriptedPolicy
from turngrad.advantages import group_advantages
from turngrad.agent import LoopSettings
from turngrad.batch import Batch, build_batch
from turngrad.diagnostics import batch_metrics
from turngrad.episodes import Episode
from turngrad.metrics import rollout_metrics
from turngrad.policy import Sample
from turngrad.pool import ServerPool
from turngrad.rollout import Group, RolloutCounts, Rollouts, RolloutSettings
from turngrad.tasksets import TaskRow

MODEL = family("qwen3")
ENV_FILE = Path(__file__).with_name("faulty_env.py")
AMOUNTS = [5, 7]


@dataclass
class Bank:
    """A pool of servers of the drill's environment, and the files they write to."""

    pool: ServerPool
    started: Started
    folder: Path

    def notes(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@asynccontextmanager
async def open_bank(
    folder: Path, *, drill: dict[str, Any] | None = None, warm: bool = True, **options: Any
) -> AsyncIterator[Bank]:
    """The environment, served by a pool with `options`; at the end nothing of it may be left running."""
    told = {"ledger": str(folder / "ledger"), "faults": str(folder / "faults"), **(drill or {})}
    with nothing_left() as started:
        async with ServerPool(ENV_FILE, env_vars={"DRILL": json.dumps(told)}, **options) as pool:
            if warm:
                await pool.warm()
            yield Bank(pool, started, folder)


def pay(by: str, amount: int, harm: str | None = None) -> str:
    arguments = {"by": by, "amount": amount} | ({"harm": harm} if harm else {})
    return f"<tool_call>\n{json.dumps({'name': 'pay_in', 'arguments': arguments})}\n</tool_call>"


def two_turns(n: int) -> list[Line]:
    """What the n-th try says: every second pays in a wrong amount at last and earns half."""
    by = f"e{n}"
    return [pay(by, AMOUNTS[0]), "paid", pay(by, AMOUNTS[1] - n % 2), "paid"]


@dataclass
class Policy(ScriptedPolicy):
    """A scripted policy that does something else before its samples: `before(n)` counts them from 1."""

    before: Callable[[int], Awaitable[None]] | None = None

    async def sample(self, prompt_ids: list[int], max_tokens: int, *, cache_key: str, seed: int | None = None) -> Sample:
        sample = await super().sample(prompt_ids, max_tokens, cache_key=cache_key, seed=seed)
        if self.before is not None:
            await self.before(self.samples)
        # The loop's other rollouts get their turn, as they would while a service samples.
        await asyncio.sleep(0.001)
        return sample


@dataclass
class Played:
    """The groups of one step, and the counts that stand in its row."""

    groups: list[Group]
    counts: RolloutCounts
    sound: list[Episode] = field(init=False)
    lost: Counter[str] = field(init=False)
    """Rollouts that stayed lost, by class."""
    batch: Batch = field(init=False)

    def __post_init__(self) -> None:
        episodes = [episode for group in self.groups for episode in group.episodes]
        self.sound = [episode for episode in episodes if episode.excluded is None]
        self.lost = Counter(episode.excluded for episode in episodes if episode.excluded is not None)
        self.batch = _batch([list(group.episodes) for group in self.groups])

    def check(self, tasks: int, size: int) -> None:
        """The counts add up, gradient comes from sound episodes alone, and no state crossed from one episode to another."""
        episodes = [episode for group in self.groups for episode in group.episodes]
        assert len(episodes) == tasks * size
        assert self.counts.started == len(self.sound) + sum(self.counts.failures.values())
        pairs = [(group.episodes, group_advantages(group.episodes, "group-mean")) for group in self.groups]
        row = rollout_metrics([group.episodes for group in self.groups]) | batch_metrics(pairs, self.batch)
        assert (row["rollouts"], row["valid_rollouts"]) == (len(episodes), len(self.sound))
        excluded = {
            key.removeprefix("episodes/excluded_"): int(count) for key, count in row.items() if "excluded_" in key and count
        }
        assert excluded == dict(self.lost)
        untaught = sum(e.excluded is None for members, found in pairs if found.reason is not None for e in members)
        assert len(self.batch.episodes) + self.batch.untrained + untaught + self.lost.total() == len(episodes)

        self._check_gradient()
        for episode in self.sound:
            (by,) = {call.arguments["by"] for call in episode.tool_calls if call.arguments}
            assert episode.info["seen"] == [by]
            assert all(call.is_error or call.result.startswith(f"{by} has ") for call in episode.tool_calls)

    def _check_gradient(self) -> None:
        """Bit for bit the datums of a step in which the lost episodes never were; each advantage by hand."""
        without = _batch([[e for e in group.episodes if e.excluded is None] for group in self.groups])
        for one, other in zip(self.batch.sent, without.sent, strict=True):
            assert np.array_equal(one.ids, other.ids)
            assert np.array_equal(one.target_advantages, other.target_advantages)
            assert np.array_equal(one.target_logprobs, other.target_logprobs)
        by_group = {group.row.id: [e.reward or 0.0 for e in group.episodes if e.excluded is None] for group in self.groups}
        for segment in self.batch.segments:
            episode = self.batch.episodes[segment.episode]
            rewards = by_group[episode.task_id]
            advantage = (episode.reward or 0.0) - sum(rewards) / len(rewards)
            assert np.allclose(segment.target_advantages[segment.target_mask], advantage)
            trained = segment.ids[1:][segment.target_mask].tolist()
            assert trained == [token for turn in episode.turns for token in turn.output_ids]

    def check_ledger(self, ledger: list[str]) -> None:
        """No call ran twice, and of a sound episode every call ran."""
        assert len(ledger) == len(set(ledger))
        ran = Counter(line.split()[0] for line in ledger)
        for episode in self.sound:
            calls = list(episode.tool_calls)
            assert ran[(calls[0].arguments or {})["by"]] == len(calls)


def _batch(groups: list[list[Episode]]) -> Batch:
    return build_batch([(group, group_advantages(group, "group-mean")) for group in groups if group], normalize="token")


async def play(
    bank: Bank,
    policy: Policy,
    *,
    tasks: int,
    size: int,
    retries: int = 1,
    concurrent: int = 64,
    leak: int = 0,
    tool_timeout: float = 30.0,
) -> Played:
    """One step: `tasks` tasks, `size` attempts each."""
    settings = LoopSettings(max_tokens=200, tool_timeout=tool_timeout)
    rollouts = Rollouts(MODEL, bank.pool, settings, RolloutSettings(concurrent, retries))
    rows = [
        TaskRow(f"task-{n}", "bank", "account", {"amounts": AMOUNTS, "leak": leak}, f"task-{n}", f"task-{n}")
        for n in range(tasks)
    ]
    groups = [group async for group in rollouts.groups(rows, size, policy, seed="0")]  # type: ignore[arg-type]
    return Played(groups, rollouts.take_counts())
