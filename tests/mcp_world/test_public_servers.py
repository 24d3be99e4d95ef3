"""Public MCP servers, unmodified, as their makers publish them: calls, results and grades as stated.

A server that cannot be fetched here is skipped by name. The default set plays one from PyPI and one from npm.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.own import call, play, resolved
from turngrad.episodes import Episode

SMALL = ("--tasks-per-step", "2", "--eval-tasks", "1")


@cache
def present(*command: str) -> bool:
    """Whether the starter can fetch the server; the first time may download it."""
    if shutil.which(command[0]) is None:
        return False
    try:
        # The filesystem server has no --help; with its input closed it ends all the same.
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=180, check=command[0] == "uvx")
    except (subprocess.SubprocessError, OSError):
        return False
    if command[0] == "npx":
        name = next(word for word in command[1:] if not word.startswith("-"))
        return subprocess.run(["npm", "view", name, "version"], capture_output=True, timeout=120).returncode == 0
    return True


def needs(*command: str) -> None:
    if not present(*command):
        pytest.skip(f"{' '.join(command)} cannot be fetched here")


async def played(
    tmp_path: Path, mcp: str, task: dict[str, Any], script: list[str], *flags: str, attempts: int = 1
) -> list[Episode]:
    rows = [{"id": "t", **task}, *({"prompt": f"filler {n}", "grader": {"type": "exact", "value": "x"}} for n in range(3))]
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = resolved("--mcp", mcp, "--tasks-file", str(path), *SMALL, *flags)
    return (await play(config, script, tasks=["t"], attempts=attempts))["t"]


async def test_time_from_pypi(tmp_path: Path) -> None:
    needs("uvx", "mcp-server-time", "--help")
    task = {"prompt": "It is 16:30 in Tokyo. What time is it in Kolkata?", "grader": {"type": "contains", "value": "13:00"}}
    script = [
        call("convert_time", source_timezone="Asia/Tokyo", time="16:30", target_timezone="Asia/Kolkata"),
        call("convert_time", source_timezone="Nowhere/City", time="16:30", target_timezone="Asia/Kolkata"),
        "It is 13:00 there.",
    ]
    (episode,) = await played(tmp_path, "uvx mcp-server-time --local-timezone UTC", task, script)
    assert (episode.excluded, episode.reward) == (None, 1.0)
    converted, failed = episode.turns[0].tool_calls[0], episode.turns[1].tool_calls[0]
    assert json.loads(converted.result)["time_difference"] == "-3.5h"
    assert json.loads(converted.result)["target"]["datetime"].endswith("T13:00:00+05:30")
    assert failed.is_error
    assert "Invalid timezone" in failed.result


@pytest.mark.full
async def test_git_from_pypi_on_a_scratch_repository_for_each_episode(tmp_path: Path) -> None:
    needs("uvx", "mcp-server-git", "--help")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(scratch)]
    for words in (["init", "-q"], ["config", "user.name", "t"], ["config", "user.email", "t@t"]):
        subprocess.run([*git, *words], check=True)
    (scratch / "a.txt").write_text("one\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    (scratch / "a.txt").write_text("two\n")
    task = {
        "prompt": "Commit the change to a.txt in this repository with the message second.",
        "grader": {
            "type": "call",
            "tool": "git_log",
            "arguments": {"repo_path": "{workdir}", "max_count": 1},
            "expect": {"type": "contains", "value": "second"},
        },
    }
    script = [
        call("git_diff_unstaged", repo_path="."),
        call("git_add", repo_path=".", files=["a.txt"]),
        call("git_commit", repo_path=".", message="second"),
        "done",
    ]
    flags = ("--mcp-files", str(scratch))
    episodes = await played(tmp_path, "uvx mcp-server-git", task, script, *flags, attempts=2)
    for episode in episodes:
        assert (episode.excluded, episode.reward) == (None, 1.0), [turn.tool_calls for turn in episode.turns]
        assert "+two" in episode.turns[0].tool_calls[0].result
    (idle,) = await played(tmp_path, "uvx mcp-server-git", task, ["done"], *flags)
    assert idle.reward == 0.0
    log = subprocess.run([*git, "log", "--oneline"], check=True, capture_output=True, text=True).stdout
    assert len(log.splitlines()) == 1


@pytest.mark.full
async def test_filesystem_from_npm_in_a_folder_of_its_own(tmp_path: Path) -> None:
    needs("npx", "-y", "@modelcontextprotocol/server-filesystem", ".")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "shopping.txt").write_text("milk\n")
    read = {"tool": "read_text_file", "arguments": {"path": "{workdir}/list.txt"}}
    task = {
        "prompt": "Rename shopping.txt to list.txt in {workdir}, then write rice into a file called more.txt.",
        "setup": [{"name": "create_directory", "arguments": {"path": "{workdir}/made"}}],
        "grader": {"type": "call", **read, "expect": {"type": "exact", "value": "milk"}},
    }
    script = [
        call("list_directory", path="."),
        call("move_file", source="shopping.txt", destination="list.txt"),
        call("write_file", path="/etc/turngrad-test", content="x"),
        "done",
    ]
    mcp = "npx -y @modelcontextprotocol/server-filesystem {workdir}"
    (episode,) = await played(tmp_path, mcp, task, script, "--mcp-files", str(tmp_path / "files"))
    assert (episode.excluded, episode.reward) == (None, 1.0), [turn.tool_calls for turn in episode.turns]
    listed, _, refused = (turn.tool_calls[0] for turn in episode.turns[:3])
    assert sorted(listed.result.split("\n")) == ["[DIR] made", "[FILE] shopping.txt"]
    assert refused.is_error
    assert "Access denied" in refused.result
    assert (tmp_path / "files" / "shopping.txt").exists()


@pytest.mark.full
async def test_memory_from_npm_with_its_file_in_the_episodes_folder(tmp_path: Path) -> None:
    needs("npx", "-y", "@modelcontextprotocol/server-memory")
    entity = {"name": "Ada", "entityType": "person", "observations": ["likes tea"]}
    task = {
        "prompt": "Remember that Ada likes tea.",
        "grader": {
            "type": "call",
            "tool": "open_nodes",
            "arguments": {"names": ["Ada"]},
            "expect": {"type": "json", "value": {"entities": [entity], "relations": []}, "subset": True},
        },
    }
    script = [call("create_entities", entities=[entity]), "done"]
    flags = ("--mcp-env", "MEMORY_FILE_PATH={workdir}/memory.jsonl")
    mcp = "npx -y @modelcontextprotocol/server-memory"
    episodes = await played(tmp_path, mcp, task, script, *flags, attempts=2)
    assert [(episode.excluded, episode.reward) for episode in episodes] == [(None, 1.0)] * 2
    assert [json.loads(episode.turns[0].tool_calls[0].result) for episode in episodes] == [[entity]] * 2
    (idle,) = await played(tmp_path, mcp, task, ["done"], *flags)
    assert idle.reward == 0.0


async def test_everything_from_npm(tmp_path: Path) -> None:
    needs("npx", "-y", "@modelcontextprotocol/server-everything", "--help")
    task = {"prompt": "Add 2 and 40.", "grader": {"type": "numeric", "value": 42}}
    script = [call("get-sum", a=2, b=40), call("get-tiny-image"), call("echo", message='häl"lo'), "It is 42."]
    (episode,) = await played(tmp_path, "npx -y @modelcontextprotocol/server-everything", task, script)
    assert (episode.excluded, episode.reward) == (None, 1.0), episode.error
    total, image, echoed = (turn.tool_calls[0] for turn in episode.turns[:3])
    assert total.result == "The sum of 2 and 40 is 42."
    assert "[image omitted: image/png" in image.result
    assert echoed.result == 'Echo: häl"lo'
