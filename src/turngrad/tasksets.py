"""A name or a file becomes train and held-out tasks, and the placement of the environment that serves them.

In: a config. Out: a `Taskset` of rows. Invariants: held-out tasks never train: the two sides are disjoint
by id, by prompt and by scenario, checked here before anything starts (C10); which tasks a step draws is a pure function of
seed and step, so that resume needs no cursor (C11).
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from turngrad.config import TrainConfig
from turngrad.errors import UserError
from turngrad.runtimes import Placement

if TYPE_CHECKING:
    from turngrad.task_files import Loaded

_BFCL_CATEGORIES = {
    "bfcl-multi-turn": "base",
    "bfcl-multi-turn-miss-func": "miss_func",
    "bfcl-multi-turn-miss-param": "miss_param",
    "bfcl-multi-turn-long-context": "long_context",
    "bfcl-multi-turn-all": "all",
}
_SYNTHETIC_TRAIN, _SYNTHETIC_HELD_OUT = 1_000_000, 900_000_000
"""First seeds of generated tasks; the starter policy has seen some below the first of them."""
_ENDLESS_STRETCH = 1_000_000
"""Task numbers between the steps of one run seed and those of the next."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task: `env` and `template` name it in the env file, `args` are the template's.

    `scenario` is what must not stand on both sides of the split beside the id itself: the twins of a BFCL entry share it.
    `carried` are further fields of a user's hud task (verifier, runtime_config and so on), passed on as they are.
    """

    id: str
    env: str
    template: str
    args: dict[str, Any]
    scenario: str
    prompt: str
    carried: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Taskset:
    """`train` is the pool that steps draw from, `held_out` what evaluation keeps apart; `placement` serves both.

    `has_tools` says whether an episode without any tool call is worth a warning.
    """

    name: str
    train: tuple[TaskRow, ...]
    held_out: tuple[TaskRow, ...]
    placement: Placement
    has_tools: bool

    def rows_for_step(self, step: int, count: int, seed: int, *, spare: int = 0) -> list[TaskRow]:
        """The tasks of step `step` (from 1): slices of one shuffle after another, a step never spanning two.

        Every shuffle leaves out its last `len(train) % count` rows, different ones each time. `spare` further rows, where
        there are as many, come from the rest of the shuffle.
        """
        steps_per_epoch = len(self.train) // count
        epoch, place = divmod(step - 1, steps_per_epoch)
        order = list(range(len(self.train)))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        start = place * count
        chosen = order[start : start + count] + (order[start + count :] + order[:start])[:spare]
        return [self.train[index] for index in chosen]

    def evaluated(self, config: TrainConfig) -> dict[str, tuple[TaskRow, ...]]:
        """The tasks of an evaluation, by split; none where evaluation is off."""
        splits = {"held_out": self.held_out, "train": self.train if config.eval_train else ()}
        return {name: rows[: config.eval_tasks] for name, rows in splits.items() if rows and config.eval_tasks}


@dataclass(frozen=True, slots=True)
class EndlessTaskset(Taskset):
    """Tasks made on demand: every step draws fresh ones, `train` is only what evaluation looks at.

    `make(n)` is task number n. A task whose prompt a held-out one has is passed over (C10).
    """

    make: Callable[[int], TaskRow]

    def rows_for_step(self, step: int, count: int, seed: int, *, spare: int = 0) -> list[TaskRow]:
        """The tasks of step `step` (from 1): numbers of its own, in a stretch of its own for every seed."""
        number = seed * _ENDLESS_STRETCH + (step - 1) * 2 * (count + spare)
        prompts = {row.prompt for row in self.held_out}
        rows: list[TaskRow] = []
        while len(rows) < count + spare:
            row = self.make(number)
            number += 1
            if row.prompt not in prompts:
                rows.append(row)
        return rows


def load_taskset(config: TrainConfig) -> Taskset:
    """The taskset of a resolved config.

    Raises:
        UserError: an unknown name, or too few tasks for a step or an evaluation.
    """
    # Here, not at the top: the user's files and the platform need hud, which takes seconds to import.
    if config.tasks_file is not None:
        from turngrad.mcp_world.place import load_mcp
        from turngrad.task_files import load_hud_tasks

        taskset = _own(config, load_mcp(config) if config.mcp else load_hud_tasks(config))
    elif config.taskset == "arithmetic":
        taskset = _arithmetic(config)
    elif config.taskset in _BFCL_CATEGORIES:
        taskset = _bfcl(config)
    elif config.taskset == "bfcl-synthetic":
        taskset = _synthetic(config)
    else:
        from turngrad.task_files import load_hosted

        taskset = _own(config, load_hosted(config))
    check_disjoint(taskset)
    assert config.tasks_per_step is not None
    assert config.eval_tasks is not None
    if len(taskset.train) < config.tasks_per_step:
        raise UserError(
            f"--tasks-per-step {config.tasks_per_step} is more than the {len(taskset.train)} training tasks of {taskset.name}"
        )
    if len(taskset.held_out) < config.eval_tasks and not config.calibrate:
        raise UserError(
            f"--eval-tasks {config.eval_tasks} is more than the {len(taskset.held_out)} held-out tasks of {taskset.name}"
        )
    return taskset


def check_disjoint(taskset: Taskset) -> None:
    """C10: no held-out task, prompt or scenario trains.

    Raises:
        UserError: naming what stands on both sides.
    """
    for what in ("id", "prompt", "scenario"):
        train = {getattr(row, what) for row in taskset.train}
        both = sorted(train.intersection(getattr(row, what) for row in taskset.held_out))
        if both:
            raise UserError(
                f"{taskset.name}: {len(both)} held-out tasks share their {what} with training ones, such as {both[0][:80]!r}"
            )


def _own(config: TrainConfig, loaded: Loaded) -> Taskset:
    """A user's tasks, `--eval-tasks` of them held out; a calibration makes do without where there are too few for both."""
    from turngrad.task_files import split_rows

    assert config.tasks_per_step is not None
    assert config.eval_tasks is not None
    found, needed = len(loaded.rows), config.tasks_per_step + config.eval_tasks
    if config.calibrate and found < config.tasks_per_step:
        raise UserError(f"{loaded.name} has {found} tasks, a calibration needs --tasks-per-step {config.tasks_per_step}")
    if found < needed and not config.calibrate:
        raise UserError(
            f"{loaded.name} has {found} tasks, {needed} are needed: --tasks-per-step {config.tasks_per_step} to train on and "
            f"--eval-tasks {config.eval_tasks} held out; add tasks, or lower one of the two"
        )
    train, held_out = split_rows(loaded.rows, min(config.eval_tasks, found - config.tasks_per_step))
    if len(train) < config.tasks_per_step:
        raise UserError(
            f"{loaded.name}: {found - len(train)} tasks are held out, because some share a prompt or a scenario, and only "
            f"{len(train)} are left for --tasks-per-step {config.tasks_per_step}; lower --eval-tasks, or make tasks that differ"
        )
    train = _named(train, config.train_ids)[: config.train_tasks]
    return Taskset(loaded.name, tuple(train), tuple(held_out), loaded.placement, loaded.has_tools)


