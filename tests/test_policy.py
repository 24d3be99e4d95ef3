"""Sampling from a snapshot through the genuine SDK and engine: what is usable, whose fault the rest is, and how long it takes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fireworks.training.sdk.concurrency import AdaptiveConcurrencyController
from fireworks.training.sdk.sampling import SampledCompletion

from tests.tiny_engine import TinyEngine, tiny_engine
from turngrad.episodes import Failure
from turngrad.errors import RolloutError, RunError
from turngrad.policy import Policy, SamplingSettings, _problem

PROMPT = list(range(1, 40))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyEngine]:
    with tiny_engine(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture(scope="module")
def snapshot(engine: TinyEngine) -> Any:
    service = engine.service()
    client = service.create_lora_training_client(engine.model, rank=4)
    return service, client.save_weights_for_sampler("policy").result().path


@pytest.fixture
def policy(engine: TinyEngine, snapshot: Any) -> Iterator[Policy]:
    engine.break_requests()
    service, path = snapshot
    client = service.create_sampling_client(model_path=path, concurrency_controller=AdaptiveConcurrencyController(64))
    yield Policy(client.deployment_sampler, path, ["<end>"], SamplingSettings(timeout=60), owner=client)
    engine.break_requests()


async def test_a_sample_has_one_finite_logprob_for_each_of_its_own_tokens(policy: Policy) -> None:
    samples = await asyncio.gather(*(policy.sample(PROMPT, 24, cache_key=f"e{i}") for i in range(16)))
    for sample in samples:
        assert 0 < len(sample.output_ids) <= 24
        assert len(sample.logprobs) == len(sample.output_ids)
        assert all(math.isfinite(value) and value <= 0 for value in sample.logprobs)
        assert sample.finish_reason == ("stop" if sample.output_ids[-1] == 0 else "length")
    assert len({tuple(sample.output_ids) for sample in samples}) > 1


async def test_a_seed_repeats_a_sample_and_another_does_not(policy: Policy) -> None:
    first, again, other = [await policy.sample(PROMPT, 24, cache_key="e", seed=seed) for seed in (5, 5, 6)]
    assert first.output_ids == again.output_ids
    assert first.output_ids != other.output_ids


async def test_the_next_turn_of_an_episode_finds_its_prefix_cached(policy: Policy) -> None:
    first = await policy.sample(PROMPT, 8, cache_key="episode")
    second = await policy.sample([*PROMPT, *first.output_ids, 7, 8, 9], 8, cache_key="episode")
    assert second.cached_tokens >= len(PROMPT)


async def test_overload_and_cut_streams_are_waited_out(engine: TinyEngine, policy: Policy) -> None:
    engine.break_requests(
        {"match": "completions", "action": "status", "status": 503, "times": 1},
        {"match": "completions", "action": "truncate", "times": 1},
    )
    assert (await policy.sample(PROMPT, 4, cache_key="e")).output_ids


async def test_samples_without_logprobs_are_tried_again_and_then_the_samplers_failure(engine: TinyEngine, policy: Policy) -> None:
    """OpenEnv#1036: a missing logprob is never filled in (C4)."""
    engine.break_requests({"match": "completions", "action": "null_logprobs", "times": 1})
    assert (await policy.sample(PROMPT, 4, cache_key="e")).output_ids
    engine.break_requests({"match": "completions", "action": "null_logprobs", "times": 100})
    with pytest.raises(RolloutError) as caught:
        await policy.sample(PROMPT, 4, cache_key="e")
    assert caught.value.failure is Failure.SAMPLER


@pytest.mark.parametrize(("status", "words"), [(401, "FIREWORKS_API_KEY"), (403, "FIREWORKS_API_KEY"), (402, "payment")])
async def test_a_refusal_ends_the_run(engine: TinyEngine, policy: Policy, status: int, words: str) -> None:
    engine.break_requests({"match": "completions", "action": "status", "status": status, "times": 10})
    with pytest.raises(RunError, match=words):
        await policy.sample(PROMPT, 4, cache_key="e")


