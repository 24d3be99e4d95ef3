"""A run in a few figures: differences task by task, and what they may be called."""

from __future__ import annotations

from pathlib import Path

from tests.report.runs import finish, play, write_run
from turngrad.report.folder import RunFolder, read_run
from turngrad.report.summary import Figure, Visits, between, summary
from turngrad.report.tables import visits
from turngrad.runlog import RunLog, read_episodes


def seen(run: RunFolder) -> Visits:
    return {file: visits(file, read_episodes(file.path)) for file in run.files}


def figures(run: RunFolder) -> dict[str, Figure]:
    return {figure.title: figure for figure in summary(run, seen(run))}


def evaluated(folder: Path, step: int, rewards: list[float]) -> None:
    """Overwrite the held-out evaluation after `step` with one attempt at each task."""
    log = RunLog.reopen(folder)
    log.episodes(f"eval-{step:04d}-held_out", [play(f"held_{task}", 0, reward) for task, reward in enumerate(rewards)])
    log.close()


def test_a_rise_is_a_difference_whose_interval_leaves_out_0(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=2)
    evaluated(folder, 0, [0.0, 0.0, 0.0, 0.0])
    evaluated(folder, 2, [0.4, 0.6, 0.4, 0.6])
    held_out = figures(read_run(folder))["Held-out tasks"]
    assert held_out.value == "0.000 → 0.500"
    # Differences .4 .6 .4 .6: mean .5, standard deviation .11547, standard error .05774, times 1.96 is .113.
    assert held_out.note == "rises: +0.500 (95 % +0.387 to +0.613), step 0 to step 2, 4 tasks"
    assert held_out.tone == "good"

    evaluated(folder, 2, [1.0, 0.0, 0.0, 0.0])
    held_out = figures(read_run(folder))["Held-out tasks"]
    assert held_out.note.startswith("no clear difference: +0.250")
    assert held_out.tone == ""


def test_one_evaluation_is_told_and_compared_with_nothing(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps=1, planned=2)
    assert figures(read_run(folder))["Held-out tasks"] == Figure(
        "Held-out tasks", "0.500", "after step 0; no second evaluation to compare with yet"
    )


def test_the_trust_in_a_run_is_told_beside_its_reward(tmp_path: Path) -> None:
    found = figures(read_run(write_run(tmp_path / "run", steps=3)))
    # Of three groups the rising one (1, 2, 3 of 4 right) and the attacked one have spread in each of three steps.
    assert found["Groups that train"].value == "2.0 of 3"
    assert found["Gap"] == Figure("Gap", "1e-06", "nats between sampler and trainer, the worst step's mean", "good")
    assert found["Rollouts lost"].value == "3 of 36"
    assert found["Rollouts lost"].tone == "bad"
    assert found["Entropy"].value == "0.50 → 0.50"


def test_a_run_without_a_row_has_no_figures(tmp_path: Path) -> None:
    empty = read_run(write_run(tmp_path / "run", steps=1))
    assert summary(RunFolder(empty.path, {}, {}, (), (), (), False), {}) == []


def test_two_runs_are_compared_on_the_tasks_that_both_evaluated_last(tmp_path: Path) -> None:
    runs = []
    for name, rewards in (("one", [0.0, 0.5]), ("two", [1.0, 0.5])):
        folder = write_run(tmp_path / name, steps=1)
        evaluated(folder, 1, rewards)
        runs.append(read_run(folder))
    found = {figure.title: figure for figure in between(runs, [seen(run) for run in runs])}
    assert found["Held-out tasks"].value == "0.250 → 0.750"
    assert "A to B, 2 tasks" in found["Held-out tasks"].note


def test_runs_without_a_task_in_common_are_not_compared(tmp_path: Path) -> None:
    one, two = (write_run(tmp_path / name, steps=1, planned=2) for name in ("one", "two"))
    log = RunLog.reopen(two)
    for split in ("held_out", "train"):
        log.episodes(f"eval-0000-{split}", [play("other", 0, 1.0)])
    finish(log, 1)
    for split in ("held_out", "train"):
        log.episodes(f"eval-0001-{split}", [play("other", 0, 1.0)])
    log.close()
    runs = [read_run(one), read_run(two)]
    assert between(runs, [seen(run) for run in runs]) == []
