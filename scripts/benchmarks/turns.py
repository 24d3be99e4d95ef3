"""The turn loop at zero model latency: prompt extension, parse, one MCP call and the record, against the raw MCP client.

Both play the same episodes against the same server process, interleaved: ours through the whole agent, the other by a bare
`mcp.ClientSession` that calls the same tool as often. The second part compares processor time per rollout with hud's own
`Taskset.run` on `LocalRuntime` with an agent that makes the same calls through hud's client.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
from benchmarks._row import row
from hud.agents.base import Agent
from hud.eval import Task, Taskset, rollout
from hud.eval.runtime import LocalRuntime
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from turngrad.agent import LoopSettings
from turngrad.conversation import ModelFamily, load_family
from turngrad.local.models import renderer_for, resolve_model
from turngrad.policy import Sample
from turngrad.pool import ServerPool
from turngrad.rollout import Rollouts, RolloutSettings
from turngrad.tasksets import TaskRow

TURNS = 16
REPEATS = 5
ENVIRONMENT = '''
from turngrad.envkit import World, environment, tool


class Echo(World):
    @tool
    def echo(self, text: str) -> str:
        """Say it again."""
        return text

    def turns(self):
        yield "Call echo."

    def grade(self, answer: str) -> float:
        return 1.0


env = environment("echo", echo=Echo)
'''
CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "hello"}}\n</tool_call>'


class Parrot:
    """A policy without a model: `TURNS` calls, then an answer."""

    snapshot = "parrot"

    def __init__(self, family: ModelFamily) -> None:
        encode = family.tokenizer.encode
        self._call = [*encode(CALL, add_special_tokens=False), family.stop_ids[0]]
        self._answer = [*encode("done", add_special_tokens=False), family.stop_ids[0]]
        self._turns: dict[str, int] = {}

    async def sample(self, prompt_ids: list[int], max_tokens: int, *, cache_key: str, seed: int | None = None) -> Sample:
        turn = self._turns[cache_key] = self._turns.get(cache_key, 0) + 1
        ids = self._call if turn <= TURNS else self._answer
        return Sample(ids, [-0.5] * len(ids), "stop", 0, 0.0)


class Raw(Agent):
    """The floor: the same calls by the raw client, nothing recorded. `seconds` collects the time per call."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    async def __call__(self, run: Any) -> None:
        address = run.client.binding("mcp")
        headers = {"Authorization": f"Bearer {run.bindings['tools']['auth_token']}"}
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(httpx.AsyncClient(headers=headers, trust_env=False))
            read, write, _ = await stack.enter_async_context(streamable_http_client(address.url, http_client=client))
            session = await stack.enter_async_context(ClientSession(read, write))
            await session.initialize()
            await session.list_tools()
            started = time.perf_counter()
            for _ in range(TURNS):
                await session.call_tool("echo", {"text": "hello"})
            self.seconds.append((time.perf_counter() - started) / TURNS)
        run.trace.content = "done"


class HudClient(Agent):
    """The same calls through hud's own MCP client."""

    async def __call__(self, run: Any) -> None:
        from dataclasses import replace

        from hud.capabilities.mcp import MCPClient

        cap = run.client.binding("mcp")
        token = run.bindings["tools"]["auth_token"]
        client = await MCPClient.connect(replace(cap, params={**cap.params, "auth_token": token}))
        try:
            await client.list_tools()
            for _ in range(TURNS):
                await client.call_tool("echo", {"text": "hello"})
        finally:
            await client.close()
        run.trace.content = "done"


def run() -> list[dict[str, Any]]:
    return asyncio.run(_run())


async def _run() -> list[dict[str, Any]]:
    folder = resolve_model("bfcl-starter")
    family = load_family(str(folder), renderer_config=renderer_for(folder))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        env_file = Path(scratch) / "env.py"
        env_file.write_text(ENVIRONMENT)
        async with ServerPool(env_file) as pool:
            await pool.warm()
            for concurrent in (1, 16, 64):
                ours, raw = await _per_turn(family, pool, concurrent)
                bar = 1 / 1.5 if concurrent == 1 else None
                rows.append(row(f"seconds a turn, {concurrent} rollouts", ours * 1000, raw * 1000, "ms", raw / ours, bar))
            ours_cpu = await _cpu(lambda: _play(family, pool, 64), pool.pids)
        stock_cpu = await _cpu(lambda: _stock(env_file, 64), [])
        rows.append(row("processor time a rollout, 64 at once", ours_cpu / 64, stock_cpu / 64, "ms", stock_cpu / ours_cpu, 3.0))
    return rows


async def _per_turn(family: ModelFamily, pool: ServerPool, concurrent: int) -> tuple[float, float]:
    """Median seconds a turn (ours, raw): wall time of the turns alone, sessions opened before."""
    ours: list[float] = []
    raw: list[float] = []
    for _ in range(REPEATS):
        episodes = await _play(family, pool, concurrent)
        ours += episodes
        agent = Raw()
        task = Task(env="echo", id="echo", args={}, slug="echo")
        await asyncio.gather(*(rollout(task, agent, runtime=pool, job_id="bench") for _ in range(concurrent)))
        raw += agent.seconds
    return statistics.median(ours), statistics.median(raw)


async def _play(family: ModelFamily, pool: ServerPool, concurrent: int) -> list[float]:
    """Seconds a turn of each episode, by the policy's own clock."""
    policy = _Clocked(family)
    rollouts = Rollouts(
        family, pool, LoopSettings(max_turns=TURNS + 2, max_tool_calls=TURNS + 2), RolloutSettings(max_concurrent=64)
    )
    row = TaskRow("echo", "echo", "echo", {}, "echo", "echo")
    async for group in rollouts.groups([row], concurrent, policy, seed="bench"):  # type: ignore[arg-type]
        for episode in group.episodes:
            assert episode.failure is None, episode.error
            assert len(episode.turns) == TURNS + 1
    return [(times[-1] - times[0]) / (len(times) - 1) for times in policy.times.values()]


class _Clocked(Parrot):
    def __init__(self, family: ModelFamily) -> None:
        super().__init__(family)
        self.times: dict[str, list[float]] = {}

    async def sample(self, prompt_ids: list[int], max_tokens: int, *, cache_key: str, seed: int | None = None) -> Sample:
        self.times.setdefault(cache_key, []).append(time.perf_counter())
        return await super().sample(prompt_ids, max_tokens, cache_key=cache_key, seed=seed)


async def _stock(env_file: Path, concurrent: int) -> None:
    taskset = Taskset("echo", [Task(env="echo", id="echo", args={}, slug=f"echo-{i}") for i in range(concurrent)])
    job = await taskset.run(HudClient(), runtime=LocalRuntime(env_file), max_concurrent=concurrent)
    assert all(run.trace.status == "completed" for run in job.runs)


async def _cpu(work: Callable[[], Awaitable[Any]], children: list[int]) -> float:
    """Milliseconds of processor time of `work`, in this process and in the children; the lower of two runs."""
    found = []
    for _ in range(2):
        before = time.process_time() + sum(map(_process_seconds, children))
        await work()
        found.append(time.process_time() + sum(map(_process_seconds, children)) - before)
    return min(found) * 1000


def _process_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
