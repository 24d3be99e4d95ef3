"""One attempt at a task, graded turn by turn by BFCL's own checkers on instances of its own.

In: an entry with structured ground truth, then the policy's calls. Out: result strings, and the fraction of leading turns
that pass. A task is decided at its first failed turn.
"""

from __future__ import annotations

from typing import Any

from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import response_checker, state_checker

from .world import World


class Attempt:
    """The backends of one attempt beside those of the ground truth."""

    def __init__(self, entry: dict[str, Any]) -> None:
        self._entry = entry
        self._world = World(entry["involved_classes"], entry["initial_config"])
        self._truth = World(entry["involved_classes"], entry["initial_config"])
        self._results: list[str] = []
        self._calls_in_turn = 0
        self.turn = 0
        self.failed = False

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The user messages of the turn that is being played."""
        return self._entry["question"][self.turn]

    @property
    def over(self) -> bool:
        """Whether the reward is decided."""
        return self.failed or self.turn == len(self._entry["question"])

    @property
    def reward(self) -> float:
        """Leading turns passed so far, as a fraction of all turns."""
        return self.turn / len(self._entry["question"])

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Run one call of the policy."""
        result = self._world.call(name, arguments)
        self._results.append(result)
        self._calls_in_turn += 1
        return result

    def end_turn(self) -> bool:
        """Grade the turn that is being played; True, and on to the next, where it passes."""
        truth = self._entry["ground_truth"][self.turn]
        wanted = [self._truth.call(call["name"], call["arguments"]) for call in truth]
        passed = not truth or (
            self._calls_in_turn > 0
            and state_checker(self._world.instances, self._truth.instances)["valid"]
            and response_checker(self._results, wanted, self.turn)["valid"]
        )
        self._calls_in_turn = 0
        if passed:
            self.turn += 1
        else:
            self.failed = True
        return passed
