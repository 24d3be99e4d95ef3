"""Tasks × group → episodes: concurrency, time-outs, classes of failure.

In: task rows, one policy, a runtime that serves the environment. Out: groups of episodes, each as soon as it is complete.
Invariants: a failing rollout costs itself and nothing else; an infrastructure failure is tried again with a fresh
environment, then excluded and counted by class (C7); closing the generator leaves no rollout running. hud's own scheduler
is a barrier that loses finished runs on Ctrl-C, so this one stands on `hud.eval.rollout`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hud.eval import Task, rollout
from hud.settings import settings as hud_settings

from turngrad.advantages import with_malformed_penalty
from turngrad.agent import LoopSettings, TurnLoopAgent
from turngrad.conversation import ModelFamily
from turngrad.episodes import Episode, Failure
from turngrad.errors import RunError
from turngrad.hud_run import EXTRA_KEY, episode_from_run
from turngrad.policy import Policy

if TYPE_CHECKING:
    from hud.agents.base import Agent
    from hud.eval.runtime import Provider

    from turngrad.tasksets import TaskRow

_GRADING_TIMEOUT = 60.0
_CONTRACT_ERRORS_IN_A_ROW = 10
_LOST_WAVES, _LOST_TASKS = 3, 3
"""A dead server takes the rollouts in flight, perhaps their second tries too; a third time, over several tasks, is an outage."""
_UNPAID_TRIES = 2
"""A try that ended before its first sample cost nothing: so many of a rollout's are not counted among its retries."""


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """`max_concurrent` rollouts in flight; `retries` fresh tries after an infrastructure failure; times in seconds."""

    max_concurrent: int = 64
    retries: int = 1
    bad_call_penalty: float = 0.0


@runtime_checkable
class Player(Protocol):
    """What plays with an agent of its own, as a model of another provider does, where a policy is played by the turn loop."""

    @property
    def snapshot(self) -> str: ...

    def agent(self, loop: LoopSettings) -> Agent:
        """The agent of one rollout."""
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """All attempts at one task under one policy."""

    row: TaskRow
    episodes: tuple[Episode, ...]


@dataclass(slots=True)
class RolloutCounts:
    """What happened since the last `take_counts`: rollouts started, and failures by class, retried ones included."""

    started: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    last_error: str | None = None


