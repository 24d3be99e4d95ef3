"""What a machine and its user do to a trainer: signals, full and read-only disks, clocks that jump, readers that leave.

Each case says what it loses. Nothing is ever left running, no file is ever torn, and the run resumes.
"""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.drill.replay import Recorder, recorder
from tests.processes import (
    ENV,
    PATIENCE,
    SMALL,
    SOON,
    TRAIN,
    Running,
    at_service,
    break_requests,
    finished,
    left_nothing,
    parses,
    rows,
    start,
    starter_engine,
    steps,
)
from turngrad.runlog import read_episodes
from turngrad.skeleton import write_skeleton

HERE = Path(__file__).parent
SERVICE = {"FIREWORKS_API_KEY": "drill-of-the-trainer"}
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def desk(folder: Path) -> list[str]:
    made = write_skeleton("desk", folder)
    return ["--tasks-file", str(made / "tasks.jsonl"), "--env-path", str(made / "env.py"), "--runtime", "local"]


def resumes(folder: Path, to: int, **how: Any) -> None:
    """Assert that the run in `folder` goes on to step `to`, with every step there once."""
    finished(folder, "--steps", str(to), resume=True, **how)
    parses(folder)
    assert steps(folder) == list(range(1, to + 1))


@pytest.fixture(autouse=True)
def hangs_up() -> Iterator[None]:
    """Runs inherit what this process ignores: under nohup they would rightly outlive a SIGHUP, and that is a case apart."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


# -- signals ----------------------------------------------------------------------------------------------------------


def test_a_signal_while_the_engine_starts_ends_the_run_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    run = start(tmp_path / "run", "--steps", "2")
    run.until(lambda: "turngrad.local.server" in run.children())
    started = time.monotonic()
    run.signal(signal.SIGTERM)
    assert run.wait() == 130
    assert time.monotonic() - started < SOON
    left_nothing(run)
    assert "Traceback" not in run.output
    assert "stopping" in run.output
    parses(run.folder)


PHASES = {
    "start": ("opening the learner", None, 0),
    "evaluation": (None, ("completions", 0, 4), 0),
    "rollout": (None, ("completions", 40, 4), 1),
    "update": (None, ("optim_step", 1, 1), 2),
    "saving": (None, ("save_weights", 1, 1), 2),
}
"""A text that is printed, or the requests that are delayed (their path, how many pass, how many wait), and the steps that the
folder has in the end at least: a step whose update is under way becomes whole."""


@pytest.mark.long
@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase_saves_what_is_done_and_ends_with_130(
    service: tuple[str, Recorder], number: signal.Signals, phase: str, tmp_path: Path
) -> None:
    """Lost: rollouts in flight."""
    url, made = service
    text, delay, least = PHASES[phase]
    made.paths.clear()
    if delay is not None:
        path, skip, times = delay
        break_requests(url, {"match": path, "action": "delay", "seconds": 3, "skip": skip, "times": times})
    evaluation = ["--eval-tasks", "4", "--eval-samples", "2"] if phase == "evaluation" else []
    run = start(
        tmp_path / "run",
        *at_service(made.url),
        *SMALL,
        *desk(tmp_path),
        *evaluation,
        *("--steps", "50"),
        small=False,
        environment=SERVICE,
    )
    run.until(lambda: text in run.output if text is not None else _asked(made, delay))
    started = time.monotonic()
    run.signal(number)
    assert run.wait() == 130, run.output
    assert time.monotonic() - started < SOON
    left_nothing(run)
    parses(run.folder)
    assert "Traceback" not in run.output
    assert len(steps(run.folder)) >= least
    saved = rows(run.folder, "checkpoints.jsonl")
    assert [row["step"] for row in saved][-1:] == steps(run.folder)[-1:]
    if number is signal.SIGINT:
        break_requests(url)
        resumes(run.folder, len(steps(run.folder)) + 1, environment=SERVICE)


@pytest.mark.long
def test_a_second_signal_ends_the_run_at_once_and_its_children_with_it(tmp_path: Path) -> None:
    """Lost: the step whose update is under way."""
    run = start(tmp_path / "run", "--steps", "50")
    run.until_rows(1)
    engine = run.children()["turngrad.local.server"]
    os.kill(engine, signal.SIGSTOP)
    run.signal(signal.SIGINT)
    time.sleep(1)
    assert run.process.poll() is None, "a stopped engine cannot save"
    started = time.monotonic()
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    assert time.monotonic() - started < SOON / 10
    # A stopped process hears of its parent's end when it goes on.
    os.kill(engine, signal.SIGCONT)
    left_nothing(run)
    parses(run.folder)
    resumes(run.folder, 2)


@pytest.mark.long
def test_a_signal_during_the_imports_is_heard_twice(tmp_path: Path) -> None:
    run = start(tmp_path / "run", "--steps", "50")
    run.until(lambda: "run folder" in run.output)
    run.signal(signal.SIGINT)
    run.signal(signal.SIGTERM)
    started = time.monotonic()
    assert run.wait() in (130, 143)
    assert time.monotonic() - started < SOON / 10
    left_nothing(run)


@pytest.mark.long
def test_a_terminal_that_goes_away_stops_the_run_as_a_signal_does(tmp_path: Path) -> None:
    """The progress bar is on the terminal that goes: nothing of it may get in the way of saving."""
    run, terminal = _on_a_terminal(tmp_path / "run", "--steps", "50")
    run.until_rows(1)
    time.sleep(0.5)
    os.close(terminal)
    assert run.wait() == 130
    left_nothing(run)
    parses(run.folder)
    assert rows(run.folder, "checkpoints.jsonl")[-1]["step"] == steps(run.folder)[-1]
    resumes(run.folder, len(steps(run.folder)) + 1)


@pytest.mark.long
def test_under_nohup_a_run_outlives_its_terminal(tmp_path: Path) -> None:
    run = start(tmp_path / "run", "--steps", "2", command=["nohup", *TRAIN])
    run.until_rows(1)
    run.signal(signal.SIGHUP)
    assert run.wait() == 0, run.output
    assert steps(run.folder) == [1, 2]
    left_nothing(run)


# -- readers that leave -----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("tail", ["2>/dev/null | head -1", "2>&1 | head -1", ">&-", ">&- 2>&-", "> /dev/full"])
def test_a_run_whose_output_nobody_reads_goes_on_to_its_end(tail: str, tmp_path: Path) -> None:
    """Lost: the output."""
    command = " ".join([*TRAIN, "--output-dir", str(tmp_path / "run"), *SMALL, "--steps", "2"])
    shell = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} {tail}"],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert shell.returncode == 0, shell.stderr
    assert "Traceback" not in shell.stderr + shell.stdout
    assert "Exception ignored" not in shell.stderr
    assert steps(tmp_path / "run") == [1, 2]
    parses(tmp_path / "run")


# -- disks ------------------------------------------------------------------------------------------------------------


def test_a_read_only_disk_is_a_sentence(tmp_path: Path) -> None:
    with _disk(tmp_path / "disk", "ro") as disk:
        run = start(disk / "run", "--steps", "1", printed=tmp_path / "printed")
        assert run.wait() == 2
    assert run.output.count("\n") == 1
    assert "cannot write to the run folder" in run.output
    assert "--output-dir" in run.output


@pytest.mark.long
@pytest.mark.parametrize("file", ["episodes", "metrics.jsonl", "checkpoints.jsonl", "engine"])
def test_a_disk_that_fills_up_at_one_file_ends_the_run_in_a_sentence_and_the_run_resumes(file: str, tmp_path: Path) -> None:
    """Lost: the steps since the last saved state."""
    folder = tmp_path / "run"
    with _disk(tmp_path / "disk", "size=256k") as disk:
        run = start(folder, "--steps", "3")
        run.until(lambda: (folder / "split.json").exists())
        full = disk / file
        if "." in file:
            # A page of room: one row goes in whole, and of a later one a part.
            full.write_bytes(b"")
            (folder / file).touch()
        else:
            full.mkdir()
            (folder / file).mkdir(exist_ok=True)
        subprocess.run(["mount", "--bind", str(full), str(folder / file)], check=True)
        try:
            _fill(disk)
            status = run.wait()
        finally:
            subprocess.run(["umount", str(folder / file)], check=True)
        assert status == 1, run.output
        left_nothing(run)
        assert "No space left on device" in run.output
        assert "Traceback" not in run.output
        assert run.output.strip().splitlines()[-1].startswith("error: ")
        if full.is_file():
            (folder / file).write_bytes(full.read_bytes())
    parses(folder)
    resumes(folder, 3)


@pytest.mark.long
def test_a_disk_that_is_full_from_the_start_is_a_sentence(tmp_path: Path) -> None:
    with _disk(tmp_path / "disk", "size=64k") as disk:
        _fill(disk)
        run = start(disk / "run", "--steps", "1", printed=tmp_path / "printed")
        assert run.wait() == 1
    assert run.output.count("\n") == 1
    assert "No space left on device" in run.output


@contextmanager
def _disk(folder: Path, options: str) -> Iterator[Path]:
    """A small disk of its own, where this process may mount one."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs more rights than these")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _fill(disk: Path) -> None:
    with open(disk / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return


# -- two trainers, and time -------------------------------------------------------------------------------------------


@pytest.mark.long
def test_of_two_trainers_started_at_once_in_one_folder_one_runs_and_one_refuses(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    both = [start(folder, "--steps", "1") for _ in range(2)]
    status = sorted(run.wait() for run in both)
    assert status == [0, 2], [run.output for run in both]
    assert sum("another trainer is at work" in run.output for run in both) == 1
    assert steps(folder) == [1]
    parses(folder)


@pytest.mark.long
def test_a_clock_that_jumps_a_day_back_and_forth_changes_no_order_and_no_wait(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    started = time.monotonic()
    run = finished(folder, "--steps", "4", environment={"PYTHONPATH": f"{HERE / 'clock'}:{ENV.get('PYTHONPATH', '')}"})
    seconds = time.monotonic() - started
    left_nothing(run)
    parses(folder)
    assert steps(folder) == [1, 2, 3, 4]
    for row in rows(folder):
        assert row["valid_rollouts"] == row["rollouts"]
        assert 0 <= row["seconds_rollout"] <= row["seconds"] <= seconds
    for number in range(1, 5):
        for episode in read_episodes(folder / "episodes" / f"step-{number:04d}.jsonl.zst"):
            assert 0 <= episode.seconds <= seconds
            assert all(0 <= turn.seconds <= seconds for turn in episode.turns)


# -- helpers ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Recorder]]:
    """An engine with faults on demand, and a recorder before it that tells what it was asked for."""
    with starter_engine(tmp_path_factory.mktemp("service")) as url, recorder(url) as made:
        yield url, made


def _asked(made: Recorder, delay: tuple[str, int, int] | None) -> bool:
    assert delay is not None
    path, skip, _ = delay
    return sum(asked.endswith(path) for asked in made.paths) > skip


def _on_a_terminal(folder: Path, *flags: str) -> tuple[Running, int]:
    """A run with a terminal of its own, and the terminal's other end."""
    master, slave = pty.openpty()

    def adopt() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    run = start(folder, *flags, stdin=slave, stdout=slave, stderr=slave, preexec_fn=adopt)
    os.close(slave)
    threading.Thread(target=_read_away, args=(master,), daemon=True).start()
    return run, master


def _read_away(terminal: int) -> None:
    """What is printed has to go somewhere until the terminal is closed."""
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:
        return
