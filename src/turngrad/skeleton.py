"""A new environment to start from: it works, trains and has a test, and every line of it is there to be replaced.

In: a name. Out: a folder with `env.py`, `tasks.jsonl` and `test_env.py`. The tools of the example bear names that the small
model of this repository has met, and its grade gives part of the credit, so that a first step has something to learn from.
"""

from __future__ import annotations

import json
import keyword
import random
from pathlib import Path

from turngrad.errors import UserError

_ENV = '''"""NAME: an environment of one world. Replace its state, tools, turns and grade with yours."""

from collections.abc import Iterator

from turngrad.envkit import Grade, ToolError, World, environment, tool


class Desk(World):
    """One episode: a user who wants a folder made, and then a file."""

    def __init__(self, folder: str, file: str) -> None:
        # The arguments are the task's, from tasks.jsonl. What an episode changes belongs in self.
        self.wanted = {"folder": folder, "file": file}
        self.made: dict[str, str] = {}

    @tool
    def ls(self) -> list[str]:
        """List the folders and files."""
        return sorted(self.made)

    @tool
    def mkdir(self, dir_name: str) -> str:
        """Create a new directory.

        Args:
            dir_name: the name of the new directory
        """
        return self._make(dir_name, "folder")

    @tool
    def rm(self, file_name: str) -> str:
        """Remove a file or a directory.

        Args:
            file_name: the name of what to remove
        """
        if self.made.pop(file_name, None) is None:
            raise ToolError(f"there is no {file_name}")
        return f"removed {file_name}"

    @tool
    def touch(self, file_name: str) -> str:
        """Create a new empty file.

        Args:
            file_name: the name of the new file
        """
        return self._make(file_name, "file")

    def turns(self) -> Iterator[str]:
        yield f"Create a new folder called '{self.wanted['folder']}'."
        yield f"Create a new file called '{self.wanted['file']}'."

    def grade(self, answer: str) -> Grade:
        # Part of the credit for part of the way: attempts that earn the same teach nothing.
        reward = 0.0
        for kind, name in self.wanted.items():
            reward += 0.2 * (kind in self.made.values()) + 0.3 * (self.made.get(name) == kind)
        return Grade(reward, {"made": self.made})

    def _make(self, name: str, kind: str) -> str:
        if name in self.made:
            raise ToolError(f"{name} exists already")
        self.made[name] = kind
        return f"created {name}"


env = environment("NAME", desk=Desk)
'''

_TEST = '''"""The environment, played without a model: `pytest NAME/test_env.py`."""

import asyncio
from pathlib import Path

from hud.agents.base import Agent
from hud.eval import Task, rollout
from hud.eval.runtime import LocalRuntime

from turngrad.tools import open_tools

ENV = Path(__file__).with_name("env.py")


class Player(Agent):
    """Makes the given calls, each in a user turn of its own."""

    def __init__(self, *calls: tuple[str, dict[str, str]]) -> None:
        super().__init__()
        self.calls = calls

    async def __call__(self, run) -> None:
        async with open_tools(run, timeout=10) as tools:
            for number, (name, arguments) in enumerate(self.calls):
                await tools.call(name, arguments, call_id=str(number), step=number)
                await tools.next_user_turn(step=number)


def reward(*calls: tuple[str, dict[str, str]]) -> float:
    task = Task(env="NAME", id="desk", args={"folder": "plans", "file": "todo.txt"})
    return asyncio.run(rollout(task, Player(*calls), runtime=LocalRuntime(ENV))).reward


def test_what_was_asked_for_earns_one_and_nothing_earns_nothing() -> None:
    assert reward(("mkdir", {"dir_name": "plans"}), ("touch", {"file_name": "todo.txt"})) == 1.0
    assert reward(("mkdir", {"dir_name": "plans"})) == 0.5
    assert reward() == 0.0
'''

_FOLDERS = ("reports", "archive", "photos", "drafts", "projects", "backup", "invoices", "notes")
_FILES = ("summary.txt", "budget.csv", "todo.txt", "report.pdf", "notes.md", "plan.txt", "data.json", "draft.docx")
_TASKS = 32


def write_skeleton(name: str, parent: Path) -> Path:
    """Write the new environment's folder below `parent`; returns it.

    Raises:
        UserError: a name that is no Python name, or a folder that is there already.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(f"{name!r} cannot name an environment: letters, digits and _ are possible, not a digit first")
    folder = parent / name
    if folder.exists():
        raise UserError(f"{folder} is there already; choose another name, or remove it")
    folder.mkdir(parents=True)
    (folder / "env.py").write_text(_ENV.replace("NAME", name))
    (folder / "test_env.py").write_text(_TEST.replace("NAME", name))
    pairs = random.Random(0).sample([(a, b) for a in _FOLDERS for b in _FILES], _TASKS)
    rows = [{"env": name, "id": "desk", "args": {"folder": a, "file": b}, "slug": f"{a}-{b}"} for a, b in pairs]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
