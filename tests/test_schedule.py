"""Learning rates and the collapse rule, by hand."""

from __future__ import annotations

import pytest

from turngrad.schedule import has_collapsed, learning_rate_at


def test_warm_up_rises_in_equal_parts_and_a_constant_stays() -> None:
    rates = [learning_rate_at(s, peak=1.0, steps=6, warmup=3, schedule="constant") for s in range(1, 7)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_and_cosine_fall_to_a_tenth_at_the_last_step() -> None:
    linear = [learning_rate_at(s, peak=2.0, steps=5, warmup=0, schedule="linear") for s in range(1, 6)]
    assert linear == pytest.approx([2.0, 1.55, 1.1, 0.65, 0.2])
    cosine = [learning_rate_at(s, peak=2.0, steps=5, warmup=0, schedule="cosine") for s in range(1, 6)]
    assert cosine == pytest.approx([2.0, 2 * (0.1 + 0.45 * (1 + 2**-0.5)), 1.1, 2 * (0.1 + 0.45 * (1 - 2**-0.5)), 0.2])


def test_one_step_is_at_the_peak_under_every_schedule() -> None:
    assert {learning_rate_at(1, peak=1.0, steps=1, warmup=0, schedule=s) for s in ("constant", "linear", "cosine")} == {1.0}


def test_a_run_has_collapsed_when_five_steps_fall_below_the_share_of_the_best_five_before() -> None:
    assert has_collapsed([0.5] * 5 + [0.2] * 5, 0.5)
    assert not has_collapsed([0.5] * 5 + [0.3] * 5, 0.5)
    assert not has_collapsed([0.5] * 5 + [0.0] * 4, 0.5)
    assert not has_collapsed([0.5] * 5 + [None] * 5, 0.5)
