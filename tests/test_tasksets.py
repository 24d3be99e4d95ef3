"""Tasks of a step as a function of the step, and the split's invariants (C10, C11)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngrad.config import TrainConfig
from turngrad.errors import UserError
from turngrad.presets import STARTER_POOL
from turngrad.runtimes import Placement
from turngrad.tasksets import TaskRow, Taskset, check_disjoint, load_taskset


def _row(name: str, scenario: str | None = None, prompt: str | None = None) -> TaskRow:
    return TaskRow(name, "env", "template", {}, scenario or name, prompt or name)


def _taskset(train: list[TaskRow], held_out: list[TaskRow]) -> Taskset:
    return Taskset("t", tuple(train), tuple(held_out), Placement("local", Path("env.py")), has_tools=False)


@given(size=st.integers(1, 40), count=st.integers(1, 40), seed=st.integers(0, 5), step=st.integers(1, 200))
def test_a_step_draws_distinct_tasks_and_an_epoch_draws_none_twice(size: int, count: int, seed: int, step: int) -> None:
    count = min(count, size)
    taskset = _taskset([_row(str(i)) for i in range(size)], [])
    rows = taskset.rows_for_step(step, count, seed)
    assert len({row.id for row in rows}) == count
    assert rows == taskset.rows_for_step(step, count, seed)
    per_epoch = size // count
    first = (step - 1) // per_epoch * per_epoch + 1
    epoch = [row.id for s in range(first, first + per_epoch) for row in taskset.rows_for_step(s, count, seed)]
    assert len(epoch) == len(set(epoch))


@given(size=st.integers(2, 30), count=st.integers(1, 10), spare=st.integers(0, 40), step=st.integers(1, 50))
def test_spare_tasks_follow_the_steps_own_and_repeat_none(size: int, count: int, spare: int, step: int) -> None:
    count = min(count, size)
    taskset = _taskset([_row(str(i)) for i in range(size)], [])
    rows = taskset.rows_for_step(step, count, 0, spare=spare)
    assert rows[:count] == taskset.rows_for_step(step, count, 0)
    assert len({row.id for row in rows}) == len(rows) == min(size, count + spare)


@pytest.mark.parametrize(
    "held_out",
    [_row("a"), _row("z", prompt="a"), _row("z", scenario="a")],
    ids=["id", "prompt", "scenario"],
)
def test_a_held_out_task_that_trains_under_any_name_is_refused(held_out: TaskRow) -> None:
    with pytest.raises(UserError, match="share their"):
        check_disjoint(_taskset([_row("a")], [held_out]))


def test_arithmetic_holds_out_pairs_with_their_mirror_images() -> None:
    config = TrainConfig(taskset="arithmetic", backend="local").resolve()
    taskset = load_taskset(config)
    assert len(taskset.held_out) >= 16
    products = {tuple(sorted((row.args["a"], row.args["b"]))) for row in taskset.train}
    assert not products & {tuple(sorted((row.args["a"], row.args["b"]))) for row in taskset.held_out}


def test_too_few_tasks_are_named_with_the_flag() -> None:
    config = TrainConfig(taskset="arithmetic", backend="local", min_a=2, max_a=4, min_b=2, max_b=4).resolve()
    with pytest.raises(UserError, match="operand pairs"):
        load_taskset(config)
    config = TrainConfig(taskset="bfcl-multi-turn", backend="local", tasks_per_step=200).resolve()
    with pytest.raises(UserError, match="--tasks-per-step 200"):
        load_taskset(config)


def test_generated_tasks_are_fresh_in_every_step_and_a_function_of_seed_and_step() -> None:
    taskset = load_taskset(TrainConfig(taskset="bfcl-synthetic", backend="local", eval_tasks=6, tasks_per_step=4).resolve())
    drawn = [row.id for step in range(1, 6) for row in taskset.rows_for_step(step, 4, seed=0)]
    assert len(set(drawn)) == 20
    assert drawn[:4] == [row.id for row in taskset.rows_for_step(1, 4, seed=0)]
    assert not {row.id for row in taskset.rows_for_step(1, 4, seed=1)} & set(drawn)
    held_out = {row.prompt for row in taskset.held_out}
    assert len(taskset.held_out) == 6
    assert not held_out & {row.prompt for step in range(1, 6) for row in taskset.rows_for_step(step, 4, seed=0)}


def test_a_pool_of_generated_tasks_is_drawn_from_again() -> None:
    config = TrainConfig(taskset="bfcl-synthetic", backend="local", eval_tasks=2, tasks_per_step=2, train_tasks=4).resolve()
    taskset = load_taskset(config)
    drawn = {row.id for step in range(1, 9) for row in taskset.rows_for_step(step, 2, seed=0)}
    assert drawn <= {row.id for row in taskset.train}
    assert len(drawn) == len(taskset.train)


def test_train_ids_name_the_tasks_to_train_on(tmp_path: Path) -> None:
    named = tmp_path / "learnable.txt"
    named.write_text("multi_turn_base_13\nmulti_turn_base_26\nmulti_turn_base_29\n")
    config = TrainConfig(taskset="bfcl-multi-turn", backend="local", train_ids=named, tasks_per_step=2, train_tasks=2).resolve()
    taskset = load_taskset(config)
    assert len(taskset.train) == 2
    assert {row.id for row in taskset.train} < {"multi_turn_base_13", "multi_turn_base_26", "multi_turn_base_29"}
    assert len(taskset.held_out) == 50


@pytest.mark.parametrize(("text", "said"), [("multi_turn_base_999", "'multi_turn_base_999', which is no task"), ("", "no id")])
def test_train_ids_that_name_no_training_task_are_refused(tmp_path: Path, text: str, said: str) -> None:
    named = tmp_path / "ids.txt"
    named.write_text(text)
    config = TrainConfig(taskset="bfcl-multi-turn", backend="local", train_ids=named).resolve()
    with pytest.raises(UserError, match=said):
        load_taskset(config)


def test_the_starter_trains_on_the_tasks_it_has_most_to_gain_from_unless_told_otherwise() -> None:
    config = TrainConfig(taskset="bfcl-multi-turn", backend="local").resolve()
    wanted = set(STARTER_POOL.read_text().split())
    assert {row.id for row in load_taskset(config).train} == wanted
    assert len(wanted) == 16
    assert TrainConfig(taskset="bfcl-multi-turn", backend="local", train_tasks=8).resolve().train_ids is None
    assert TrainConfig(taskset="bfcl-multi-turn", backend="local", base_model="smollm2-135m").resolve().train_ids is None


def test_generated_tasks_are_as_long_as_asked_for() -> None:
    config = TrainConfig(taskset="bfcl-synthetic", backend="local", eval_tasks=8, tasks_per_step=2).resolve()
    taskset = load_taskset(config)
    longest = load_taskset(config.model_copy(update={"synthetic_turns": 0, "synthetic_calls": 0}))
    assert all(row.id.startswith("synthetic_9") for row in longest.held_out)
    from bfcl_data import load_entry

    for row in (*taskset.held_out, *taskset.rows_for_step(1, 2, 0)):
        entry = load_entry(row.args["entry"])
        assert entry.id == row.id
        assert row.id.startswith("synthetic_2x1_")
        assert [len(calls) for calls in entry.ground_truth] == [1, 1]
