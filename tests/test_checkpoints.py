"""What a run has saved: what to keep of it, and which snapshot was best."""

from __future__ import annotations

from typing import Any

import pytest

from turngrad.checkpoints import Best, Checkpoint, best_snapshot, is_state_path, latest, state_name, step_in_name, to_drop
from turngrad.learner import check_name

RUN = f"account/run-{'0af1' * 8}"


def saved(*steps: int, final: bool = False, origin: bool = False) -> list[dict[str, Any]]:
    names = [state_name(step, final=final and step == steps[-1]) for step in steps]
    rows: list[dict[str, Any]] = [{"step": step, "state": f"{RUN}/{name}"} for step, name in zip(steps, names, strict=True)]
    return [row | {"origin": True} if origin and index == 0 else row for index, row in enumerate(rows)]


def evaluated(step: int, split: str, reward: float | None) -> dict[str, Any]:
    return {"kind": "eval", "step": step, "split": split, "reward": reward, "snapshot": f"after {step}"}


def trained(step: int, reward: float | None) -> dict[str, Any]:
    return {"kind": "train", "step": step, "reward": reward, "snapshot": f"after {step - 1}"}


@pytest.mark.parametrize(
    ("path", "is_path", "step"),
    [
        (f"{RUN}/state-0005", True, 5),
        (f"{RUN}/final-state", True, None),
        (f"{RUN}/state-12345", True, 12345),
        ("runs/bfcl-multi-turn-20261130-120000", False, 120000),
        ("account/run-1/state-0005", False, 5),
        (f"{RUN}/Bad_Name", False, None),
        (f"{RUN}/../state-0005", False, 5),
    ],
)
def test_a_state_on_the_service_is_told_from_a_folder_and_names_its_step(path: str, is_path: bool, step: int | None) -> None:
    assert is_state_path(path) is is_path
    assert step_in_name(path) == step


def test_every_name_a_state_is_saved_under_can_be_loaded_and_tells_its_step() -> None:
    for step in (1, 9999, 10_000_000):
        assert step_in_name(f"{RUN}/{check_name(state_name(step, final=False))}") == step
    assert Checkpoint(3, f"{RUN}/{check_name(state_name(3, final=True))}").final
    assert not Checkpoint(3, f"{RUN}/state-0003").final


def test_the_newest_stay_the_final_one_beside_them_and_the_best_snapshots() -> None:
    def dropped(rows: list[dict[str, Any]], keep: int, best: int | None = None) -> list[int]:
        found = None if best is None else Best(best, "snapshot", 1.0, "somewhere")
        return [row["step"] for row in to_drop(rows, keep, found)]

    assert dropped(saved(1, 2, 3, 4), 2) == [1, 2]
    assert dropped(saved(1, 2, 3, 4, final=True), 2) == [1]
    assert dropped(saved(1, 2, 3, 4), 1, best=2) == [1, 3]
    assert dropped(saved(1, 2), 2) == []
    # What another run saved is not this one's to delete.
    assert dropped(saved(1, 2, 3, 4, origin=True), 1) == [2, 3]
    assert dropped([], 1) == []


def test_a_final_state_that_was_extended_is_a_state_like_others() -> None:
    rows = [*saved(1, 2, final=True), *saved(3, 4)]
    assert [row["step"] for row in to_drop(rows, 1, None)] == [1, 2, 3]
    assert latest(rows) == Checkpoint(4, f"{RUN}/state-0004")
    assert latest([]) is None


def test_the_best_is_by_held_out_tasks_then_by_the_training_pool_then_by_a_steps_own() -> None:
    steps = [trained(1, 0.9), trained(2, None), trained(3, 1.0)]
    pool = [evaluated(0, "train", 0.1), evaluated(2, "train", 0.8), evaluated(4, "train", 0.8)]
    held_out = [evaluated(0, "held_out", 0.3), evaluated(2, "held_out", 0.2), evaluated(4, "held_out", None)]
    assert best_snapshot([*steps, *pool, *held_out]) == Best(0, "after 0", 0.3, "held-out tasks")
    # Of two that are alike the first.
    assert best_snapshot([*steps, *pool]) == Best(2, "after 2", 0.8, "tasks of the training pool")
    # A step's reward is that of the weights it sampled from.
    assert best_snapshot(steps) == Best(2, "after 2", 1.0, "the tasks of one training step")
    assert best_snapshot([]) is None
