"""Advantages: the rewards of one group become one number per episode.

In: the episodes of one group (attempts at the same task). Out: `GroupAdvantages`, one advantage per sound episode, None
for each that failed for reasons of infrastructure, or the reason why the whole group trains nothing. Invariants: an episode
counts once in the baseline however it will be split into segments (C6), and an excluded one counts neither there nor in
the batch (C7).

With r the rewards (the environment's plus shaping) of the n sound episodes, mu their mean, s their sample standard deviation
(divisor n - 1):

    group-mean     A_i = r_i - mu                         Dr. GRPO, arXiv:2503.20783
    group-zscore   A_i = (r_i - mu) / s                   GRPO, arXiv:2402.03300
    rloo           A_i = r_i - mean of the other rewards  = (r_i - mu) n / (n - 1), arXiv:2402.14740

All of it is computed in float64 from deviations; rewards nearer to their mean than `SPREAD_FLOOR` are equal to it.

With `credit="turn"` the same formula is applied once per user turn j, to the members whose episode reached it and to what they
earned from there on, r_i,j + r_i,j+1 + ... (plus shaping). What came before turn j is behind all of them alike, so this takes
noise out of the gradient and no bias in: who reaches j is settled before anything in j is sampled, and the user's turns are
the environment's, so that the policy cannot choose how many there are. (Assistant turns it can choose, and credit per
assistant turn is biased for that reason: verl#7244.) A turn that one member alone reached has nothing to be compared with.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, TypeVar, get_args

from turngrad.episodes import Episode

AdvantageKind = Literal["group-zscore", "group-mean", "rloo"]
Credit = Literal["episode", "turn"]
T = TypeVar("T")

SPREAD_FLOOR = 1e-10
"""Rewards that differ by less than this, relative to the largest of them or to 1, differ by rounding only."""

logger = logging.getLogger(__name__)


class NoTraining(StrEnum):
    """Why a whole group trains nothing."""

    ALL_EXCLUDED = "all_excluded"
    """Every episode failed for reasons of infrastructure."""
    TOO_SMALL = "too_small"
    """One sound episode: there is nothing to compare it with."""
    NO_SPREAD = "no_spread"
    """Every reward is the same: every advantage is zero."""


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """The advantages of one group.

    `advantages` is parallel to the group's episodes: None where an episode is excluded, 0.0 for the others when `reason`
    is set. `mean` and `std` (divisor n - 1) are of the sound rewards, shaping included; `mean` is NaN without a sound
    episode, `std` with fewer than two. `clipped` counts the advantages that `clip` cut. `by_user_turn`, where credit was given
    by user turn, holds one advantage per user turn of each sound episode; `advantages` is then only what is shown.
    """

    advantages: tuple[float | None, ...]
    reason: NoTraining | None
    mean: float
    std: float
    clipped: int = 0
    by_user_turn: tuple[tuple[float, ...] | None, ...] | None = None

    def per_turn(self, member: int, episode: Episode) -> list[float]:
        """The advantage of each assistant turn of a sound `episode`, the group's number `member`."""
        of_turns = None if self.by_user_turn is None else self.by_user_turn[member]
        if of_turns is not None:
            return [of_turns[turn.user_turn] for turn in episode.turns]
        return [self.advantages[member] or 0.0] * len(episode.turns)


def group_advantages(
    episodes: Sequence[Episode], kind: AdvantageKind, *, clip: float | None = None, credit: Credit = "episode"
) -> GroupAdvantages:
    """One advantage per episode of one group, and with `credit="turn"` one per user turn; `clip` bounds |advantage|.

    Credit by user turn needs every sound episode's `turn_rewards`; a group that lacks one is credited by episode.

    Raises ValueError for episodes of different groups, an unknown kind, or a clip that is not positive.
    """
    if kind not in get_args(AdvantageKind):
        raise ValueError(f"advantage {kind!r} is none of {', '.join(get_args(AdvantageKind))}")
    if clip is not None and not clip > 0:
        raise ValueError(f"the advantage clip is {clip}; it must be above 0, or left out")
    if len(groups := {episode.group_id for episode in episodes}) > 1:
        raise ValueError(f"advantages are of one group, found {len(groups)}: {', '.join(sorted(groups)[:4])}")

    sound = [episode.excluded is None for episode in episodes]
    rewards = [_reward(episode) for episode, is_sound in zip(episodes, sound, strict=True) if is_sound]
    mean, std, deviations = _moments(rewards)
    reason = _why_not(len(rewards), any(deviations))
    if reason is NoTraining.TOO_SMALL:
        logger.warning("group %s has one sound episode of %d: it trains nothing", episodes[0].group_id, len(episodes))
    if reason is not None:
        return GroupAdvantages(tuple(0.0 if is_sound else None for is_sound in sound), reason, mean, std)

    limit = math.inf if clip is None else clip
    values, clipped = _bounded(_scaled(kind, deviations, std), limit)
    by_user_turn = None
    parts = [episode.turn_rewards for episode, is_sound in zip(episodes, sound, strict=True) if is_sound]
    if credit == "turn" and None not in parts:
        shaping = [episode.shaping for episode, is_sound in zip(episodes, sound, strict=True) if is_sound]
        credited, clipped = _by_user_turn(kind, [part for part in parts if part is not None], shaping, limit)
        by_user_turn = _spread_over(credited, sound)
    return GroupAdvantages(_spread_over(values, sound), None, mean, std, clipped, by_user_turn)


