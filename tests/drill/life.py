"""The life of a run in a second: every endpoint that training uses, through the program's own learner and policy.

Connect, create an adapter, publish it, sample from it with seeds, update twice, save; then resume in a new session, as a new
process would, update, publish and save. What it leaves is exact, so that two lives can be compared bit for bit.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import numpy as np
import torch
from fireworks.training.sdk import FiretitanServiceClient

from tests.test_batch import batch_of, episode, turn
from tests.tiny_engine import TinyEngine
from turngrad.backend import Endpoint
from turngrad.batch import Batch
from turngrad.errors import RolloutError
from turngrad.learner import Learner
from turngrad.policy import Policy, Sample, SamplingSettings
from turngrad.session import connect
from turngrad.waits import in_thread

PROMPT = list(range(1, 30))
SAMPLES = 4

ENDPOINTS = (
    "create_session",
    "create_model",
    "retrieve_future",
    "forward",
    "forward_backward",
    "optim_step",
    "save_weights_for_sampler",
    "accounts",
    "completions",
    "save_weights",
    "weights_info",
    "load_weights",
    "unload_model",
)
"""All that a life asks for, by the end of the path; heartbeats come every 10 s, to a longer one."""


@dataclass
class Life:
    """What a life came to: where `stage` says it got to, what it saved, and what it lost on the way."""

    stage: str = "connect"
    error: BaseException | None = None
    samples: list[Sample | None] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizer: dict[str, torch.Tensor] = field(default_factory=dict)
    steps: int = 0

    def same_weights(self, other: Life) -> bool:
        """Weights, moments and number of optimizer steps are bit for bit the other's."""
        return self.steps == other.steps and _same(self.weights, other.weights) and _same(self.optimizer, other.optimizer)

    def same_samples(self, other: Life) -> bool:
        """Every sample that was not lost has the other's tokens, and its logprobs but for what a cached prefix rounds."""
        return len(self.samples) == len(other.samples) and all(
            mine is None or (mine.output_ids == theirs.output_ids and np.allclose(mine.logprobs, theirs.logprobs, atol=1e-4))
            for mine, theirs in zip(self.samples, other.samples, strict=True)
            if theirs is not None
        )


async def live(engine: TinyEngine, url: str, *, timeout: float = 300.0, sample_timeout: float = 300.0) -> Life:
    """Live against the engine's protocol at `url`. What goes wrong is kept in the life, never raised."""
    life = Life()
    async with AsyncExitStack() as services:
        try:
            await _live(engine, url, life, services, timeout, sample_timeout)
            life.stage = "done"
        except Exception as error:
            life.error = error
    return life


async def _live(
    engine: TinyEngine, url: str, life: Life, services: AsyncExitStack, timeout: float, sample_timeout: float
) -> None:
    endpoint = Endpoint(url, "local", engine.model, engine.model, None, local=False)
    service = await connect(endpoint)
    services.push_async_callback(asyncio.to_thread, service.close)
    life.stage = "create"
    learner = await Learner.create(service, engine.model, lora_rank=4, seed=0, timeout=timeout)
    life.stage = "publish"
    policy = await _policy(service, await learner.snapshot("policy-0000", timeout=timeout), sample_timeout)
    life.stage = "sample"
    for seed in range(SAMPLES):
        try:
            life.samples.append(await policy.sample(PROMPT, 12, cache_key=f"e{seed}", seed=seed))
        except RolloutError as error:
            life.samples.append(None)
            life.lost.append(str(error))
    policy.close()
    for step in (1, 2):
        life.stage = f"update {step}"
        await learner.update(_batch(step), loss_fn="ppo", learning_rate=1e-3, check_logprobs=1, timeout=timeout)
    life.stage = "save"
    state = await learner.save_state("state-0002", timeout=timeout)
    await learner.close()

    life.stage = "reconnect"
    resumed = await connect(endpoint)
    services.push_async_callback(asyncio.to_thread, resumed.close)
    life.stage = "resume"
    learner = await Learner.resume(resumed, state, timeout=timeout)
    life.stage = "update 3"
    await learner.update(_batch(3), loss_fn="ppo", learning_rate=1e-3, timeout=timeout)
    life.stage = "save again"
    path = await learner.save_state("state-0003", timeout=timeout)
    await learner.close()
    life.weights, life.optimizer = engine.saved(path, "weights"), engine.saved(path, "optimizer")
    life.steps = engine.saved_steps(path)


async def _policy(service: FiretitanServiceClient, snapshot: str, timeout: float) -> Policy:
    client = await in_thread(lambda: service.create_sampling_client(model_path=snapshot), 90.0, f"opening snapshot {snapshot}")
    return Policy(client.deployment_sampler, snapshot, ["<end>"], SamplingSettings(timeout=timeout), owner=client)


def _batch(step: int) -> Batch:
    """Another batch each step, so that one that is missing or counted twice shows."""
    return batch_of(
        episode(turn([5, 6, 7 + step], [8, 9, 10]), turn([11, 12], [13 + step])),
        episode(turn([20, 21], [22, 23 + step]), attempt=1),
        advantages=[1.0, -0.5],
    )


def _same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return bool(left) and left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
