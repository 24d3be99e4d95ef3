"""The training loop with rewards that a test decides: the loop, the SDK, the engine and the run folder are real.

Episodes are made of tokens that follow from seed, task and attempt alone, so that two runs that ask for the same play the same.
"""

from __future__ import annotations

import io
import random
import types
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from fireworks.training.sdk.concurrency import AdaptiveConcurrencyController
from rich.console import Console

from tests.tiny_engine import VOCABULARY, TinyEngine
from turngrad import run
from turngrad import session as session_module
from turngrad.backend import Endpoint
from turngrad.config import TrainConfig
from turngrad.display import Display
from turngrad.episodes import Episode, StopReason, Turn, logprob_array, token_array
from turngrad.resuming import open_log
from turngrad.rollout import Group, RolloutCounts
from turngrad.runlog import read_rows
from turngrad.session import Session
from turngrad.tasksets import TaskRow, Taskset

Rewards = Callable[[str, int, int], float]
"""The reward of an episode by seed ("0/3" in step 3, "0/eval/held_out" in an evaluation), task number and attempt."""


def mixed(seed: str, task: int, attempt: int) -> float:
    """Every group has spread."""
    return float((task + attempt) % 2)


def task(number: int) -> TaskRow:
    return TaskRow(f"task_{number}", "env", "template", {}, f"scenario {number}", f"prompt {number}")


TASKS = Taskset("made-up", tuple(map(task, range(6))), tuple(map(task, range(6, 10))), cast("Any", None), has_tools=False)


@dataclass
class ScriptedRollouts:
    """Plays what `rewards` says; `before` is awaited before each group, and may hang or raise."""

    rewards: Rewards
    before: Callable[[str], Any] | None = None
    in_flight: int = 0
    seeds: list[str] = field(default_factory=list)

    async def groups(
        self, rows: Sequence[TaskRow], group_size: int, policy: Any, *, seed: str, lag: int = 0
    ) -> AsyncIterator[Group]:
        self.seeds.append(seed)
        for row in rows:
            if self.before is not None:
                await self.before(seed)
            yield Group(row, tuple(self._episode(row, seed, attempt, lag) for attempt in range(group_size)))

    def take_counts(self) -> RolloutCounts:
        return RolloutCounts()

    def _episode(self, row: TaskRow, seed: str, attempt: int, lag: int) -> Episode:
        tokens = random.Random(f"{seed}/{row.id}/{attempt}").choices(range(1, VOCABULARY), k=8)
        turn = Turn(token_array(tokens[:4]), token_array(tokens[4:]), logprob_array([-5.0] * 4), "stop")
        reward = self.rewards(seed, int(row.id.rpartition("_")[2]), attempt)
        return Episode(row.id, f"{seed}/{row.id}", attempt, (turn,), reward, StopReason.DONE, lag=lag)


@dataclass
class Loop:
    """Runs on one engine. `service` says whether they are told that it is a service elsewhere."""

    engine: TinyEngine
    monkeypatch: pytest.MonkeyPatch
    said: str = ""
    sessions: list[Session] = field(default_factory=list)

    async def train(
        self,
        folder: Path,
        *,
        rewards: Rewards = mixed,
        before: Callable[[str], Any] | None = None,
        service: bool = False,
        **settings: Any,
    ) -> list[dict[str, Any]]:
        """Train as `scripts/train.py` does after its flags are parsed; the rows of metrics.jsonl. Sets `said`."""
        given = {
            "backend": "local",
            "output_dir": folder,
            "base_model": self.engine.model,
            "steps": 4,
            "tasks_per_step": 2,
            "group_size": 2,
            "eval_tasks": 0,
            "eval_samples": 2,
            "checkpoint_every": 1,
            "learning_rate": 1e-3,
            # The same wherever the weights live, as a preset is not.
            "warmup_steps": 0,
            "schedule": "constant",
        }
        if service:
            self.monkeypatch.setenv("FIREWORKS_API_KEY", "local")
            given |= {"backend": "fireworks", "base_url": self.engine.url}
        config = TrainConfig(**given | settings).resolve()
        rollouts = ScriptedRollouts(rewards, before)

        @asynccontextmanager
        async def open_session(*_: Any, say: Callable[[str], None]) -> AsyncIterator[Session]:
            endpoint = Endpoint(self.engine.url, "local", self.engine.model, "", None, local=not service)
            family = types.SimpleNamespace(stop=["<end>"], name="tiny")
            session = Session(
                config,
                endpoint,
                self.engine.service(),
                cast("Any", family),
                cast("Any", rollouts),
                AdaptiveConcurrencyController(),
            )
            session.say = say
            self.sessions.append(session)
            try:
                yield session
            finally:
                await session.close()

        self.monkeypatch.setattr(session_module, "open_session", open_session)
        output = io.StringIO()
        display = Display(Console(file=output, width=10_000, highlight=False, soft_wrap=True))
        log = open_log(config, display.say)
        try:
            if log is not None:
                folder = log.folder
                await run._train(config, TASKS, log, display)
        finally:
            self.said = output.getvalue()
            if log is not None:
                log.close()
        return read_rows(folder / "metrics.jsonl")


def states(folder: Path) -> list[str]:
    """The names of the states that checkpoints.jsonl lists."""
    return [row["state"].rpartition("/")[2] for row in read_rows(folder / "checkpoints.jsonl")]
