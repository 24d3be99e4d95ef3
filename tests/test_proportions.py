"""pass@1, pass^k and their intervals, by hand."""

from __future__ import annotations

import math
import random

import pytest

from turngrad.proportions import pass_at_1, pass_hat_k

Z = 1.959964
YES, NO = True, False


def wilson(p: float, n: float) -> tuple[float, float]:
    """The textbook form, solved as the roots of (p - x)^2 = z^2 x (1 - x) / n."""
    a, b, c = 1 + Z * Z / n, -(2 * p + Z * Z / n), p * p
    root = math.sqrt(b * b - 4 * a * c)
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def test_pass_at_1_weighs_tasks_alike_however_many_attempts_they_have() -> None:
    share = pass_at_1([[YES, NO], [YES], []])
    assert share is not None
    assert (share.value, share.tasks) == (0.75, 2)


def test_pass_hat_k_is_the_chance_that_k_attempts_drawn_from_a_tasks_all_pass() -> None:
    # C(3, 2) / C(4, 2) = 1/2, C(2, 2) / C(4, 2) = 1/6, 0: the mean of the three.
    tasks = [[YES, YES, YES, NO], [YES, YES, NO, NO], [YES, NO, NO, NO]]
    share = pass_hat_k(tasks, 2)
    assert share is not None
    assert share.value == pytest.approx((1 / 2 + 1 / 6 + 0) / 3)
    every = pass_hat_k([*tasks, [YES] * 4], 4)
    assert every is not None
    assert every.value == 0.25


def test_a_task_with_fewer_than_k_attempts_is_left_out_of_pass_hat_k() -> None:
    share = pass_hat_k([[YES, YES], [NO]], 2)
    assert share is not None
    assert (share.value, share.tasks) == (1.0, 1)
    assert pass_hat_k([[YES]], 2) is None
    assert pass_at_1([[]]) is None
    with pytest.raises(ValueError, match="at least 1"):
        pass_hat_k([[YES]], 0)


def test_one_attempt_a_task_has_wilsons_interval_of_that_many_trials() -> None:
    share = pass_at_1([[YES]] * 3 + [[NO]] * 7)
    assert share is not None
    # The tasks' variance is 0.21 * 10 / 9: 9 effective trials, fewer than the 10 there are, so 10.
    assert share.interval == pytest.approx(wilson(0.3, 10))


def test_attempts_that_agree_within_their_task_count_once_and_independent_ones_each() -> None:
    alike = pass_at_1([[YES] * 4] * 5 + [[NO] * 4] * 5)
    apart = pass_at_1([[YES, NO, YES, NO]] * 10)
    assert alike is not None
    assert apart is not None
    assert alike.interval == pytest.approx(wilson(0.5, 10))
    assert apart.interval == pytest.approx(wilson(0.5, 40))


def test_where_everything_fails_or_passes_the_interval_still_has_a_width() -> None:
    none, every = pass_at_1([[NO] * 4] * 10), pass_hat_k([[YES] * 4] * 10, 4)
    assert none is not None
    assert every is not None
    # The roots above at p = 0: 0 and z^2 / (n + z^2).
    assert none.interval == pytest.approx((0.0, Z * Z / (10 + Z * Z)))
    assert every.interval == pytest.approx((1 - Z * Z / (10 + Z * Z), 1.0))


def test_the_interval_holds_the_truth_in_about_95_of_100_evaluations() -> None:
    """24 tasks of very different difficulty, 4 attempts each, 2,000 times: neither careless nor needlessly wide."""
    rng, held, trials = random.Random(0), 0, 2000
    for _ in range(trials):
        chances = [rng.betavariate(0.6, 0.6) for _ in range(24)]
        share = pass_at_1([[rng.random() < chance for _ in range(4)] for chance in chances])
        assert share is not None
        held += share.interval[0] <= 0.5 <= share.interval[1]
    assert 0.93 < held / trials < 0.97
