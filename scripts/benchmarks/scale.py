"""One step of 64, 128, 256 and 512 rollouts, all at once, in one process: what the loop, the memory and the clock say.

Real: the turn loop, Qwen3.5's tokenizer and renderer, BFCL's base entries in a pool of environment servers, the record, the
batch and the step's file. Simulated: the sampler, which says the ground truth, one call a message, and takes its time: seconds
per sample are lognormal with a median of 1.5 and a sigma of 0.5 (mean 1.7, 95th percentile 3.4), the same for the same attempt
whatever the concurrency. Every second attempt leaves its last call out, so that groups have spread.

The ideal is a machine that costs nothing: the step takes as long as its longest episode sleeps. `ours` of the throughput row is
rollouts per second, `other` the ideal's. What the simulation leaves out, the client that asks a service for a sample, is measured
beside it: the SDK's own processor time per sample, on a prompt of 1,500 tokens, against the engine of this repository.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._row import row

from turngrad.advantages import group_advantages
from turngrad.agent import LoopSettings
from turngrad.batch import build_batch
from turngrad.envkit.quiet import drop_stream_noise
from turngrad.policy import Policy, Sample, SamplingSettings
from turngrad.pool import ServerPool
from turngrad.rollout import Group, Rollouts, RolloutSettings
from turngrad.runlog import RunLog
from turngrad.runtimes import Placement, open_runtime
from turngrad.tasksets import TaskRow

_ROOT = Path(__file__).parents[2]
_BFCL = _ROOT / "envs" / "bfcl"
sys.path += [str(_ROOT), str(_BFCL)]

from bfcl_data import load_category  # noqa: E402  # pyright: ignore[reportMissingImports]

from tests.envs.bfcl_scripts import truth  # noqa: E402
from tests.families import family  # noqa: E402
from tests.tiny_engine import tiny_engine  # noqa: E402

LEVELS = (64, 128, 256, 512)
GROUP = 8
MEDIAN_SECONDS, SIGMA = 1.5, 0.5
TICK = 0.005


@dataclass
class Level:
    """What one step of `rollouts` rollouts came to. Seconds, megabytes; `lags` are how late the loop woke a sleeper."""

    rollouts: int
    seconds: float = 0.0
    ideal: float = 0.0
    batch_seconds: float = 0.0
    trainer_cpu: float = 0.0
    servers_cpu: float = 0.0
    megabytes: float = 0.0
    server_megabytes: float = 0.0
    handles: int = 0
    lags: list[float] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        lag = statistics.quantiles(self.lags, n=100)
        name = f"{self.rollouts} rollouts"
        return [
            row(
                f"{name}: rollouts a second, of the ideal",
                self.rollouts / self.seconds,
                self.rollouts / self.ideal,
                "1/s",
                self.ideal / self.seconds,
            ),
            row(f"{name}: event loop late, median", 1000 * lag[49], None, "ms"),
            row(f"{name}: event loop late, 99th percentile", 1000 * lag[98], None, "ms"),
            row(f"{name}: event loop late, at most", 1000 * max(self.lags), None, "ms"),
            row(f"{name}: processor time a rollout, trainer", 1000 * self.trainer_cpu / self.rollouts, None, "ms"),
            row(f"{name}: processor time a rollout, servers", 1000 * self.servers_cpu / self.rollouts, None, "ms"),
            row(f"{name}: memory, trainer", self.megabytes, None, "MB"),
            row(f"{name}: memory, servers", self.server_megabytes, None, "MB"),
            row(f"{name}: file handles, trainer", self.handles, None, ""),
            row(f"{name}: batch, datums and the step's file", self.batch_seconds, None, "s"),
        ]


class Sleeper:
    """The policy of one entry: the n-th episode that asks says the ground truth and sleeps as the n-th attempt sleeps."""

    snapshot = "sleeper"

    def __init__(self, entry: Any, attempts: int) -> None:
        encode = MODEL.tokenizer.encode
        texts = []
        for calls in truth(entry):
            texts += [*(_call(name, arguments) for name, arguments in calls), "Done."]
        self._lines = [[*encode(text), MODEL.stop_ids[0]] for text in texts]
        last = max(index for index, text in enumerate(texts) if text != "Done.")
        self._short = [line for index, line in enumerate(self._lines) if index != last]
        draw = random.Random(entry.id)
        self.sleeps = [
            [MEDIAN_SECONDS * math.exp(draw.gauss(0.0, SIGMA)) for _ in self._script(attempt)] for attempt in range(attempts)
        ]
        self._places: dict[str, list[int]] = {}

    def _script(self, attempt: int) -> list[list[int]]:
        return self._lines if attempt % 2 == 0 else self._short

    async def sample(self, prompt_ids: list[int], max_tokens: int, *, cache_key: str, seed: int | None = None) -> Sample:
        place = self._places.setdefault(cache_key, [len(self._places), 0])
        attempt, turn = place
        place[1] += 1
        seconds = self.sleeps[attempt][turn]
        await asyncio.sleep(seconds)
        ids = self._script(attempt)[turn]
        return Sample(ids, [-0.5] * len(ids), "stop", 0, seconds)


MODEL = family("qwen3.5")


def run() -> list[dict[str, Any]]:
    steps = [made for rollouts in LEVELS for made in asyncio.run(measure(rollouts)).rows()]
    return [*steps, row("processor time a sample, the SDK's client", 1000 * asyncio.run(sdk_seconds()), None, "ms")]


async def sdk_seconds(samples: int = 256, at_once: int = 32) -> float:
    """Processor time of this process for one sample by the genuine client; the engine is another process."""
    with tempfile.TemporaryDirectory() as folder, tiny_engine(Path(folder)) as engine:
        client = engine.service().create_sampling_client(base_model=engine.model)
        policy = Policy(client.deployment_sampler, "base", ["<end>"], SamplingSettings(), owner=client)
        slots = asyncio.Semaphore(at_once)

        async def one(seed: int) -> None:
            async with slots:
                await policy.sample([1 + (seed + i) % 250 for i in range(1500)], 16, cache_key=f"{seed}", seed=seed)

        await asyncio.gather(*map(one, range(8)))
        before = time.process_time()
        await asyncio.gather(*map(one, range(8, 8 + samples)))
        spent = time.process_time() - before
        policy.close()
    return spent / samples


async def measure(rollouts: int) -> Level:
    """One step of `rollouts` rollouts, all in flight at once."""
    drop_stream_noise()
    entries = load_category("base")[: rollouts // GROUP]
    policies = [Sleeper(entry, GROUP) for entry in entries]
    level = Level(rollouts, ideal=max(sum(sleeps) for policy in policies for sleeps in policy.sleeps))
    async with open_runtime(Placement("pool", _BFCL / "env.py"), concurrent=rollouts) as pool:
        assert isinstance(pool, ServerPool)
        scheduler = Rollouts(MODEL, pool, LoopSettings(max_tokens=1024), RolloutSettings(max_concurrent=rollouts, retries=0))
        # The data is read once a server; what follows is the rollouts' own.
        await asyncio.gather(*(_group(scheduler, entries[0], Sleeper(entries[0], 1), 1) for _ in pool.pids))
        before = time.process_time(), sum(map(_cpu_seconds, pool.pids))
        watching = [asyncio.create_task(_watch_lag(level)), asyncio.create_task(_watch_memory(level, pool.pids))]
        started = time.perf_counter()
        groups = await asyncio.gather(*(_group(scheduler, *pair, GROUP) for pair in zip(entries, policies, strict=True)))
        level.seconds = time.perf_counter() - started
        level.trainer_cpu = time.process_time() - before[0]
        level.servers_cpu = sum(map(_cpu_seconds, pool.pids)) - before[1]
        for task in watching:
            task.cancel()
    _check(groups)
    level.batch_seconds = _finish(groups)
    return level


async def _group(scheduler: Rollouts, entry: Any, policy: Sleeper, size: int) -> Group:
    row = TaskRow(entry.id, "bfcl", "multi_turn", {"entry": entry.id}, entry.id, entry.id)
    (group,) = [group async for group in scheduler.groups([row], size, policy, seed="scale")]  # type: ignore[arg-type]
    return group


def _check(groups: list[Group]) -> None:
    """A figure counts only if every episode was played to the end it should have."""
    for group in groups:
        failed = [episode.error for episode in group.episodes if episode.failure is not None]
        if failed:
            raise RuntimeError(f"{len(failed)} rollouts of {group.row.id} failed, the first: {failed[0]}")
        solved = sum(episode.reward == 1.0 for episode in group.episodes)
        if solved != GROUP // 2:
            raise RuntimeError(f"{solved} of {GROUP} attempts at {group.row.id} earned 1; half of them play the ground truth")


def _finish(groups: list[Group]) -> float:
    """Seconds from the last episode to what is sent and written."""
    started = time.perf_counter()
    pairs = [(group.episodes, group_advantages(group.episodes, "group-zscore")) for group in groups]
    batch = build_batch(pairs, normalize="token")
    assert len(batch.datums()) == sum(len(group.episodes) for group in groups)
    with tempfile.TemporaryDirectory() as folder:
        log = RunLog(Path(folder), created=True)
        log.episodes("step-0001", (episode for group in groups for episode in group.episodes))
        log.close()
    return time.perf_counter() - started


async def _watch_lag(level: Level) -> None:
    while True:
        started = time.perf_counter()
        await asyncio.sleep(TICK)
        level.lags.append(time.perf_counter() - started - TICK)


async def _watch_memory(level: Level, pids: list[int]) -> None:
    while True:
        level.megabytes = max(level.megabytes, _megabytes(os.getpid()))
        level.server_megabytes = max(level.server_megabytes, sum(map(_megabytes, pids)))
        level.handles = max(level.handles, len(os.listdir("/proc/self/fd")))
        await asyncio.sleep(0.5)


def _megabytes(pid: int) -> float:
    """Resident memory, shared pages counted by their share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _call(name: str, arguments: dict[str, Any]) -> str:
    """A call as Qwen3.5 writes it."""
    parameters = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"
