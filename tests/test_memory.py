"""Memory stays flat over a long run's worth of episodes, batches and datums."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest

from turngrad.advantages import group_advantages
from turngrad.batch import build_batch
from turngrad.episodes import Episode, StopReason, Turn, logprob_array, token_array

EPISODES, GROUP, TURNS, CONTEXT, OUTPUT = 64, 8, 16, 480, 32


def _episode(rng: random.Random, attempt: int) -> Episode:
    turns = tuple(
        Turn(
            context_ids=token_array([rng.randrange(150_000)] * CONTEXT),
            output_ids=token_array([rng.randrange(150_000)] * OUTPUT),
            logprobs=logprob_array([-rng.random()] * OUTPUT),
            finish_reason="stop",
        )
        for _ in range(TURNS)
    )
    return Episode("task", "group", attempt, turns, float(attempt % 2), StopReason.DONE)


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


@pytest.mark.parametrize("steps", [40, pytest.param(200, marks=pytest.mark.full)])
def test_steps_of_64_long_episodes_leave_resident_memory_flat(steps: int) -> None:
    """64 episodes of 16 turns and 8k tokens a step: within 5 % of step 20 at the end."""
    rng = random.Random(0)
    settled = 0.0
    for step in range(steps):
        episodes = [_episode(rng, index) for index in range(EPISODES)]
        assert episodes[0].context_tokens + episodes[0].sampled_tokens == 8192
        groups = [episodes[start : start + GROUP] for start in range(0, EPISODES, GROUP)]
        batch = build_batch([(group, group_advantages(group, "group-zscore")) for group in groups], normalize="token")
        assert len(batch.datums()) == EPISODES
        assert Episode.from_json(episodes[0].to_json()) == episodes[0]
        del episodes, groups, batch
        if step == 20:
            gc.collect()
            settled = _resident_mb()
    gc.collect()
    assert abs(_resident_mb() / settled - 1) < 0.05
