"""Every command of HUD's training cookbook, with its flags, as a user types it: whole processes on the engine of this machine.

Single turn (arithmetic) and BFCL alike. By default arithmetic is played by the small starter, which cannot multiply; with
`-m full` by SmolLM2, which can, and so learns.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turngrad.config import TrainConfig
from turngrad.runlog import read_episodes
from turngrad.tasksets import load_taskset

ENV = {key: value for key, value in os.environ.items() if not key.startswith(("FIREWORKS", "HUD", "TINKER"))}
CALIBRATE = ["--calibrate", "--tasks-per-step", "6", "--group-size", "6", "--max-tokens", "512", "--debug-samples", "4"]
ONE_STEP = ["--steps", "1", "--tasks-per-step", "2", "--group-size", "4", "--eval-tasks", "4", "--require-update"]
OPERANDS = ["--min-a", "3", "--max-a", "11", "--min-b", "2", "--max-b", "7"]
STARTER = ["--base-model", "bfcl-starter"]


def run(script: str, *flags: str, status: int = 0) -> str:
    """What a command prints; fails unless it ends with `status` and without a traceback."""
    command = [sys.executable, f"scripts/{script}.py", *flags]
    result = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=600, check=False)
    said = result.stdout + result.stderr
    assert result.returncode == status, said
    assert "Traceback" not in said
    return said


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if row["kind"] == kind]


def number(pattern: str, said: str) -> float:
    match = re.search(pattern, said, re.MULTILINE)
    assert match, said
    return float(match[1])


def check_calibration(said: str) -> None:
    assert "rollouts 36, valid 36" in said
    assert 0 <= number(r"^reward_mean ([\d.]+)$", said) <= 1
    assert 0 <= number(r"^within_group_reward_std ([\d.]+)$", said) <= 1
    assert 0 <= number(r"^groups_with_spread (\d)/6$", said) <= 6
    stops = re.search(r"^stop_reasons \{(.*)\}$", said, re.MULTILINE)
    assert stops, said
    assert sum(map(int, re.findall(r": (\d+)", stops[1]))) == 36
    assert number(r"tool_error_rate ([\d.]+)", said) <= 1
    assert number(r"tokens per episode: sampled (\d+)", said) > 0
    assert re.search(r"a run of \d+ steps: \d+ training and \d+ evaluation rollouts, about [\d.]+ M sampled", said)
    assert "advice: " in said
    assert len(re.findall(r"^--- \S+ attempt \d: reward", said, re.MULTILINE)) == 4


def check_step(folder: Path, said: str) -> None:
    """One step of 2 x 4 with an update, evaluations of 4 tasks before and after, snapshots and a state to go on from."""
    (step,) = rows(folder, "train")
    assert (step["step"], step["rollouts"], step["groups"], step["updated"]) == (1, 8, 2, True)
    assert step["kept_groups"] >= 1
    assert step["training_datums"] >= 2
    evaluations = rows(folder, "eval")
    assert {(row["step"], row["split"], row["tasks"]) for row in evaluations} == {
        (when, split, 4) for when in (0, 1) for split in ("held_out", "train")
    }
    assert evaluations[0]["snapshot"] != evaluations[-1]["snapshot"]
    saved = [json.loads(line) for line in (folder / "checkpoints.jsonl").read_text().splitlines()]
    assert saved[-1]["step"] == 1
    assert saved[-1]["state"].endswith("/final-state")
    assert saved[-1]["snapshot"] in said
    episodes = list(read_episodes(folder / "episodes" / "step-0001.jsonl.zst"))
    assert len(episodes) == 8
    assert all(len(turn.output_ids) == len(turn.logprobs) > 0 for episode in episodes for turn in episode.turns)


def check_result(result: dict[str, Any], samples: int) -> None:
    assert (result["tasks"], result["samples"], len(result["per_task"])) == (4, samples, 4)
    assert 0 <= result["reward"] <= 1


@pytest.fixture(scope="module")
def one_step(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The bounded step on BFCL: its run folder and what it said."""
    folder = tmp_path_factory.mktemp("cookbook") / "run"
    return folder, run("train", "--taskset", "bfcl-multi-turn", *ONE_STEP, "--eval-samples", "1", "--output-dir", str(folder))


