"""What a step's or an evaluation's episodes come to, as flat rows of numbers for metrics.jsonl.

In: groups of episodes. Out: dicts whose keys docs/metrics.md explains. Excluded episodes (C7) enter only the counts that say
so: no mean is taken over a rollout that failed for reasons of infrastructure.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turngrad.episodes import Episode
from turngrad.proportions import Share, pass_at_1, pass_hat_k


def rollout_metrics(groups: Sequence[Sequence[Episode]]) -> dict[str, Any]:
    """Rewards, lengths and behaviour of the sound episodes of a step, over all its groups.

    `reward` is the environment's own, without shaping; `reward_std_within_group` the mean over groups of the sample
    standard deviation; means are None where there is no sound episode.
    """
    episodes = [episode for group in groups for episode in group]
    sound = [episode for episode in episodes if episode.excluded is None]
    spreads = [_std([e.reward or 0.0 for e in group if e.excluded is None]) for group in groups]
    calls = [call for episode in sound for call in episode.tool_calls]
    stops = Counter(episode.stop_reason.value for episode in sound)
    return {
        "reward": mean([episode.reward or 0.0 for episode in sound]),
        "shaping": mean([episode.shaping for episode in sound]),
        "reward_std_within_group": mean([spread for spread in spreads if spread is not None]),
        "groups_with_spread": sum(spread is not None and spread > 1e-10 for spread in spreads),
        "groups": len(groups),
        "rollouts": len(episodes),
        "valid_rollouts": len(sound),
        "solved": mean([float((episode.reward or 0.0) >= 1.0) for episode in sound]),
        "turns_per_episode": mean([len(episode.turns) for episode in sound]),
        "user_turns_per_episode": mean([1 + max((t.user_turn for t in e.turns), default=0) for e in sound]),
        "tool_calls_per_episode": mean([sum(1 for _ in episode.tool_calls) for episode in sound]),
        "bad_call_rate": len([call for call in calls if call.bad is not None]) / len(calls) if calls else 0.0,
        "tool_error_rate": len([call for call in calls if call.is_error]) / len(calls) if calls else 0.0,
        "sampled_tokens": sum(episode.sampled_tokens for episode in episodes),
        "context_tokens": sum(episode.context_tokens for episode in episodes),
        "prompt_tokens": sum(prompt_tokens(episode) for episode in episodes),
        "cached_tokens": sum(turn.cached_tokens for episode in episodes for turn in episode.turns),
        "seconds_per_episode": mean([episode.seconds for episode in sound]),
        "lag": mean([float(episode.lag) for episode in sound]),
        **{f"stop_{reason}": count for reason, count in sorted(stops.items())},
    }


def prompt_tokens(episode: Episode) -> int:
    """Prompt tokens the service reads for the episode: every turn's whole prompt, cached or not."""
    total, length = 0, 0
    for turn in episode.turns:
        prompt = len(turn.context_ids) if turn.segment_break is not None else length + len(turn.context_ids)
        total += prompt
        length = prompt + len(turn.output_ids)
    return total


def evaluation_metrics(groups: Sequence[Sequence[Episode]]) -> dict[str, Any]:
    """Mean reward over tasks, with a 95 % confidence interval by the tasks' standard error, pass@1 and pass^k.

    A task's reward is the mean of its sound attempts; tasks without one are left out and counted. An attempt passes with a
    reward of 1; `pass_hat_k` is the chance that k attempts at a task all pass, k being how many each was given, over the tasks
    whose attempts are all sound. Intervals as in `proportions`.
    """
    per_task = [[e.reward or 0.0 for e in group if e.excluded is None] for group in groups]
    judged = [rewards for rewards in per_task if rewards]
    means = [statistics.fmean(rewards) for rewards in judged]
    spread = _std(means)
    half = None if spread is None else 1.96 * spread / math.sqrt(len(means))
    reward = mean(means)
    k = max(map(len, groups), default=1)
    passed = [[r >= 1.0 for r in rewards] for rewards in judged]
    strict = [bool(e.info["strict"]) for group in groups for e in group if e.excluded is None and "strict" in e.info]
    return {
        "reward": reward,
        "reward_ci95": None if reward is None or half is None else [reward - half, reward + half],
        **_shown("pass_at_1", pass_at_1(passed)),
        **_shown("pass_hat_k", pass_hat_k(passed, k)),
        "k": k,
        "strict": mean([float(value) for value in strict]),
        "tasks": len(judged),
        "tasks_left_out": len(per_task) - len(judged),
        "samples": sum(map(len, judged)),
    }


def by_category(groups: Mapping[str, Sequence[Episode]]) -> dict[str, dict[str, Any]]:
    """`evaluation_metrics` for each kind of task, a task's kind being its id without the number at its end."""
    kinds: dict[str, list[Sequence[Episode]]] = {}
    for task, episodes in sorted(groups.items()):
        kinds.setdefault(task.rstrip("0123456789").rstrip("_-"), []).append(episodes)
    return {kind: evaluation_metrics(members) for kind, members in kinds.items()}


def _shown(name: str, share: Share | None) -> dict[str, Any]:
    if share is None:
        return {name: None, f"{name}_ci95": None}
    return {name: share.value, f"{name}_ci95": list(share.interval)}


def mean(values: Iterable[float]) -> float | None:
    """The mean, or None of nothing."""
    listed = list(values)
    return statistics.fmean(listed) if listed else None


def _std(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None
