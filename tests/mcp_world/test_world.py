"""Episodes on plain MCP servers, from flags to rewards: real processes, the real loop, a scripted policy."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.own import MODEL, call, play, resolved
from turngrad.envkit.world import WorldLost
from turngrad.episodes import Episode, Failure, StopReason
from turngrad.errors import UserError
from turngrad.mcp_world.connection import Connection
from turngrad.mcp_world.place import attempt, server_of
from turngrad.mcp_world.tasks import load_mcp_tasks
from turngrad.runtimes import open_runtime
from turngrad.tasksets import load_taskset

NOTES = Path(__file__).parents[2] / "envs" / "notes"
HOSTILE = Path(__file__).with_name("hostile.py")
SMALL = ("--tasks-per-step", "2", "--eval-tasks", "1")


def command(server: Path) -> str:
    return shlex.join([sys.executable, str(server)])


def tasks(tmp_path: Path, *rows: dict[str, Any]) -> str:
    path = tmp_path / "tasks.jsonl"
    filler = [{"id": f"filler-{n}", "prompt": f"filler {n}", "grader": {"type": "exact", "value": "x"}} for n in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *filler]))
    return str(path)


async def one(flags: tuple[str, ...], script: list[str], task: str, attempts: int = 1) -> list[Episode]:
    return (await play(resolved(*flags, *SMALL), script, tasks=[task], attempts=attempts))[task]


async def test_the_notes_example_plays_and_grades_as_its_tasks_say() -> None:
    by_id = {task.id: task for task in load_mcp_tasks(NOTES / "tasks.jsonl")}
    read = by_id["read-0"].setup[0].arguments["text"]
    appended = by_id["append-0"].graders()[0].expect.value.splitlines()[1]
    right = {
        "create-0": [call("create_note", title="Ana", text=by_id["create-0"].grader.expect.value), "done"],
        "read-0": [call("read_note", title="Ana"), f"It says: {read}"],
        "append-0": [
            call("append_note", title="Ana", text=appended),
            "done",
            call("tag_note", title="Ana", tag="shopping"),
            "done",
        ],
        "delete-0": [call("delete_note", title="Ana"), "done"],
    }
    config = resolved("--mcp", command(NOTES / "server.py"), "--tasks-file", str(NOTES / "tasks.jsonl"))
    episodes = await play(config, lambda name: right[name], tasks=list(right), attempts=2)
    assert {name: [episode.reward for episode in done] for name, done in episodes.items()} == {name: [1.0, 1.0] for name in right}
    first = episodes["delete-0"][0]
    assert first.excluded is None
    assert MODEL.decode(first.turns[0].context_ids).startswith("<|im_start|>system\nYou keep the user's notes")
    assert [called.result for called in first.turns[0].tool_calls] == ["deleted 'Ana'"]
    assert episodes["append-0"][0].turns[2].user_turn == 1
    wrong = await play(config, ["I did it."], tasks=list(right))
    assert {name: done[0].reward for name, done in wrong.items()} == dict.fromkeys(right, 0.0)


async def test_episodes_of_one_task_share_nothing() -> None:
    config = resolved("--mcp", command(NOTES / "server.py"), "--tasks-file", str(NOTES / "tasks.jsonl"))
    script = [call("create_note", title="Ana", text="milk"), call("create_note", title="Ana", text="milk"), "done"]
    episodes = (await play(config, script, tasks=["create-0"], attempts=6))["create-0"]
    for episode in episodes:
        assert [turn.tool_calls[0].is_error for turn in episode.turns[:2]] == [False, True]
        assert "already" in episode.turns[1].tool_calls[0].result


async def test_a_server_that_dies_voids_its_episode_and_no_other(tmp_path: Path) -> None:
    path = tasks(tmp_path, {"id": "t", "prompt": "go", "grader": {"type": "contains", "value": "fine"}})
    flags = ("--mcp", command(HOSTILE), "--tasks-file", path)
    config = resolved(*flags, *SMALL)
    lost = (await play(config, [call("odd.die"), "fine"], tasks=["t"], attempts=2))["t"]
    for episode in lost:
        assert (episode.failure, episode.stop_reason) == (Failure.TOOL_SERVER, StopReason.INFRASTRUCTURE)
        assert "my last words" in (episode.error or "")
    (sound,) = await one(flags, [call("odd.fail") + "\n" + call("odd.picture"), call("odd.refuse"), "fine"], "t")
    assert (sound.reward, sound.excluded) == (1.0, None)
    failed, picture = sound.turns[0].tool_calls
    assert (failed.result, failed.is_error) == ("Error: it went wrong", True)
    assert picture.result == "[image omitted: image/png, 3 bytes]"
    assert (sound.turns[1].tool_calls[0].result, sound.turns[1].tool_calls[0].is_error) == ("Error: I refuse", True)


async def test_a_call_that_hangs_is_stopped_and_told(tmp_path: Path) -> None:
    path = tasks(tmp_path, {"id": "t", "prompt": "go", "grader": {"type": "contains", "value": "fine"}})
    flags = ("--mcp", command(HOSTILE), "--tasks-file", path, "--tool-timeout", "3")
    (episode,) = await one(flags, [call("odd.hang"), call("odd.chatter"), "fine"], "t")
    assert episode.turns[0].tool_calls[0].result == "Error: odd.hang was stopped after 2.7 s"
    assert (episode.turns[1].tool_calls[0].result, episode.reward) == ("said", 1.0)


async def test_set_up_that_fails_is_no_fault_of_the_policys(tmp_path: Path) -> None:
    row = {"id": "t", "prompt": "go", "setup": [{"name": "odd.fail"}], "grader": {"type": "exact", "value": "x"}}
    (episode,) = await one(("--mcp", command(HOSTILE), "--tasks-file", tasks(tmp_path, row)), ["x"], "t")
    assert episode.failure is Failure.PROVISION
    assert "the set-up call odd.fail failed: it went wrong" in (episode.error or "")


async def test_the_episodes_folder_stands_in_for_its_name_and_tools_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("a")
    (tmp_path / "judge_folder.py").write_text(
        "def judge(answer, transcript, client):\n"
        "    where = client.call('odd.where').text.split()[0]\n"
        "    said = transcript[0]['user'].removeprefix('you are in ')\n"
        "    return said == where and transcript[1]['tool'] == 'odd.fail' and transcript[1]['is_error']\n"
    )
    row = {"id": "t", "prompt": "you are in {workdir}", "grader": {"type": "python", "function": "judge_folder:judge"}}
    flags = ("--mcp", command(HOSTILE), "--tasks-file", tasks(tmp_path, row), "--mcp-files", str(tmp_path / "files"))
    offer = ("--tools", "odd.f*", "odd.where", "--exclude-tools", "*where")
    (episode,) = await one((*flags, *offer), [call("odd.fail"), call("odd.where"), "done"], "t")
    assert (episode.excluded, episode.reward) == (None, 1.0)
    assert episode.turns[1].tool_calls[0].bad is not None
    assert "odd.where" not in MODEL.decode(episode.turns[0].context_ids)


async def test_a_shared_server_serves_all_episodes(tmp_path: Path) -> None:
    row = {"id": "t", "prompt": "go", "grader": {"type": "contains", "value": "fine"}}
    flags = ("--mcp", command(HOSTILE), "--mcp-shared", "--tasks-file", tasks(tmp_path, row))
    episodes = await one(flags, [call("odd.where"), "fine"], "t", attempts=4)
    assert len({episode.turns[0].tool_calls[0].result.split()[1] for episode in episodes}) == 1


@pytest.fixture
def http_server() -> Iterator[str]:
    """The notes server over streamable HTTP, which wants a token."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"""
