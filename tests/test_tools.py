"""One rollout's MCP tools against a server that misbehaves: each fault has its stated outcome and hurts no other rollout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hud  # noqa: F401 - its patches of the MCP client are part of what is tested
import mcp.types as mcp_types
import pytest
from hud.capabilities.base import Capability
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from turngrad.episodes import Failure
from turngrad.errors import RolloutError
from turngrad.tools import CALL_ID_META, Outcome, ToolSession, open_tools, result_text


@dataclass
class Server:
    url: str
    log: Path
    process: subprocess.Popen[bytes]

    def calls(self, name: str) -> int:
        return (
            len([line for line in self.log.read_text().splitlines() if json.loads(line)[0] == name]) if self.log.exists() else 0
        )

    def run(self, *names: str) -> Any:
        """What `open_tools` reads of a hud run, with this server under one or several capability names."""
        capabilities = [Capability.mcp(name=name, url=self.url) for name in names or ("tools",)]
        by_name = {capability.name: capability for capability in capabilities}
        client = SimpleNamespace(manifest=SimpleNamespace(bindings=capabilities), binding=by_name.__getitem__)
        return SimpleNamespace(client=client, bindings={})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    port, log = tmp_path / "port", tmp_path / "log"
    process = subprocess.Popen([sys.executable, "-m", "tests.hostile_server", str(port), str(log)])
    deadline = time.monotonic() + 20
    while not port.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    yield Server(f"http://127.0.0.1:{port.read_text()}/mcp", log, process)
    process.kill()
    process.wait()


async def _call(tools: ToolSession, name: str, arguments: dict[str, Any] | None = None) -> Outcome:
    return await tools.call(name, arguments or {"text": "hi"}, call_id=f"id-{name}-{time.monotonic_ns()}", step=1)


async def test_a_call_carries_its_id_and_answers(server: Server) -> None:
    async with open_tools(server.run(), timeout=5) as tools:
        assert (await _call(tools, "echo")).text == "hi"
    name, arguments, meta = json.loads(server.log.read_text().splitlines()[0])
    assert (name, arguments) == ("echo", {"text": "hi"})
    assert meta[CALL_ID_META].startswith("id-echo")


async def test_a_hanging_call_is_told_to_the_model_once_and_gives_the_episode_up_the_second_time(server: Server) -> None:
    async with open_tools(server.run(), timeout=1) as tools:
        started = time.monotonic()
        outcome = await _call(tools, "hang")
        assert time.monotonic() - started < 3
        assert outcome.is_error
        assert "no answer within 1 s" in outcome.text
        assert (await _call(tools, "echo")).text == "hi"
        with pytest.raises(RolloutError, match="without an answer") as caught:
            await _call(tools, "hang")
        assert caught.value.failure is Failure.TOOL_SERVER


@pytest.mark.parametrize("fault", ["reset", "unavailable", "badjson", "html", "crossed", "crossed_event"])
async def test_a_call_whose_fate_is_unknown_runs_once_and_fails_at_once(server: Server, fault: str) -> None:
    """hud's patched client would send it again for ten minutes: one call, several executions (C8)."""
    async with open_tools(server.run(), timeout=5) as tools:
        started = time.monotonic()
        with pytest.raises(RolloutError) as caught:
            await _call(tools, fault)
        assert time.monotonic() - started < 3
    assert caught.value.failure is Failure.TOOL_SERVER
    assert server.calls(fault) == 1
    async with open_tools(server.run(), timeout=5) as tools:
        assert (await _call(tools, "echo")).text == "hi"
    assert server.calls(fault) == 1


