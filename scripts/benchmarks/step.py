"""A training step against the same requests made bare: how much of its time is not the servers'.

A run of `bfcl-multi-turn` on the engine of this machine, with the run's own trainer, session, environment servers and defaults
(8 tasks x 8 attempts). Each step is recorded: every sampling request, tool call and user turn of each episode in its order, and
the update. Then the same is asked once more of the same servers and as many at once: sampling by plain HTTP with the same
prompts, seeds and the recorded lengths as limits, the tools with the cheapest client there is, forward_backward and optim_step
through the SDK with ready-made datums. Step and replay take turns; the first pair warms up and does not count.

What the replay is spared, and so counts as ours: starting, listing and grading episodes (they stand open when its clock starts),
the conversation, parsing, checks, records, advantages, the batch, metrics and the run folder. It samples a twin of the step's
snapshot, so that no cache of the engine knows its prompts, and trains an adapter of its own.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from benchmarks._row import Row, row
from fireworks.training.sdk import AdamParams
from hud.agents.base import Agent
from hud.eval import rollout
from hud.eval.run import Run
from rich.console import Console

from turngrad.batch import Batch
from turngrad.config import config_from
from turngrad.display import Display
from turngrad.envkit.client import EpisodeClient
from turngrad.episodes import Turn
from turngrad.learner import UpdateResult
from turngrad.policy import Policy, Sample
from turngrad.rollout import hud_task
from turngrad.runlog import RunLog, read_episodes
from turngrad.session import Session, connect, open_session
from turngrad.tasksets import TaskRow, load_taskset
from turngrad.training import Trainer

REPEATS = 5
BAR = 0.8


@dataclass(frozen=True)
class Request:
    """One sampling request, and how many tokens came of it."""

    prompt_ids: list[int]
    seed: int | None
    cache_key: str
    output_ids: list[int]


@dataclass
class Pair:
    """Seconds of a step and of its replay; processor seconds of this process alone; how many samples came out alike."""

    step: float = 0.0
    step_cpu: float = 0.0
    step_rollouts: float = 0.0
    replay: float = 0.0
    replay_cpu: float = 0.0
    replay_rollouts: float = 0.0
    alike: float = 0.0


class Recorder:
    """A policy that passes requests on and keeps them by episode."""

    def __init__(self, policy: Policy) -> None:
        self.snapshot = policy.snapshot
        self.close = policy.close
        self.requests: dict[str, list[Request]] = defaultdict(list)
        self._policy = policy

    async def sample(self, prompt_ids: list[int], max_tokens: int, *, cache_key: str, seed: int | None = None) -> Sample:
        sample = await self._policy.sample(prompt_ids, max_tokens, cache_key=cache_key, seed=seed)
        self.requests[cache_key].append(Request(prompt_ids, seed, cache_key, sample.output_ids))
        return sample


class Recorded(Trainer):
    """The trainer of a run, whose every step is played a second time, bare."""

    pairs: list[Pair]
    other: Any
    """The SDK's training client of the replays."""
    _batch: Batch | None = None

    async def _publish(self) -> Policy:
        policy = await super()._publish()
        assert self._learner is not None
        self._twin = await self._learner.snapshot(f"twin-{self.step:04d}")
        return policy

    async def _update(self, batch: Batch, step: int) -> UpdateResult:
        self._batch, self._rolled = batch, time.perf_counter()
        return await super()._update(batch, step)

    async def _take_step(self, policy: Policy) -> None:
        recorder, pair = Recorder(policy), Pair()
        started, cpu = time.perf_counter(), time.process_time()
        await super()._take_step(recorder)  # type: ignore[arg-type]
        pair.step, pair.step_cpu = time.perf_counter() - started, time.process_time() - cpu
        pair.step_rollouts = self._rolled - started
        assert self._batch is not None
        rows = {row.id: row for row in self.taskset.train}
        scripts = _scripts(read_episodes(self.log.folder / "episodes" / f"step-{self.step:04d}.jsonl.zst"), recorder, rows)
        await replay(self.session, self.other, scripts, self._twin, self._batch, pair)
        self.pairs.append(pair)


@dataclass(frozen=True)
class Script:
    """One episode: its task, and its turns with the request of each."""

    row: TaskRow
    turns: Sequence[tuple[Turn, Request]]


def _scripts(episodes: Any, recorder: Recorder, rows: dict[str, TaskRow]) -> list[Script]:
    """The episodes of a step with their requests. Raises RuntimeError when a rollout failed: there is nothing to compare."""
    requests = list(recorder.requests.values())
    scripts = []
    for episode in episodes:
        if episode.failure is not None:
            raise RuntimeError(f"a rollout failed, so the step cannot be replayed: {episode.error}")
        found = next(each for each in requests if _alike(each, episode.turns))
        requests.remove(found)
        scripts.append(Script(rows[episode.task_id], list(zip(episode.turns, found, strict=True))))
    return scripts


def _alike(requests: list[Request], turns: Sequence[Turn]) -> bool:
    return (
        len(requests) == len(turns)
        and requests[0].prompt_ids == list(turns[0].context_ids)
        and all(request.output_ids == list(turn.output_ids) for request, turn in zip(requests, turns, strict=True))
    )