import sys
sys.path.insert(0, {str(NOTES)!r})
import uvicorn
from server import server
app = server.streamable_http_app()
async def guarded(scope, receive, send):
    if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != b"Bearer sesame":
        await send({{"type": "http.response.start", "status": 401, "headers": []}})
        await send({{"type": "http.response.body", "body": b""}})
        return
    await app(scope, receive, send)
uvicorn.run(guarded, host="127.0.0.1", port={port}, log_level="error")
"""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


async def test_a_server_behind_a_url_plays_with_its_header(
    tmp_path: Path, http_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES_TOKEN", "sesame")
    expect = {"type": "exact", "value": "milk"}
    row = {
        "id": "t",
        "prompt": "go",
        "grader": {"type": "call", "tool": "read_note", "arguments": {"title": "A"}, "expect": expect},
    }
    flags = ("--mcp", http_server, "--tasks-file", tasks(tmp_path, row))
    header = ("--mcp-header", "Authorization: Bearer ${NOTES_TOKEN}")
    (episode,) = await one((*flags, *header), [call("create_note", title="A", text="milk"), "done"], "t")
    assert (episode.excluded, episode.reward) == (None, 1.0)
    with pytest.raises(UserError, match=r"did not open .*HTTP 401"):
        await one(flags, ["x"], "t")


async def test_what_cannot_work_is_told_before_the_first_rollout(tmp_path: Path) -> None:
    row = {"id": "t", "prompt": "go", "grader": {"type": "call", "tool": "no_such"}}
    path = tasks(tmp_path, row)
    config = resolved("--mcp", command(HOSTILE), "--tasks-file", path, *SMALL)
    with pytest.raises(UserError, match=r"task 't' calls 'no_such', the server .* has odd\.big"):
        await attempt(server_of(config), load_mcp_tasks(Path(path)))
    row["grader"] = {"type": "python", "function": "no_such_module:judge"}
    config = resolved("--mcp", command(HOSTILE), "--tasks-file", tasks(tmp_path, row), *SMALL)
    with pytest.raises(UserError, match="No module named 'no_such_module'"):
        async with open_runtime(load_taskset(config).placement):
            pass
    with pytest.raises(WorldLost):
        await Connection.open(server_of(resolved("--mcp", "false", "--tasks-file", path, *SMALL)))


async def test_all_processes_are_gone_when_the_runtime_closes(tmp_path: Path) -> None:
    row = {"id": "t", "prompt": "go", "grader": {"type": "contains", "value": "fine"}}
    (episode,) = await one(("--mcp", command(HOSTILE), "--tasks-file", tasks(tmp_path, row)), [call("odd.where"), "fine"], "t")
    folder, *pids = episode.turns[0].tool_calls[0].result.split()
    async with asyncio.timeout(10):
        while Path(folder).exists() or any(Path(f"/proc/{pid}").exists() for pid in pids):
            await asyncio.sleep(0.1)
