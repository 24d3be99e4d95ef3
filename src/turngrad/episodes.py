"""Turn and Episode: what one rollout leaves behind, token by token.

In: the agent's turns and the environment's grade. Out: records that `advantages` and `batch` read, that `runlog` writes
as one JSON line each, and that `report` shows. Invariants: every token is stored once (a turn holds only what it adds,
so memory is linear in the episode), `logprobs` aligns to `output_ids` wherever a turn is trainable (C4), and an episode
says whether it may train or why not (C7).
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class StopReason(StrEnum):
    """Why an episode ended. All but INFRASTRUCTURE and TIMEOUT are the policy's own doing: graded and trained."""

    DONE = "done"
    MAX_TURNS = "max_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_TOKENS = "max_tokens"
    CONTEXT_OVERFLOW = "context_overflow"
    MALFORMED = "malformed"
    TIMEOUT = "timeout"
    INFRASTRUCTURE = "infrastructure"


class Failure(StrEnum):
    """Infrastructure failures by class (C7): such an episode neither trains nor enters its group's baseline."""

    PROVISION = "provision"
    """The environment did not start, or refused the task."""
    TOOL_SERVER = "tool_server"
    """The MCP session died, timed out for good, or broke its protocol."""
    SAMPLER = "sampler"
    """No usable sample within the retry budget."""
    GRADER = "grader"
    """The grader raised, or the reward is missing, NaN or infinite."""
    TIMEOUT = "timeout"
    """A time limit of ours ran out."""
    AGENT = "agent"
    """The turn loop itself raised: a bug of ours, or a contract violation."""


class Break(StrEnum):
    """Why a turn's prompt does not extend the previous prompt + output (C5)."""

    HISTORY_REWRITE = "history_rewrite"
    """The model's template rewrites earlier turns (`--history template`)."""
    LENGTH = "length"
    """The previous output was cut by its token limit."""
    CONTRACT_CHANGE = "contract_change"
    """The tool list changed and rewrote the head of the prompt (`--tool-updates rewrite`)."""
    TOKEN_DRIFT = "token_drift"
    """The renderer could not extend the exact tokens."""


