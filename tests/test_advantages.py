"""Advantages of one group: hand-computed numbers, the classes of episodes that do not count, and invariances."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngrad.advantages import AdvantageKind, GroupAdvantages, NoTraining, group_advantages, with_malformed_penalty
from turngrad.episodes import (
    BadCall,
    Break,
    Episode,
    Failure,
    StopReason,
    ToolCall,
    Turn,
    logprob_array,
    token_array,
)

KINDS: tuple[AdvantageKind, ...] = ("group-zscore", "group-mean", "rloo")


def episode(reward: float | None, **changes: Any) -> Episode:
    base = Episode(task_id="t", group_id="g", attempt=0, turns=(), reward=reward, stop_reason=StopReason.DONE)
    return replace(base, **changes)


def group(*rewards: float | None) -> list[Episode]:
    return [episode(reward) for reward in rewards]


def call(bad: BadCall | None = None) -> ToolCall:
    return ToolCall(id="c", name="f", arguments={}, raw="{}", result="", bad=bad)


def turn_with(*calls: ToolCall) -> Turn:
    return Turn(token_array([1]), token_array([2]), logprob_array([-1.0]), "stop", tool_calls=calls)


class TestFormulas:
    def test_group_mean_subtracts_the_mean(self) -> None:
        assert group_advantages(group(1.0, 0.0, 0.0, 1.0), "group-mean").advantages == (0.5, -0.5, -0.5, 0.5)

    def test_group_zscore_divides_by_the_sample_standard_deviation(self) -> None:
        # mean 2, deviations -2, 0, 2; variance (4 + 0 + 4) / 2 = 4; std 2.
        result = group_advantages(group(0.0, 2.0, 4.0), "group-zscore")
        assert result == GroupAdvantages((-1.0, 0.0, 1.0), None, mean=2.0, std=2.0)

    def test_rloo_compares_with_the_mean_of_the_others(self) -> None:
        # 3 - (0 + 0) / 2 = 3; 0 - (3 + 0) / 2 = -1.5.
        assert group_advantages(group(3.0, 0.0, 0.0), "rloo").advantages == (3.0, -1.5, -1.5)

    def test_shaping_counts_in_the_baseline(self) -> None:
        episodes = [episode(1.0, shaping=-0.5), episode(0.0)]
        assert group_advantages(episodes, "group-mean").advantages == (0.25, -0.25)

    def test_clip_bounds_the_advantage_and_counts_what_it_cut(self) -> None:
        result = group_advantages(group(3.0, 0.0, 0.0), "rloo", clip=2.0)
        assert (result.advantages, result.clipped) == ((2.0, -1.5, -1.5), 1)


class TestGroupsThatTrainNothing:
    @pytest.mark.parametrize("kind", KINDS)
    def test_rewards_that_differ_in_the_last_bit_are_equal(self, kind: AdvantageKind) -> None:
        assert 0.1 + 0.2 != 0.3
        result = group_advantages(group(0.1 + 0.2, 0.3, 0.3), kind)
        assert result.reason is NoTraining.NO_SPREAD
        assert result.advantages == (0.0, 0.0, 0.0)

    def test_rounding_noise_grows_with_the_rewards_and_so_does_its_floor(self) -> None:
        noisy = [1e9, math.nextafter(1e9, 2e9), 1e9]
        assert group_advantages(group(*noisy), "group-zscore").reason is NoTraining.NO_SPREAD
        assert group_advantages(group(1e9, 1e9 + 1, 1e9), "group-zscore").reason is None

    def test_a_reward_at_the_mean_has_an_advantage_of_exactly_zero(self) -> None:
        assert (0.1 + 0.2 + 0.3) / 3 != 0.2
        assert group_advantages(group(0.1, 0.2, 0.3), "group-zscore").advantages[1] == 0.0

    def test_a_group_of_one_trains_nothing_and_warns(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            result = group_advantages(group(1.0), "group-zscore")
        assert (result.advantages, result.reason) == ((0.0,), NoTraining.TOO_SMALL)
        assert math.isnan(result.std)
        assert "group g has one sound episode of 1" in caplog.text

    def test_a_group_with_no_sound_episode_trains_nothing(self) -> None:
        result = group_advantages(group(None, math.nan), "rloo")
        assert (result.advantages, result.reason) == ((None, None), NoTraining.ALL_EXCLUDED)
        assert math.isnan(result.mean)

    def test_an_empty_group_trains_nothing(self) -> None:
        assert group_advantages([], "rloo").reason is NoTraining.ALL_EXCLUDED


class TestExclusion:
    @pytest.mark.parametrize("reward", [None, math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_missing_or_non_finite_reward_leaves_the_others_as_if_it_were_not_there(
        self, kind: AdvantageKind, reward: float | None
    ) -> None:
        alone = group_advantages(group(1.0, 0.0, 0.5), kind)
        joined = group_advantages(group(1.0, 0.0, reward, 0.5), kind)
        assert joined.advantages == (*alone.advantages[:2], None, alone.advantages[2])
        assert (joined.mean, joined.std) == (alone.mean, alone.std)

    @pytest.mark.parametrize("failure", list(Failure))
    def test_an_infrastructure_failure_is_not_an_honest_zero(self, failure: Failure) -> None:
        episodes = [*group(1.0, 0.0), episode(0.0, failure=failure)]
        assert group_advantages(episodes, "group-mean").advantages == (0.5, -0.5, None)

    @pytest.mark.parametrize("stop", [StopReason.MAX_TURNS, StopReason.MALFORMED, StopReason.CONTEXT_OVERFLOW])
    def test_the_policys_own_failure_is_trained(self, stop: StopReason) -> None:
        episodes = [episode(1.0), episode(0.0, stop_reason=stop)]
        assert group_advantages(episodes, "group-mean").advantages == (0.5, -0.5)

    def test_an_episode_counts_once_however_many_segments_it_has(self) -> None:
        broken = turn_with()
        split = replace(broken, segment_break=Break.HISTORY_REWRITE)
        episodes = [episode(1.0, turns=(broken, split, split, split)), *group(0.0, 0.0)]
        assert group_advantages(episodes, "group-mean") == group_advantages(group(1.0, 0.0, 0.0), "group-mean")


class TestMalformedPenalty:
    def test_the_penalty_is_the_share_of_malformed_calls_and_leaves_the_reward_alone(self) -> None:
        shaped = with_malformed_penalty(episode(1.0, turns=(turn_with(call(), call(BadCall.UNPARSABLE)),)), 0.2)
        assert (shaped.reward, shaped.shaping) == (1.0, -0.1)

    def test_it_does_not_depend_on_the_length_of_the_episode(self) -> None:
        turn = turn_with(call(), call(BadCall.UNKNOWN_TOOL))
        shapings = [with_malformed_penalty(episode(1.0, turns=(turn,) * length), 0.2).shaping for length in (1, 7)]
        assert shapings == [-0.1, -0.1]

    def test_an_episode_without_malformed_calls_is_returned_unchanged(self) -> None:
        sound = episode(1.0, turns=(turn_with(call()), turn_with()))
        assert with_malformed_penalty(sound, 0.2) is sound

    def test_a_negative_penalty_is_refused(self) -> None:
        with pytest.raises(ValueError, match="give 0 or more"):
            with_malformed_penalty(episode(1.0), -0.1)


class TestRefusals:
    def test_episodes_of_two_groups_are_refused(self) -> None:
        with pytest.raises(ValueError, match="of one group, found 2: a, b"):
            group_advantages([episode(1.0, group_id="a"), episode(0.0, group_id="b")], "rloo")

    def test_an_unknown_kind_names_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match="'gae' is none of group-zscore, group-mean, rloo"):
            group_advantages(group(1.0, 0.0), "gae")  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
    def test_a_clip_that_is_not_positive_is_refused(self, clip: float) -> None:
        with pytest.raises(ValueError, match="must be above 0"):
            group_advantages(group(1.0, 0.0), "rloo", clip=clip)


rewards_in_range = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=16)


@given(rewards_in_range, st.sampled_from(KINDS))
def test_advantages_of_a_group_sum_to_zero(rewards: list[float], kind: AdvantageKind) -> None:
    advantages = group_advantages(group(*rewards), kind).advantages
    finite = [advantage for advantage in advantages if advantage is not None]
    assert len(finite) == len(rewards)
    assert abs(math.fsum(finite)) <= 1e-9 * max(1.0, *map(abs, finite), *map(abs, rewards))


@given(rewards_in_range, st.sampled_from(KINDS), st.randoms(use_true_random=False))
def test_the_order_of_the_episodes_does_not_matter(rewards: list[float], kind: AdvantageKind, random: Random) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)
    straight = group_advantages(group(*rewards), kind).advantages
    shuffled = group_advantages(group(*(rewards[index] for index in order)), kind).advantages
    for place, index in enumerate(order):
        assert shuffled[place] == pytest.approx(straight[index], rel=1e-6, abs=1e-6)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=12), st.integers(-(10**6), 10**6))
def test_a_common_offset_of_the_rewards_does_not_matter(rewards: list[int], offset: int) -> None:
    plain = group_advantages(group(*map(float, rewards)), "group-zscore").advantages
    moved = group_advantages(group(*(float(reward + offset) for reward in rewards)), "group-zscore").advantages
    assert moved == pytest.approx(plain, rel=1e-12, abs=1e-12)


@given(rewards_in_range.filter(lambda rewards: max(rewards) - min(rewards) > 1e-3))
def test_zscores_have_a_sample_standard_deviation_of_one(rewards: list[float]) -> None:
    scores = [score for score in group_advantages(group(*rewards), "group-zscore").advantages if score is not None]
    assert math.sqrt(math.fsum(score * score for score in scores) / (len(scores) - 1)) == pytest.approx(1.0, rel=1e-6)


def played(*parts: float, shaping: float = 0.0) -> Episode:
    """An episode whose user turns earned `parts`, with one assistant turn in each."""
    turns = tuple(
        Turn(token_array([1]), token_array([2]), logprob_array([-1.0]), "stop", user_turn=index) for index in range(len(parts))
    )
    return episode(sum(parts), turns=turns, shaping=shaping, info={"turn_rewards": list(parts)})


class TestCreditByUserTurn:
    def test_each_user_turn_compares_what_was_earned_from_there_on_among_those_who_reached_it(self) -> None:
        # Turn 0: returns 1, 0.5, 0, mean 0.5. Turn 1, reached by two: returns 0.5 and 0, mean 0.25. Turn 2 by none.
        members = [played(0.5, 0.5), played(0.5, 0.0), played(0.0)]
        result = group_advantages(members, "group-mean", credit="turn")
        assert result.by_user_turn == ((0.5, 0.25), (0.0, -0.25), (-0.5,))
        assert result.advantages == (0.5, 0.0, -0.5)

    def test_the_scale_is_that_of_the_members_who_reached_the_turn(self) -> None:
        # Turn 1: returns 0.5 and 0, std sqrt(0.125).
        result = group_advantages([played(0.5, 0.5), played(0.5, 0.0), played(0.0)], "group-zscore", credit="turn")
        assert result.by_user_turn is not None
        assert result.by_user_turn[0] == pytest.approx((1.0, 0.25 / math.sqrt(0.125)))

    def test_a_turn_that_one_member_alone_reached_trains_nothing(self) -> None:
        result = group_advantages([played(0.5, 0.5), played(0.0)], "rloo", credit="turn")
        assert result.by_user_turn == ((1.0, 0.0), (-1.0,))

    def test_each_assistant_turn_takes_the_advantage_of_its_user_turn(self) -> None:
        first = played(0.5, 0.5)
        first = replace(first, turns=(first.turns[0], first.turns[0], first.turns[1]))
        members = [first, played(0.5, 0.0)]
        result = group_advantages(members, "group-mean", credit="turn")
        assert result.per_turn(0, first) == [0.25, 0.25, 0.25]
        assert group_advantages(members, "group-mean").per_turn(1, members[1]) == [-0.25, -0.25]

    def test_shaping_counts_in_every_turn(self) -> None:
        result = group_advantages([played(0.5, 0.5, shaping=-0.5), played(0.5, 0.5)], "group-mean", credit="turn")
        assert result.by_user_turn == ((-0.25, -0.25), (0.25, 0.25))

    def test_a_failed_member_is_left_out_of_every_turn(self) -> None:
        failed = replace(played(0.5, 0.5), failure=Failure.SAMPLER)
        result = group_advantages([failed, played(1.0), played(0.0)], "group-mean", credit="turn")
        assert result.by_user_turn == (None, (0.5,), (-0.5,))

    @pytest.mark.parametrize("info", [{}, {"turn_rewards": [0.3]}, {"turn_rewards": "x"}, {"turn_rewards": [math.nan]}])
    def test_a_group_without_sound_turn_rewards_is_credited_by_episode(self, info: dict[str, Any]) -> None:
        result = group_advantages([replace(played(1.0), info=info), played(0.0)], "group-mean", credit="turn")
        assert (result.by_user_turn, result.advantages) == (None, (0.5, -0.5))

    def test_the_clip_bounds_each_turn_and_is_counted(self) -> None:
        result = group_advantages([played(1.0), played(0.0)], "group-mean", clip=0.25, credit="turn")
        assert (result.by_user_turn, result.clipped) == (((0.25,), (-0.25,)), 2)

    @given(st.lists(st.lists(st.sampled_from([0.0, 0.25]), min_size=1, max_size=4), min_size=2, max_size=8))
    def test_the_advantages_of_a_turn_add_up_to_zero(self, parts: list[list[float]]) -> None:
        result = group_advantages([played(*part) for part in parts], "group-mean", credit="turn")
        if result.by_user_turn is None:
            assert result.reason is NoTraining.NO_SPREAD
            return
        for turn in range(max(map(len, parts))):
            assert math.fsum(of[turn] for of in result.by_user_turn if of and len(of) > turn) == pytest.approx(0.0, abs=1e-12)

    def test_episodes_of_one_user_turn_are_credited_alike_either_way(self) -> None:
        members = [played(1.0), played(0.0), played(0.25)]
        by_turn = group_advantages(members, "group-zscore", credit="turn")
        assert by_turn.by_user_turn == tuple((value,) for value in group_advantages(members, "group-zscore").advantages)
