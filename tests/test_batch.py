"""The batch builder: every array position by hand, and the contracts C1 to C6 as properties over random episodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from fireworks.training.sdk import Datum, EncodedTextChunk, ModelInput, TensorData
from fireworks.training.sdk._core.lib._pydantic_conv import to_pydantic_request
from fireworks.training.sdk.types import ForwardBackwardInput, ForwardBackwardRequest
from hypothesis import given
from hypothesis import strategies as st
from renderers import Message, create_renderer
from renderers.configs import Qwen35RendererConfig

from tests.qwen import qwen_tokenizer
from turngrad.advantages import GroupAdvantages, NoTraining, group_advantages
from turngrad.batch import Batch, Normalize, build_batch
from turngrad.episodes import Break, Episode, StopReason, Turn, logprob_array, token_array

NORMALIZATIONS: tuple[Normalize, ...] = ("token", "episode", "none")


def turn(
    context: Sequence[int],
    output: Sequence[int],
    logprobs: Sequence[float] | None = None,
    *,
    opens: Break | None = None,
    untrainable: str | None = None,
) -> Turn:
    if logprobs is None:
        logprobs = [-0.5] * len(output)
    return Turn(
        token_array(list(context)),
        token_array(list(output)),
        logprob_array(list(logprobs)),
        "stop",
        opens,
        untrainable=untrainable,
    )


def episode(*turns: Turn, reward: float = 1.0, attempt: int = 0) -> Episode:
    return Episode("task", "group", attempt, turns, reward, StopReason.DONE)


def batch_of(
    *episodes: Episode,
    advantages: Sequence[float | None] | None = None,
    normalize: Normalize = "none",
    max_seq_len: int | None = None,
) -> Batch:
    given_advantages = tuple(advantages) if advantages is not None else (1.0,) * len(episodes)
    group = GroupAdvantages(given_advantages, None, mean=0.0, std=1.0)
    return build_batch([(episodes, group)], normalize=normalize, max_seq_len=max_seq_len)


def wire(datum: Datum) -> dict[str, list[float] | list[int]]:
    return {"model_input": datum.model_input.to_ints()} | {key: value.tolist() for key, value in datum.loss_fn_inputs.items()}


TWO_TURNS = episode(turn([1, 2, 3], [4, 5], [-0.25, -0.5]), turn([6, 7], [8], [-0.125]))


class TestByHand:
    def test_two_turns_become_one_datum_shifted_once(self) -> None:
        [datum] = batch_of(TWO_TURNS, advantages=[2.0]).datums()
        assert wire(datum) == {
            "model_input": [1, 2, 3, 4, 5, 6, 7],
            "target_tokens": [2, 3, 4, 5, 6, 7, 8],
            "logprobs": [0.0, 0.0, -0.25, -0.5, 0.0, 0.0, -0.125],
            "advantages": [0.0, 0.0, 2.0, 2.0, 0.0, 0.0, 2.0],
        }

    @pytest.mark.parametrize("count", [3, 5])
    def test_several_turns_that_extend_one_another_are_one_datum(self, count: int) -> None:
        [datum] = batch_of(episode(*(turn([10 * k, 10 * k + 1], [10 * k + 2]) for k in range(1, count + 1)))).datums()
        fields = wire(datum)
        assert [*fields["model_input"], fields["target_tokens"][-1]] == [
            10 * k + i for k in range(1, count + 1) for i in range(3)
        ]
        assert fields["advantages"] == [0, 1] + [0, 0, 1] * (count - 1)

    def test_a_history_rewritten_each_turn_trains_every_turn_in_a_datum_of_its_own(self) -> None:
        rewrites = [turn([1, k], [k + 1, k + 2], opens=Break.HISTORY_REWRITE if k else None) for k in range(4)]
        datums = batch_of(episode(*rewrites)).datums()
        assert [wire(datum)["target_tokens"] for datum in datums] == [[k, k + 1, k + 2] for k in range(4)]
        assert [wire(datum)["advantages"] for datum in datums] == [[0, 1, 1]] * 4

    def test_a_break_opens_a_segment_with_the_whole_new_prompt(self) -> None:
        rewritten = episode(*TWO_TURNS.turns, turn([1, 9], [10, 11], [-1.0, -2.0], opens=Break.HISTORY_REWRITE))
        first, second = batch_of(rewritten).datums()
        assert wire(first)["model_input"] == [1, 2, 3, 4, 5, 6, 7]
        assert wire(second) == {
            "model_input": [1, 9, 10],
            "target_tokens": [9, 10, 11],
            "logprobs": [0.0, -1.0, -2.0],
            "advantages": [0.0, 1.0, 1.0],
        }

    def test_an_untrainable_turn_keeps_its_context_and_loses_its_gradient(self) -> None:
        middle = turn([6], [7, 8], [], untrainable="no logprobs")
        [datum] = batch_of(episode(turn([1], [2, 3]), middle, turn([9], [10]))).datums()
        assert wire(datum)["model_input"] == [1, 2, 3, 6, 7, 8, 9]
        assert wire(datum)["advantages"] == [1, 1, 0, 0, 0, 0, 1]
        assert wire(datum)["logprobs"] == [-0.5, -0.5, 0, 0, 0, 0, -0.5]

    def test_tokens_after_the_last_trained_one_are_not_paid_for(self) -> None:
        trailing = turn([4, 5], [6], [], untrainable="no logprobs")
        [datum] = batch_of(episode(turn([1, 2], [3]), trailing)).datums()
        assert wire(datum)["target_tokens"] == [2, 3]

    def test_an_empty_output_is_context_only(self) -> None:
        [datum] = batch_of(episode(turn([1, 2], []), turn([3], [4]))).datums()
        assert wire(datum)["advantages"] == [0, 0, 1]

    def test_a_prompt_and_an_output_of_one_token_make_one_position(self) -> None:
        [datum] = batch_of(episode(turn([1], [2], [-3.0]))).datums()
        assert wire(datum) == {"model_input": [1], "target_tokens": [2], "logprobs": [-3.0], "advantages": [1.0]}

    def test_a_turn_with_no_new_context_follows_its_predecessor_directly(self) -> None:
        [datum] = batch_of(episode(turn([1], [2]), turn([], [3]))).datums()
        assert wire(datum) == {
            "model_input": [1, 2],
            "target_tokens": [2, 3],
            "logprobs": [-0.5, -0.5],
            "advantages": [1.0, 1.0],
        }

    def test_a_segment_is_cut_at_the_limit_and_the_lost_tokens_are_counted(self) -> None:
        batch = batch_of(TWO_TURNS, max_seq_len=4)
        [datum] = batch.datums()
        assert wire(datum) == {
            "model_input": [1, 2, 3],
            "target_tokens": [2, 3, 4],
            "logprobs": [0, 0, -0.25],
            "advantages": [0, 0, 1],
        }
        assert batch.cut_tokens == 2

    def test_a_prompt_longer_than_the_limit_leaves_no_segment(self) -> None:
        batch = batch_of(TWO_TURNS, max_seq_len=3)
        assert (batch.segments, batch.episodes, batch.untrained, batch.cut_tokens) == ((), (), 1, 3)

    @pytest.mark.parametrize(
        ("normalize", "expected", "divides"),
        [
            ("token", [1.5, 1.5, 1.5, -0.5], "num_loss_tokens"),
            # A / (T M): 1.5 / (3 x 2) for the three tokens of the first episode, -0.5 / (1 x 2) for the one of the second.
            ("episode", [0.25, 0.25, 0.25, -0.25], "none"),
            ("none", [1.5, 1.5, 1.5, -0.5], "none"),
        ],
    )
    def test_each_normalisation_sends_its_formula(self, normalize: Normalize, expected: list[float], divides: str) -> None:
        batch = batch_of(TWO_TURNS, episode(turn([1], [2])), advantages=[1.5, -0.5], normalize=normalize)
        sent = [value for segment in batch.segments for value in segment.target_advantages[segment.target_mask]]
        assert sent == expected
        assert batch.grad_accumulation_normalization == divides

    def test_credit_by_user_turn_gives_each_turn_its_own_advantage_under_the_same_mask(self) -> None:
        played = replace(TWO_TURNS, turns=(TWO_TURNS.turns[0], replace(TWO_TURNS.turns[1], user_turn=1)))
        group = GroupAdvantages((9.0,), None, 0.0, 1.0, by_user_turn=((2.0, -0.5),))
        [datum] = build_batch([((played,), group)], normalize="none").datums()
        assert wire(datum)["advantages"] == [0.0, 0.0, 2.0, 2.0, 0.0, 0.0, -0.5]

    def test_a_penalty_is_taken_off_token_by_token_and_weighted_alike(self) -> None:
        [segment] = batch_of(TWO_TURNS, advantages=[3.0], normalize="episode").segments
        penalty = np.array([9, 9, 0.0, 1.5, 9, 9, 3.0], dtype=np.float32)
        assert replace(segment, penalty=penalty).target_advantages.tolist() == [0, 0, 1.0, 0.5, 0, 0, 0.0]


class TestGroups:
    def test_a_group_with_a_reason_trains_nothing(self) -> None:
        nothing = GroupAdvantages((0.0, 0.0), NoTraining.NO_SPREAD, mean=1.0, std=0.0)
        batch = build_batch([([TWO_TURNS, TWO_TURNS], nothing)], normalize="token")
        assert (batch.segments, batch.datums()) == ((), [])

    def test_an_excluded_episode_is_neither_trained_nor_counted(self) -> None:
        batch = batch_of(TWO_TURNS, TWO_TURNS, advantages=[1.0, None], normalize="episode")
        [segment] = batch.segments
        assert segment.weight == 1 / 3

    def test_an_episode_at_the_baseline_is_not_sent_but_counts_in_the_mean_over_episodes(self) -> None:
        batch = batch_of(TWO_TURNS, TWO_TURNS, advantages=[1.0, 0.0], normalize="episode")
        assert [len(batch.segments), len(batch.sent), len(batch.datums())] == [2, 1, 1]
        assert batch.segments[0].weight == 1 / (3 * 2)

    def test_an_episode_whose_turns_may_not_train_is_counted_and_keeps_its_place_in_the_baseline(self) -> None:
        silent = episode(turn([1], [2], [], untrainable="no logprobs"), reward=0.0)
        group = group_advantages([TWO_TURNS, silent, replace(TWO_TURNS, reward=0.5)], "group-mean")
        batch = build_batch([([TWO_TURNS, silent, replace(TWO_TURNS, reward=0.5)], group)], normalize="episode")
        assert group.advantages == (0.5, -0.5, 0.0)
        assert (len(batch.episodes), batch.untrained) == (2, 1)


class TestRefusals:
    def test_advantages_that_are_not_parallel_to_the_episodes(self) -> None:
        with pytest.raises(ValueError, match="a group of 1 episodes came with 2 advantages"):
            batch_of(TWO_TURNS, advantages=[1.0, 2.0])

    def test_an_advantage_beyond_float32(self) -> None:
        with pytest.raises(ValueError, match="more than float32 holds"):
            batch_of(TWO_TURNS, advantages=[1e39])

    @pytest.mark.parametrize("opens", [None, Break.LENGTH])
    def test_a_segment_that_begins_with_a_sampled_token(self, opens: Break | None) -> None:
        turns = [turn([1], [2])] if opens else []
        with pytest.raises(ValueError, match="needs its whole prompt as context_ids"):
            batch_of(episode(*turns, turn([], [3], opens=opens)))

    def test_an_unknown_normalisation(self) -> None:
        with pytest.raises(ValueError, match="'mean' is none of token, episode, none"):
            batch_of(TWO_TURNS, normalize="mean")  # pyright: ignore[reportArgumentType]

    def test_minibatches_below_one(self) -> None:
        with pytest.raises(ValueError, match="--minibatches 0"):
            batch_of(TWO_TURNS).split(0)


class TestWireObjects:
    def test_the_datum_equals_one_that_the_sdk_validates_itself(self) -> None:
        [datum] = batch_of(TWO_TURNS).datums()
        validated = Datum(
            model_input=ModelInput.from_ints([1, 2, 3, 4, 5, 6, 7]),
            loss_fn_inputs={
                "target_tokens": TensorData(data=[2, 3, 4, 5, 6, 7, 8], dtype="int64", shape=[7]),
                "logprobs": TensorData(data=[0, 0, -0.25, -0.5, 0, 0, -0.125], dtype="float32", shape=[7]),
                "advantages": TensorData(data=[0, 0, 1, 1, 0, 0, 1], dtype="float32", shape=[7]),
            },
        )
        assert datum.model_input.length == validated.model_input.length == 7
        assert datum.model_input.model_dump_json() == validated.model_input.model_dump_json()
        for key, tensor in validated.loss_fn_inputs.items():
            built = datum.loss_fn_inputs[key]
            assert (built.dtype, built.shape, built.data) == (tensor.dtype, tensor.shape, tensor.data)

    def test_the_ids_survive_validation_and_every_kind_of_dump(self) -> None:
        [datum] = batch_of(TWO_TURNS).datums()
        [chunk] = datum.model_input.chunks
        again = EncodedTextChunk.model_validate({"tokens": chunk.tokens, "type": "encoded_text"})
        assert list(again.tokens) == [1, 2, 3, 4, 5, 6, 7]
        assert chunk.model_dump(mode="json") == {"tokens": [1, 2, 3, 4, 5, 6, 7], "type": "encoded_text"}

    def test_a_request_of_datums_is_the_json_that_the_protocol_asks_for(self) -> None:
        request = ForwardBackwardRequest(
            forward_backward_input=ForwardBackwardInput(data=batch_of(TWO_TURNS).datums(), loss_fn="ppo"), model_id="m", seq_id=1
        )
        [datum] = to_pydantic_request(request).model_dump(mode="json", exclude_none=True)["forward_backward_input"]["data"]
        assert datum["model_input"] == {"chunks": [{"tokens": [1, 2, 3, 4, 5, 6, 7], "type": "encoded_text"}]}
        assert datum["loss_fn_inputs"]["advantages"] == {"data": [0, 0, 1, 1, 0, 0, 1], "dtype": "float32", "shape": [7]}
        assert datum["loss_fn_inputs"]["target_tokens"] == {"data": [2, 3, 4, 5, 6, 7, 8], "dtype": "int64", "shape": [7]}

    def test_there_is_no_mask_key(self) -> None:
        [datum] = batch_of(TWO_TURNS).datums()
        assert set(datum.loss_fn_inputs) == {"target_tokens", "logprobs", "advantages"}


def test_qwen_scaffold_and_tool_results_are_masked_and_a_sampled_stop_token_is_not() -> None:
    tokenizer = qwen_tokenizer()
    renderer = create_renderer(tokenizer, Qwen35RendererConfig(enable_thinking=False))
    said = ["<tool_call>\n<function=ls>\n</function>\n</tool_call><|im_end|>", "There is one file.<|im_end|>", "Bye"]
    replies: list[Message] = [{"role": "tool", "content": "a.txt"}, {"role": "user", "content": "Thanks!"}]
    prompt = renderer.render([{"role": "user", "content": "List."}], add_generation_prompt=True).token_ids
    turns, seen = [], 0
    for index, text in enumerate(said):
        output = tokenizer.encode(text)
        turns.append(turn(prompt[seen:], output))
        seen = len(prompt) + len(output)
        if index < len(replies):
            extended = renderer.bridge_to_next_turn(prompt, output, [replies[index]])
            assert extended is not None
            prompt = extended.token_ids

    [segment] = batch_of(episode(*turns)).segments
    targets = segment.ids[1:]
    assert tokenizer.decode(targets[segment.target_mask].tolist()) == "".join(said)
    masked = tokenizer.decode(targets[~segment.target_mask].tolist())
    assert "a.txt" in masked
    # What the template puts into the model's mouth (the header and an empty thought) is not the model's.
    assert masked.count("<|im_start|>assistant\n<think>\n\n</think>\n\n") == 3
    assert "<|im_end|><|im_end|>" not in tokenizer.decode(segment.ids.tolist())
    assert "<|im_end|>\n<|im_start|>assistant" in masked


# Random episodes: three and more turns, empty and one-token outputs, breaks (which also shrink the prompt), untrainable turns.

ids = st.integers(0, 2**31 - 1)


@st.composite
def turns_of(draw: st.DrawFn, first: bool) -> Turn:
    opens = None if first else draw(st.sampled_from([None, None, *Break]))
    context = draw(st.lists(ids, min_size=1 if first or opens else 0, max_size=6))
    output = draw(st.lists(ids, max_size=5))
    untrainable = draw(st.sampled_from([None, None, None, "no logprobs"]))
    logprobs = [] if untrainable else draw(st.lists(st.floats(-20, 0), min_size=len(output), max_size=len(output)))
    return turn(context, output, logprobs, opens=opens, untrainable=untrainable)


@st.composite
def episodes_of(draw: st.DrawFn) -> Episode:
    first = draw(turns_of(first=True))
    return episode(first, *draw(st.lists(turns_of(first=False), max_size=6)))


def token_by_token(one: Episode) -> list[tuple[tuple[int, ...], int, float]]:
    """What must train, one turn at a time: (everything before the token, the token, its logprob)."""
    expected, history = [], ()
    for step in one.turns:
        if step.segment_break is not None:
            history = ()
        history += tuple(step.context_ids)
        for index, token in enumerate(step.output_ids):
            if step.untrainable is None:
                expected.append((history, token, float(np.float32(step.logprobs[index]))))
            history += (token,)
    return expected


def trained_in(batch: Batch) -> list[tuple[tuple[int, ...], int, float]]:
    found = []
    for datum in batch.datums():
        read, targets = datum.model_input.to_ints(), datum.loss_fn_inputs["target_tokens"].tolist()
        logprobs, advantages = (datum.loss_fn_inputs[key].tolist() for key in ("logprobs", "advantages"))
        assert len(read) == len(targets) == len(logprobs) == len(advantages)
        for index, advantage in enumerate(advantages):
            if advantage != 0:
                found.append((tuple(read[: index + 1]), targets[index], logprobs[index]))
            else:
                assert logprobs[index] == 0
    return found


@given(episodes_of())
def test_each_sampled_token_trains_once_in_order_on_exactly_what_the_sampler_saw(one: Episode) -> None:
    assert trained_in(batch_of(one)) == token_by_token(one)


@given(episodes_of(), st.integers(1, 30))
def test_a_length_limit_keeps_exactly_the_tokens_within_it(one: Episode, limit: int) -> None:
    batch = batch_of(one, max_seq_len=limit)
    expected = token_by_token(one)
    within = [entry for entry in expected if len(entry[0]) < limit]
    assert trained_in(batch) == within
    assert batch.cut_tokens == len(expected) - len(within)


@given(episodes_of())
def test_the_token_count_is_the_sum_of_the_mask(one: Episode) -> None:
    for segment in batch_of(one).segments:
        assert segment.trained == segment.target_mask.sum() == np.count_nonzero(segment.target_advantages)
        assert segment.target_mask[-1]


@given(episodes_of(), st.sampled_from(NORMALIZATIONS))
def test_an_episode_weighs_the_same_in_one_segment_as_in_many(one: Episode, normalize: Normalize) -> None:
    """Spreading the same trained tokens over segments changes neither its own total nor the others'."""
    together = replace(one, turns=tuple(replace(step, segment_break=None) for step in one.turns))
    apart = replace(
        one,
        turns=tuple(
            replace(step, segment_break=Break.HISTORY_REWRITE, context_ids=token_array([7, *step.context_ids]))
            for step in one.turns
        ),
    )
    other = episode(turn([1], [2, 3]), attempt=1)
    totals = []
    for shape in (together, apart):
        batch = batch_of(shape, other, advantages=[1.5, -1.0], normalize=normalize)
        totals.append([_total_weight(batch, member) for member in range(len(batch.episodes))])
    assert totals[0] == pytest.approx(totals[1], rel=1e-6)


