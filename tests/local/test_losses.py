"""Losses by hand, and their gradients against formulas written out a second time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from turngrad.local.losses import LossTokens, clip_bounds, loss_sum


def tokens_of(weights: list[float], sampled: list[float], sequence: list[int] | None = None) -> LossTokens:
    n = len(weights)
    return LossTokens(
        weights=torch.tensor(weights),
        sampled_logprobs=torch.tensor(sampled),
        sequence=torch.tensor(sequence or [0] * n),
        clip_low=torch.full((n,), 0.8),
        clip_high=torch.full((n,), 1.2),
    )


LP = [math.log(0.5), math.log(0.2), math.log(0.3)]
Q = [math.log(0.25), math.log(0.2), math.log(0.6)]
A = [1.0, -2.0, 3.0]
# The ratios are 2, 1 and 0.5; clipped to [0.8, 1.2] they are 1.2, 1 and 0.8.


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cross_entropy", -(math.log(0.5) - 2 * math.log(0.2) + 3 * math.log(0.3))),
        ("importance_sampling", -(2 * 1 + 1 * -2 + 0.5 * 3)),
        ("ppo", -(1.2 + -2 + 0.5 * 3)),
        ("cispo", -(1.2 * math.log(0.5) - 2 * math.log(0.2) + 0.8 * 3 * math.log(0.3))),
        (
            "dro",
            -(math.log(0.5) - 2 * math.log(0.2) + 3 * math.log(0.3)) + 0.025 * (math.log(2) ** 2 + 0 + math.log(0.5) ** 2),
        ),
        # One sequence: s = exp((log 2 + 0 + log 0.5) / 3) = 1.
        ("gspo", -(1 - 2 + 3)),
    ],
)
def test_the_sum_by_hand(name: str, expected: float) -> None:
    loss, metrics = loss_sum(name, torch.tensor(LP), tokens_of(A, Q))
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert metrics["loss:sum"] == pytest.approx(expected, rel=1e-5)


def test_gspo_uses_one_ratio_a_sequence() -> None:
    loss, _ = loss_sum("gspo", torch.tensor(LP), tokens_of([1.0, 1.0, 1.0], Q, sequence=[0, 0, 1]))
    # Sequence 0: exp(log(2) / 2) = 1.414, clipped to 1.2, twice; sequence 1: 0.5, its own minimum.
    assert float(loss) == pytest.approx(-(1.2 + 1.2 + 0.5), rel=1e-5)


def reference_gradient(name: str, lp: Tensor, tokens: LossTokens) -> Tensor:
    """d loss / d lp, by the calculus of each formula."""
    a, q = tokens.weights, tokens.sampled_logprobs
    r = (lp - q).exp()
    if name == "cross_entropy":
        return -a
    if name == "importance_sampling":
        return -r * a
    if name == "dro":
        return -a + 0.05 * (lp - q)
    if name == "cispo":
        return -r.clamp(0.8, 1.2) * a
    if name == "gspo":
        grad = torch.zeros_like(lp)
        for s in tokens.sequence.unique():
            mine = tokens.sequence == s
            ratio = (lp - q)[mine].mean().exp()
            free = torch.where(a[mine] > 0, ratio <= 1.2, ratio >= 0.8)
            grad[mine] = -(ratio * a[mine] * free).sum() / mine.sum()
        return grad
    free = torch.where(a > 0, r <= 1.2, r >= 0.8)
    return -r * a * free


@pytest.mark.parametrize("name", ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo"])
def test_the_gradient_of_random_batches(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    lp = torch.randn(60, generator=generator) * 0.4 - 2
    tokens = LossTokens(
        weights=torch.randn(60, generator=generator),
        sampled_logprobs=lp + torch.randn(60, generator=generator) * 0.3,
        sequence=torch.arange(60) // 13,
        clip_low=torch.full((60,), 0.8),
        clip_high=torch.full((60,), 1.2),
    )
    lp.requires_grad_(True)
    loss, _ = loss_sum(name, lp, tokens)
    loss.backward()
    assert lp.grad is not None
    torch.testing.assert_close(lp.grad, reference_gradient(name, lp.detach(), tokens), rtol=1e-5, atol=1e-6)


def test_metrics_tell_how_far_trainer_and_sampler_are_apart() -> None:
    _, metrics = loss_sum("ppo", torch.tensor(LP), tokens_of(A, Q))
    assert metrics["ratio_max:max"] == pytest.approx(2.0)
    assert metrics["logprob_gap_max:max"] == pytest.approx(math.log(2))
    assert metrics["clipped_tokens:sum"] == 2
    # k3: ratio of q to p is 0.5, 1 and 2: (r - 1) - log r.
    assert metrics["kl_k3_sum:sum"] == pytest.approx((0.5 - 1 + math.log(2)) + 0 + (2 - 1 - math.log(2)), rel=1e-5)
    assert all(name.rpartition(":")[2] in ("sum", "max") for name in metrics)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"clip_low_threshold": "0.8"}, "clip_low_threshold"),
        ({"clip_high_threshold": -1.0}, "clip_high_threshold"),
        ({"clip_low_threshold": 1.5}, "above"),
        ({"clip_low_threshold": True}, "clip_low_threshold"),
    ],
)
def test_bad_clip_bounds_are_refused(config: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        clip_bounds(config)


def test_clip_bounds_default_to_a_fifth() -> None:
    assert clip_bounds({}) == (0.8, 1.2)
    assert clip_bounds({"clip_high_threshold": 1.28}) == (0.8, 1.28)
