"""Plain MCP servers, a process an episode, broken under the real loop."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.drill.accounts import MODEL, Policy
from tests.drill.left_running import Started, alive, nothing_left
from tests.own import call, resolved
from turngrad.agent import LoopSettings
from turngrad.episodes import Episode, Failure
from turngrad.rollout import RolloutCounts, Rollouts, RolloutSettings, hud_task
from turngrad.runtimes import open_runtime
from turngrad.tasksets import load_taskset

pytestmark = pytest.mark.long
HOSTILE = Path(__file__).parents[1] / "mcp_world" / "hostile.py"
SCRIPT = [call("odd.where"), call("odd.chatter"), call("odd.chatter"), "42"]
ATTEMPTS = 4


async def _play(tmp_path: Path, before: Callable[[Started, int], Awaitable[None]]) -> tuple[list[Episode], RolloutCounts]:
    """One task, four attempts with a second try each; `before` runs before every sample."""
    tasks = [{"id": f"task-{n}", "prompt": f"go {n}", "grader": {"type": "exact", "value": "42"}} for n in range(4)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    server = shlex.join([sys.executable, str(HOSTILE)])
    flags = ("--mcp", server, "--tasks-file", str(tmp_path / "tasks.jsonl"), "--tool-timeout", "3")
    config = resolved(*flags, "--tasks-per-step", "2", "--eval-tasks", "1")
    taskset = load_taskset(config)
    with nothing_left() as started:
        async with open_runtime(taskset.placement, first=hud_task(taskset.train[0])) as provider:
            rollouts = Rollouts(MODEL, provider, LoopSettings(max_tokens=200, tool_timeout=3.0), RolloutSettings(8, retries=1))
            policy = Policy(MODEL, SCRIPT, before=lambda n: before(started, n))
            groups = rollouts.groups(taskset.train[:1], ATTEMPTS, policy, seed="0")  # type: ignore[arg-type]
            (group,) = [group async for group in groups]
    return list(group.episodes), rollouts.take_counts()


def _servers(started: Started) -> list[int]:
    """The ids of the MCP servers' own processes that live now, leashes aside."""
    started.look()
    found = []
    for pid, _ in started.processes:
        if alive(pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[1:2] == [str(HOSTILE).encode()]:
                found.append(pid)
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_servers_killed_or_frozen_in_an_episode_cost_its_try(tmp_path: Path, how: signal.Signals) -> None:
    """Lost: nothing; every episode whose server broke is played again with a new one."""
    struck: list[int] = []
    blow = asyncio.Event()

    async def before(started: Started, n: int) -> None:
        # None goes on before all four have begun.
        if n == ATTEMPTS:
            struck.extend(_servers(started))
            for pid in struck:
                os.kill(pid, how)
            blow.set()
        await blow.wait()

    episodes, counts = await _play(tmp_path, before)
    assert [episode.reward for episode in episodes] == [1.0] * ATTEMPTS
    assert len(struck) == ATTEMPTS
    assert counts.failures == {Failure.TOOL_SERVER.value: ATTEMPTS}
    assert counts.started == 2 * ATTEMPTS
    assert not any(tool_call.is_error for episode in episodes for tool_call in episode.tool_calls)
