"""Planted keys are in no file of a run, no report, nothing printed, no error and no process list, whoever echoes them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.drill.replay import recorder
from tests.processes import ENV, PATIENCE, ROOT, SMALL, TRAIN, at_service, left_nothing, rows, start, starter_engine
from turngrad.runlog import read_episodes
from turngrad.skeleton import write_skeleton

HERE = Path(__file__).parent
KEYS = {
    name: f"planted-{name.lower().replace('_', '-')}-0123456789"
    for name in ("FIREWORKS_API_KEY", "HUD_API_KEY", "OPENAI_API_KEY", "WANDB_API_KEY", "MY_SHELF")
}
LITERAL = "planted-by-value-0123456789"


class Echo(BaseHTTPRequestHandler):
    """Refuses everything with 401 and says which key it got."""

    def do_POST(self) -> None:
        keys = [value for name, value in self.headers.items() if "key" in name.lower() or "auth" in name.lower()]
        said = json.dumps({"error": {"message": f"refused: {keys}", "code": 401}}).encode()
        self.send_response(401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def echo() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


@pytest.mark.parametrize("who", ["the training service", "an MCP server"])
def test_a_401_that_echoes_the_key_is_shown_without_it(who: str, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "Say a.", "grader": {"type": "exact", "value": "a"}}\n' * 20)
    with echo() as url:
        if who == "an MCP server":
            flags = ["--mcp", url, "--tasks-file", str(tasks), "--mcp-header", "Authorization: Bearer ${MY_SHELF}"]
            flags += ["--backend", "local"]
        else:
            flags = at_service(f"{url}/training/v1/serverless")
        run = start(tmp_path / "run", *flags, "--steps", "1", environment=KEYS)
        assert run.wait() == 2
    left_nothing(run)
    assert "401" in run.output
    assert who == "an MCP server" or "[FIREWORKS_API_KEY]" in run.output
    assert not _planted(run.output.encode())
    assert not _holding(tmp_path)


@pytest.mark.long
def test_a_run_whose_servers_echo_every_secret_leaves_none(tmp_path: Path) -> None:
    """A tool server dies with its secrets on its lips in every rollout that asks for a file."""
    tasks = tmp_path / "tasks.jsonl"
    with open(tasks, "w") as file:
        for number in range(12):
            prompt = (
                f"Create a new file called 'note{number}.txt'." if number % 2 else f"Create a new folder called 'box{number}'."
            )
            file.write(json.dumps({"prompt": prompt, "grader": {"type": "exact", "value": "done"}}) + "\n")
    flags = ["--mcp", f"{sys.executable} {HERE / 'echo_server.py'}", "--tasks-file", str(tasks)]
    flags += ["--mcp-env", "SHELF_TOKEN=${MY_SHELF}", f"SHELF_DSN={LITERAL}"]
    flags += [
        "--tasks-per-step",
        "8",
        "--group-size",
        "2",
        "--eval-tasks",
        "0",
        "--checkpoint-every",
        "1",
        "--rollout-retries",
        "0",
    ]
    run = start(tmp_path / "run", "--backend", "local", *flags, "--steps", "1", small=False, environment=KEYS)
    seen: dict[int, bytes] = {}
    while run.process.poll() is None:
        time.sleep(0.2)
        for pid in run.processes():
            try:
                seen[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
    assert run.process.returncode == 0, run.output
    left_nothing(run)
    [row] = rows(run.folder)
    assert row["failures"].get("tool_server"), "no call was made, so nothing was echoed"
    errors = [episode.error or "" for episode in read_episodes(run.folder / "episodes" / "step-0001.jsonl.zst")]
    assert any("cannot log in with [SHELF_TOKEN] at [SHELF_DSN]" in error for error in errors), errors
    for pid, command in seen.items():
        # What the user wrote on the trainer's own command line stands there.
        assert not _planted(command.replace(LITERAL.encode(), b"") if pid == run.process.pid else command)
    for script in (["report.py", str(run.folder)], ["show.py", str(run.folder)]):
        made = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / script[0]), *script[1:]],
            env={**ENV, **KEYS},
            capture_output=True,
            timeout=PATIENCE,
            check=True,
        )
        assert not _planted(made.stdout + made.stderr)
    assert (run.folder / "report.html").exists()
    assert not _holding(tmp_path)
    again = subprocess.run(
        [*TRAIN, "--resume-from", str(run.folder), "--steps", "2"],
        env={**ENV, **KEYS},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert again.returncode == 2
    assert b"SHELF_DSN is not set" in again.stderr
    assert not _planted(again.stdout + again.stderr)


@pytest.mark.long
def test_a_sampler_that_echoes_the_key_leaves_it_in_no_row_and_no_episode(tmp_path: Path) -> None:
    desk = write_skeleton("desk", tmp_path)
    with starter_engine(tmp_path) as url, recorder(url) as made:
        made.echo = True
        flags = ["--tasks-file", str(desk / "tasks.jsonl"), "--env-path", str(desk / "env.py"), "--runtime", "local"]
        flags += ["--rollout-retries", "0"]
        run = start(tmp_path / "run", *at_service(made.url), *SMALL, *flags, "--steps", "1", small=False, environment=KEYS)
        assert run.wait() == 0, run.output
    [row] = rows(run.folder)
    assert 0 < row["valid_rollouts"] < row["rollouts"]
    assert "[FIREWORKS_API_KEY]" in row["last_error"]
    assert not _holding(tmp_path)


def _planted(data: bytes) -> list[str]:
    """The planted values in some bytes, by name; half a key counts."""
    return [name for name, value in (KEYS | {"by value": LITERAL}).items() if value[: len(value) // 2 + 4].encode() in data]


def _holding(folder: Path) -> list[str]:
    """The files below a folder that hold a planted value, episodes unpacked."""
    found = [str(path) for path in folder.rglob("*") if path.is_file() and _planted(path.read_bytes())]
    for path in folder.rglob("*.jsonl.zst"):
        found += [str(path) for episode in read_episodes(path) if _planted(episode.to_json().encode())]
    return found
