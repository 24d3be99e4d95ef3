"""What an episode costs on the environment's side: processor time, latency and memory at 64 rollouts at once.

Two comparisons in one run, interleaved, medians of the repeats. The same scripted conversation (3 user turns of 3 calls and
a new tool list each) is played by our tool session on a kit environment in our pool, and by hud's MCP client on an env file
with a FastMCP server in hud's shared subprocess, the cheapest runtime hud has. Then BFCL's base entries are played to their
ground truth for what a real episode takes.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks._row import row
from hud.agents.base import Agent
from hud.agents.types import AgentConfig
from hud.capabilities.mcp import MCPClient
from hud.eval import Task, rollout
from hud.eval.run import Run
from hud.eval.runtime import Shared, SubprocessRuntime

from turngrad.envkit.quiet import drop_stream_noise
from turngrad.pool import ServerPool
from turngrad.tools import open_tools

BFCL = Path(__file__).parents[2] / "envs" / "bfcl"
# The environment's own modules, as its env file imports them.
sys.path.append(str(BFCL))
bfcl_data = importlib.import_module("bfcl_data")
CONCURRENT = 64
REPEATS = 3
TURNS, CALLS = 3, 3
KIT_ENV = '''
from turngrad.envkit import World, environment, tool


class Bank(World):
    def __init__(self, start: int) -> None:
        self.balance = start

    @tool
    def pay_in(self, amount: int) -> str:
        """Pay an amount into the account."""
        self.balance += amount
        return f"balance {self.balance}"

    def turns(self):
        yield "Pay in."
        yield "More."
        yield "More."

    def grade(self, answer: str) -> float:
        return float(self.balance == 9)


env = environment("bank", bank=Bank)
'''
STOCK_ENV = '''
import asyncio
import secrets
import socket

from fastmcp import FastMCP
from fastmcp.server.dependencies import get_http_headers
from hud.capabilities import Capability
from hud.environment import Environment

server = FastMCP("bank")
env = Environment(name="bank")
balances = {}


def account():
    return get_http_headers(include_all=True)["authorization"].removeprefix("Bearer ")


@server.tool
def pay_in(amount: int) -> str:
    """Pay an amount into the account."""
    balances[account()] += amount
    return f"balance {balances[account()]}"


@server.tool
def next_turn() -> str:
    return "More."


@env.initialize
async def start():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    asyncio.get_running_loop().create_task(
        server.run_http_async(
            host="127.0.0.1", port=port, show_banner=False, json_response=True, stateless_http=True, log_level="critical"
        )
    )
    await asyncio.sleep(1)
    env.add_capability(Capability.mcp(name="tools", url=f"http://127.0.0.1:{port}/mcp"))


@env.template(id="bank")
async def bank(start: int):
    token = secrets.token_hex(8)
    balances[token] = start
    yield {"prompt": "Pay in.", "bindings": {"tools": {"auth_token": token}}}
    yield float(balances.pop(token) == 9)
'''


class Scripted(Agent):
    """Plays one coroutine per rollout."""

    def __init__(self, script: Callable[[Run], Awaitable[None]]) -> None:
        super().__init__(AgentConfig())
        self.script = script

    async def __call__(self, run: Run) -> None:
        await self.script(run)
        run.trace.content = "done"


async def play_ours(run: Run) -> None:
    async with open_tools(run, timeout=60) as tools:
        for step in range(TURNS):
            for call in range(CALLS):
                await tools.call("pay_in", {"amount": 1}, call_id=f"{step}/{call}", step=step)
            await tools.refresh()
            await tools.next_user_turn(step=step)


async def play_stock(run: Run) -> None:
    capability = run.client.binding("mcp")
    token = run.bindings["tools"]["auth_token"]
    client = await MCPClient.connect(replace(capability, params={**capability.params, "auth_token": token}))
    try:
        await client.list_tools()
        for _ in range(TURNS):
            for _ in range(CALLS):
                await client.call_tool("pay_in", {"amount": 1})
            await client.list_tools()
            await client.call_tool("next_turn", {})
    finally:
        await client.close()


def run() -> list[dict[str, Any]]:
    drop_stream_noise()
    return [*asyncio.run(_conversation()), *asyncio.run(_bfcl())]


async def _conversation() -> list[dict[str, Any]]:
    ours, stock = [], []
    with tempfile.TemporaryDirectory() as folder:
        kit_file, stock_file = Path(folder) / "kit_env.py", Path(folder) / "stock_env.py"
        kit_file.write_text(KIT_ENV)
        stock_file.write_text(STOCK_ENV)
        async with ServerPool(kit_file) as pool, Shared(SubprocessRuntime(stock_file), width=CONCURRENT) as shared:
            sides = ((pool, play_ours, ours), (shared, play_stock, stock))
            for runtime, script, _ in sides:
                await _batch([_bank(script, runtime) for _ in range(2)])
            for _ in range(REPEATS):
                for runtime, script, costs in sides:
                    with _processor_time() as spent:
                        await _batch([_bank(script, runtime) for _ in range(CONCURRENT)])
                    costs.append(1000 * spent[0] / CONCURRENT)
    a, b = statistics.median(ours), statistics.median(stock)
    return [row("processor time per rollout, against hud's own path", a, b, "ms", b / a, 3.0)]


async def _bfcl() -> list[dict[str, Any]]:
    entries = bfcl_data.load_category("base")[:CONCURRENT]
    seconds: list[float] = []
    processor: list[float] = []
    async with ServerPool(BFCL / "env.py") as pool:
        # One rollout loads the data; what the others then add is theirs.
        await _batch([_entry(entries[0], pool, [])])
        memory = await _memory(entries, pool)
        for _ in range(REPEATS):
            with _processor_time() as spent:
                await _batch([_entry(entry, pool, seconds) for entry in entries])
            processor.append(1000 * spent[0] / CONCURRENT)
    cuts = statistics.quantiles(seconds, n=100)
    return [
        row("BFCL base, processor time per rollout", statistics.median(processor), None, "ms"),
        row("BFCL base, time per call, median", 1000 * cuts[49], None, "ms"),
        row("BFCL base, time per call, 95th percentile", 1000 * cuts[94], None, "ms"),
        row("BFCL base, memory per rollout, both sides", memory, 1.2, "MB", 1.2 / memory, 1.0),
    ]


async def _memory(entries: tuple[Any, ...], pool: ServerPool) -> float:
    """Megabytes that 64 open rollouts add to the server and to this process, in the middle of their episodes."""
    arrived, go_on = 0, asyncio.Event()

    def holding(entry: Any) -> Callable[[Run], Awaitable[None]]:
        async def script(run: Run) -> None:
            nonlocal arrived

            async with open_tools(run, timeout=60) as tools:
                for name, arguments in _calls(entry)[0]:
                    await tools.call(name, arguments, call_id=f"{name}/{arguments}", step=0)
                arrived += 1
                await go_on.wait()

        return script

    pids = [os.getpid(), *pool.pids]
    before = sum(map(_proportional_megabytes, pids))
    tasks = [asyncio.create_task(rollout(_task(entry), Scripted(holding(entry)), runtime=pool)) for entry in entries]
    while arrived < len(entries):
        await asyncio.sleep(0.05)
    during = sum(map(_proportional_megabytes, pids))
    go_on.set()
    await asyncio.gather(*tasks)
    return max(during - before, 0.01) / len(entries)


async def _batch(rollouts: list[Awaitable[Run]]) -> None:
    runs = await asyncio.gather(*rollouts)
    bad = [run.trace.error for run in runs if run.reward != 1.0]
    if bad:
        raise RuntimeError(f"{len(bad)} of {len(runs)} rollouts did not earn 1.0, the first: {bad[0]}")


def _bank(script: Callable[[Run], Awaitable[None]], runtime: Any) -> Awaitable[Run]:
    return rollout(Task(env="bank", id="bank", args={"start": 0}), Scripted(script), runtime=runtime)


def _entry(entry: Any, pool: ServerPool, seconds: list[float]) -> Awaitable[Run]:
    async def script(run: Run) -> None:
        async with open_tools(run, timeout=60) as tools:
            for step, turn in enumerate(_calls(entry)):
                for place, (name, arguments) in enumerate(turn):
                    outcome = await tools.call(name, arguments, call_id=f"{step}/{place}", step=step)
                    seconds.append(outcome.seconds)
                await tools.next_user_turn(step=step)

    return rollout(_task(entry), Scripted(script), runtime=pool)


def _task(entry: Any) -> Task:
    return Task(env="bfcl", id="multi_turn", args={"entry": entry.id})


def _calls(entry: Any) -> list[list[tuple[str, dict[str, Any]]]]:
    """The ground truth as calls by name; arguments without a name take the documented parameters in order."""
    parameters = {
        name: document["parameters"]["properties"]
        for owner in entry.involved_classes
        for name, document in bfcl_data.function_documents(owner).items()
    }
    return [
        [(call.name, dict(zip(parameters[call.name], call.positional, strict=False)) | call.arguments) for call in calls]
        for calls in entry.ground_truth
    ]


@contextmanager
def _processor_time() -> Iterator[list[float]]:
    """Seconds of processor time of this process and its children while the block runs."""
    spent = [0.0]
    before = _tree_seconds()
    yield spent
    spent[0] = _tree_seconds() - before


def _tree_seconds() -> float:
    return time.process_time() + sum(_seconds(pid) for pid in _children(os.getpid()))


def _children(parent: int) -> list[int]:
    stats = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat")]
    found = [int(stat.split(" ", 1)[0]) for stat in stats if int(stat.rsplit(")", 1)[1].split()[1]) == parent]
    return [*found, *(grandchild for child in found for grandchild in _children(child))]


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _proportional_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
