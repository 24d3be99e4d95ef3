"""An author's file is a hud environment: it runs wherever hud runs one, and episodes share nothing."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hud.environment import load_environment
from hud.environment.server import _shutdown, bind
from hud.eval import Task, rollout
from hud.eval.run import Run
from hud.eval.runtime import LocalRuntime, Runtime, SubprocessRuntime

from tests.players import Mcp, Player
from turngrad.envkit import environment
from turngrad.pool import ServerPool

FILE = Path(__file__).with_name("bank.py")


async def play(runtime: Any, start: int, amounts: list[int], script: Callable[[Mcp, Run], Awaitable[str]] | None = None) -> Run:
    async def dutiful(mcp: Mcp, run: Run) -> str:
        assert run.prompt_text == f"Pay in {amounts[0]}."
        assert run.bindings["tools"]["user_turns"] is True
        balance = start
        for turn, amount in enumerate(amounts):
            await mcp.call("pay_in", {"amount": amount})
            balance += amount
            await asyncio.sleep(random.random() / 20)
            assert (await mcp.result("look"))["structuredContent"] == {"balance": balance}
            assert (await mcp.next_turn())["done"] == (turn + 1 == len(amounts))
        return f"ends at {balance}"

    task = Task(env="bank", id="bank", args={"start": start, "amounts": amounts})
    return await rollout(task, Player(script or dutiful), runtime=runtime)


@pytest.mark.parametrize("runtime", [LocalRuntime(FILE), SubprocessRuntime(FILE)], ids=["local", "subprocess"])
async def test_the_file_runs_under_huds_own_runtimes(runtime: Any) -> None:
    run = await play(runtime, 3, [5, 7, 11])
    assert run.trace.error is None
    assert (run.reward, run.grade.info) == (1.0, {"answer": "ends at 26"})


async def test_the_file_runs_from_a_served_url() -> None:
    env = load_environment(FILE)
    await env.start()
    server = await bind(env)
    try:
        run = await play(Runtime(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"), 3, [5])
    finally:
        await _shutdown(server)
        await env.stop()
    assert (run.trace.error, run.reward) == (None, 1.0)


async def test_64_concurrent_episodes_with_random_amounts_never_meet() -> None:
    draw = random.Random(1)
    async with ServerPool(FILE) as pool:
        amounts = [[draw.randrange(1000) for _ in range(3)] for _ in range(128)]
        runs = await asyncio.gather(*(play(pool, draw.randrange(10**6), each) for each in amounts))
    assert {run.trace.error for run in runs} == {None}
    assert [run.reward for run in runs] == [1.0] * 128


async def test_an_episode_ends_with_its_rollout_however_that_ends() -> None:
    tokens: list[tuple[str, str]] = []

    async def forever(mcp: Mcp, run: Run) -> str:
        tokens.append((mcp.url, run.bindings["tools"]["auth_token"]))
        await asyncio.sleep(60)
        return ""

    async def failing(mcp: Mcp, run: Run) -> str:
        tokens.append((mcp.url, run.bindings["tools"]["auth_token"]))
        raise RuntimeError("fell over")

    env = load_environment(FILE)
    await env.start()
    server = await bind(env)
    runtime = Runtime(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        cancelled = asyncio.create_task(play(runtime, 0, [1], forever))
        while not tokens:
            await asyncio.sleep(0.01)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await play(runtime, 0, [1], failing)
        await asyncio.sleep(0.1)
        endpoint = env.capability("tools").url
        for _, token in tokens:
            async with Mcp(endpoint, token) as mcp:
                with pytest.raises(Exception, match="no live episode"):
                    await mcp.tools()
    finally:
        await _shutdown(server)
        await env.stop()
    assert len(tokens) == 2


async def test_wrong_task_arguments_are_refused_by_name() -> None:
    task = Task(env="bank", id="bank", args={"beginning": 3})
    run = await rollout(task, Player(lambda mcp, run: asyncio.sleep(0)), runtime=LocalRuntime(FILE))  # type: ignore[arg-type]
    assert run.grade.is_error
    assert "beginning" in (run.trace.error or "")


def test_the_published_arguments_are_the_constructors() -> None:
    (entry,) = [factory.manifest_entry() for factory in load_environment(FILE).tasks.values()]
    assert entry["description"] == "An account that the user wants changed twice."
    assert sorted(entry["args"]["properties"]) == ["amounts", "start"]
    assert entry["args"]["properties"]["start"] == {"title": "Start", "type": "integer"}


def test_an_environment_without_worlds_is_an_authoring_error() -> None:
    with pytest.raises(TypeError, match="needs at least one world"):
        environment("empty")
