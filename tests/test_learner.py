"""The learner: the genuine SDK against the embedded engine, in one process each, faults included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fireworks.training.sdk import FiretitanServiceClient, ModelInput, SamplingParams

from tests.test_batch import TWO_TURNS, batch_of, episode, turn
from tests.tiny_engine import TinyEngine, tiny_engine
from turngrad.batch import Batch
from turngrad.episodes import Break, Episode, logprob_array, token_array
from turngrad.faults import LearnerFailed, LearnerLost, LearnerRefused, LearnerTimeout
from turngrad.learner import Learner, check_name
from turngrad.reference import Reference

PPO: dict[str, Any] = {"loss_fn": "ppo", "learning_rate": 1e-3}
EMPTY = batch_of()
LONG = episode(turn([5, 6, 7], [8, 9, 10]), turn([11, 12], [13]), turn([14], [15, 16]))
SHORT = episode(turn([20, 21], [22]), attempt=1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyEngine]:
    with tiny_engine(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture(scope="module")
def service(engine: TinyEngine) -> FiretitanServiceClient:
    return engine.service()


@pytest.fixture
def fresh(engine: TinyEngine) -> Iterator[Callable[[], Any]]:
    """Makes learners that all start from the model's own weights; the engine's faults are off afterwards."""

    @asynccontextmanager
    async def make() -> AsyncIterator[Learner]:
        learner = await Learner.create(engine.service(), engine.model, lora_rank=8, seed=0, timeout=60)
        try:
            yield learner
        finally:
            await learner.close()

    yield make
    engine.break_requests()


async def weights(engine: TinyEngine, learner: Learner, name: str) -> dict[str, torch.Tensor]:
    return engine.saved(await learner.save_state(name), "weights")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def one_turn_episodes(one: Episode) -> list[Episode]:
    """The same tokens with the same contexts, each turn as an episode of its own."""
    history: list[int] = []
    split = []
    for step in one.turns:
        history += step.context_ids
        split.append(replace(one, turns=(replace(step, context_ids=token_array(history)),)))
        history += step.output_ids
    return split


class TestUpdate:
    async def test_the_merged_gradient_is_the_sum_of_the_turns_gradients(
        self, engine: TinyEngine, fresh: Callable[[], Any]
    ) -> None:
        rng = np.random.default_rng(0)
        turns = [
            turn(rng.integers(1, 300, 40).tolist(), rng.integers(1, 300, 12).tolist(), (-6 + rng.random(12)).tolist())
            for _ in range(6)
        ]
        one = episode(*turns)
        apart = one_turn_episodes(one)
        moments = []
        for batch in (batch_of(one, advantages=[1.5]), batch_of(*apart, advantages=[1.5] * len(apart))):
            async with fresh() as learner:
                await learner.update(batch, loss_fn="importance_sampling", learning_rate=1e-6)
                moments.append(engine.saved(await learner.save_state("after"), "optimizer"))
        assert len(batch_of(one).segments) == 1
        # Adam's first moment after one step is the gradient times 1 - beta1.
        merged, summed = ({name: value for name, value in moment.items() if name.endswith(".first")} for moment in moments)
        assert merged.keys() == summed.keys()
        assert len(merged) > 10
        total = torch.cat([value.flatten() for value in summed.values()]).norm()
        error = torch.cat([(merged[name] - value).flatten() for name, value in summed.items()]).norm()
        assert total > 1e-6
        assert error / total < 1e-5

    async def test_an_unchanged_policy_has_a_ratio_of_one(
        self, service: FiretitanServiceClient, fresh: Callable[[], Any]
    ) -> None:
        async with fresh() as learner:
            sampler = await asyncio.to_thread(service.create_sampling_client, model_path=await learner.snapshot("policy"))
            prompt, turns = [5, 6, 7], []
            for context in ([5, 6, 7], [50, 51], [60]):
                if turns:
                    prompt = [*prompt, *context]
                response = await sampler.sample_async(
                    ModelInput.from_ints(prompt), 1, SamplingParams(max_tokens=8, temperature=1.0)
                )
                [sequence] = response.sequences
                turns.append(turn(context, sequence.tokens, sequence.logprobs))
                prompt = [*prompt, *sequence.tokens]
            result = await learner.update(batch_of(episode(*turns)), **PPO)
        assert result.metrics["gap/max"] < 1e-4
        assert result.metrics["ratio/mean"] == pytest.approx(1.0, abs=1e-4)
        assert result.metrics["ratio/clip_fraction"] == 0.0

    async def test_minibatches_are_optimizer_steps_one_after_another(self, engine: TinyEngine, fresh: Callable[[], Any]) -> None:
        batch = batch_of(LONG, SHORT, advantages=[1.0, -1.0], normalize="episode")
        async with fresh() as learner:
            result = await learner.update(batch, minibatches=2, **PPO)
            at_once = await weights(engine, learner, "at-once")
        async with fresh() as learner:
            for part in batch.split(2):
                await learner.update(part, **PPO)
            one_by_one = await weights(engine, learner, "one-by-one")
        assert (result.steps, result.metrics["update/steps"]) == (2, 2.0)
        assert same(at_once, one_by_one)

    async def test_a_minibatch_without_gradient_takes_no_step(self, fresh: Callable[[], Any]) -> None:
        async with fresh() as learner:
            result = await learner.update(batch_of(LONG, SHORT, advantages=[1.0, 0.0]), minibatches=2, **PPO)
        assert result.steps == 1

    async def test_splitting_an_episode_at_a_rewritten_history_keeps_its_weight(
        self, engine: TinyEngine, fresh: Callable[[], Any]
    ) -> None:
        """C6, end to end: the same tokens in three segments give the gradient of one."""
        broken = replace(
            LONG,
            turns=tuple(
                replace(step.turns[0], segment_break=Break.HISTORY_REWRITE if index else None)
                for index, step in enumerate(one_turn_episodes(LONG))
            ),
        )
        norms = []
        for shape in (LONG, broken):
            for normalize in ("token", "episode", "none"):
                async with fresh() as learner:
                    result = await learner.update(
                        batch_of(shape, SHORT, advantages=[1.0, -1.0], normalize=normalize), loss_fn="ppo", learning_rate=1e-6
                    )
                norms.append(result.metrics["update/grad_norm"])
        assert norms[:3] == pytest.approx(norms[3:], rel=1e-5)
        assert len({round(norm, 6) for norm in norms}) == 3

    @pytest.mark.parametrize("loss_fn", ["importance_sampling", "ppo", "cispo"])
    async def test_every_loss_moves_the_policy_towards_a_rewarded_token(self, loss_fn: Any, fresh: Callable[[], Any]) -> None:
        async with fresh() as learner:
            before = (
                await learner.update(batch_of(on_policy := await sampled(learner)), loss_fn=loss_fn, learning_rate=1e-2)
            ).metrics
            after = (await learner.update(batch_of(on_policy), loss_fn=loss_fn, learning_rate=1e-6)).metrics
        assert before["ratio/mean"] == pytest.approx(1.0, abs=1e-4)
        assert after["ratio/min"] > 1.0

    async def test_the_update_reports_loss_norm_gap_and_ratio(self, fresh: Callable[[], Any]) -> None:
        async with fresh() as learner:
            one = await sampled(learner)
            metrics = (await learner.update(batch_of(one, advantages=[2.0], normalize="token"), **PPO)).metrics
        # With a ratio of one the summed loss is minus the advantage on each token, and its mean over tokens is minus 2.
        assert metrics["update/loss"] == pytest.approx(-2.0, abs=1e-3)
        assert metrics["update/grad_norm"] > 0
        assert metrics["gap/tokens"] == one.sampled_tokens
        assert metrics["service/total_tokens_sum"] == one.context_tokens + one.sampled_tokens - 1

    async def test_the_loss_is_a_mean_over_the_tokens_that_the_optimizer_counts(self, fresh: Callable[[], Any]) -> None:
        """A token at advantage 0, as credit by user turn leaves some, is none of them: -2 on two of three is a mean of -2."""
        async with fresh() as learner:
            batch = batch_of(await sampled(learner), advantages=[2.0], normalize="token")
            (whole,) = batch.segments
            advantages = whole.advantages.copy()
            advantages[np.flatnonzero(whole.target_mask)[0]] = 0
            part = replace(batch, segments=(replace(whole, advantages=advantages),))
            metrics = (await learner.update(part, **PPO)).metrics
        assert metrics["update/loss"] == pytest.approx(-2.0, abs=1e-3)

    async def test_checking_logprobs_first_changes_nothing_but_the_cost(
        self, engine: TinyEngine, fresh: Callable[[], Any]
    ) -> None:
        results, saved = [], []
        for check in (0, 1):
            async with fresh() as learner:
                results.append(await learner.update(batch_of(LONG, SHORT), check_logprobs=check, **PPO))
                saved.append(await weights(engine, learner, "after"))
        assert same(*saved)
        assert results[0].metrics["gap/max"] == results[1].metrics["gap/max"]

    async def test_more_datums_than_a_request_holds_come_back_in_order(self, fresh: Callable[[], Any]) -> None:
        """1,100 datums go out in two requests (the SDK's limit is 1,024); a shift of one would show as a gap."""
        rng = np.random.default_rng(1)
        several = [episode(turn(rng.integers(1, 300, 2).tolist(), rng.integers(1, 300, 1).tolist())) for _ in range(1100)]
        async with fresh() as learner:
            forward = await learner._client.forward(batch_of(*several).datums(), "importance_sampling")
            logprobs = [output["logprobs"].to_numpy()[-1:].tolist() for output in forward.loss_fn_outputs]
            exact = [
                replace(one, turns=(replace(one.turns[0], logprobs=logprob_array(found)),))
                for one, found in zip(several, logprobs, strict=True)
            ]
            result = await learner.update(batch_of(*exact), **PPO)
        assert result.metrics["gap/tokens"] == 1100
        assert result.metrics["gap/max"] < 1e-4
        assert len({round(float(value), 3) for [value] in logprobs}) > 100

    async def test_masked_tokens_are_still_read(self, fresh: Callable[[], Any]) -> None:
        """The mask removes gradient, not attention: another tool result changes the logprob of what follows it."""
        found = []
        async with fresh() as learner:
            for result in (30, 31):
                datum = batch_of(episode(turn([5, 6], [7]), turn([result], [8]))).datums()
                forward = await learner._client.forward(datum, "importance_sampling")
                found.append(forward.loss_fn_outputs[0]["logprobs"].to_numpy())
        first, second = found
        assert first[1] == second[1]
        assert abs(first[3] - second[3]) > 1e-3

    async def test_the_event_loop_goes_on_during_updates_and_snapshots(self, fresh: Callable[[], Any]) -> None:
        gaps = []

        async def watch() -> None:
            clock = asyncio.get_running_loop().time
            while True:
                before = clock()
                await asyncio.sleep(0.01)
                gaps.append(clock() - before)

        async with fresh() as learner:
            watching = asyncio.create_task(watch())
            await learner.update(batch_of(*[LONG] * 50), **PPO)
            await learner.snapshot("while-watched")
            await learner.save_state("while-watched")
            watching.cancel()
        assert len(gaps) > 5
        assert max(gaps) < 0.5


async def sampled(learner: Learner) -> Episode:
    """An episode of the learner's own policy: on every prompt token the engine's logprobs come back as an echo does."""
    prompt, output = [5, 6, 7], [8, 9, 10]
    datum = batch_of(episode(turn(prompt, output))).datums()
    forward = await learner._client.forward(datum, "importance_sampling")
    logprobs = forward.loss_fn_outputs[0]["logprobs"].to_numpy()[len(prompt) - 1 :]
    return episode(turn(prompt, output, logprobs.tolist()))


class TestNothingToTrain:
    @pytest.mark.parametrize(
        ("batch", "says"),
        [
            (EMPTY, "no group has two rewards that differ"),
            (batch_of(TWO_TURNS, advantages=[0.0]), "every advantage is zero"),
            (batch_of(episode(turn([1], [2], [], untrainable="no logprobs"))), "no turn may train in 1 episodes"),
        ],
    )
    async def test_no_optimizer_step_is_taken_and_the_result_says_why(
        self, batch: Batch, says: str, engine: TinyEngine, fresh: Callable[[], Any]
    ) -> None:
        async with fresh() as learner:
            before = await weights(engine, learner, "before")
            result = await learner.update(batch, **PPO)
            assert (result.steps, result.metrics) == (0, {"update/steps": 0.0})
            assert says in (result.skipped or "")
            assert same(before, await weights(engine, learner, "after"))


class TestStates:
    async def test_a_resumed_learner_goes_on_as_if_it_had_never_stopped(
        self, engine: TinyEngine, fresh: Callable[[], Any]
    ) -> None:
        batches = [batch_of(LONG), batch_of(SHORT, advantages=[-1.0]), batch_of(LONG, SHORT)]
        async with fresh() as learner:
            for batch in batches:
                await learner.update(batch, **PPO)
            straight = await weights(engine, learner, "straight")
        async with fresh() as learner:
            await learner.update(batches[0], **PPO)
            path = await learner.save_state("half-way")
        resumed = await Learner.resume(engine.service(), path)
        for batch in batches[1:]:
            await resumed.update(batch, **PPO)
        assert same(straight, await weights(engine, resumed, "resumed"))
        await resumed.close()

    async def test_loading_a_state_takes_an_update_back(self, engine: TinyEngine, fresh: Callable[[], Any]) -> None:
        async with fresh() as learner:
            path = await learner.save_state("start")
            await learner.update(batch_of(LONG), **PPO)
            await learner.load_state(path)
            assert same(engine.saved(path, "weights"), await weights(engine, learner, "again"))

    async def test_a_loaded_state_brings_the_optimizer_back_too(self, engine: TinyEngine, fresh: Callable[[], Any]) -> None:
        async with fresh() as learner:
            await learner.update(batch_of(SHORT, advantages=[-1.0]), **PPO)
            path = await learner.save_state("after-one")
            await learner.update(batch_of(LONG), **PPO)
            first = await weights(engine, learner, "after-two")
            await learner.load_state(path)
            await learner.update(batch_of(LONG), **PPO)
            assert same(first, await weights(engine, learner, "after-two-again"))

    async def test_a_state_that_is_not_there_is_refused(self, fresh: Callable[[], Any]) -> None:
        async with fresh() as learner:
            with pytest.raises(LearnerRefused, match="loading state nowhere"):
                await learner.load_state("nowhere")

    @pytest.mark.parametrize("name", ["a", "0", "step-0004", "a" * 54])
    def test_names_that_can_be_loaded_pass(self, name: str) -> None:
        assert check_name(name) == name

    @pytest.mark.parametrize("name", ["", "Step", "step_4", "-a", "a-", "a/b", "a.b", "a" * 55, "schritt-ä", "a\n"])
    async def test_names_that_could_be_saved_and_never_loaded_are_refused(self, name: str, fresh: Callable[[], Any]) -> None:
        async with fresh() as learner:
            with pytest.raises(ValueError, match="cannot be loaded again; use 1 to 54 of a-z"):
                await learner.save_state(name)
            with pytest.raises(ValueError, match="cannot be loaded again"):
                await learner.snapshot(name)


class TestLosses:
    async def test_dro_is_refused_because_it_acts_on_masked_tokens(self, fresh: Callable[[], Any]) -> None:
        async with fresh() as learner:
            with pytest.raises(ValueError, match="acts where the advantage is 0, so prompts and tool results would train"):
                await learner.update(batch_of(LONG), loss_fn="dro", learning_rate=1e-3)  # pyright: ignore[reportArgumentType]

    async def test_ratio_bounds_must_contain_one(self, fresh: Callable[[], Any]) -> None:
        async with fresh() as learner:
            with pytest.raises(ValueError, match="expected 0 <= clip-low <= 1 <= clip-high"):
                await learner.update(batch_of(LONG), clip_low=1.1, **PPO)

    async def test_the_bounds_reach_the_loss(self, fresh: Callable[[], Any]) -> None:
        old = episode(turn([5, 6, 7], [8, 9, 10], [-30.0, -30.0, -30.0]))
        async with fresh() as learner:
            clipped = (await learner.update(batch_of(old), clip_high=1.5, **PPO)).metrics
        # Every ratio is far above the bound: min(r A, 1.5 A) is 1.5 on each of three tokens, and flat.
        assert clipped["update/loss"] == pytest.approx(-4.5)
        assert clipped["update/grad_norm"] == 0.0
        assert clipped["ratio/clip_fraction"] == 1.0


class TestFaults:
    async def test_a_busy_service_is_asked_again_and_the_update_happens_once(
        self, engine: TinyEngine, fresh: Callable[[], Any]
    ) -> None:
        saved = []
        for rules in ([], [busy("forward_backward"), busy("optim_step"), lost("optim_step", skip=1)]):
            async with fresh() as learner:
                engine.break_requests(*rules)
                await learner.update(batch_of(LONG), **PPO)
                saved.append(await weights(engine, learner, "after"))
        assert same(*saved)

    async def test_a_refused_key_says_so_and_the_client_is_of_no_more_use(
        self, engine: TinyEngine, fresh: Callable[[], Any]
    ) -> None:
        async with fresh() as learner:
            path = await learner.save_state("before")
            engine.break_requests(status("forward_backward", 401))
            with pytest.raises(LearnerRefused, match="an update on 1 segments in 1 steps: the service refused the key"):
                await learner.update(batch_of(LONG), **PPO)
            with pytest.raises(LearnerLost, match="an earlier request could not be sent, which ends this client"):
                await learner.load_state(path)

    async def test_after_a_failed_update_nothing_is_saved_until_a_state_is_loaded(
        self, engine: TinyEngine, fresh: Callable[[], Any]
    ) -> None:
        overflow = batch_of(LONG, advantages=[3e38])
        async with fresh() as learner:
            path = await learner.save_state("before")
            with pytest.raises((LearnerFailed, LearnerRefused), match=r"failed on the service .*not finite"):
                await learner.update(overflow, **PPO)
            for attempt in (learner.save_state("no"), learner.snapshot("no"), learner.update(batch_of(LONG), **PPO)):
                with pytest.raises(LearnerLost, match="did not finish, so the weights may hold a part of it"):
                    await attempt
            await learner.load_state(path)
            assert (await learner.update(batch_of(LONG), **PPO)).steps == 1

    async def test_a_service_that_does_not_answer_ends_the_wait(self, engine: TinyEngine, fresh: Callable[[], Any]) -> None:
        async with fresh() as learner:
            engine.break_requests({"match": "retrieve_future", "action": "delay", "seconds": 3, "times": 4})
            with pytest.raises(LearnerTimeout, match=r"took longer than 0\.5 s"):
                await learner.update(batch_of(LONG), timeout=0.5, **PPO)
            with pytest.raises(LearnerLost, match="load_state the last saved state first"):
                await learner.save_state("after")
            engine.break_requests()

    async def test_an_unknown_model_is_refused(self, engine: TinyEngine) -> None:
        with pytest.raises(LearnerRefused, match="creating an adapter of rank 8 on no-such-model"):
            await Learner.create(engine.service(), "no-such-model", lora_rank=8, timeout=60)


class TestReference:
    async def test_a_policy_that_is_the_base_model_pays_no_penalty(
        self, engine: TinyEngine, service: FiretitanServiceClient, fresh: Callable[[], Any]
    ) -> None:
        reference = await Reference.create(service, engine.model)
        async with fresh() as learner:
            one = await sampled(learner)
            batch, divergence = await reference.penalize(batch_of(one, advantages=[1.0]), 10.0)
        assert divergence == pytest.approx(0.0, abs=1e-4)
        assert batch.segments[0].target_advantages[2:] == pytest.approx([1.0] * 3, abs=1e-2)

    async def test_a_policy_that_has_moved_pays_for_the_tokens_it_made_likelier(
        self, engine: TinyEngine, service: FiretitanServiceClient, fresh: Callable[[], Any]
    ) -> None:
        reference = await Reference.create(service, engine.model)
        async with fresh() as learner:
            await learner.update(batch_of(await sampled(learner)), loss_fn="importance_sampling", learning_rate=1e-2)
            moved = await sampled(learner)
            batch, divergence = await reference.penalize(batch_of(moved, advantages=[0.0]), 1.0)
        assert divergence > 0.1
        assert batch.segments[0].target_advantages.sum() == pytest.approx(0.0, abs=1e-3)


def busy(path: str) -> dict[str, Any]:
    return status(path, 503)


def status(path: str, code: int) -> dict[str, Any]:
    return {"match": path, "action": "status", "status": code}


def lost(path: str, skip: int) -> dict[str, Any]:
    return {"match": path, "action": "lose", "skip": skip}