class BadCall(StrEnum):
    """What was wrong with a call that was answered with an error and not executed."""

    UNPARSABLE = "unparsable"
    UNKNOWN_TOOL = "unknown_tool"
    INVALID_ARGUMENTS = "invalid_arguments"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the model made and what it was told.

    `raw` is the text the model wrote; `arguments` is None when it could not be parsed; `bad` names why a call was not
    executed; `is_error` is the tool's own error flag; `seconds` is the time of the MCP call alone.
    """

    id: str
    name: str | None
    arguments: dict[str, Any] | None
    raw: str
    result: str
    is_error: bool = False
    bad: BadCall | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn.

    `context_ids` are the prompt tokens added since the previous turn's prompt + output; where `segment_break` is set, and
    in the first turn, they are the whole prompt. `output_ids` are the sampler's own ids, in order, the stop token
    included if and only if it was sampled (C1, C3). `logprobs` aligns to `output_ids`. A turn with `untrainable` set keeps
    its tokens as context and carries no gradient (C4).
    """

    context_ids: array[int]
    output_ids: array[int]
    logprobs: array[float]
    finish_reason: str
    segment_break: Break | None = None
    user_turn: int = 0
    tool_calls: tuple[ToolCall, ...] = ()
    untrainable: str | None = None
    seconds: float = 0.0
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        if self.untrainable is None and len(self.logprobs) != len(self.output_ids):
            raise ValueError(
                f"a trainable turn needs one logprob per sampled token: {len(self.output_ids)} ids, "
                f"{len(self.logprobs)} logprobs; set `untrainable` with the reason"
            )
        if self.untrainable is None and not all(map(math.isfinite, self.logprobs)):
            raise ValueError("a trainable turn needs finite logprobs; set `untrainable` with the reason")


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout of one task, graded or failed.

    `reward` is the environment's own; `shaping` is added by the trainer (a penalty for malformed calls) and reported
    apart. `failure` is None for a sound episode. `info` is the grade's info (BFCL: strict pass, failing turn, ...).
    `lag` is how many optimizer steps older the sampled weights are than those the batch updates.
    """

    task_id: str
    group_id: str
    attempt: int
    turns: tuple[Turn, ...]
    reward: float | None
    stop_reason: StopReason
    failure: Failure | None = None
    error: str | None = None
    info: dict[str, Any] = field(default_factory=dict)
    shaping: float = 0.0
    snapshot: str = ""
    lag: int = 0
    seconds: float = 0.0

    @property
    def excluded(self) -> str | None:
        """Why this episode may be neither trained nor part of a baseline, or None when it is sound (C7)."""
        if self.failure is not None:
            return self.failure.value
        if self.reward is None or not math.isfinite(self.reward + self.shaping):
            return Failure.GRADER.value
        return None

    @property
    def turn_rewards(self) -> tuple[float, ...] | None:
        """What each user turn earned, from the grade's info (`turn_rewards`): one number per user turn played, in order.

        None unless the environment reported them, they add up to `reward`, and every assistant turn belongs to one of them.
        """
        parts = self.info.get("turn_rewards")
        if not isinstance(parts, list | tuple) or self.reward is None:
            return None
        if not all(isinstance(part, int | float) and math.isfinite(part) for part in parts):
            return None
        if abs(math.fsum(parts) - self.reward) > 1e-6 or any(turn.user_turn >= len(parts) for turn in self.turns):
            return None
        return tuple(map(float, parts))

    @property
    def sampled_tokens(self) -> int:
        return sum(len(turn.output_ids) for turn in self.turns)

    @property
    def context_tokens(self) -> int:
        return sum(len(turn.context_ids) for turn in self.turns)

    @property
    def tool_calls(self) -> Iterator[ToolCall]:
        return (call for turn in self.turns for call in turn.tool_calls)

    def to_json(self) -> str:
        """One line of strict JSON; `from_json` gives back an equal episode.

        JSON has no NaN or infinity, and a reader that is not Python's stops at them: such a reward (which `failure` explains)
        becomes null, and such a number inside `info` or a call's arguments becomes its name as text.
        """
        return json.dumps(
            {
                "task_id": self.task_id,
                "group_id": self.group_id,
                "attempt": self.attempt,
                "reward": self.reward if self.reward is not None and math.isfinite(self.reward) else None,
                "stop_reason": self.stop_reason,
                "failure": self.failure,
                "error": self.error,
                "info": finite(self.info),
                "shaping": self.shaping,
                "snapshot": self.snapshot,
                "lag": self.lag,
                "seconds": self.seconds,
                "turns": [_turn_to_dict(turn) for turn in self.turns],
            },
            ensure_ascii=True,
            allow_nan=False,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, line: str) -> Episode:
        data = json.loads(line)
        failure = data["failure"]
        return cls(
            **{
                **data,
                "turns": tuple(_turn_from_dict(turn) for turn in data["turns"]),
                "stop_reason": StopReason(data["stop_reason"]),
                "failure": None if failure is None else Failure(failure),
            }
        )


def token_array(ids: list[int] | array[int]) -> array[int]:
    """Token ids as a compact array (4 bytes each)."""
    return array("i", ids)


def logprob_array(logprobs: list[float] | array[float]) -> array[float]:
    """Logprobs as a compact array of doubles, so that a JSON round trip is exact."""
    return array("d", logprobs)


def finite(value: Any) -> Any:
    """`value` with every NaN and infinity in it as text: what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: finite(child) for key, child in value.items()}
    return [finite(child) for child in value] if isinstance(value, list | tuple) else value


def _turn_to_dict(turn: Turn) -> dict[str, Any]:
    return {
        "context_ids": list(turn.context_ids),
        "output_ids": list(turn.output_ids),
        "logprobs": [value if math.isfinite(value) else None for value in turn.logprobs],
        "finish_reason": turn.finish_reason,
        "segment_break": turn.segment_break,
        "user_turn": turn.user_turn,
        "tool_calls": [
            {
                "id": call.id,
                "name": call.name,
                "arguments": finite(call.arguments),
                "raw": call.raw,
                "result": call.result,
                "is_error": call.is_error,
                "bad": call.bad,
                "seconds": call.seconds,
            }
            for call in turn.tool_calls
        ],
        "untrainable": turn.untrainable,
        "seconds": turn.seconds,
        "cached_tokens": turn.cached_tokens,
    }


def _turn_from_dict(data: dict[str, Any]) -> Turn:
    segment_break = data["segment_break"]
    calls = tuple(
        ToolCall(**{**call, "bad": None if call["bad"] is None else BadCall(call["bad"])}) for call in data["tool_calls"]
    )
    return Turn(
        **{
            **data,
            "context_ids": token_array(data["context_ids"]),
            "output_ids": token_array(data["output_ids"]),
            "logprobs": logprob_array([math.nan if value is None else value for value in data["logprobs"]]),
            "segment_break": None if segment_break is None else Break(segment_break),
            "tool_calls": calls,
        }
    )
