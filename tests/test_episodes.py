"""Episode records: what they refuse, what is sound, and that a line of the run folder gives back the episode."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngrad.episodes import BadCall, Break, Episode, Failure, StopReason, ToolCall, Turn, logprob_array, token_array


def turn(output: list[int], logprobs: list[float], untrainable: str | None = None) -> Turn:
    return Turn(token_array([1, 2]), token_array(output), logprob_array(logprobs), "stop", untrainable=untrainable)


def episode(**changes: Any) -> Episode:
    sound = Episode("task", "group", 0, (turn([3], [-0.5]),), 1.0, StopReason.DONE)
    return replace(sound, **changes)


class TestTurn:
    @pytest.mark.parametrize("logprobs", [[], [-0.5], [-0.5] * 3])
    def test_a_trainable_turn_without_one_logprob_per_token_is_refused(self, logprobs: list[float]) -> None:
        with pytest.raises(ValueError, match=rf"2 ids, {len(logprobs)} logprobs; set `untrainable`"):
            turn([3, 4], logprobs)

    @pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
    def test_a_trainable_turn_with_a_logprob_that_is_not_finite_is_refused(self, broken: float) -> None:
        with pytest.raises(ValueError, match="finite logprobs; set `untrainable`"):
            turn([3, 4], [-0.5, broken])

    def test_an_untrainable_turn_may_lack_logprobs(self) -> None:
        assert turn([3, 4], [], "no logprobs").untrainable == "no logprobs"


class TestSoundness:
    @pytest.mark.parametrize("stop", [s for s in StopReason if s not in (StopReason.TIMEOUT, StopReason.INFRASTRUCTURE)])
    def test_the_policys_own_endings_are_sound(self, stop: StopReason) -> None:
        assert episode(stop_reason=stop, reward=0.0).excluded is None

    @pytest.mark.parametrize("failure", list(Failure))
    def test_an_infrastructure_failure_is_excluded_by_its_class_whatever_its_reward(self, failure: Failure) -> None:
        assert episode(failure=failure, reward=1.0).excluded == failure.value

    @pytest.mark.parametrize("reward", [None, math.nan, math.inf, -math.inf])
    def test_a_missing_or_non_finite_reward_is_the_graders_failure(self, reward: float | None) -> None:
        assert episode(reward=reward).excluded == "grader"

    def test_non_finite_shaping_excludes_too(self) -> None:
        assert episode(shaping=math.nan).excluded == "grader"


texts = st.text(max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=6)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=6,
)
calls = st.builds(
    ToolCall,
    id=texts,
    name=st.none() | texts,
    arguments=st.none() | st.dictionaries(texts, plain, max_size=3),
    raw=texts,
    result=texts,
    is_error=st.booleans(),
    bad=st.none() | st.sampled_from(BadCall),
    seconds=st.floats(0, 1e6),
)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    output = draw(ids)
    untrainable = draw(st.none() | texts)
    count = len(output) if untrainable is None else draw(st.integers(0, 6))
    return Turn(
        context_ids=token_array(draw(ids)),
        output_ids=token_array(output),
        logprobs=logprob_array(draw(st.lists(st.floats(-1e30, 0), min_size=count, max_size=count))),
        finish_reason=draw(texts),
        segment_break=draw(st.none() | st.sampled_from(Break)),
        user_turn=draw(st.integers(0, 9)),
        tool_calls=tuple(draw(st.lists(calls, max_size=2))),
        untrainable=untrainable,
        seconds=draw(st.floats(0, 1e6)),
        cached_tokens=draw(st.integers(0, 10**6)),
    )


episodes = st.builds(
    Episode,
    task_id=texts,
    group_id=texts,
    attempt=st.integers(0, 99),
    turns=st.lists(turns(), max_size=3).map(tuple),
    reward=st.none() | numbers,
    stop_reason=st.sampled_from(StopReason),
    failure=st.none() | st.sampled_from(Failure),
    error=st.none() | texts,
    info=st.dictionaries(texts, plain, max_size=3),
    shaping=numbers,
    snapshot=texts,
    lag=st.integers(0, 9),
    seconds=st.floats(0, 1e6),
)


class TestLine:
    @given(episodes)
    def test_an_episode_survives_its_line_exactly(self, one: Episode) -> None:
        line = one.to_json()
        assert "\n" not in line
        assert Episode.from_json(line) == one

    def test_enums_and_arrays_come_back_as_themselves(self) -> None:
        call = ToolCall("1", None, None, "{", "bad", bad=BadCall.UNPARSABLE)
        opened = replace(turn([3], [-0.5]), segment_break=Break.LENGTH, tool_calls=(call,))
        back = Episode.from_json(episode(turns=(opened,), failure=Failure.TIMEOUT).to_json())
        assert back.turns[0].segment_break is Break.LENGTH
        assert back.turns[0].output_ids.typecode == "i"
        assert back.turns[0].tool_calls[0].bad is BadCall.UNPARSABLE
        assert (back.stop_reason, back.failure) == (StopReason.DONE, Failure.TIMEOUT)

    def test_numbers_that_json_lacks_do_not_break_the_line_for_other_readers(self) -> None:
        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is not JSON")

        call = ToolCall("1", "f", {"x": [math.nan, -math.inf]}, "{}", "")
        broken = replace(turn([3], [math.nan], "no logprobs"), tool_calls=(call,))
        line = episode(turns=(broken,), reward=math.inf, info={"score": math.inf}).to_json()
        json.loads(line, parse_constant=refuse)
        back = Episode.from_json(line)
        assert (back.reward, back.info, back.excluded) == (None, {"score": "inf"}, "grader")
        assert back.turns[0].tool_calls[0].arguments == {"x": ["nan", "-inf"]}
        assert math.isnan(back.turns[0].logprobs[0])
