"""Tasks files and flags for a plain MCP server: read strictly, refused by line or by flag."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.own import load
from turngrad.errors import UserError
from turngrad.mcp_world.server import expand, server_from_flags
from turngrad.mcp_world.tasks import load_mcp_tasks

GRADER = {"type": "exact", "value": "x"}


def file(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def test_a_task_without_an_id_is_named_by_its_content(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "grader": GRADER}, {"id": "mine", "prompt": "a", "grader": GRADER}, {"prompt": "b", "grader": GRADER}]
    ids = [task.id for task in load_mcp_tasks(file(tmp_path, *rows))]
    assert ids[1] == "mine"
    assert ids[0] != ids[2]
    assert [task.id for task in load_mcp_tasks(file(tmp_path, *reversed(rows)))] == ids[::-1]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "line 2 is not JSON"),
        ({"prompt": "a"}, "line 2: grader: Field required"),
        ({"prompt": "a", "grader": {"type": "vibes"}}, "line 2: grader: Input tag 'vibes' found"),
        ({"prompt": "a", "grader": GRADER, "promt": 1}, "line 2: promt: Extra inputs"),
        ({"prompt": "a", "grader": {"type": "python", "function": "os.system"}}, "line 2: grader.python.function"),
        ({"id": "first", "prompt": "a", "grader": GRADER}, "line 2: the id 'first' is there already"),
        ([1], "line 2: the line"),
    ],
)
def test_a_line_that_is_no_task_is_refused_with_its_number(tmp_path: Path, row: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_mcp_tasks(file(tmp_path, {"id": "first", "prompt": "a", "grader": GRADER}, row))


def test_an_empty_file_shows_what_a_line_is(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'\{"prompt": "...", "grader"'):
        load_mcp_tasks(file(tmp_path))


def test_a_command_is_split_without_a_shell_and_its_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "server.py").touch()
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    server = server_from_flags("run 'a b' $HOME; ./server.py -x=$(id) @scope/name {workdir}/y")
    assert server.command == ("run", "a b", "$HOME;", str(tmp_path / "server.py"), "-x=$(id)", "@scope/name", "{workdir}/y")


def test_a_server_is_told_no_secret_but_those_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIREWORKS_API_KEY", "secret")
    monkeypatch.setenv("MY_TOKEN", "token")
    monkeypatch.setenv("UV_CACHE_DIR", "cache")
    plain = server_from_flags("x").environment("w")
    assert "FIREWORKS_API_KEY" not in plain
    assert plain["UV_CACHE_DIR"] == "cache"
    named = server_from_flags("x", variables=("MY_TOKEN", "DATA={workdir}/data.json"))
    assert "token" not in named.model_dump_json()
    assert (named.environment("/w")["MY_TOKEN"], named.environment("/w")["DATA"]) == ("token", "/w/data.json")


def test_headers_keep_their_secret_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "token")
    server = server_from_flags("https://host/mcp", headers=("Authorization: Bearer ${MY_TOKEN}", "X-A: b:c"))
    assert "token" not in server.model_dump_json().replace("MY_TOKEN", "")
    assert server.request_headers() == {"Authorization": "Bearer token", "X-A": "b:c"}
    with pytest.raises(UserError, match="NO_SUCH_VARIABLE is not set"):
        expand("${NO_SUCH_VARIABLE}")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--mcp", "x"], "--mcp needs --tasks-file"),
        (["--mcp", "'x", "--tasks-file", "T"], "cannot be split into words"),
        (["--mcp", "https://h/mcp", "--mcp-shared", "--tasks-file", "T"], "shared by nature"),
        (["--mcp", "x", "--mcp-header", "a:b", "--tasks-file", "T"], "--mcp-header is for"),
        (["--mcp", "https://h/mcp", "--mcp-header", "ab", "--tasks-file", "T"], "expected 'Name: value'"),
        (["--mcp", "x", "--mcp-env", "=b", "--tasks-file", "T"], "expected NAME=value"),
        (["--mcp", "x", "--mcp-files", "nowhere", "--tasks-file", "T"], "no such folder"),
        (["--mcp", "x", "--runtime", "local", "--tasks-file", "T"], "runtime of its own"),
    ],
)
def test_flags_that_do_not_fit_are_refused_by_name(tmp_path: Path, flags: list[str], said: str) -> None:
    path = file(tmp_path, {"prompt": "a", "grader": GRADER})
    with pytest.raises(UserError, match=said):
        load(*[str(path) if flag == "T" else flag for flag in flags])


def test_tasks_that_differ_in_id_or_grader_alone_stay_on_one_side(tmp_path: Path) -> None:
    rows = [{"id": f"{n}{twin}", "prompt": f"p{n}", "grader": {**GRADER, "value": twin}} for n in range(6) for twin in "ab"]
    taskset = load("--mcp", "x", "--tasks-file", str(file(tmp_path, *rows)), "--tasks-per-step", "4", "--eval-tasks", "3")
    assert {row.id[0] for row in taskset.held_out}.isdisjoint(row.id[0] for row in taskset.train)
    assert len(taskset.held_out) == 4
