"""Headroom by hand."""

from __future__ import annotations

from turngrad.headroom import headroom, learnable


def test_headroom_is_the_second_best_attempt_less_the_mean() -> None:
    assert headroom([0.0, 1.0, 0.0, 1.0]) == 0.5
    assert headroom([0.5, 0.5]) == 0.0


def test_one_lucky_attempt_is_no_headroom() -> None:
    assert headroom([0.0, 0.0, 0.0, 1.0]) == 0.0
    assert headroom([1.0]) == headroom([]) == 0.0


def test_tasks_are_listed_by_headroom_and_those_without_are_left_out() -> None:
    rewards = {
        "always": [1.0, 1.0, 1.0],
        "never": [0.0, 0.0, 0.0],
        "half": [0.0, 1.0, 1.0, 0.0],
        "seldom": [0.0, 1.0, 0.0, 0.0, 1.0],
        "also half": [0.5, 1.5, 1.5, 0.5],
    }
    assert learnable(rewards) == ["seldom", "also half", "half"]
    assert learnable(rewards, 1) == ["seldom"]
