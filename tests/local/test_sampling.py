"""Draws follow the distribution, filters cut where they say, and logprobs are those of what was drawn from."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turngrad.local.sampling import draw


def one(
    logits: list[float], uniform: float, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> tuple[int, float, float]:
    token, raw, sampled = draw(
        torch.tensor([logits]), torch.tensor([temperature]), [top_k], [top_p], torch.tensor([uniform], dtype=torch.float64)
    )
    return int(token), float(raw), float(sampled)


HALF_QUARTERS = [math.log(0.5), math.log(0.25), math.log(0.25)]


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.74, 1), (0.76, 2), (0.999999999, 2)])
def test_the_uniform_picks_the_token_whose_share_it_falls_in(uniform: float, token: int) -> None:
    assert one(HALF_QUARTERS, uniform)[0] == token


def test_both_logprobs_are_the_softmax_at_temperature_one() -> None:
    _, raw, sampled = one(HALF_QUARTERS, 0.6)
    assert raw == pytest.approx(math.log(0.25))
    assert sampled == pytest.approx(math.log(0.25))


def test_temperature_two_flattens_the_sampling_logprob_and_not_the_raw_one() -> None:
    _, raw, sampled = one(HALF_QUARTERS, 0.0, temperature=2.0)
    # Square roots of 0.5, 0.25, 0.25 are 0.7071, 0.5, 0.5.
    assert raw == pytest.approx(math.log(0.5))
    assert sampled == pytest.approx(math.log(0.70711 / 1.70711), abs=1e-5)


def test_temperature_zero_is_the_argmax_with_certainty() -> None:
    token, raw, sampled = one(HALF_QUARTERS, 0.99, temperature=0.0)
    assert (token, sampled) == (0, 0.0)
    assert raw == pytest.approx(math.log(0.5))


def test_top_k_renormalises_over_what_it_keeps() -> None:
    token, raw, sampled = one([math.log(0.5), math.log(0.3), math.log(0.2)], 0.99, top_k=2)
    assert token == 1
    assert raw == pytest.approx(math.log(0.3))
    assert sampled == pytest.approx(math.log(0.3 / 0.8))


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = [math.log(0.2), math.log(0.5), math.log(0.3)]
    assert one(logits, 0.99, top_p=0.7)[0] == 2
    assert one(logits, 0.99, top_p=0.7)[2] == pytest.approx(math.log(0.3 / 0.8))
    assert one(logits, 0.99, top_p=0.4) == (1, pytest.approx(math.log(0.5)), pytest.approx(0.0, abs=1e-6))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), vocab=st.sampled_from([3, 255, 256, 257, 1000]), spread=st.sampled_from([0.1, 3.0, 30.0]))
def test_draws_match_a_plain_inverse_cdf(seed: int, vocab: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, spread, (16, vocab)).astype(np.float32))
    uniform = torch.from_numpy(rng.random(16))
    tokens, raw, _ = draw(logits, torch.ones(16), [0] * 16, [1.0] * 16, uniform)
    probabilities = logits.double().softmax(-1)
    cumulative = probabilities.cumsum(-1)
    for row, token in enumerate(tokens.tolist()):
        low = float(cumulative[row, token - 1]) if token else 0.0
        assert low - 1e-5 <= float(uniform[row]) <= float(cumulative[row, token]) + 1e-5
        assert float(raw[row]) == pytest.approx(math.log(max(float(probabilities[row, token]), 1e-300)), abs=1e-4)


def test_frequencies_follow_the_probabilities() -> None:
    rng = np.random.default_rng(0)
    probabilities = torch.tensor([0.6, 0.3, 0.08, 0.02])
    logits = probabilities.log().expand(20_000, -1)
    tokens, _, _ = draw(logits, torch.ones(20_000), [0] * 20_000, [1.0] * 20_000, torch.from_numpy(rng.random(20_000)))
    counts = torch.bincount(tokens, minlength=4) / 20_000
    # Three standard deviations of the largest share are 0.0104.
    assert torch.allclose(counts, probabilities, atol=0.0104)
