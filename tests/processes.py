"""Whole runs as a user starts them, and what they leave: processes, ports, files.

A run carries a mark in its environment, which every process it starts inherits: what is left of it is found whoever its
parent is by then.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turngrad.local.models import resolve_model
from turngrad.runlog import read_episodes

ROOT = Path(__file__).parent.parent
TRAIN = [sys.executable, str(ROOT / "scripts" / "train.py")]
SMALL = ["--tasks-per-step", "2", "--group-size", "4", "--train-tasks", "6", "--eval-tasks", "0", "--checkpoint-every", "1"]
ENV = {key: value for key, value in os.environ.items() if not key.startswith(("FIREWORKS", "HUD", "TINKER"))}
MARK = "TURNGRAD_TEST_RUN"
PATIENCE = 900.0
"""Seconds to wait for what must happen: a machine that does ten other things at once is slow, and not wrong."""
SOON = 40.0
"""Seconds to an end that is asked for, which takes less than 10 s on a machine with a core to spare."""
STARTED: list[subprocess.Popen[bytes]] = []
"""What `end_all` ends: a test that fails leaves its trainer in the middle."""


@dataclass(frozen=True)
class Running:
    """A trainer that was started: its folder, its process, all it printed, and the mark of what it starts."""

    folder: Path
    process: subprocess.Popen[bytes]
    printed: Path
    mark: str

    @property
    def output(self) -> str:
        """Standard output and standard error so far."""
        return self.printed.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """The exit status; what was printed is in the error when there is none in time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {seconds} s:\n{self.output}") from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def until(self, happened: Callable[[], Any], seconds: float = PATIENCE) -> None:
        """Wait for something to happen while the trainer runs."""
        deadline = time.monotonic() + seconds
        while not happened():
            assert self.process.poll() is None, f"ended with status {self.process.returncode}:\n{self.output}"
            assert time.monotonic() < deadline, f"did not happen within {seconds} s:\n{self.output}"
            time.sleep(0.05)

    def until_rows(self, count: int, seconds: float = PATIENCE) -> None:
        """Wait until metrics.jsonl has `count` lines."""
        path = self.folder / "metrics.jsonl"
        self.until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count, seconds)

    def processes(self) -> list[int]:
        """The living processes of this run, the trainer's own included."""
        return [pid for pid in living() if f"{MARK}={self.mark}".encode() in _of(pid, "environ").split(b"\0")]

    def children(self) -> dict[str, int]:
        """The engine and the environment servers by what their command line says."""
        return {
            name: pid
            for pid in self.processes()
            for name in ("turngrad.local.server", "server_child")
            if name in _of(pid, "cmdline").decode(errors="replace")
        }


def start(
    folder: Path,
    *flags: str,
    resume: bool = False,
    small: bool = True,
    environment: Mapping[str, str] | None = None,
    command: list[str] | None = None,
    printed: Path | None = None,
    **options: Any,
) -> Running:
    """Start the trainer in `folder`, or resume it there; `printed` gets its output, `options` are Popen's."""
    arguments = ["--resume-from", str(folder)] if resume else ["--output-dir", str(folder), *(SMALL if small else [])]
    mark = uuid.uuid4().hex
    printed = printed or folder.parent / f"{folder.name}-{mark[:8]}.out"
    with open(printed, "wb") as output:
        process = subprocess.Popen(
            [*(command or TRAIN), *arguments, *flags],
            env={**ENV, **(environment or {}), MARK: mark},
            cwd=ROOT,
            **{"stdout": output, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, **options},
        )
    STARTED.append(process)
    return Running(folder, process, printed, mark)


def end_all() -> None:
    """Kill the trainers that still run."""
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.wait()


def finished(folder: Path, *flags: str, seconds: float = PATIENCE, **how: Any) -> Running:
    """The same, run to its end, which must be a good one."""
    run = start(folder, *flags, **how)
    assert run.wait(seconds) == 0, run.output
    return run


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps(folder: Path) -> list[int]:
    """The numbers of the training steps that have a row."""
    return [row["step"] for row in rows(folder) if row["kind"] == "train"]


