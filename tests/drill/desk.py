"""The environment that new_env.py makes, with faults by the number of the rollout: what breaks is a rollout of the first steps.

Steps of 32 rollouts, in the order in which their worlds are made:
1: the fifth world cannot be made. 2: no world of the task that comes first can be made. 3: the grader of the fifth raises.
"""

import itertools
from collections.abc import Iterator

from turngrad.envkit import Grade, ToolError, World, environment, tool

_numbers = itertools.count(1)
_doomed: set[tuple[str, str]] = set()


class Desk(World):
    """One episode: a user who wants a folder made, and then a file."""

    def __init__(self, folder: str, file: str) -> None:
        self.number = next(_numbers)
        if self.number == 33:
            _doomed.add((folder, file))
        if self.number == 5 or (33 <= self.number <= 64 and (folder, file) in _doomed):
            raise RuntimeError(f"world {self.number} cannot be made")
        self.wanted = {"folder": folder, "file": file}
        self.made: dict[str, str] = {}

    @tool
    def mkdir(self, dir_name: str) -> str:
        """Create a new directory.

        Args:
            dir_name: the name of the new directory
        """
        return self._make(dir_name, "folder")

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
        if self.number == 69:
            raise RuntimeError("the grader of world 69 raises")
        reward = 0.0
        for kind, name in self.wanted.items():
            reward += 0.2 * (kind in self.made.values()) + 0.3 * (self.made.get(name) == kind)
        # Attempts that earn the same teach nothing: a little for the number, so that every group has spread.
        return Grade(reward + self.number % 2 * 0.01, {"made": self.made})

    def _make(self, name: str, kind: str) -> str:
        if name in self.made:
            raise ToolError(f"{name} exists already")
        self.made[name] = kind
        return f"created {name}"


env = environment("desk", desk=Desk)
