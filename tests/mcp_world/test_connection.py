"""A session with a server of the episode's own: passed through unchanged, and gone with all it started."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_pool import alive, gone
from turngrad.envkit.world import RawResult, ToolError, WorldLost
from turngrad.mcp_world import connection as connection_module
from turngrad.mcp_world.connection import Connection, SharedConnection
from turngrad.mcp_world.server import McpServer, server_from_flags

HOSTILE = Path(__file__).with_name("hostile.py")
ROOT = Path(__file__).parents[2]


def hostile(*words: str) -> McpServer:
    return server_from_flags(shlex.join([sys.executable, str(HOSTILE), *words]))


async def where(connection: Connection) -> tuple[str, list[int]]:
    result = await connection.call("odd.where", {})
    folder, *pids = result.content[0]["text"].split()
    return folder, [int(pid) for pid in pids]


async def test_tools_and_answers_pass_as_the_server_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIREWORKS_API_KEY", "secret")
    connection = await Connection.open(hostile())
    try:
        assert len(connection.tools) == 11
        first = connection.tools[0]
        assert (first.name, first.description) == ("odd.picture", "does picture")
        assert list(first.input_schema["properties"]) == ["z", "a"]
        assert first.input_schema["properties"]["a"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
        picture = await connection.call("odd.picture", {})
        assert picture == RawResult([{"type": "image", "data": "aGk=", "mimeType": "image/png"}], {"b": 1, "a": 2}, False)
        assert list(picture.structured or {}) == ["b", "a"]
        failed = await connection.call("odd.fail", {})
        assert (failed.is_error, failed.content[0]["text"]) == (True, "it went wrong")
        with pytest.raises(ToolError, match="I refuse"):
            await connection.call("odd.refuse", {})
        assert (await connection.call("odd.chatter", {})).content[0]["text"] == "said"
        assert len((await connection.call("odd.big", {})).content[0]["text"]) == 5_000_000
        assert "FIREWORKS_API_KEY" not in (await connection.call("odd.environment", {})).content[0]["text"]
    finally:
        await connection.close()


async def test_a_tool_that_appears_is_listed_after_the_call_that_brought_it() -> None:
    connection = await Connection.open(hostile())
    try:
        await connection.call("odd.grow", {})
        await connection.call("odd.chatter", {})
        assert connection.tools[-1].name == "odd.new0"
    finally:
        await connection.close()


async def test_closing_ends_the_server_what_it_detached_and_its_folder() -> None:
    connection = await Connection.open(hostile())
    folder, pids = await where(connection)
    assert Path(folder).is_dir()
    assert folder == connection.workdir
    assert all(map(alive, pids))
    started = time.monotonic()
    await connection.close()
    assert time.monotonic() - started < 5
    assert gone(pids, 3)
    assert not Path(folder).exists()
    with pytest.raises(WorldLost):
        await connection.call("odd.fail", {})


async def test_a_server_that_dies_is_reported_with_its_last_words() -> None:
    connection = await Connection.open(hostile())
    with pytest.raises(WorldLost, match="ended with status 3; its last words: my last words"):
        await connection.call("odd.die", {})
    with pytest.raises(WorldLost, match="is gone"):
        await connection.call("odd.fail", {})
    await connection.close()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("no-such-program --x", "no-such-program: No such file or directory"),
        (shlex.join([sys.executable, str(HOSTILE), "--broken"]), "status 1; its last words: I cannot start"),
        ("true", "ended with status 0"),
    ],
)
async def test_a_server_that_does_not_start_says_why(command: str, said: str) -> None:
    with pytest.raises(WorldLost, match=said):
        await Connection.open(server_from_flags(command))


async def test_a_server_that_does_not_answer_is_given_up_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "START_SECONDS", 1.0)
    before = set(_leashes())
    with pytest.raises(WorldLost, match="did not answer within 1 s"):
        await Connection.open(hostile("--slow"))
    assert not set(_leashes()) - before


async def test_an_opening_that_is_cancelled_leaves_nothing() -> None:
    before = set(_leashes())
    for pause in (0, 0.01, 0.1, 0.3):
        opening = asyncio.create_task(Connection.open(hostile("--slow")))
        await asyncio.sleep(pause)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
    deadline = time.monotonic() + 5
    while set(_leashes()) - before and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not set(_leashes()) - before


async def test_files_are_copied_afresh_for_each_process(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("original")
    server = hostile().model_copy(update={"files": tmp_path})
    first, second = await Connection.open(server), await Connection.open(server)
    Path(first.workdir, "a.txt").write_text("changed")
    assert Path(second.workdir, "a.txt").read_text() == "original"
    assert (tmp_path / "a.txt").read_text() == "original"
    await first.close()
    await second.close()


async def test_a_shared_connection_is_one_and_is_opened_again_when_lost() -> None:
    shared = SharedConnection(hostile())
    first, second = await asyncio.gather(shared.get(), shared.get())
    assert first is second
    with pytest.raises(WorldLost):
        await first.call("odd.die", {})
    third = await shared.get()
    assert third is not first
    assert (await third.call("odd.chatter", {})).content[0]["text"] == "said"
    await shared.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_dies_with_its_owner_however_that_ends(how: signal.Signals) -> None:
    code = f"""
import asyncio
from turngrad.mcp_world.connection import Connection
from turngrad.mcp_world.server import server_from_flags
async def main():
    connection = await Connection.open(server_from_flags({shlex.join([sys.executable, str(HOSTILE)])!r}))
    print((await connection.call("odd.where", {{}})).content[0]["text"], flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        folder, *pids = owner.stdout.readline().split()
        assert all(alive(int(pid)) for pid in pids)
        owner.send_signal(how)
    assert gone([int(pid) for pid in pids], 5)
    deadline = time.monotonic() + 3
    while Path(folder).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(folder).exists()


def _leashes() -> list[int]:
    """Leashes started by this process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if b"leash.py" in command and parent == os.getpid():
            found.append(int(entry.name))
    return found