def _by_user_turn(
    kind: AdvantageKind, rewards: Sequence[tuple[float, ...]], shaping: Sequence[float], limit: float
) -> tuple[list[tuple[float, ...]], int]:
    """One advantage per user turn of each member, from what it earned there and after; and how many `limit` cut."""
    credited: list[list[float]] = [[] for _ in rewards]
    clipped = 0
    for turn in range(max(map(len, rewards))):
        reached = [member for member, parts in enumerate(rewards) if len(parts) > turn]
        returns = [math.fsum(rewards[member][turn:]) + shaping[member] for member in reached]
        _, std, deviations = _moments(returns)
        spread = len(reached) > 1 and any(deviations)
        values, cut = _bounded(_scaled(kind, deviations, std) if spread else [0.0] * len(reached), limit)
        clipped += cut
        for member, value in zip(reached, values, strict=True):
            credited[member].append(value)
    return [tuple(values) for values in credited], clipped


def _scaled(kind: AdvantageKind, deviations: Sequence[float], std: float) -> list[float]:
    match kind:
        case "group-mean":
            return list(deviations)
        case "group-zscore":
            return [deviation / std for deviation in deviations]
        case "rloo":
            return [deviation * (len(deviations) / (len(deviations) - 1)) for deviation in deviations]


def _bounded(values: Sequence[float], limit: float) -> tuple[list[float], int]:
    bounded = [max(-limit, min(limit, value)) for value in values]
    return bounded, sum(before != after for before, after in zip(values, bounded, strict=True))


def _spread_over(values: Sequence[T], sound: Sequence[bool]) -> tuple[T | None, ...]:
    """The sound episodes' values in the places of all, None in those that failed."""
    remaining = iter(values)
    return tuple(next(remaining) if is_sound else None for is_sound in sound)


def with_malformed_penalty(episode: Episode, penalty: float) -> Episode:
    """The episode with `penalty` times the share of its calls that were malformed taken off, as shaping.

    A share and not a count, so that a long episode is not punished for being long. An episode without calls is left
    as it is, and so is the environment's own reward. Raises ValueError for a negative penalty.
    """
    if not penalty >= 0:
        raise ValueError(f"the penalty for malformed calls is {penalty}; it is taken off the reward, so give 0 or more")
    malformed = [call.bad is not None for call in episode.tool_calls]
    if not any(malformed):
        return episode
    return replace(episode, shaping=episode.shaping - penalty * sum(malformed) / len(malformed))


def _reward(episode: Episode) -> float:
    assert episode.reward is not None, "Episode.excluded names an episode without a reward"
    return episode.reward + episode.shaping


def _why_not(sound: int, spread: bool) -> NoTraining | None:
    if sound == 0:
        return NoTraining.ALL_EXCLUDED
    if sound == 1:
        return NoTraining.TOO_SMALL
    return None if spread else NoTraining.NO_SPREAD


def _moments(rewards: Sequence[float]) -> tuple[float, float, list[float]]:
    """Mean, sample standard deviation, and the deviations from the mean with rounding noise set to zero.

    Offsets are taken from the first reward and squares from the largest deviation, so that neither a common offset nor
    a large scale costs digits.
    """
    if not rewards:
        return math.nan, math.nan, []
    offsets = [reward - rewards[0] for reward in rewards]
    shift = math.fsum(offsets) / len(rewards)
    floor = SPREAD_FLOOR * max(1.0, *map(abs, rewards))
    deviations = [deviation if abs(deviation := offset - shift) > floor else 0.0 for offset in offsets]
    largest = max(map(abs, deviations))
    if len(rewards) == 1:
        return rewards[0], math.nan, deviations
    if largest == 0.0:
        return rewards[0] + shift, 0.0, deviations
    variance = math.fsum((deviation / largest) ** 2 for deviation in deviations) / (len(rewards) - 1)
    return rewards[0] + shift, largest * math.sqrt(variance), deviations
