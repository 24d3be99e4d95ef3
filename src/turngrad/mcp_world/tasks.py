"""A tasks file for a plain MCP server: one JSON object a line, checked before anything starts.

A line is `{"prompt": ..., "grader": {...}}` and, where wanted, `id`, `system`, `turns` (what the user says next, one after the
other), `setup` (calls made before the episode) and `scenario` (tasks of one scenario stay on one side of the split).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turngrad.errors import UserError


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Exact(_Strict):
    """The text is `value`, white space at its ends aside."""

    type: Literal["exact"]
    value: str
    ignore_case: bool = False


class Contains(_Strict):
    """The text has `value` in it, or each one of a list."""

    type: Literal["contains"]
    value: str | Annotated[list[str], Field(min_length=1)]
    ignore_case: bool = False


class Numeric(_Strict):
    """The last number in the text is `value`, at most `tolerance` away."""

    type: Literal["numeric"]
    value: float = Field(allow_inf_nan=False)
    tolerance: float = Field(default=0.0, ge=0)


class Json(_Strict):
    """The text is, or ends with, JSON that equals `value`; with `subset`, objects may have further keys."""

    type: Literal["json"]
    value: Any
    subset: bool = False


TextGrader = Annotated[Exact | Contains | Numeric | Json, Field(discriminator="type")]


class CallGrader(_Strict):
    """`tool`, called when the episode has ended, answers as `expect` says; with `is_error`, it answers with an error."""

    type: Literal["call"]
    tool: str
    arguments: dict[str, Any] = {}
    expect: TextGrader | None = None
    is_error: bool = False


class PythonGrader(_Strict):
    """`module:function` of the user's own code, beside the tasks file: receives answer, transcript and client."""

    type: Literal["python"]
    function: str = Field(pattern=r"^[\w.]+:\w+$")


class AllOf(_Strict):
    """The product of several graders' rewards."""

    type: Literal["all"]
    graders: list[Annotated[Exact | Contains | Numeric | Json | CallGrader | PythonGrader, Field(discriminator="type")]] = Field(
        min_length=1
    )


Grader = Annotated[Exact | Contains | Numeric | Json | CallGrader | PythonGrader | AllOf, Field(discriminator="type")]


class SetupCall(_Strict):
    """One call made before the prompt."""

    name: str
    arguments: dict[str, Any] = {}


class McpTask(_Strict):
    """One line of the file."""

    id: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    system: str | None = None
    turns: tuple[str, ...] = ()
    setup: tuple[SetupCall, ...] = ()
    scenario: str | None = None
    grader: Grader

    @property
    def situation(self) -> str:
        """What the policy meets: two tasks that differ in id or grader alone are one task to it (C10)."""
        return json.dumps([self.system, self.prompt, self.turns, [call.model_dump() for call in self.setup]], sort_keys=True)

    def graders(self) -> list[Any]:
        return list(self.grader.graders) if isinstance(self.grader, AllOf) else [self.grader]

    def tools_called(self) -> list[str]:
        """The tools that set-up and grading call by name."""
        return [call.name for call in self.setup] + [g.tool for g in self.graders() if isinstance(g, CallGrader)]


def load_mcp_tasks(path: Path) -> list[McpTask]:
    """The tasks of a .jsonl file, or of a .json file with a list. A task without an id is named by its content.

    Raises:
        UserError: the first line that is no task, with what is wrong in it.
    """
    if not path.is_file():
        raise UserError(f"--tasks-file {path}: there is no such file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"--tasks-file {path} is not UTF-8 text: {error}") from error
    tasks: dict[str, McpTask] = {}
    for where, entry in _entries(path, text):
        if isinstance(entry, dict) and "id" not in entry:
            entry["id"] = f"task-{hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:10]}"
        try:
            task = McpTask.model_validate(entry)
        except ValidationError as error:
            raise UserError(f"--tasks-file {path} {where}: {_said(error)}") from error
        if task.id in tasks:
            raise UserError(f"--tasks-file {path} {where}: the id {task.id!r} is there already")
        tasks[task.id] = task
    if not tasks:
        raise UserError(f'--tasks-file {path} holds no tasks; a line is {{"prompt": "...", "grader": {{"type": "exact", ...}}}}')
    return list(tasks.values())


def _entries(path: Path, text: str) -> list[tuple[str, Any]]:
    try:
        if path.suffix == ".json":
            data = json.loads(text)
            if not isinstance(data, list):
                raise UserError(f"--tasks-file {path}: a list of tasks is expected, found {type(data).__name__}")
            return [(f"task {number}", entry) for number, entry in enumerate(data, 1)]
    except ValueError as error:
        raise UserError(f"--tasks-file {path} is not JSON: {error}") from error
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found.append((f"line {number}", json.loads(line)))
            except ValueError as error:
                raise UserError(f"--tasks-file {path} line {number} is not JSON: {error}") from error
    return found


def _said(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'the line'}: {item['msg']}" for item in error.errors()[:3])
