"""A user's HUD tasks become rows, and their environment a placement, neither changed by a line.

In: a tasks file (.py, folder, .json or .jsonl) with the environment's file, or the name of a hosted taskset. Out: rows
sorted into train and held-out, and where their environment runs. hud's own loaders read both. Invariant: the split is a
function of the ids alone, so it stays the same when tasks are listed in another order, and grows when tasks are added.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from turngrad.config import TrainConfig
from turngrad.errors import UserError
from turngrad.runtimes import Placement
from turngrad.tasksets import TaskRow

if TYPE_CHECKING:
    from hud.environment import Environment
    from hud.eval import Task

_KIT = "turngrad.envkit.environment"
_CARRIED = ("verifier", "runtime_config", "agent_config", "validation", "columns")
"""Fields of a hud task beside its identity that hud's rollout reads."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a tasks file or a hosted taskset holds. `has_tools` is False where the environment certainly offers none."""

    name: str
    rows: list[TaskRow]
    placement: Placement
    has_tools: bool


def load_hud_tasks(config: TrainConfig) -> Loaded:
    """The tasks of `--tasks-file` and the placement of `--env-path` and `--runtime`.

    Raises:
        UserError: a file that is missing, does not load, or holds no tasks; an environment that declares other names.
    """
    from hud.eval import Taskset as HudTaskset

    assert config.tasks_file is not None
    path = config.tasks_file
    if not path.exists():
        raise UserError(f"--tasks-file {path}: there is no such file")
    try:
        tasks = list(HudTaskset.from_file(path))
    except Exception as error:
        raise UserError(f"--tasks-file {path} does not load: {_where(error, path)}") from error
    if not tasks:
        raise UserError(f"--tasks-file {path} holds no tasks; hud's Task objects, or rows of env, id and args, are expected")
    placement, has_tools = _place(config, tasks)
    return Loaded(config.taskset, _rows(tasks), placement, has_tools)


def load_hosted(config: TrainConfig) -> Loaded:
    """A taskset of the HUD platform by name or id; its environment runs there, the turn loop here.

    Raises:
        UserError: no key, a refused key, no such taskset, no answer.
    """
    from hud.eval import Taskset as HudTaskset
    from hud.settings import settings
    from hud.utils.exceptions import HudException

    name = config.taskset
    if not settings.api_key:
        raise UserError(
            f"unknown taskset {name!r}: not a built-in one, and a taskset of the HUD platform needs HUD_API_KEY to be set"
        )
    try:
        found = HudTaskset.from_api(name)
    except ValueError as error:
        raise UserError(f"--taskset {name}: neither built in nor found on the HUD platform with this key ({error})") from error
    except HudException as error:
        raise UserError(f"--taskset {name}: {explain_platform(error, settings.hud_api_url)}") from error
    tasks = list(found)
    if not tasks:
        raise UserError(f"--taskset {name}: the HUD platform knows it and lists no tasks in it")
    return Loaded(found.name, _rows(tasks), Placement("hud"), has_tools=True)


def explain_platform(error: BaseException, url: str) -> str:
    """One sentence for a failed request to the platform, by its status."""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    if status in (401, 403):
        return f"the HUD platform refused HUD_API_KEY (HTTP {status}); check that it is this account's and still valid"
    if status == 404:
        return f"{url} knows no such thing (HTTP 404); check the name, and that it belongs to this key's team"
    if status is not None:
        return f"{url} answered HTTP {status}: {error}"
    return f"{url} did not answer: {type(error).__name__}: {error}"


def split_rows(rows: Sequence[TaskRow], held_out: int) -> tuple[list[TaskRow], list[TaskRow]]:
    """(train, held-out): at least `held_out` rows apart, whole scenarios at a time, in an order that their ids alone decide.

    Rows of the same prompt or the same scenario stay together (C10).
    """
    units = _units(rows)
    ordered = sorted(units, key=lambda unit: min(_place_of(row.id) for row in unit))
    apart: list[TaskRow] = []
    while ordered and len(apart) < held_out:
        apart += sorted(ordered.pop(0), key=lambda row: _place_of(row.id))
    return sorted((row for unit in ordered for row in unit), key=lambda row: _place_of(row.id)), apart