async def test_a_request_the_service_rejects_costs_one_rollout_and_names_the_prompts_length(
    engine: TinyEngine, policy: Policy
) -> None:
    """tinker-feedback#95: a 4xx on one prompt must not end the run."""
    engine.break_requests({"match": "completions", "action": "status", "status": 400, "times": 1})
    with pytest.raises(RolloutError, match=f"HTTP 400 on a prompt of {len(PROMPT)} tokens"):
        await policy.sample(PROMPT, 4, cache_key="e")


async def test_a_sampler_that_does_not_answer_is_given_up_in_time(engine: TinyEngine, snapshot: Any) -> None:
    service, path = snapshot
    client = service.create_sampling_client(model_path=path)
    impatient = Policy(client.deployment_sampler, path, ["<end>"], SamplingSettings(timeout=1.0), owner=client)
    engine.break_requests({"match": "completions", "action": "delay", "seconds": 30, "times": 1})
    started = time.monotonic()
    with pytest.raises(RolloutError, match="--sample-timeout 1 s"):
        await impatient.sample(PROMPT, 4, cache_key="e")
    assert time.monotonic() - started < 3
    impatient.close()


def _completion(output: list[int], logprobs: list[float | None] | None, finish: str = "stop") -> SampledCompletion:
    full = [*PROMPT, *output]
    return SampledCompletion("", full, len(PROMPT), finish, len(output), sampling_logprobs=logprobs)


@pytest.mark.parametrize(
    ("completion", "problem"),
    [
        (_completion([1, 2], [-0.1, -0.2]), ""),
        (_completion([], []), ""),
        (_completion([1, 2], [-0.1]), "1 logprobs for 2 tokens"),
        (_completion([1, 2], None), "0 logprobs for 2 tokens"),
        (_completion([1, 2], [-0.1, None]), "without a finite logprob"),
        (_completion([1, 2], [-0.1, -math.inf]), "without a finite logprob"),
        (_completion([1, 2], [-0.1, -0.2], "content_filter"), "finish_reason 'content_filter'"),
        (_completion([1] * 9, [-0.1] * 9), "9 tokens for a limit of 8"),
        (_completion([1, -1], [-0.1, -0.2]), "no id"),
        (_completion([1, 1 << 31], [-0.1, -0.2]), "no id"),
    ],
)
def test_what_makes_a_completion_unusable_is_named(completion: SampledCompletion, problem: str) -> None:
    found = _problem(completion, PROMPT, 8)
    assert problem in found if problem else not found


def test_a_changed_prompt_is_a_problem() -> None:
    assert _problem(_completion([1], [-0.1]), [*PROMPT[:-1], 99], 8) == "the prompt came back changed"


class Failing:
    """A sampler that raises `errors` one after another, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.asked = 0

    async def sample_with_prompt_tokens_result(self, prompt_ids: list[int], **options: Any) -> Any:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return SimpleNamespace(completions=[_completion([5], [-0.1])], server_metrics=None)


def _status(code: int) -> Exception:
    request = httpx.Request("POST", "http://service")
    return httpx.HTTPStatusError("said", request=request, response=httpx.Response(code, request=request))


def _given_up_after(attempts: int) -> Exception:
    error = RuntimeError("in the\n stream")
    error.attempts = attempts  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("errors", "asked", "says"),
    [
        ([ValueError("no UTF-8")], 2, ""),
        ([_status(409)], 2, ""),
        ([_given_up_after(1)], 2, ""),
        ([_status(409)] * 3, 3, "3 unusable samples in a row: HTTP 409"),
        ([_given_up_after(1)] * 3, 3, "3 unusable samples in a row: RuntimeError: in the stream"),
        ([_given_up_after(7)], 1, "RuntimeError: in the stream"),
        ([_status(400)], 1, "HTTP 400 on a prompt of 39 tokens"),
    ],
)
async def test_what_the_sdk_gives_up_on_at_once_is_asked_for_again_and_nothing_else_is(
    errors: list[Exception], asked: int, says: str
) -> None:
    sampler = Failing(*errors)
    policy = Policy(sampler, "snapshot", ["<end>"], SamplingSettings())  # type: ignore[arg-type]
    if says:
        with pytest.raises(RolloutError, match=says):
            await policy.sample(PROMPT, 8, cache_key="e")
    else:
        assert (await policy.sample(PROMPT, 8, cache_key="e")).output_ids == [5]
    assert sampler.asked == asked