class Rollouts:
    """The scheduler of one run. `provider` serves the environment; `on_progress` is called after every finished rollout.

    `family` is None where no policy plays. `hosted` says that the environment runs on hud's platform, which then also gets the
    traces.
    """

    def __init__(
        self,
        family: ModelFamily | None,
        provider: Provider,
        loop: LoopSettings,
        settings: RolloutSettings,
        on_progress: Callable[[Episode], None] = lambda episode: None,
        *,
        hosted: bool = False,
    ) -> None:
        if not hosted:
            # Spans and rewards go to hud's platform where a key is found, also one in a home folder: a run of ours stays here.
            hud_settings.api_key = None
        quiet_rollouts()
        self.in_flight = 0
        self._family = family
        self._provider = provider
        self._loop = loop
        self._settings = settings
        self._on_progress = on_progress
        self._slots = asyncio.Semaphore(settings.max_concurrent)
        self._job = uuid.uuid4().hex
        self._counts = RolloutCounts()
        self._contract_errors = 0
        self._lost: list[str] = []

    def take_counts(self) -> RolloutCounts:
        """The counts since the last call."""
        counts, self._counts = self._counts, RolloutCounts()
        return counts

    async def groups(
        self, rows: Sequence[TaskRow], group_size: int, policy: Policy | Player, *, seed: str, lag: int = 0
    ) -> AsyncIterator[Group]:
        """Play every row `group_size` times; yield each group when its last attempt is in, in order of completion.

        `seed` is one text per step: with it, task and attempt fix the seeds of every sample. `lag` is noted on the episodes.

        Raises:
            RunError: a fault that the next rollout would meet as well (a refused key, contract errors in a row, no sound
                rollout among three times as many as are in flight at once).
        """
        tasks: set[asyncio.Task[Any]] = set()
        done: asyncio.Queue[Group | BaseException] = asyncio.Queue()

        async def play_group(row: TaskRow) -> None:
            group_id = f"{seed}/{row.id}"
            attempts = [asyncio.create_task(self._play(row, group_id, i, policy, seed)) for i in range(group_size)]
            try:
                episodes = await asyncio.gather(*attempts)
            except BaseException as error:
                for attempt in attempts:
                    attempt.cancel()
                await asyncio.gather(*attempts, return_exceptions=True)
                if not isinstance(error, asyncio.CancelledError):
                    done.put_nowait(error)
                    return
                raise
            done.put_nowait(Group(row, tuple(replace(episode, lag=lag) for episode in episodes)))

        for row in rows:
            tasks.add(asyncio.create_task(play_group(row)))
        try:
            for _ in rows:
                result = await done.get()
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _play(self, row: TaskRow, group_id: str, attempt: int, policy: Policy | Player, seed: str) -> Episode:
        async with self._slots:
            self.in_flight += 1
            try:
                retry, unpaid = 0, 0
                while True:
                    episode, fatal = await self._play_once(row, group_id, attempt, policy, f"{seed}/{row.id}/{attempt}/{retry}")
                    self._check_streaks(episode, fatal)
                    if episode.failure is None:
                        break
                    self._counts.failures[episode.failure.value] += 1
                    self._counts.last_error = episode.error
                    if self._settings.retries and episode.failure is Failure.PROVISION and unpaid < _UNPAID_TRIES:
                        unpaid += 1
                    elif retry < self._settings.retries:
                        retry += 1
                    else:
                        break
            finally:
                self.in_flight -= 1
        episode = with_malformed_penalty(episode, self._settings.bad_call_penalty)
        self._on_progress(episode)
        return episode

    async def _play_once(
        self, row: TaskRow, group_id: str, attempt: int, policy: Policy | Player, seed: str
    ) -> tuple[Episode, str | None]:
        self._counts.started += 1
        started = time.monotonic()
        number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
        agent = self._agent(policy, replace(self._loop, seed=number))
        run = await rollout(
            hud_task(row),
            agent,
            runtime=self._provider,
            job_id=self._job,
            group_id=group_id,
            rollout_timeout=self._loop.episode_timeout + _GRADING_TIMEOUT,
        )
        episode = episode_from_run(run, task_id=row.id, group_id=group_id, attempt=attempt, seconds=time.monotonic() - started)
        state = run.trace.extra.get(EXTRA_KEY)
        return episode, state.get("fatal") if isinstance(state, dict) else None  # type: ignore[return-value]

    def _agent(self, policy: Policy | Player, loop: LoopSettings) -> Agent:
        if isinstance(policy, Player):
            return policy.agent(loop)
        assert self._family is not None
        return TurnLoopAgent(self._family, policy, loop)

    def _check_streaks(self, episode: Episode, fatal: str | None) -> None:
        if fatal:
            raise RunError(fatal)
        self._lost = [] if episode.failure is None else [*self._lost, episode.task_id]
        self._contract_errors = self._contract_errors + 1 if episode.failure is Failure.AGENT else 0
        if self._contract_errors >= _CONTRACT_ERRORS_IN_A_ROW:
            raise RunError(
                f"{self._contract_errors} rollouts in a row broke the turn loop's own rules, the last by: {episode.error}"
            )
        outage = len(self._lost) >= _LOST_WAVES * self._settings.max_concurrent and len(set(self._lost)) >= _LOST_TASKS
        if outage and episode.failure is not None:
            raise RunError(
                f"{len(self._lost)} rollouts in a row failed, none by the policy's doing; "
                f"the last as {episode.failure.value}: {episode.error}"
            )


def hud_task(row: TaskRow) -> Task:
    """The hud task that a row stands for."""
    return Task(env=row.env, id=row.template, args=row.args, slug=row.id, **row.carried)


def quiet_rollouts() -> None:
    """Silence what is counted or told here anyway.

    That is hud's warning for each failed rollout, 3.11's traceback for each closed stream, and what becomes of a wait for the
    service that was given up: the SDK shields its futures, so that a later failure finds nobody waiting.
    """
    logging.getLogger("hud").setLevel(logging.ERROR)
    for name in ("httpx", "mcp", "fastmcp"):
        logging.getLogger(name).setLevel(logging.WARNING)

    def handler(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        said = f"{context.get('message')} {context.get('handle')}"
        if "StreamReaderProtocol" not in said and not said.startswith("Future exception was never retrieved"):
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handler)