def test_calibrate(tmp_path: Path) -> None:
    said = run("train", "--taskset", "bfcl-multi-turn", *CALIBRATE, "--output-dir", str(tmp_path))
    check_calibration(said)
    listed = (tmp_path / "learnable.txt").read_text().split()
    assert len(listed) == number(r"^tasks with headroom (\d)/6, the largest first in ", said) > 0
    # What it lists is what --train-ids takes.
    config = TrainConfig(taskset="bfcl-multi-turn", backend="local", train_ids=tmp_path / "learnable.txt", tasks_per_step=1)
    assert {row.id for row in load_taskset(config.resolve()).train} == set(listed)


def test_one_bounded_step(one_step: tuple[Path, str]) -> None:
    folder, said = one_step
    check_step(folder, said)
    (step,) = rows(folder, "train")
    assert step["tool_calls_per_episode"] > 0
    assert all(task.startswith("multi_turn_base_") for task in step["tasks"])


@pytest.mark.full
def test_resume_goes_on_with_the_next_step(one_step: tuple[Path, str]) -> None:
    folder, _ = one_step
    said = run("train", "--resume-from", str(folder), "--steps", "2", "--eval-tasks", "0")
    assert [row["step"] for row in rows(folder, "train")] == [1, 2]
    assert "step   2/2" in said
    saved = [json.loads(line) for line in (folder / "checkpoints.jsonl").read_text().splitlines()]
    assert [row["step"] for row in saved] == [1, 2]


@pytest.mark.full
def test_evaluate_the_last_weights(one_step: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = one_step
    result = tmp_path / "result.json"
    said = run("evaluate", "--run", str(folder), "--tasks", "4", "--samples", "1", "--json-file", str(result))
    check_result(json.loads(result.read_text()), 4)
    assert re.search(r"multi_turn_base +reward [\d.]+ +pass@1 [\d.]+ +tasks 4", said)


def test_arithmetic_with_operands_of_ones_own_and_a_model_that_cannot_learn_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = ["--taskset", "arithmetic", *STARTER, *OPERANDS, *ONE_STEP, "--eval-samples", "1", "--output-dir", str(folder)]
    said = run("train", *flags, status=1)
    assert "--require-update: no step updated the weights" in said
    split = json.loads((folder / "split.json").read_text())
    pairs = [tuple(map(int, re.findall(r"\d+", task))) for task in (*split["train"], *split["held_out"])]
    assert len(pairs) == len(set(pairs))
    assert all(3 <= a <= 11 and 2 <= b <= 7 for a, b in pairs)
    assert not {frozenset(map(int, re.findall(r"\d+", task))) for task in split["train"]} & {
        frozenset(map(int, re.findall(r"\d+", task))) for task in split["held_out"]
    }
    (step,) = rows(folder, "train")
    # The starter calls tools where there are none, and is told so: further turns, but none of the user's.
    assert (step["rollouts"], step["updated"], step["reward"], step["user_turns_per_episode"]) == (8, False, 0, 1)


@pytest.mark.full
def test_calibrate_arithmetic() -> None:
    check_calibration(run("train", "--taskset", "arithmetic", *CALIBRATE))


@pytest.mark.full
@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
def test_arithmetic_one_step_resume_and_evaluate(loss: str, tmp_path: Path) -> None:
    folder, result = tmp_path / "run", tmp_path / "result.json"
    # Two groups of four have no spread in one case of six, seed 0 among them.
    flags = ["--taskset", "arithmetic", *OPERANDS, *ONE_STEP, "--max-tokens", "256", "--loss-fn", loss, "--seed", "2"]
    check_step(folder, run("train", *flags, "--output-dir", str(folder)))
    run("train", "--resume-from", str(folder), "--steps", "2")
    assert [row["step"] for row in rows(folder, "train")] == [1, 2]
    run("evaluate", "--run", str(folder), "--tasks", "4", "--samples", "2", "--json-file", str(result))
    check_result(json.loads(result.read_text()), 8)


@pytest.mark.full
@pytest.mark.parametrize("loss", ["ppo", "cispo"])
def test_one_bounded_step_under_another_loss(loss: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    check_step(folder, run("train", "--taskset", "bfcl-multi-turn", *ONE_STEP, "--loss-fn", loss, "--output-dir", str(folder)))
