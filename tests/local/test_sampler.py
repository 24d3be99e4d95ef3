"""Whatever is batched, cached or shared, a completion's numbers are those of its tokens alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.local.reference import logprobs
from tests.local.tiny import CPU, END, VOCAB
from turngrad.local.basemodel import BaseModel
from turngrad.local.kvcache import KVCache
from turngrad.local.sampler import Sampled, Sampler, common_prefix
from turngrad.local.stops import StopTable
from turngrad.local.wire import Completion

TOLERANCE = 1e-4


def sampler_of(tiny: BaseModel, *, budget: int = 64 << 20, max_running: int = 64, chunk_tokens: int = 512) -> Sampler:
    cache = KVCache(tiny.spec, CPU, torch.float32, budget)
    stops = StopTable(tiny.tokenizer, frozenset([END]), VOCAB)
    model = tiny.freeze(tiny.weights)
    return Sampler(model, cache, stops, CPU, max_running=max_running, chunk_tokens=chunk_tokens)


def run(sampler: Sampler, bodies: list[Completion]) -> list[Sampled]:
    results: list[Sampled | Exception | None] = [None] * len(bodies)

    def keep(index: int) -> Callable[[Sampled | Exception], None]:
        return lambda result: results.__setitem__(index, result)

    for index, body in enumerate(bodies):
        sampler.submit(body, keep(index))
    while sampler.busy:
        sampler.step()
    for result in results:
        assert isinstance(result, Sampled), result
    return results  # pyright: ignore[reportReturnType]


def body(prompt: list[int], max_tokens: int = 6, **fields: object) -> Completion:
    return Completion("m", prompt, max_tokens, **fields)  # pyright: ignore[reportArgumentType]


def check(tiny: BaseModel, prompt: list[int], result: Sampled) -> None:
    with torch.no_grad():
        expected = logprobs(tiny.module, prompt + result.output_ids)[len(prompt) - 1 :]
    np.testing.assert_allclose(result.logprobs, expected.numpy(), atol=TOLERANCE)


def random_prompt(rng: np.random.Generator, length: int) -> list[int]:
    return rng.integers(2, VOCAB, length).tolist()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000),
    shared=st.integers(0, 220),
    count=st.integers(1, 9),
    chunk=st.sampled_from([7, 64, 512]),
    max_running=st.sampled_from([2, 64]),
    budget_tokens=st.sampled_from([600, 3000, 100_000]),
)
def test_logprobs_are_the_models_whatever_the_batch_the_cache_and_the_chunks(
    tiny: BaseModel, seed: int, shared: int, count: int, chunk: int, max_running: int, budget_tokens: int
) -> None:
    rng = np.random.default_rng(seed)
    token_bytes = 2 * tiny.spec.layers * tiny.spec.kv_heads * tiny.spec.head_dim * 4
    sampler = sampler_of(tiny, budget=budget_tokens * token_bytes, max_running=max_running, chunk_tokens=chunk)
    head = random_prompt(rng, shared)
    prompts = [head + random_prompt(rng, int(rng.integers(1, 40))) for _ in range(count)]
    for turn in range(3):
        bodies = [body(p, int(rng.integers(1, 9)), cache_key=f"episode-{i}") for i, p in enumerate(prompts)]
        results = run(sampler, bodies)
        for i, result in enumerate(results):
            check(tiny, prompts[i], result)
            prompts[i] = prompts[i] + result.output_ids + random_prompt(rng, 1 + 5 * turn)


def test_a_seeded_completion_is_the_same_alone_and_in_a_crowd(tiny: BaseModel) -> None:
    rng = np.random.default_rng(0)
    prompt = random_prompt(rng, 30)
    alone = run(sampler_of(tiny), [body(prompt, 12, seed=7)])[0]
    crowd = [body(random_prompt(rng, 25), 12) for _ in range(5)] + [body(prompt, 12, seed=7)]
    assert run(sampler_of(tiny), crowd)[-1].output_ids == alone.output_ids


def test_the_next_turn_of_an_episode_reads_only_its_new_tokens(tiny: BaseModel) -> None:
    rng = np.random.default_rng(1)
    sampler = sampler_of(tiny)
    prompt = random_prompt(rng, 50)
    first = run(sampler, [body(prompt, 8, cache_key="a")])[0]
    longer = prompt + first.output_ids + random_prompt(rng, 10)
    second = run(sampler, [body(longer, 4, cache_key="a")])[0]
    # Everything but the last sampled token, which was never fed back, and the ten new ones.
    assert second.cached_tokens == len(prompt) + len(first.output_ids) - 1
    check(tiny, longer, second)


def test_a_group_reads_its_common_prompt_once_and_shares_it(tiny: BaseModel) -> None:
    rng = np.random.default_rng(2)
    sampler = sampler_of(tiny)
    prompt = random_prompt(rng, 200)
    results = run(sampler, [body(prompt, 4, cache_key=str(i)) for i in range(8)])
    assert [r.cached_tokens for r in results].count(199) == 7
    assert len(sampler.cache.shared) == 1
    for result in results:
        check(tiny, prompt, result)


def test_attempts_at_one_short_prompt_read_it_once(tiny: BaseModel) -> None:
    """Prompts of 50 tokens with a common head of 30: the first is read whole, of the other task its own part, once."""
    rng = np.random.default_rng(7)
    head = random_prompt(rng, 30)
    prompts = [[*head, 2 + task, *random_prompt(rng, 19)] for task in range(2)]
    results = run(sampler_of(tiny), [body(prompt, cache_key=f"{n}") for prompt in prompts for n in range(4)])
    assert [r.cached_tokens for r in results] == [0, 49, 49, 49, 30, 49, 49, 49]
    for prompt, result in zip([prompt for prompt in prompts for _ in range(4)], results, strict=True):
        check(tiny, prompt, result)


def test_rewriting_the_end_of_an_episode_keeps_the_common_part(tiny: BaseModel) -> None:
    rng = np.random.default_rng(3)
    sampler = sampler_of(tiny)
    prompt = random_prompt(rng, 40)
    run(sampler, [body(prompt, 8, cache_key="a")])
    changed = prompt[:30] + random_prompt(rng, 20)
    result = run(sampler, [body(changed, 8, cache_key="a")])[0]
    assert result.cached_tokens == 30
    check(tiny, changed, result)


def test_finished_slots_are_reused_when_the_cache_is_full(tiny: BaseModel) -> None:
    rng = np.random.default_rng(4)
    token_bytes = 2 * tiny.spec.layers * tiny.spec.kv_heads * tiny.spec.head_dim * 4
    sampler = sampler_of(tiny, budget=8 * 128 * token_bytes)
    for _ in range(4):
        prompts = [random_prompt(rng, 60) for _ in range(12)]
        for prompt, result in zip(prompts, run(sampler, [body(p, 3) for p in prompts]), strict=True):
            check(tiny, prompt, result)
    assert len(sampler.cache.slots) == 8


def test_one_long_completion_fits_even_where_eight_would_not(tiny: BaseModel) -> None:
    token_bytes = 2 * tiny.spec.layers * tiny.spec.kv_heads * tiny.spec.head_dim * 4
    sampler = sampler_of(tiny, budget=600 * token_bytes)
    prompt = random_prompt(np.random.default_rng(5), 400)
    check(tiny, prompt, run(sampler, [body(prompt, 10)])[0])


def test_echo_gives_the_prompts_own_logprobs(tiny: BaseModel) -> None:
    rng = np.random.default_rng(6)
    sampler = sampler_of(tiny, chunk_tokens=16)
    prompt = random_prompt(rng, 45)
    run(sampler, [body(prompt, 2)])
    bodies = [body(prompt, 3, echo=True), body(prompt, 0, echo=True), body(random_prompt(rng, 9), 3)]
    result, prompt_alone, _ = run(sampler, bodies)
    check(tiny, prompt, result)
    with torch.no_grad():
        expected = logprobs(tiny.module, prompt).numpy()
    for echoed in (result.prompt_logprobs, prompt_alone.prompt_logprobs):
        assert echoed is not None
        assert echoed[0] is None
        np.testing.assert_allclose(np.array(echoed[1:], dtype=float), expected, atol=TOLERANCE)
    assert prompt_alone.output_ids == []


def test_temperature_zero_takes_the_most_likely_token_every_time(tiny: BaseModel) -> None:
    prompt = random_prompt(np.random.default_rng(7), 20)
    results = run(sampler_of(tiny), [body(prompt, 8, temperature=0.0) for _ in range(3)])
    assert len({tuple(r.output_ids) for r in results}) == 1
    with torch.no_grad():
        from tests.local.reference import logits

        best = logits(tiny.module, prompt)[-1].argmax()
    assert results[0].output_ids[0] == int(best)


def test_a_cancelled_request_leaves_the_others_running(tiny: BaseModel) -> None:
    rng = np.random.default_rng(8)
    sampler = sampler_of(tiny)
    results: list[object] = []
    doomed = sampler.submit(body(random_prompt(rng, 10), 50), lambda result: results.append("doomed"))
    sampler.submit(body(random_prompt(rng, 10), 5), results.append)
    sampler.step()
    doomed.cancelled = True
    while sampler.busy:
        sampler.step()
    assert len(results) == 1
    assert isinstance(results[0], Sampled)


def test_a_failing_step_fails_its_requests_and_the_next_ones_succeed(tiny: BaseModel) -> None:
    sampler = sampler_of(tiny)
    results: list[object] = []
    sampler.submit(body([5, 6, 7], 5), results.append)
    sampler.step()
    sampler.fail_all(RuntimeError("broken"))
    assert isinstance(results[0], RuntimeError)
    assert not sampler.busy
    check(tiny, [5, 6, 7], run(sampler, [body([5, 6, 7], 5)])[0])


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [([], [], 0), ([1, 2, 3], [1, 2, 3], 3), ([1, 2, 3], [1, 2, 4], 2), ([1], [2], 0), ([1, 2, 3, 4], [1, 2], 2)],
)
def test_common_prefix_counts_equal_leading_tokens(a: list[int], b: list[int], expected: int) -> None:
    assert common_prefix(a, b) == expected