def _total_weight(batch: Batch, member: int) -> float:
    return math.fsum(
        float(abs(value)) for segment in batch.segments if segment.episode == member for value in segment.target_advantages
    )


@given(st.lists(episodes_of(), max_size=6), st.integers(1, 8), st.sampled_from(NORMALIZATIONS))
def test_a_split_keeps_episodes_whole_and_gives_each_part_the_weights_of_its_own_step(
    several: list[Episode], parts: int, normalize: Normalize
) -> None:
    several = [replace(one, attempt=index) for index, one in enumerate(several)]
    batch = batch_of(*several, normalize=normalize)
    split = batch.split(parts)
    assert sorted(one.attempt for part in split for one in part.episodes) == [one.attempt for one in batch.episodes]
    if parts > 1:
        assert len(split) == min(parts, len(batch.episodes))
    for part in split:
        alone = batch_of(*part.episodes, normalize=normalize)
        assert len(alone.segments) == len(part.segments)
        for ours, theirs in zip(part.segments, alone.segments, strict=True):
            assert np.array_equal(ours.ids, theirs.ids)
            assert np.array_equal(ours.target_advantages, theirs.target_advantages)
            assert part.episodes[ours.episode] is alone.episodes[theirs.episode]


def test_a_split_balances_the_trained_tokens() -> None:
    several = [episode(turn([1], [2] * tokens), attempt=tokens) for tokens in (1, 2, 3, 4, 5, 6, 7, 8)]
    loads = [sum(segment.trained for segment in part.segments) for part in batch_of(*several).split(2)]
    assert loads == [18, 18]
