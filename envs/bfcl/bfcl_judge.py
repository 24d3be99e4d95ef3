"""The official verdict, turn by turn, on instances of our own.

In: the policy's backends and every text its calls got. Out: per turn, passed or the checker's reason. The official
`multi_turn_checker` compares states and responses turn by turn and stops at the first that differs; it runs once, after
the episode, on module globals. The same two checkers are called here as each turn ends, with the same inputs, so that an
episode can stop where it is decided. Equality with `multi_turn_checker` is a test.
"""

from __future__ import annotations

from bfcl_backends import Backends
from bfcl_data import Entry
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import response_checker, state_checker


class Judge:
    """Plays the ground truth beside the policy. Call `judge` once per turn, in order."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.turn = 0
        self._truth = Backends(entry)

    def judge(self, backends: Backends, responses: list[str], called: bool) -> str | None:
        """Why the next turn fails, or None when it passes.

        `responses` are the texts of all calls of the episode so far, `called` whether there was one in this turn. A turn
        without ground truth always passes, as in the official checker.
        """
        calls = self.entry.ground_truth[self.turn]
        self.turn += 1
        expected = [self._truth.execute_truth(call) for call in calls]
        if not calls:
            return None
        if not called:
            return f"Model response list is empty for turn {self.turn - 1}"
        try:
            state = state_checker(backends.instances, self._truth.instances)
        except RecursionError:
            # A directory copied into itself: legal, never equal to the ground truth's, and endless to compare.
            return "the state is nested without end"
        if not state["valid"]:
            return str(state["error_message"])
        response = response_checker(responses, expected, self.turn - 1)
        return None if response["valid"] else str(response["error_message"])
