"""Whole runs as a user starts them: processes, signals, folders. Real engine, real environment, real SDK."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from turngrad.runlog import read_episodes

TRAIN = [sys.executable, "scripts/train.py"]
SMALL = ["--tasks-per-step", "2", "--group-size", "4", "--train-tasks", "6", "--eval-tasks", "0", "--checkpoint-every", "1"]
ENV = {key: value for key, value in os.environ.items() if not key.startswith(("FIREWORKS", "HUD", "TINKER"))}


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    arguments = [*TRAIN, "--output-dir", str(folder), *SMALL, *flags]
    return subprocess.Popen(arguments, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_rows(folder: Path, count: int, process: subprocess.Popen[str], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not (folder / "metrics.jsonl").exists() or len((folder / "metrics.jsonl").read_bytes().splitlines()) < count:
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        assert time.monotonic() < deadline, f"no {count} rows within {seconds} s"
        time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found.append(child)
            queue.append(child)
    return found


def alive(pids: list[int]) -> list[int]:
    living = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                living.append(pid)
        except OSError:
            continue
    return living


def gone(pids: list[int], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not alive(pids)


def test_kill_9_leaves_no_process_and_a_folder_that_resumes_where_it_stopped(tmp_path: Path) -> None:
    """C11, C12: the steps, tasks and parse-ability of a run that was never stopped."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    process = start(whole, "--steps", "4")
    assert process.wait(300) == 0, process.stdout.read() if process.stdout else ""

    process = start(broken, "--steps", "4")
    wait_for_rows(broken, 2, process)
    left = descendants(process.pid)
    assert len(left) >= 2, "an engine and an environment server"
    process.kill()
    process.wait()
    assert gone(left), f"left behind: {left}"
    with open(broken / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "train", "step"')

    resumed = subprocess.run(
        [*TRAIN, "--resume-from", str(broken)], env=ENV, capture_output=True, text=True, timeout=300, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    found, expected = rows(broken), rows(whole)
    assert [row["step"] for row in found] == [row["step"] for row in expected] == [1, 2, 3, 4]
    assert [row["tasks"] for row in found] == [row["tasks"] for row in expected]
    for name in ("step-0001", "step-0004"):
        episodes = list(read_episodes(broken / "episodes" / f"{name}.jsonl.zst"))
        assert len(episodes) == 8
        assert all(len(turn.logprobs) == len(turn.output_ids) for episode in episodes for turn in episode.turns)

    again = subprocess.run(
        [*TRAIN, "--resume-from", str(broken)], env=ENV, capture_output=True, text=True, timeout=60, check=False
    )
    assert again.returncode == 0
    assert "already has its 4 steps" in again.stdout
    assert [row["step"] for row in rows(broken)] == [1, 2, 3, 4]


def test_ctrl_c_saves_exits_130_soon_and_leaves_nothing(tmp_path: Path) -> None:
    process = start(tmp_path / "run", "--steps", "50")
    wait_for_rows(tmp_path / "run", 1, process)
    time.sleep(0.7)
    left = descendants(process.pid)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert time.monotonic() - started < 30
    assert gone(left)
    output = process.stdout.read() if process.stdout else ""
    assert "Traceback" not in output
    saved = [json.loads(line) for line in (tmp_path / "run" / "checkpoints.jsonl").read_text().splitlines()]
    assert saved[-1]["step"] == rows(tmp_path / "run")[-1]["step"]


def test_an_engine_that_dies_ends_the_run_in_one_sentence_and_the_run_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, "--steps", "3")
    wait_for_rows(folder, 1, process)
    (engine,) = [pid for pid in descendants(process.pid) if "turngrad.local.server" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(engine, signal.SIGKILL)
    assert process.wait(120) == 1
    output = process.stdout.read() if process.stdout else ""
    assert "Traceback" not in output
    assert "error: " in output
    resumed = subprocess.run(
        [*TRAIN, "--resume-from", str(folder)], env=ENV, capture_output=True, text=True, timeout=300, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    assert [row["step"] for row in rows(folder)] == [1, 2, 3]


def test_a_second_trainer_on_one_folder_refuses(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, "--steps", "50")
    try:
        wait_for_rows(folder, 1, process)
        second = subprocess.run(
            [*TRAIN, "--resume-from", str(folder)], env=ENV, capture_output=True, text=True, timeout=60, check=False
        )
        assert second.returncode == 2
        assert "another trainer is at work" in second.stderr
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("flags", "environment", "sentence"),
    [
        (["--taskset", "nosuch"], {}, "unknown taskset 'nosuch'"),
        (["--group-size", "1"], {}, "--group-size"),
        (["--backend", "fireworks"], {}, "FIREWORKS_API_KEY is not set"),
        (["--backend", "local", "--base-model", "nosuch"], {}, "--base-model nosuch"),
        (["--max-tokens", "4000"], {}, "leaves no room for a prompt"),
        (["--steps", "0"], {}, "--steps"),
        (["--resume-from", "/nonexistent"], {}, "is not a run folder"),
        (["--eval-tasks", "60"], {}, "held-out tasks"),
        (["--base-url", "http://127.0.0.1:1/x"], {"FIREWORKS_API_KEY": "k"}, "must end in /training/v1/serverless"),
    ],
)
def test_a_users_mistake_is_a_sentence(flags: list[str], environment: dict[str, str], sentence: str, tmp_path: Path) -> None:
    arguments = [*TRAIN, *([] if "--resume-from" in flags else ["--output-dir", str(tmp_path / "run")]), *flags]
    result = subprocess.run(arguments, env={**ENV, **environment}, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_model_folder_without_a_tokenizer_is_a_sentence(tmp_path: Path) -> None:
    from turngrad.local.models import resolve_model

    starter = resolve_model("bfcl-starter")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(starter / name)
    arguments = [*TRAIN, "--base-model", str(tmp_path), "--output-dir", str(tmp_path / "run")]
    result = subprocess.run(arguments, env=ENV, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert "no tokenizer" in result.stderr
    assert "Traceback" not in result.stdout + result.stderr