def _units(rows: Sequence[TaskRow]) -> list[list[TaskRow]]:
    """Rows joined by a shared prompt or scenario, directly or through others."""
    parent = list(range(len(rows)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[tuple[str, str], int] = {}
    for index, row in enumerate(rows):
        for key in (("prompt", row.prompt), ("scenario", row.scenario)):
            parent[root(index)] = root(first.setdefault(key, index))
    units: dict[int, list[TaskRow]] = {}
    for index, row in enumerate(rows):
        units.setdefault(root(index), []).append(row)
    return list(units.values())


def _place_of(task_id: str) -> bytes:
    return hashlib.sha256(task_id.encode()).digest()


def _rows(tasks: Sequence[Task]) -> list[TaskRow]:
    """hud's tasks as rows. A task's prompt is not known before it starts; what makes it is: template and arguments."""
    rows = []
    for task in tasks:
        meets = json.dumps([task.env, task.id, task.args], sort_keys=True, default=str)
        scenario = str((task.columns or {}).get("scenario", task.slug))
        carried = {name: value for name in _CARRIED if (value := getattr(task, name)) is not None}
        rows.append(TaskRow(task.slug, task.env, task.id, task.args, scenario, meets, carried))
    return rows


def _place(config: TrainConfig, tasks: Sequence[Task]) -> tuple[Placement, bool]:
    names = sorted({task.env for task in tasks})
    kind = config.runtime
    if kind == "url":
        return Placement("url", url=config.runtime_url), True
    if kind in ("docker", "modal", "daytona"):
        return Placement(kind, image=config.runtime_image), True
    path = config.env_path or _source_of(tasks)
    if path is None:
        raise UserError(
            f"--tasks-file {config.tasks_file} says what to play, not where: add --env-path with the environment's file, "
            f"the one that declares {', '.join(map(repr, names))}"
        )
    if not path.exists():
        raise UserError(f"--env-path {path}: there is no such file")
    environments = {name: _load(path, name) for name in names}
    from_kit = all(_is_kit(environment) for environment in environments.values())
    has_tools = from_kit or any(environment.capabilities or environment._on_start for environment in environments.values())
    if kind == "pool" and len(names) > 1:
        raise UserError(f"--runtime pool serves one environment, these tasks name {', '.join(names)}: use --runtime local")
    if kind == "auto" and from_kit and len(names) == 1:
        kind = "pool"
    if kind == "pool":
        return Placement("pool", env_file=path, env=names[0]), has_tools
    if kind == "subprocess":
        return Placement("subprocess", env_file=path), has_tools
    source = _own_file(path, environments)
    fresh = all(_load(source, name) is not _load(source, name) for name in names)
    if not fresh and kind == "auto":
        # The environment object lives in a module that Python caches: rollouts in this process would share its state.
        return Placement("subprocess", env_file=path), has_tools
    return Placement("local", env_file=source), has_tools


def _source_of(tasks: Sequence[Task]) -> Path | None:
    """The file whose templates made the tasks, for tasks of a .py file that need no `--env-path`."""
    files = {file for task in tasks if task._env is not None for file in _files(task._env)}
    return files.pop() if len(files) == 1 and all(task._env is not None for task in tasks) else None


def _own_file(path: Path, environments: dict[str, Environment]) -> Path:
    """For a folder, the one file that declares it all: hud reads a file anew for each rollout, but caches a folder's."""
    files = {file for environment in environments.values() for file in _files(environment)}
    return files.pop() if path.is_dir() and len(files) == 1 else path


def _files(environment: Environment) -> set[Path]:
    return {Path(inspect.getfile(template.func)).resolve() for template in environment.tasks.values()}


def _is_kit(environment: Environment) -> bool:
    """Whether every template was made by `turngrad.envkit`: such an environment keeps its episodes apart by itself."""
    templates = environment.tasks.values()
    return bool(templates) and all(template.func.__module__ == _KIT for template in templates)


def _load(path: Path, name: str) -> Environment:
    from hud.environment import load_environment

    try:
        return load_environment(path, name=name)
    except Exception as error:
        raise UserError(f"--env-path {path}: no environment {name!r}: {_where(error, path)}") from error


def _where(error: BaseException, path: Path) -> str:
    """The error, with the last line of the user's own code that it came through."""
    folder = str(path.resolve() if path.is_dir() else path.resolve().parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(folder)]
    at = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{at}"