async def test_the_client_that_hud_patches_does_run_it_again(server: Server) -> None:
    """What the transport of our own is for: the same fault through the `mcp` package's, as `import hud` leaves it."""
    with contextlib.suppress(Exception):
        async with (
            asyncio.timeout(4),
            streamable_http_client(server.url) as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            await session.call_tool("unavailable", {"text": "hi"})
    assert server.calls("unavailable") > 1


async def test_a_server_that_dies_in_a_call_fails_the_rollout_at_once(server: Server) -> None:
    started = time.monotonic()
    async with open_tools(server.run(), timeout=5) as tools:
        with pytest.raises(RolloutError) as caught:
            await _call(tools, "die")
    assert caught.value.failure is Failure.TOOL_SERVER
    assert time.monotonic() - started < 5
    with pytest.raises(RolloutError, match="did not open"):
        await open_tools(server.run(), timeout=5).__aenter__()


async def test_results_of_every_kind_become_text(server: Server) -> None:
    async with open_tools(server.run(), timeout=10) as tools:
        assert (await _call(tools, "image")).text == "[image omitted: image/png, 3 bytes]"
        assert (await _call(tools, "structured")).text == '{"b": 1, "a": "ü"}'
        failed = await _call(tools, "fails")
        assert failed.is_error
        assert failed.text == 'Error: disk on fire\n{"code": 7}'
        assert len((await _call(tools, "big")).text) == 5_000_000


async def test_an_answer_in_an_event_stream_is_found_behind_other_messages(server: Server) -> None:
    async with open_tools(server.run(), timeout=10) as tools:
        assert (await _call(tools, "events")).text == "y" * 300_000
        assert (await _call(tools, "echo")).text == "hi"


async def test_names_that_two_servers_share_are_qualified_and_reach_their_own_server(server: Server) -> None:
    async with open_tools(server.run("one", "two"), timeout=5) as tools:
        names = [spec["function"]["name"] for spec in tools.specs]
        assert len(names) == len(set(names))
        assert {"one__echo", "two__echo"} <= set(names)
        assert not tools.knows("echo")
        assert (await _call(tools, "two__echo")).text == "hi"


async def test_a_tool_list_that_changes_is_seen_after_a_refresh(server: Server) -> None:
    async with open_tools(server.run(), timeout=5) as tools:
        assert not tools.knows("grown")
        await _call(tools, "grow")
        await tools.refresh()
        assert tools.knows("grown")
        assert (await _call(tools, "grown")).text == "hello"


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("text", "must be a JSON object"),
        ({}, "'text' is a required property"),
        ({"text": 1}, "1 is not of type 'string'"),
        ({"text": "x", "count": "many"}, "['count']"),
        ({"text": "x", "other": 1}, "'other' was unexpected"),
        ({"text": "x", "count": float("nan")}, "cannot be sent as JSON"),
        ({"text": "\ud800"}, "cannot be sent as JSON"),
    ],
)
async def test_bad_arguments_are_named_and_never_sent(server: Server, arguments: Any, found: str) -> None:
    async with open_tools(server.run(), timeout=5) as tools:
        complaint = tools.invalid_arguments("echo", arguments)
        assert complaint is not None
        assert found in complaint
        assert tools.invalid_arguments("echo", {"text": "fine", "count": 3}) is None
    assert server.calls("echo") == 0


async def test_deeply_nested_arguments_are_refused_in_words(server: Server) -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    async with open_tools(server.run(), timeout=5) as tools:
        assert "cannot be sent as JSON" in (tools.invalid_arguments("echo", {"text": deep}) or "")


async def test_an_environment_without_mcp_gives_a_session_without_tools(server: Server) -> None:
    run: Any = SimpleNamespace(client=SimpleNamespace(manifest=SimpleNamespace(bindings=[])), bindings={})
    async with open_tools(run, timeout=5) as tools:
        assert tools.specs == []
        assert (await tools.next_user_turn(step=1)).done


async def test_fifty_sessions_open_and_close_at_once(server: Server) -> None:
    """python-sdk#577: sessions closed from another task or out of order raise cancel-scope errors."""

    async def one(index: int) -> str:
        async with open_tools(server.run(), timeout=30) as tools:
            return (await _call(tools, "echo", {"text": str(index)})).text

    assert await asyncio.gather(*map(one, range(50))) == [str(index) for index in range(50)]


def test_an_error_without_words_is_still_said() -> None:
    assert result_text(mcp_types.CallToolResult(content=[], isError=True)) == "Error: the tool failed and gave no reason"