def _bfcl(config: TrainConfig) -> Taskset:
    folder = _environments() / "bfcl"
    module = _load_module(folder / "tasks.py", "bfcl")
    try:
        rows = module.load_tasks(_BFCL_CATEGORIES[config.taskset], stop_at_failed_turn=config.stop_at_failed_turn)
    except ModuleNotFoundError as error:
        raise UserError(
            f"the BFCL data is not installed ({error}): pip install --no-deps bfcl-eval==2026.3.23, or leave out --no-group bfcl"
        ) from error
    train_side, held_side = map(set, module.split())
    sides: dict[str, list[TaskRow]] = {"train": [], "held_out": []}
    for row in rows:
        side = "train" if row.scenario in train_side else "held_out" if row.scenario in held_side else None
        if side is not None and (row.skip is None or side == "held_out"):
            sides[side].append(TaskRow(row.id, module.ENVIRONMENT, module.TEMPLATE, row.args, str(row.scenario), row.prompt))
    train = _shuffled(_named(sides["train"], config.train_ids), config.seed)[: config.train_tasks]
    held_out = _shuffled(sides["held_out"], config.seed)
    return Taskset(config.taskset, tuple(train), tuple(held_out), Placement("pool", folder / "env.py"), has_tools=True)


def _synthetic(config: TrainConfig) -> Taskset:
    folder = _environments() / "bfcl"
    module = _load_module(folder / "tasks.py", "bfcl")

    def make(seed: int) -> TaskRow:
        row = module.synthetic_task(
            seed, config.synthetic_turns, config.synthetic_calls, stop_at_failed_turn=config.stop_at_failed_turn
        )
        return TaskRow(row.id, module.ENVIRONMENT, module.TEMPLATE, row.args, row.id, row.prompt)

    held_out = [make(_SYNTHETIC_HELD_OUT + n) for n in range(config.eval_tasks or 0)]
    prompts = {row.prompt for row in held_out}
    placement = Placement("pool", folder / "env.py")
    wanted = config.train_tasks or max(config.eval_tasks or 0, config.tasks_per_step or 0)
    train = [row for n in range(wanted) if (row := make(_SYNTHETIC_TRAIN + n)).prompt not in prompts]
    if config.train_tasks:
        return Taskset(config.taskset, tuple(train), tuple(held_out), placement, has_tools=True)
    return EndlessTaskset(
        config.taskset, tuple(train), tuple(held_out), placement, has_tools=True, make=lambda n: make(_SYNTHETIC_TRAIN + n)
    )


