"""Which tokens of an episode trained, and with what advantage.

In: the episodes of one file and the settings of their run. Out: a `Training` for each. The answer is `batch.build_batch`'s
own, asked for one unbroken stretch of turns at a time: the report has no second opinion about the mask. What the run did on
top of it token by token (a KL penalty) is in no file and not shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from turngrad.advantages import GroupAdvantages, group_advantages
from turngrad.batch import build_batch
from turngrad.episodes import Episode

_WHY_NOT = {
    "all_excluded": "every attempt at this task failed for reasons of infrastructure",
    "too_small": "no second sound attempt at this task to compare with",
    "no_spread": "every attempt at this task earned the same: nothing to learn from the difference",
}


@dataclass(frozen=True, slots=True)
class Training:
    """What an episode contributed to its step.

    `trained[i]` counts the output tokens of turn i that carry gradient: its first ones, since only a length limit leaves
    some out, and `advantages[i]` is what they carry. `advantage` is the episode's as a whole; it is None, and `why_not` says why,
    where nothing of the episode trained.
    """

    advantage: float | None
    why_not: str | None
    trained: tuple[int, ...]
    advantages: tuple[float, ...]


def trainings(episodes: Sequence[Episode], config: dict[str, Any], *, trains: bool) -> list[Training]:
    """One `Training` per episode of a file; `trains` is False for an evaluation's."""
    if not trains:
        return [_nothing(episode, "an evaluation trains nothing") for episode in episodes]
    groups: dict[str, list[int]] = defaultdict(list)
    for index, episode in enumerate(episodes):
        groups[episode.group_id].append(index)
    found: dict[int, Training] = {}
    for members in groups.values():
        group = group_advantages(
            [episodes[index] for index in members],
            config["advantage"],
            clip=config.get("advantage_clip"),
            credit=config.get("credit", "episode"),
        )
        for member, index in enumerate(members):
            found[index] = _training(episodes[index], group, member, config.get("max_seq_len"))
    return [found[index] for index in range(len(episodes))]


def _training(episode: Episode, group: GroupAdvantages, member: int, max_seq_len: int | None) -> Training:
    advantage = group.advantages[member]
    if advantage is None:
        return _nothing(episode, f"left out, a failure of infrastructure ({episode.excluded})")
    if group.reason is not None:
        return _nothing(episode, _WHY_NOT[group.reason.value])
    advantages = group.per_turn(member, episode)
    if not any(advantages):
        return _nothing(episode, "exactly as good as the group's mean: its advantage is 0")
    trained: list[int] = []
    start = 0
    for end in range(1, len(episode.turns) + 1):
        if end == len(episode.turns) or episode.turns[end].segment_break is not None:
            trained += _stretch(replace(episode, turns=episode.turns[start:end]), max_seq_len)
            start = end
    trained = [count if value else 0 for count, value in zip(trained, advantages, strict=True)]
    why_not = None if any(trained) else "no turn of it may train"
    return Training(advantage, why_not, tuple(trained), tuple(advantages))


def _stretch(stretch: Episode, max_seq_len: int | None) -> list[int]:
    alone = GroupAdvantages((1.0,), None, 0.0, 1.0)
    segments = build_batch([([stretch], alone)], normalize="none", max_seq_len=max_seq_len).segments
    if not segments:
        return [0] * len(stretch.turns)
    mask = segments[0].target_mask
    counts, place = [], 0
    for turn in stretch.turns:
        place += len(turn.context_ids)
        # Token i of a segment is target i - 1.
        counts.append(int(mask[max(place - 1, 0) : max(place - 1, 0) + len(turn.output_ids)].sum()))
        place += len(turn.output_ids)
    return counts


def _nothing(episode: Episode, why_not: str) -> Training:
    return Training(None, why_not, (0,) * len(episode.turns), (0.0,) * len(episode.turns))