def living() -> list[int]:
    """Every process on this machine that is no zombie."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if (stat := _of(pid, "stat")) and stat.rpartition(b")")[2].split()[0] != b"Z"]


def gone(pids: list[int], seconds: float = SOON) -> bool:
    """Whether all of these have ended within that time."""
    deadline = time.monotonic() + seconds
    while (left := set(pids).intersection(living())) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not left


def left_nothing(run: Running, seconds: float = SOON) -> None:
    """Assert that a run which has ended left no process, and no port that it listened on."""
    deadline = time.monotonic() + seconds
    while (left := run.processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, [_of(pid, "cmdline").replace(b"\0", b" ") for pid in left]


def ports(pids: list[int]) -> list[int]:
    """The TCP ports on which these processes listen."""
    held = set()
    for pid in pids:
        try:
            held |= {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        except OSError:
            continue
    listening = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
            listening.append(int(fields[1].rpartition(":")[2], 16))
    return listening


def refuses(port: int) -> bool:
    """Whether nobody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def kill_9(run: Running) -> None:
    """Kill the trainer alone, as the kernel would: everything it started must go with it, and every file it left parses."""
    processes = run.processes()
    open_ports = ports(processes)
    run.signal(signal.SIGKILL)
    run.process.wait()
    left_nothing(run)
    assert gone(processes)
    deadline = time.monotonic() + SOON
    # The kernel takes a process's memory, and with it its mark, before it closes its sockets.
    while not all(map(refuses, open_ports)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(map(refuses, open_ports)), open_ports
    parses(run.folder)


def parses(folder: Path) -> None:
    """Assert that every file of a run folder is whole, whatever moment it was left at; a torn last line has no newline."""
    for path in folder.glob("*.json"):
        json.loads(path.read_text())
    for path in folder.glob("*.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            json.loads(line)
    found = steps_of(folder / "metrics.jsonl")
    assert found == list(range(1, len(found) + 1))
    for number in found:
        assert (folder / "episodes" / f"step-{number:04d}.jsonl.zst").exists()
    for path in (folder / "episodes").glob("*.jsonl.zst") if (folder / "episodes").exists() else ():
        assert list(read_episodes(path))
    for row in read_whole(folder / "checkpoints.jsonl"):
        assert row["step"] in found


def read_whole(path: Path) -> list[dict[str, Any]]:
    """The rows that end in a newline."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


def steps_of(path: Path) -> list[int]:
    """The training steps among the whole rows."""
    return [row["step"] for row in read_whole(path) if row["kind"] == "train"]


def _of(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


@contextmanager
def starter_engine(folder: Path, *rules: dict[str, Any]) -> Iterator[str]:
    """The embedded engine with the starter as a process of the test's own, as a service is; its base URL."""
    (folder / "faults.json").write_text(json.dumps(rules))
    command = [sys.executable, "-m", "turngrad.local.server", "--model", "bfcl-starter", "--die-with-parent"]
    command += ["--state-dir", str(folder / "states"), "--faults", str(folder / "faults.json")]
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("TURNGRAD_ENGINE "), f"the engine ended with status {process.wait()}"
            yield line.split()[1]
        finally:
            process.kill()


def at_service(url: str) -> list[str]:
    """Flags of a run whose weights are at `url`, with the settings of a run on this machine."""
    flags = ["--backend", "fireworks", "--base-url", url, "--base-model", "bfcl-starter"]
    flags += ["--tokenizer-model", str(resolve_model("bfcl-starter")), "--learning-rate", "2e-4"]
    return [*flags, "--max-tokens", "96", "--max-seq-len", "2048", "--max-tool-tokens", "512"]


def break_requests(url: str, *rules: dict[str, Any]) -> None:
    """Put these rules of `turngrad.local.faults` in force at a `starter_engine`, instead of the present ones."""
    root = url.partition("/training/")[0]
    request = urllib.request.Request(
        f"{root}/faults", json.dumps(list(rules)).encode(), {"content-type": "application/json"}, method="POST"
    )
    urllib.request.urlopen(request, timeout=10).close()