def _arithmetic(config: TrainConfig) -> Taskset:
    folder = _environments() / "arithmetic"
    module = _load_module(folder / "tasks.py", "arithmetic")
    assert None not in (config.min_a, config.max_a, config.min_b, config.max_b, config.tasks_per_step, config.steps)
    assert config.eval_tasks is not None
    pairs = (config.max_a - config.min_a + 1) * (config.max_b - config.min_b + 1)  # type: ignore[operator]
    wanted = config.eval_tasks + max(config.tasks_per_step * config.steps, config.eval_tasks)  # type: ignore[operator]
    held = max(config.eval_tasks, 1)
    if held > pairs * 0.5:
        raise UserError(
            f"--eval-tasks {config.eval_tasks} is more than half of the {pairs} operand pairs; widen --min-a to --max-b"
        )
    try:
        rows = module.make_tasks(min(pairs, wanted * 2), 0, config.min_a, config.max_a, config.min_b, config.max_b, config.prompt)
    except ValueError as error:
        raise UserError(str(error)) from error
    # a × b and b × a are one scenario: they share the answer.
    scenario = {row.id: "x".join(map(str, sorted((row.args["a"], row.args["b"])))) for row in rows}
    held_scenarios: list[str] = []
    held_out: list[Any] = []
    for row in rows:
        if scenario[row.id] in held_scenarios:
            held_out.append(row)
        elif len(held_out) < held:
            held_scenarios.append(scenario[row.id])
            held_out.append(row)
    held_ids = {row.id for row in held_out}

    def convert(row: Any) -> TaskRow:
        return TaskRow(row.id, module.ENVIRONMENT, module.TEMPLATE, row.args, scenario[row.id], row.id)

    train = _shuffled([convert(row) for row in rows if row.id not in held_ids], config.seed)[: config.train_tasks]
    return Taskset(
        config.taskset,
        tuple(train),
        tuple(_shuffled([convert(row) for row in held_out], config.seed)),
        Placement("local", folder / "env.py"),
        has_tools=False,
    )


def _named(rows: Sequence[TaskRow], file: Path | None) -> list[TaskRow]:
    """The rows that `--train-ids` names; all of them without it."""
    if file is None:
        return list(rows)
    try:
        wanted = set(file.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--train-ids {file} cannot be read: {error}") from error
    unknown = sorted(wanted - {row.id for row in rows})
    if unknown or not wanted:
        found = f"{unknown[0]!r}, which is no task of the training split" if unknown else "no id"
        raise UserError(f"--train-ids {file} names {found}; it takes one id a line, such as {rows[0].id}")
    return [row for row in rows if row.id in wanted]


def _shuffled(rows: Sequence[TaskRow], seed: int) -> list[TaskRow]:
    order = list(rows)
    random.Random(seed).shuffle(order)
    return order


def _environments() -> Path:
    """The folder of the built-in environments, which live in the repository beside the package."""
    folder = Path(__file__).resolve().parents[2] / "envs"
    if not folder.is_dir():
        raise UserError(f"the built-in tasksets are not at {folder}; install turngrad from its repository (pip install -e .)")
    return folder


def _load_module(path: Path, name: str) -> ModuleType:
    qualified = f"turngrad_tasks_{name}"
    if qualified in sys.modules:
        return sys.modules[qualified]
    spec = importlib.util.spec_from_file_location(qualified, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[qualified] = module
    spec.loader.exec_module(module)
    return module
