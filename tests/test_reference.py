"""The KL penalty by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.test_batch import TWO_TURNS, batch_of
from turngrad.faults import LearnerFailed
from turngrad.reference import penalized


def aligned(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_the_penalty_is_the_centred_difference_times_the_coefficient() -> None:
    # Sampler -0.25, -0.5, -0.125; base -0.75, -0.5, -1.125: differences 0.5, 0, 1 with mean 0.5.
    batch, divergence = penalized(batch_of(TWO_TURNS, advantages=[2.0]), [aligned(7, 7, -0.75, -0.5, 7, 7, -1.125)], 0.5)
    [segment] = batch.segments
    assert divergence == 0.5
    assert segment.target_advantages.tolist() == [0, 0, 2.0, 2.25, 0, 0, 1.75]


def test_the_mean_is_taken_over_the_whole_batch() -> None:
    batch = batch_of(TWO_TURNS, TWO_TURNS, advantages=[1.0, -1.0])
    same, far = aligned(0, 0, -0.25, -0.5, 0, 0, -0.125), aligned(0, 0, -2.25, -2.5, 0, 0, -2.125)
    penalised, divergence = penalized(batch, [same, far], 1.0)
    assert divergence == 1.0
    assert [segment.target_advantages[2] for segment in penalised.segments] == [2.0, -2.0]


def test_the_penalty_weighs_as_the_advantage_does() -> None:
    batch = batch_of(TWO_TURNS, advantages=[2.0], normalize="episode")
    [segment] = penalized(batch, [aligned(7, 7, -0.75, -0.5, 7, 7, -1.125)], 0.5)[0].segments
    assert segment.target_advantages.tolist() == pytest.approx([0, 0, 2 / 3, 0.75, 0, 0, 1.75 / 3])


def test_an_episode_at_the_baseline_is_sent_once_it_has_a_penalty() -> None:
    batch = batch_of(TWO_TURNS, advantages=[0.0])
    assert (batch.sent, len(penalized(batch, [aligned(0, 0, -0.75, -0.5, 0, 0, -1.125)], 0.5)[0].sent)) == ((), 1)


def test_a_missing_reference_logprob_is_not_filled_in() -> None:
    with pytest.raises(LearnerFailed, match="no finite logprob"):
        penalized(batch_of(TWO_TURNS), [aligned(0, 0, math.nan, -0.5, 0, 0, -1)], 0.5)


def test_an_empty_batch_stays_empty() -> None:
    batch = batch_of()
    assert penalized(batch, [], 0.5) == (batch, 0.0)
