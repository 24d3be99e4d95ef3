"""Reference: the base model's logprobs of what the policy sampled, and the KL penalty made of them (`--kl-coef`).

In: a `Batch`. Out: the same batch with a penalty on every trained token. With d_t the sampler's logprob of token t minus the
base model's, D the mean of d over all trained tokens and c the coefficient, the penalty is c (d_t - D): the policy gradient of
c KL(policy || base), token by token, with the mean as its baseline. It is taken off the advantage before normalisation,
so that an advantage and its penalty weigh the same.

Cost: every trained sequence is read once more by the base model, as the prompt of a one-token sample that echoes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from fireworks.training.sdk import FiretitanSamplingClient, FiretitanServiceClient, ModelInput, SamplingParams
from numpy.typing import NDArray

from turngrad.batch import Batch, Segment
from turngrad.faults import LearnerFailed
from turngrad.waits import bounded, in_thread


class Reference:
    """The frozen base model, asked through its sampler."""

    def __init__(self, sampler: FiretitanSamplingClient) -> None:
        self._sampler = sampler

    @classmethod
    async def create(cls, service: FiretitanServiceClient, base_model: str, *, timeout: float = 600.0) -> Reference:
        """Raises LearnerError within about `timeout` seconds, as every method here does."""
        return cls(
            await in_thread(
                lambda: service.create_sampling_client(base_model=base_model), timeout, f"opening the base model {base_model}"
            )
        )

    async def penalize(self, batch: Batch, coefficient: float, *, timeout: float = 1800.0) -> tuple[Batch, float]:
        """The batch with the penalty of `coefficient`, and D, the estimate of KL(policy || base) per token in nats."""
        async with bounded(timeout, f"reading {len(batch.segments)} segments with the base model"):
            logprobs = await asyncio.gather(*map(self._logprobs, batch.segments))
        return penalized(batch, logprobs, coefficient)

    async def _logprobs(self, segment: Segment) -> NDArray[np.float32]:
        prompt = ModelInput.from_ints(segment.ids.tolist())
        response = await self._sampler.sample_async(
            prompt, 1, SamplingParams(max_tokens=1, temperature=1.0), include_prompt_logprobs=True
        )
        found = response.prompt_logprobs or []
        if len(found) != len(segment.ids):
            raise LearnerFailed(f"the base model returned {len(found)} logprobs for a prompt of {len(segment.ids)} tokens")
        # The first token has none, and is no target.
        return np.array(found[1:], dtype=np.float32)


def penalized(batch: Batch, reference: Sequence[NDArray[np.float32]], coefficient: float) -> tuple[Batch, float]:
    """The batch with c (d_t - D) as its penalty, and D; `reference` holds each segment's logprobs, aligned to `ids[1:]`.

    Raises LearnerFailed for a reference logprob that is missing or not finite where a token trains.
    """
    if not batch.segments:
        return batch, 0.0
    differences = [
        segment.target_logprobs[segment.target_mask].astype(np.float64) - logprobs[segment.target_mask]
        for segment, logprobs in zip(batch.segments, reference, strict=True)
    ]
    mean = float(np.concatenate(differences).mean())
    if not np.isfinite(mean):
        raise LearnerFailed("the base model gave no finite logprob for some sampled token; train with --kl-coef 0")
    segments = []
    for segment, difference in zip(batch.segments, differences, strict=True):
        penalty = np.zeros(segment.target_mask.shape, dtype=np.float32)
        penalty[segment.target_mask] = coefficient * (difference - mean)
        segments.append(replace(segment, penalty=penalty))
    return replace(batch, segments=tuple(segments)), mean
