"""Whole runs as a user starts them: processes, signals, folders. Real engine, real environment, real SDK."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.processes import ENV, PATIENCE, SOON, TRAIN, finished, kill_9, left_nothing, rows, start, steps


def test_ctrl_c_saves_exits_130_soon_and_leaves_nothing(tmp_path: Path) -> None:
    run = start(tmp_path / "run", "--steps", "50")
    run.until_rows(1)
    time.sleep(0.7)
    started = time.monotonic()
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    assert time.monotonic() - started < SOON
    left_nothing(run)
    assert "Traceback" not in run.output
    assert rows(run.folder, "checkpoints.jsonl")[-1]["step"] == steps(run.folder)[-1]


def test_an_engine_that_dies_ends_the_run_in_one_sentence_and_the_run_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = start(folder, "--steps", "3")
    run.until_rows(1)
    os.kill(run.children()["turngrad.local.server"], signal.SIGKILL)
    assert run.wait() == 1
    assert "Traceback" not in run.output
    assert "error: " in run.output
    finished(folder, resume=True)
    assert steps(folder) == [1, 2, 3]


def test_a_second_trainer_on_one_folder_refuses_and_a_first_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = start(folder, "--steps", "50")
    try:
        run.until_rows(1)
        second = subprocess.run(
            [*TRAIN, "--resume-from", str(folder)], env=ENV, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert second.returncode == 2
        assert "another trainer is at work" in second.stderr
        assert set(run.children()) == {"turngrad.local.server", "server_child"}
    finally:
        kill_9(run)


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
    result = subprocess.run(arguments, env={**ENV, **environment}, capture_output=True, text=True, timeout=PATIENCE, check=False)
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
    result = subprocess.run(arguments, env=ENV, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert result.returncode == 2
    assert "no tokenizer" in result.stderr
    assert "Traceback" not in result.stdout + result.stderr
