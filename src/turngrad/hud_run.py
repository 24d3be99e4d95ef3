"""A finished hud run, read into an episode.

In: a `hud.eval.run.Run` that `turngrad.agent` played. Out: an `Episode`. Invariant: what went wrong is told apart by whose
doing it was (C7), and a prompt that extends what was there before is stored as what it adds (C5).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from turngrad.episodes import (
    BadCall,
    Break,
    Episode,
    Failure,
    StopReason,
    ToolCall,
    Turn,
    finite,
    logprob_array,
    token_array,
)
from turngrad.errors import RolloutError, RunError

if TYPE_CHECKING:
    from hud.eval.run import Run

EXTRA_KEY = "turngrad"
"""Where the agent leaves what hud's own record has no field for: in `Step.extra` and `Trace.extra`."""


def episode_from_run(run: Run, *, task_id: str, group_id: str, attempt: int, lag: int = 0, seconds: float = 0.0) -> Episode:
    """Read a finished hud run that `turngrad.agent` played.

    hud grades a run whose agent crashed as reward 0 without an error flag, reports a grader that raised as a run error, and
    gives a run that never started a grade of its own; told apart here by what the agent left in `Trace.extra`, by the run's
    status and by the phase hud names in its error step (C7). The reward of a failed run is kept where there is one.
    """
    state: dict[str, Any] = dict(run.trace.extra.get(EXTRA_KEY) or {})  # type: ignore[arg-type]
    failure, error = state.get("failure"), state.get("error")
    if failure is None and (run.trace.status != "completed" or run.grade.is_error):
        failure, error = _hud_failure(run)
    reward = None if run.grade.is_error else run.grade.reward
    if failure is None and (reward is None or not math.isfinite(reward)):
        failure, error = Failure.GRADER, f"the reward is {reward!r}, not a finite number"
    stop = StopReason(state.get("stop_reason") or StopReason.INFRASTRUCTURE)
    if failure is not None and stop is not StopReason.TIMEOUT:
        stop = StopReason.INFRASTRUCTURE
    return Episode(
        task_id=task_id,
        group_id=group_id,
        attempt=attempt,
        turns=tuple(_read_turns(run)),
        reward=reward,
        stop_reason=stop,
        failure=None if failure is None else Failure(failure),
        error=error,
        info=_info(run),
        snapshot=str(state.get("snapshot") or ""),
        lag=lag,
        seconds=seconds,
    )


def failure_state(error: Exception) -> dict[str, str]:
    """What an agent that raised leaves in `Trace.extra`: the class, the words, and `fatal` for what ends the whole run (C7)."""
    said = str(error) if isinstance(error, RolloutError | RunError) else f"{type(error).__name__}: {error}"
    if isinstance(error, RunError):
        return {"failure": Failure.SAMPLER.value, "error": said, "fatal": said}
    failure = error.failure if isinstance(error, RolloutError) else Failure.AGENT
    return {"failure": failure.value, "error": said}


def _info(run: Run) -> dict[str, Any]:
    """What the grader reported beside the reward; hud's subscores under that name."""
    subscores = run.grade.evaluation.get("subscores")
    return finite(dict(run.grade.info or {}) | ({"subscores": subscores} if subscores else {}))


def _hud_failure(run: Run) -> tuple[Failure, str]:
    error = run.trace.error or run.grade.content or "hud reports an error and no reason"
    phases = {
        "[grading]": Failure.GRADER,
        "[provisioning]": Failure.PROVISION,
        "[starting task]": Failure.PROVISION,
        "[agent loop]": Failure.AGENT,
    }
    failure = next((value for phase, value in phases.items() if error.startswith(phase)), None)
    if failure is None:
        failure = Failure.TIMEOUT if run.trace.stop_reason == "timeout" else Failure.GRADER
    return failure, error


def _read_turns(run: Run) -> list[Turn]:
    """Turns as deltas: a prompt that extends the previous prompt + output is stored as what it adds (C5)."""
    turns: list[dict[str, Any]] = []
    previous: list[int] = []
    for step in run.trace.steps:
        extra: dict[str, Any] = dict(step.extra.get(EXTRA_KEY) or {})  # type: ignore[arg-type]
        sample = getattr(step, "sample", None)
        call, result = getattr(step, "call", None), getattr(step, "result", None)
        if sample is not None:
            prompt, output = sample.prompt_token_ids, sample.output_token_ids
            extends = bool(turns) and prompt[: len(previous)] == previous
            named = extra.get("segment_break")
            usage = getattr(step, "usage", None)
            turns.append(
                {
                    "context_ids": token_array(prompt[len(previous) :] if extends else prompt),
                    "output_ids": token_array(output),
                    "logprobs": logprob_array(sample.output_logprobs),
                    "finish_reason": getattr(step, "finish_reason", None) or "stop",
                    "segment_break": None if extends or not turns else Break(named or Break.TOKEN_DRIFT),
                    "user_turn": extra.get("user_turn", 0),
                    "tool_calls": [],
                    "untrainable": _why_untrainable(output, sample.output_logprobs),
                    "seconds": extra.get("seconds", 0.0),
                    "cached_tokens": (usage.cached_tokens or 0) if usage is not None else 0,
                }
            )
            previous = prompt + output
        elif call is not None and turns:
            bad = extra.get("bad")
            turns[-1]["tool_calls"].append(
                ToolCall(
                    id=call.id,
                    name=call.name or None,
                    arguments=finite(call.arguments) if isinstance(call.arguments, dict) else None,
                    raw=extra.get("raw", ""),
                    result="\n".join(part.text for part in result.content if part.type == "text") if result is not None else "",
                    is_error=bool(result is not None and result.isError and bad is None),
                    bad=None if bad is None else BadCall(bad),
                    seconds=extra.get("seconds", 0.0),
                )
            )
    return [Turn(**{**turn, "tool_calls": tuple(turn["tool_calls"])}) for turn in turns]


def _why_untrainable(output: list[int], logprobs: list[float]) -> str | None:
    """C4: what is missing is not filled in; the turn stays as context."""
    if len(logprobs) != len(output):
        return f"{len(logprobs)} logprobs for {len(output)} sampled tokens"
    if not all(map(math.isfinite, logprobs)):
        return "a sampling logprob is not finite"
    return None