class Bare(Agent):
    """Plays a script's requests when told to go, and nothing else."""

    def __init__(self, script: Script, stage: Stage) -> None:
        super().__init__()
        self.script, self.stage = script, stage

    async def __call__(self, run: Run) -> None:
        stage = self.stage
        capability = next(c for c in run.client.manifest.bindings if c.protocol.startswith("mcp"))  # type: ignore[union-attr]
        async with EpisodeClient(capability.url, run.bindings["tools"]["auth_token"], 60.0) as tools:
            # As the policy's session is by its first sample: open, with the tools listed.
            await tools.list_tools()
            stage.waiting += 1
            await stage.go.wait()
            for step, (turn, request) in enumerate(self.script.turns, start=1):
                stage.outputs.append((await stage.sample(request), request.output_ids))
                for index, call in enumerate(turn.tool_calls):
                    if call.bad is None:
                        meta = {"turngrad/call-id": f"{request.cache_key}-{step}-{index}", "turngrad/step": step}
                        await tools.call_tool(call.name or "", call.arguments, meta=meta)
                if not turn.tool_calls and turn.finish_reason != "length":
                    await tools.call_tool("__next_turn__", {}, meta={"turngrad/call-id": f"{request.cache_key}-{step}"})
            stage.played += 1
            # Graded when the clock has stopped.
            await stage.over.wait()


@dataclass
class Stage:
    """What the episodes of one replay share."""

    http: aiohttp.ClientSession
    url: str
    fields: dict[str, Any]
    go: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    played: int = 0
    outputs: list[tuple[list[int], list[int]]] = field(default_factory=list)

    async def sample(self, request: Request) -> list[int]:
        body = {**self.fields, "prompt": request.prompt_ids, "max_tokens": len(request.output_ids)}
        body |= {"seed": request.seed, "prompt_cache_key": request.cache_key}
        async with self.http.post(self.url, data=orjson.dumps(body)) as answer:
            answer.raise_for_status()
            event = (await answer.read()).partition(b"data: ")[2].partition(b"\n")[0]
        return orjson.loads(event)["choices"][0]["raw_output"]["completion_token_ids"]


async def replay(session: Session, learner: Any, scripts: list[Script], snapshot: str, batch: Batch, pair: Pair) -> None:
    """Ask the servers what `scripts` and `batch` say, and note the time."""
    sampling = await session.policy(snapshot)
    datums = batch.datums()
    headers = {"Authorization": f"Bearer {session.endpoint.api_key}", "Content-Type": "application/json"}
    fields = {"model": sampling._sampler.model, "stop": session.family.stop, "temperature": session.config.temperature}
    fields |= {"top_p": 1.0, "top_k": 0, "n": 1, "stream": True, "logprobs": True, "perf_metrics_in_response": True}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as http:
        stage = Stage(http, f"{session.endpoint.base_url}/inference/v1/completions", fields)
        provider = session.rollouts._provider
        plays = [asyncio.create_task(rollout(hud_task(s.row), Bare(s, stage), runtime=provider)) for s in scripts]
        await _until(lambda: stage.waiting == len(scripts), plays)
        started, cpu = time.perf_counter(), time.process_time()
        stage.go.set()
        await _until(lambda: stage.played == len(scripts), plays)
        pair.replay_rollouts = time.perf_counter() - started
        backward = learner.forward_backward(datums, "importance_sampling")
        step = learner.optim_step(AdamParams(learning_rate=1e-4), batch.grad_accumulation_normalization)
        await backward
        await step
        pair.replay, pair.replay_cpu = time.perf_counter() - started, time.process_time() - cpu
        stage.over.set()
        await asyncio.gather(*plays)
    pair.alike = statistics.fmean(found == wanted for found, wanted in stage.outputs)
    sampling.close()


async def _until(done: Any, plays: list[asyncio.Task[Any]]) -> None:
    while not done():
        broken = [play for play in plays if play.done()]
        if broken:
            raise RuntimeError(f"a replayed episode ended early: {broken[0].result().trace.error}")
        await asyncio.sleep(0.002)


def run() -> list[dict[str, Any]]:
    return asyncio.run(_run())


async def _run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        settings = {"steps": 1 + REPEATS, "eval_tasks": 0, "checkpoint_every": 0, "output_dir": folder}
        config = config_from({"taskset": "bfcl-multi-turn", "backend": "local", **settings}).resolve()
        taskset = load_taskset(config)
        log = RunLog.create(config)
        try:
            with open(os.devnull, "w") as nowhere:
                display = Display(Console(file=nowhere))
                async with open_session(config, taskset, folder / "engine") as session:
                    trainer = Recorded(config, taskset, session, log, display)
                    trainer.pairs = []
                    service = await connect(session.endpoint)
                    rank = config.lora_rank
                    trainer.other = await asyncio.to_thread(
                        service.create_lora_training_client, session.endpoint.base_model, rank=rank
                    )
                    await trainer.run()
                    service.close()
        finally:
            log.close()
    return _rows(trainer.pairs[1:])


def _rows(pairs: list[Pair]) -> list[dict[str, Any]]:
    if statistics.fmean(pair.alike for pair in pairs) < 0.98:
        print("warning: the replay sampled other tokens than the step, so the two do not compare", file=sys.stderr)

    def compared(name: str, part: str, unit: str, bar: float | None = None) -> Row:
        sides = [(getattr(pair, f"step{part}"), getattr(pair, f"replay{part}")) for pair in pairs]
        a, b = (statistics.median(side) for side in zip(*sides, strict=True))
        ratio = statistics.median(replayed / ours for ours, replayed in sides)
        return row(name, a, b, unit, ratio, bar)

    updates = [(pair.step - pair.step_rollouts, pair.replay - pair.replay_rollouts) for pair in pairs]
    a, b = (statistics.median(side) for side in zip(*updates, strict=True))
    return [
        compared("a step, against its requests made bare", "", "s", BAR),
        compared("its rollouts", "_rollouts", "s"),
        row("its update, and the record", a, b, "s", b / a),
        compared("processor time of this process", "_cpu", "s"),
    ]
