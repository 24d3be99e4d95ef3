"""BFCL multi-turn as a HUD environment: the official data, backends and checkers, one isolated world per episode.

    uv run python -m hud.environment.server envs/bfcl/env.py

Template `multi_turn` plays one entry. The reward is the share of turns with ground truth that pass before the first that
fails. Turns without ground truth (the miss_* categories) are skipped by the official checker, so they earn nothing here;
whether the policy held still in them is `abstention` in the grade's info, and with `abstention=True` a call in one ends
the run of passed turns.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

# hud adds this folder for the import of the file only; the siblings have names that no other environment uses.
sys.path.append(str(Path(__file__).parent))

from bfcl_backends import Backends, EndlessCall
from bfcl_data import Entry, function_documents, load_entry
from bfcl_execute import undefined
from bfcl_judge import Judge

from turngrad.envkit import Call, Grade, Guard, GuardStopped, Tool, ToolError, World, environment

MAX_STEPS = 20
"""Assistant messages with calls in one turn; the official loop abandons the entry at the next."""
NEXT_TURN = Tool(
    "next_turn",
    "Tell the user that you are done with the current request and receive the next one. Call it alone.",
    {"type": "object", "properties": {}},
)
OVER = "the conversation is over; nothing was executed"
NOT_ALONE = "next_turn must be the only call of its message; this call was not executed"
GUARD = Guard(Path(__file__).with_name("bfcl_math.py"), "execute", cpu_seconds=1.0)


class MultiTurn(World):
    """One BFCL multi-turn entry, played turn by turn.

    Args:
        entry: an entry's id (`multi_turn_base_12`), or a whole row of the data's form with its `ground_truth`.
        user_turns: "official" (the user speaks when the policy stops calling) or "tool" (the policy calls `next_turn`).
        stop_at_failed_turn: end at the first failed turn, where the reward is decided.
        abstention: count a call in a turn that should have none as a failed turn.
        max_calls_per_step: calls of one assistant message beyond this many are refused.
    """

    def __init__(
        self,
        entry: str | dict[str, Any],
        user_turns: Literal["official", "tool"] = "official",
        stop_at_failed_turn: bool = False,
        abstention: bool = False,
        max_calls_per_step: int = 64,
    ) -> None:
        if user_turns not in ("official", "tool"):
            raise ValueError(f"user_turns={user_turns!r}; expected 'official' or 'tool'")
        self.entry = load_entry(entry) if isinstance(entry, str) else Entry.from_row(entry, entry["ground_truth"])
        self.user_turns = user_turns == "official"
        self.stop_at_failed_turn = stop_at_failed_turn
        self.abstention = abstention
        self.max_calls_per_step = max_calls_per_step
        self.backends = Backends(self.entry, GUARD.call)
        self.judge = Judge(self.entry)
        self.responses: list[str] = []
        self.turn = -1
        self.passed_turns = 0
        self.failed_turn: int | None = None
        self.reason: str | None = None
        self.aborted: str | None = None
        self.calls = [0] * len(self.entry.turns)
        self.steps = [0] * len(self.entry.turns)
        self._judged = False
        self._step: int | None = None
        self._calls_in_step = 0
        self._next_turn_step: int | None = None

    def tools(self) -> list[Tool]:
        return [*_tools(self.entry, self.turn), *([] if self.user_turns else [NEXT_TURN])]

    async def turns(self) -> AsyncIterator[list[dict[str, Any]]]:
        yield self._open_turn()
        while self._close_turn() and self.user_turns:
            yield self._open_turn()

    def call(self, call: Call) -> str:
        if call.name == NEXT_TURN.name and not self.user_turns:
            return self._next_turn(call)
        self._admit(call)
        try:
            text = self.backends.execute(call.name, call.arguments)
        except (GuardStopped, EndlessCall) as stopped:
            self._abort(f"{call.name} was {stopped}")
            raise ToolError(f"Error during execution: {stopped}; the conversation is over") from stopped
        return self._answer(text)

    def unknown_tool(self, call: Call) -> str:
        self._admit(call)
        return self._answer(undefined(call.name))

    def stopped(self, call: Call) -> str:
        self._abort(f"{call.name} was stopped after {self.call_timeout:g} s")
        return f"{self.aborted}; the conversation is over"

    def grade(self, answer: str) -> Grade:
        truths = self.entry.ground_truth
        with_truth = sum(map(bool, truths))
        empty_turns = [turn for turn, calls in enumerate(truths[: self.turn + 1]) if not calls]
        info = {
            "strict": self.passed_turns == len(truths),
            "passed_turns": self.passed_turns,
            "turns": len(truths),
            "failed_turn": self.failed_turn,
            "reason": self.reason,
            "aborted": self.aborted,
            "calls_per_turn": self.calls,
            "steps_per_turn": self.steps,
            "abstention": sum(not self.calls[turn] for turn in empty_turns) / len(empty_turns) if empty_turns else None,
        }
        if self.user_turns:
            passed = [turn < self.passed_turns and bool(truths[turn]) for turn in range(self.turn + 1)]
            info["turn_rewards"] = [is_passed / with_truth for is_passed in passed]
        return Grade(sum(map(bool, truths[: self.passed_turns])) / with_truth, info)

    def _open_turn(self) -> list[dict[str, Any]]:
        self.turn += 1
        self._judged = False
        return list(self.entry.turns[self.turn])

    def _close_turn(self) -> bool:
        """Judge the turn in progress; whether another follows."""
        if self.failed_turn is None and not self._judged:
            reason = self.aborted or self.judge.judge(self.backends, self.responses, self.calls[self.turn] > 0)
            if reason is None and self.abstention and not self.entry.ground_truth[self.turn] and self.calls[self.turn]:
                reason = f"Model called a function in turn {self.turn}, which has nothing to call"
            if reason is None:
                self.passed_turns += 1
            else:
                self.failed_turn, self.reason = self.turn, reason
        self._judged = True
        if self.failed_turn is not None and self.stop_at_failed_turn:
            self.over = True
        return not self.over and self.turn + 1 < len(self.entry.turns)

    def _next_turn(self, call: Call) -> str:
        """Mode "tool": what `next_turn` answers."""
        if self.over:
            raise ToolError(OVER)
        if call.step is not None and call.step == self._step:
            raise ToolError(NOT_ALONE)
        self._step = self._next_turn_step = call.step
        if not self._close_turn():
            self.over = True
            return "The user has no further requests. The conversation is over."
        return "\n".join(message["content"] for message in self._open_turn())

    def _admit(self, call: Call) -> None:
        """Count a call against the turn's steps and the step's calls. Raises ToolError when it may not run."""
        if self.over:
            raise ToolError(OVER)
        if call.step is not None and call.step == self._next_turn_step:
            raise ToolError(NOT_ALONE)
        if call.step is None or call.step != self._step:
            self._step, self._calls_in_step = call.step, 0
            self.steps[self.turn] += 1
            if self.steps[self.turn] > MAX_STEPS:
                self._abort(f"more than {MAX_STEPS} steps in one turn")
                raise ToolError(f"more than {MAX_STEPS} steps in one turn; the conversation is over")
        self._calls_in_step += 1
        if self._calls_in_step > self.max_calls_per_step:
            raise ToolError(f"more than {self.max_calls_per_step} calls in one message; this one was not executed")
        self.calls[self.turn] += 1

    def _answer(self, text: str) -> str:
        self.responses.append(text)
        if text.startswith("Error during execution: "):
            raise ToolError(text)
        return text

    def _abort(self, reason: str) -> None:
        self.aborted, self.over = reason, True


@cache
def _class_tools(class_name: str) -> tuple[Tool, ...]:
    documents = function_documents(class_name).values()
    return tuple(Tool(document["name"], document["description"], document["parameters"]) for document in documents)


def _tools(entry: Entry, turn: int) -> list[Tool]:
    """The functions on offer in a turn: those not held out, then the revealed ones in order of their turns, as official."""
    everything = {tool.name: tool for name in entry.involved_classes for tool in _class_tools(name)}
    held_out = [name for names in entry.revealed.values() for name in names]
    revealed = [name for at, names in sorted(entry.revealed.items()) if at <= turn for name in names]
    return [*(tool for name, tool in everything.items() if name not in held_out), *(everything[name] for name in revealed)]


env = environment("bfcl", multi_turn=MultiTurn)


@env.shutdown
async def _stop_guard() -> None:
    GUARD.close()
