"""Whole runs against a service that breaks: what a run loses, what it says, and what its folder shows of it.

The program's own trainer, session and rollouts, the genuine SDK, and the engine, a process, behind a proxy.
What holds of every run that ends well: the steps are 1, 2, 3 with the tasks of an unbroken run; every rollout that was started is
sound or counted under its class; and the optimizer has taken as many steps as the rows say, so that no update counts twice.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.drill.proxy import Fault, Proxy, proxy
from tests.local.process import Process, engine_process
from tests.local.tiny import write_folder
from turngrad import run, training
from turngrad.config import TrainConfig
from turngrad.display import Display
from turngrad.errors import RunError
from turngrad.local.models import BFCL_STARTER_FOLDER as STARTER
from turngrad.runlog import RunLog, read_episodes
from turngrad.tasksets import load_taskset

ENVIRONMENT = Path(__file__).with_name("one_turn.py")
STEPS = 3


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A random model that speaks the starter's format: it babbles, so that answers differ."""
    folder = write_folder(
        tmp_path_factory.mktemp("model"), vocab_size=json.loads((STARTER / "config.json").read_text())["vocab_size"]
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "turngrad.json"):
        shutil.copy(STARTER / name, folder / name)
    with engine_process(folder, tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIREWORKS_API_KEY", "local")
    monkeypatch.setattr(training, "RETRY_SECONDS", (0.0, 0.1, 0.2))


def model_of(engine: Process) -> str:
    arguments: Any = engine.popen.args
    return arguments[arguments.index("--model") + 1]


class Watcher(Display):
    """Keeps what is said, and calls `after[step]` when that step's line is shown."""

    def __init__(self, after: dict[int, Callable[[], object]]) -> None:
        super().__init__(Console(file=io.StringIO(), soft_wrap=True, width=10_000))
        self.lines: list[str] = []
        self.after = after

    def say(self, text: str) -> None:
        self.lines.append(text)

    def step(self, row: dict[str, Any], steps: int) -> None:
        self.after.pop(row["step"], lambda: None)()


@dataclass
class Outcome:
    """A run's folder, what it said, and the error it ended with."""

    folder: Path
    broken: Proxy
    error: BaseException | None = None
    lines: list[str] = field(default_factory=list)

    def rows(self, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [row for row in self.rows() if row["kind"] == "train"]

    def optimizer_steps(self, engine: Process, checkpoint: dict[str, Any]) -> int:
        _, run_id, name = checkpoint["state"].split("/")
        manifest = engine.state_dir / run_id / "states" / name / "manifest.json"
        return json.loads(manifest.read_text())["meta"]["steps"]


async def train(
    engine: Process,
    folder: Path,
    *faults: Fault,
    after: dict[int, Callable[[Proxy], object]] | None = None,
    limit: float = 500.0,
    **settings: Any,
) -> Outcome:
    """A run of three steps of 2 x 4 rollouts; `after[step]` is called with the proxy when that step is done."""
    with proxy(engine.url, *faults) as broken:
        display = Watcher({step: lambda call=call: call(broken) for step, call in (after or {}).items()})
        config = TrainConfig(
            **{
                "tasks_file": ENVIRONMENT,
                "env_path": ENVIRONMENT,
                "base_url": broken.url,
                "base_model": model_of(engine),
                "tokenizer_model": str(STARTER),
                "steps": STEPS,
                "tasks_per_step": 2,
                "group_size": 4,
                "eval_tasks": 0,
                "max_tokens": 12,
                "max_seq_len": 256,
                "checkpoint_every": 1,
                "sample_timeout": 300.0,
                "output_dir": folder,
            }
            | settings
        ).resolve()
        log = RunLog.create(config)
        outcome = Outcome(folder, broken, lines=display.lines)
        try:
            await asyncio.wait_for(run._train(config, load_taskset(config), log, display), limit)
        except Exception as error:
            outcome.error = error
        finally:
            log.close()
        return outcome


@pytest.fixture(scope="module")
def unbroken(engine: Process, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIREWORKS_API_KEY", "local")
        outcome = asyncio.run(train(engine, tmp_path_factory.mktemp("unbroken") / "run"))
    assert outcome.error is None
    check(engine, outcome, outcome)
    assert [(row["recoveries"], row["failures"]) for row in outcome.steps] == [(0, {})] * STEPS
    return outcome


def check(engine: Process, outcome: Outcome, unbroken: Outcome) -> None:
    """What holds of every run that ends well."""
    assert outcome.error is None, outcome.error
    assert [(row["step"], row["tasks"]) for row in outcome.steps] == [(row["step"], row["tasks"]) for row in unbroken.steps]
    for row in outcome.steps:
        assert row["rollouts_started"] == row["valid_rollouts"] + sum(row["failures"].values())
        assert row["rollouts"] == 8
        episodes = list(read_episodes(outcome.folder / "episodes" / f"step-{row['step']:04d}.jsonl.zst"))
        assert sum(episode.excluded is None for episode in episodes) == row["valid_rollouts"]
    checkpoints = outcome.rows("checkpoints.jsonl")
    assert checkpoints[-1]["step"] == STEPS
    for saved in checkpoints:
        updates = sum(row["updated"] for row in outcome.steps if row["step"] <= saved["step"])
        assert outcome.optimizer_steps(engine, saved) == updates


def recovery_lines(outcome: Outcome) -> list[str]:
    return [line for line in outcome.lines if "with a new session" in line]


async def test_a_poisoned_client_costs_one_step_and_one_sentence(engine: Process, unbroken: Outcome, tmp_path: Path) -> None:
    outcome = await train(engine, tmp_path / "run", Fault("forward_backward", "garbage", skip=1))
    check(engine, outcome, unbroken)
    assert [row["recoveries"] for row in outcome.steps] == [0, 1, 0]
    [line] = recovery_lines(outcome)
    assert line.startswith("an update on")
    assert line.endswith("; going on after step 1 with a new session")
    assert outcome.broken.count("load_weights") == 1


@pytest.mark.long
async def test_without_a_saved_state_a_lost_learner_begins_anew_with_the_same_tasks(
    engine: Process, unbroken: Outcome, tmp_path: Path
) -> None:
    outcome = await train(engine, tmp_path / "run", Fault("optim_step", "garbage", skip=1), checkpoint_every=0)
    check(engine, outcome, unbroken)
    assert recovery_lines(outcome)[0].endswith("going on after step 0 with a new session")
    assert outcome.broken.count("load_weights") == 0


def expire(engine: Process) -> Callable[[Proxy], None]:
    """Deletes the session that the run opened last."""

    def delete(broken: Proxy) -> None:
        session = [seen.body["session_id"] for seen in broken.seen if seen.path.endswith("create_model")][-1]
        request = urllib.request.Request(f"{engine.root}/v1/accounts/local/trainingSessions/{session}", method="DELETE")
        urllib.request.urlopen(request, timeout=10).close()

    return delete


async def test_an_expired_session_costs_no_more_than_the_steps_since_the_last_state(
    engine: Process, unbroken: Outcome, tmp_path: Path
) -> None:
    outcome = await train(engine, tmp_path / "run", after={2: expire(engine)}, checkpoint_every=2)
    check(engine, outcome, unbroken)
    [line] = recovery_lines(outcome)
    assert "its session may have expired" in line
    assert line.endswith("going on after step 0 with a new session")


@pytest.mark.long
async def test_a_fault_that_stays_ends_the_run_with_its_state_saved_and_one_sentence(engine: Process, tmp_path: Path) -> None:
    outcome = await train(engine, tmp_path / "run", Fault("optim_step", "garbage", skip=1, times=99))
    assert isinstance(outcome.error, RunError)
    assert "\n" not in str(outcome.error)
    assert len(recovery_lines(outcome)) == len(training.RETRY_SECONDS)
    assert [row["step"] for row in outcome.steps] == [row["step"] for row in outcome.rows("checkpoints.jsonl")] == [1]
    assert outcome.lines[-1] == f"saved after step 1; go on with --resume-from {tmp_path / 'run'}"


@pytest.mark.parametrize(
    ("status", "says"), [pytest.param(401, "check FIREWORKS_API_KEY", marks=pytest.mark.long), (402, "no credit left")]
)
async def test_an_account_that_may_not_sample_any_more_ends_the_run_with_its_state_saved(
    engine: Process, tmp_path: Path, status: int, says: str
) -> None:
    def refuse(broken: Proxy) -> None:
        broken.faults = [Fault("completions", "status", status=status, times=999)]

    outcome = await train(engine, tmp_path / "run", after={2: refuse}, checkpoint_every=0)
    assert isinstance(outcome.error, RunError)
    assert says in str(outcome.error)
    assert "\n" not in str(outcome.error)
    assert [row["step"] for row in outcome.rows("checkpoints.jsonl")] == [2]
    assert not recovery_lines(outcome)


async def test_a_step_without_a_sound_rollout_is_taken_again_from_the_weights_as_they_are(
    engine: Process, unbroken: Outcome, tmp_path: Path
) -> None:
    def refuse(broken: Proxy) -> None:
        # Eight rollouts, each tried twice.
        broken.faults = [Fault("completions", "status", status=400, times=16)]

    outcome = await train(engine, tmp_path / "run", after={2: refuse}, checkpoint_every=0)
    check(engine, outcome, unbroken)
    [line] = recovery_lines(outcome)
    assert "step 3: not one rollout was sound (16 by class sampler; the last: HTTP 400" in line
    assert line.endswith("going on after step 2 with a new session")
    assert [row["recoveries"] for row in outcome.steps] == [0, 0, 1]


async def test_a_rollout_that_the_sampler_fails_is_left_out_and_counted(
    engine: Process, unbroken: Outcome, tmp_path: Path
) -> None:
    """Three rollouts of the first step are refused, two of them again: one is saved by its retry, two are left out."""
    outcome = await train(engine, tmp_path / "run", Fault("completions", "status", status=400, times=3), rollout_retries=0)
    check(engine, outcome, unbroken)
    assert [row["failures"] for row in outcome.steps] == [{"sampler": 3}, {}, {}]
    assert outcome.steps[0]["valid_rollouts"] == 5
    assert not recovery_lines(outcome)

    retried = await train(engine, tmp_path / "retried", Fault("completions", "status", status=400, times=3))
    check(engine, retried, unbroken)
    assert retried.steps[0]["failures"] == {"sampler": 3}
    assert (retried.steps[0]["valid_rollouts"], retried.steps[0]["rollouts_started"]) == (8, 11)


@pytest.mark.long
async def test_a_slow_snapshot_and_a_frozen_engine_lose_nothing(engine: Process, unbroken: Outcome, tmp_path: Path) -> None:
    await _frozen(engine, unbroken, tmp_path / "run", 2.0)


@pytest.mark.long
async def test_thirty_seconds_of_a_stopped_engine_lose_nothing(engine: Process, unbroken: Outcome, tmp_path: Path) -> None:
    await _frozen(engine, unbroken, tmp_path / "run", 30.0)


async def _frozen(engine: Process, unbroken: Outcome, folder: Path, seconds: float) -> None:
    loop = asyncio.get_running_loop()

    def stop(broken: Proxy) -> None:
        os.kill(engine.popen.pid, signal.SIGSTOP)
        loop.call_later(seconds, os.kill, engine.popen.pid, signal.SIGCONT)

    slow = Fault("save_weights_for_sampler", "freeze", seconds=seconds)
    outcome = await train(engine, folder, slow, after={1: stop})
    check(engine, outcome, unbroken)
    assert [(row["recoveries"], row["failures"]) for row in outcome.steps] == [(0, {})] * STEPS


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
async def test_a_run_through_a_storm_takes_its_steps_and_counts_what_it_lost(
    engine: Process, unbroken: Outcome, tmp_path: Path, seed: int
) -> None:
    """A fifth of all requests breaks, samples also in ways the SDK does not get over."""
    from tests.drill.test_service import storm

    faults = list(storm(seed, share=0.2, length=150).faults)
    faults += [Fault("completions", "status", status=400, skip=7 * k) for k in range(1, 5)]
    outcome = await train(engine, tmp_path / "run", *faults)
    check(engine, outcome, unbroken)


@pytest.mark.long
@pytest.mark.parametrize(
    "path", ["retrieve_future", "forward_backward", "optim_step", "save_weights", "save_weights_for_sampler"]
)
@pytest.mark.parametrize("skip", [0, 1, 2])
async def test_whatever_poisons_a_run_at_whatever_step_costs_one_step(
    engine: Process, unbroken: Outcome, tmp_path: Path, path: str, skip: int
) -> None:
    outcome = await train(engine, tmp_path / "run", Fault(path, "status", status=425, skip=skip))
    check(engine, outcome, unbroken)
    assert len(recovery_lines(outcome)) <= 1


@pytest.mark.long
def test_a_refusal_in_mid_run_is_one_sentence_and_status_1_and_leaves_no_process(engine: Process, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = f"--base-model {model_of(engine)} --tokenizer-model {STARTER} --tasks-file {ENVIRONMENT} --env-path {ENVIRONMENT}"
    sizes = "--steps 3 --tasks-per-step 2 --group-size 4 --eval-tasks 0 --max-tokens 12 --max-seq-len 256"
    with proxy(engine.url, Fault("completions", "status", status=402, skip=12, times=999)) as broken:
        command = [sys.executable, "scripts/train.py", *flags.split(), *sizes.split(), "--base-url", broken.url]
        process = subprocess.Popen(
            [*command, "--output-dir", str(folder)],
            env={**os.environ, "TINKER_TELEMETRY": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        output, errors = process.communicate(timeout=500)
    assert process.returncode == 1
    assert [line.partition(";")[0] for line in errors.splitlines()] == [
        "error: the service asks for payment (HTTP 402 on sampling)"
    ]
    assert "Traceback" not in output
    assert f"saved after step 1; go on with --resume-from {folder}" in output
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
