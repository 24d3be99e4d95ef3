"""Learner: one training client of the service, behind awaits that end.

In: a `Batch`. Out: optimizer steps and their metrics, snapshots that a sampler can load, and states that training can be
resumed from. Invariants: no call blocks the event loop or waits longer than its time limit; a batch without gradient takes no
optimizer step; after an update that did not finish, weights are neither saved nor trained on until a state is loaded (C11).

One update, for each minibatch in order:

1. forward_backward adds its gradient, a raw sum over tokens; the SDK sends it in requests of at most 1,024 datums and 5 MB.
2. optim_step divides by what the batch's normalisation asks for, clips, applies Adam and clears the gradient.

All of them are submitted at once: the service runs them in order, so no round trip is paid between steps.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from fireworks.training.sdk import AdamParams, FiretitanServiceClient, FiretitanTrainingClient
from numpy.typing import NDArray

from turngrad.batch import Batch, Segment
from turngrad.diagnostics import comparison_metrics
from turngrad.faults import LearnerError, LearnerFailed, LearnerLost, LearnerRefused, LearnerUnknown
from turngrad.waits import bounded, in_thread

LossFn = Literal["importance_sampling", "ppo", "cispo"]

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,52}[a-z0-9])?")
_REDUCTIONS: Mapping[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "min": min}
_Logprobs = list[NDArray[np.float32] | None]


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one update did: the optimizer steps it took, or in `skipped` why it took none, and flat metrics of both."""

    steps: int
    skipped: str | None
    metrics: dict[str, float]


class Learner:
    """The weights being trained. Make one with `create` or `resume`."""

    def __init__(self, client: FiretitanTrainingClient) -> None:
        self._client = client
        self._unfinished: str | None = None
        self._returns_logprobs: bool | None = None

    @classmethod
    async def create(
        cls, service: FiretitanServiceClient, base_model: str, *, lora_rank: int, seed: int | None = None, timeout: float = 600.0
    ) -> Learner:
        """A fresh adapter of `lora_rank` on `base_model`; `seed` makes its initialisation repeatable.

        Raises LearnerError, as every method here does, within about `timeout` seconds.
        """
        return cls(
            await in_thread(
                lambda: service.create_lora_training_client(base_model, rank=lora_rank, seed=seed),
                timeout,
                f"creating an adapter of rank {lora_rank} on {base_model}",
            )
        )

    @classmethod
    async def resume(
        cls, service: FiretitanServiceClient, path: str, *, base_model: str | None = None, timeout: float = 600.0
    ) -> Learner:
        """A new client with the weights and the optimizer of a state that `save_state` returned the path of.

        A state of another model than `base_model` is refused: its rollouts would be rendered and sampled in that one's tokens.
        """

        def open_client() -> FiretitanTrainingClient:
            if base_model is not None:
                found = service.create_rest_client().get_weights_info_by_tinker_path(path).result().base_model
                # The service may name a model by its account or without.
                if found.rpartition("/")[2] != base_model.rpartition("/")[2]:
                    raise LearnerRefused(f"state {path} is one of {found}; --base-model names {base_model}")
            return service.create_training_client_from_state_with_optimizer(path)

        return cls(await in_thread(open_client, timeout, f"resuming from state {path}"))

    async def update(
        self,
        batch: Batch,
        *,
        loss_fn: LossFn,
        learning_rate: float,
        clip_low: float = 0.8,
        clip_high: float = 1.2,
        grad_clip: float = 0.0,
        minibatches: int = 1,
        check_logprobs: int = 0,
        timeout: float = 1800.0,
    ) -> UpdateResult:
        """Train on the batch: one optimizer step per minibatch that has a gradient.

        `clip_low` and `clip_high` bound the ratio of new to sampling probability in ppo and cispo (the service's defaults are
        not documented, so they are always sent); `grad_clip` is the largest gradient norm, 0 for none. `check_logprobs` is
        how many segments go through an extra forward pass first where forward_backward returns no logprobs, or might not.
        `timeout` is in seconds, for the whole update. Raises ValueError for a loss that masking does not survive.
        """
        config = _loss_config(loss_fn, clip_low, clip_high)
        parts = [part for part in batch.split(minibatches) if part.sent]
        if not parts:
            return UpdateResult(0, _why_skipped(batch), {"update/steps": 0.0})

        started = time.monotonic()
        adam = AdamParams(learning_rate=learning_rate, grad_clip_norm=grad_clip)
        doing = f"an update on {len(batch.sent)} segments in {len(parts)} steps"
        async with self._updating(doing, timeout):
            checked = parts[0].sent[:check_logprobs] if self._returns_logprobs is not True else ()
            check = self._client.forward([segment.datum() for segment in checked], loss_fn, config) if checked else None
            pending = [
                (
                    self._client.forward_backward(part.datums(), loss_fn, config),
                    self._client.optim_step(adam, part.grad_accumulation_normalization, emit_grad_norm_metrics="basic"),
                )
                for part in parts
            ]
            forward = _logprobs(checked, (await check).loss_fn_outputs) if check is not None else []
            passes: list[_Logprobs] = []
            losses: list[Mapping[str, float]] = []
            steps: list[Mapping[str, float]] = []
            for part, (backward, step) in zip(parts, pending, strict=True):
                output = await backward
                passes.append(_logprobs(part.sent, output.loss_fn_outputs))
                losses.append(output.metrics)
                steps.append((await step).metrics or {})
            metrics = _service_metrics(parts, losses, steps)
            _require_finite(metrics, doing)

        self._returns_logprobs = any(found is not None for found in passes[0])
        first = passes[0] if self._returns_logprobs else forward
        metrics |= comparison_metrics(parts, passes, first, loss_fn=loss_fn, clip_low=clip_low, clip_high=clip_high)
        metrics["update/steps"] = float(len(parts))
        metrics["update/learning_rate"] = learning_rate
        metrics["update/seconds"] = time.monotonic() - started
        return UpdateResult(len(parts), None, metrics)

    async def snapshot(self, name: str, *, timeout: float = 600.0) -> str:
        """Publish the weights for sampling; the path that `create_sampling_client(model_path=...)` takes."""
        check_name(name)
        self._require_finished()
        with _own_model():
            result = await in_thread(lambda: self._client.save_weights_for_sampler(name).result(), timeout, f"snapshot {name}")
        return result.path

    async def save_state(self, name: str, *, timeout: float = 600.0) -> str:
        """Save weights and optimizer; the path that `resume` and `load_state` take. A name serves once."""
        check_name(name)
        self._require_finished()
        with _own_model():
            async with bounded(timeout, f"saving state {name}"):
                return (await self._client.save_state(name)).path

    async def load_state(self, path: str, *, timeout: float = 600.0) -> None:
        """Put the weights and the optimizer back to a saved state; a learner whose update did not finish is whole again."""
        async with bounded(timeout, f"loading state {path}"):
            await self._client.load_state_with_optimizer(path)
        self._unfinished = None

    async def close(self, *, timeout: float = 10.0) -> None:
        """Unload the adapter, which frees its place in the service's run quota. Best effort: never raises LearnerError."""
        with contextlib.suppress(LearnerError):
            async with bounded(timeout, "unloading the adapter"):
                await self._client.unload_model()

    @contextlib.asynccontextmanager
    async def _updating(self, doing: str, timeout: float) -> AsyncIterator[None]:
        self._require_finished()
        self._unfinished = doing
        with _own_model():
            async with bounded(timeout, doing):
                yield
        self._unfinished = None

    def _require_finished(self) -> None:
        if self._unfinished is not None:
            raise LearnerLost(
                f"{self._unfinished} did not finish, so the weights may hold a part of it; load_state the last saved state first"
            )


@contextlib.contextmanager
def _own_model() -> Iterator[None]:
    """No name is wrong inside: a model that the service made and does not know any more went with its session."""
    try:
        yield
    except LearnerUnknown as error:
        raise LearnerLost(f"{error}: its session may have expired") from error


def check_name(name: str) -> str:
    """`name`, if the service can load what is saved under it.

    A checkpoint path is made of lower-case DNS labels of at most 63 characters, and the SDK adds 9 of its own to a snapshot's
    name. Raises ValueError otherwise: saving would work and loading would not.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"checkpoint name {name!r} cannot be loaded again; use 1 to 54 of a-z, 0-9 and '-', with '-' neither first nor last"
        )
    return name


def _loss_config(loss_fn: str, clip_low: float, clip_high: float) -> dict[str, float | str | bool] | None:
    if loss_fn == "dro":
        raise ValueError(
            "loss dro has a quadratic term that acts where the advantage is 0, so prompts and tool results would train; "
            "the service takes no mask to stop it. Use importance_sampling, ppo or cispo"
        )
    if loss_fn not in get_args(LossFn):
        raise ValueError(f"loss {loss_fn!r} is none of {', '.join(get_args(LossFn))}")
    if loss_fn == "importance_sampling":
        return None
    if not 0 <= clip_low <= 1 <= clip_high:
        raise ValueError(f"ratio bounds {clip_low} and {clip_high}; expected 0 <= clip-low <= 1 <= clip-high")
    return {"clip_low_threshold": clip_low, "clip_high_threshold": clip_high}


def _why_skipped(batch: Batch) -> str:
    if batch.segments:
        return "every advantage is zero: no optimizer step"
    if batch.untrained:
        return f"no turn may train in {batch.untrained} episodes: no optimizer step"
    return "no group has two rewards that differ: no optimizer step"


def _logprobs(segments: Sequence[Segment], outputs: Sequence[Mapping[str, Any]]) -> _Logprobs:
    """The logprobs of each segment's targets, None where the service returned none that align with them."""
    found: _Logprobs = []
    for segment, output in zip(segments, outputs, strict=False):
        tensor = output.get("logprobs")
        values = None if tensor is None else tensor.to_numpy()
        found.append(values if values is not None and values.shape == segment.target_mask.shape else None)
    return found + [None] * (len(segments) - len(found))


def _service_metrics(
    parts: Sequence[Batch], losses: Sequence[Mapping[str, float]], steps: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """The service's own figures: the loss of the update as the optimizer saw it, the mean gradient norm, and the rest."""
    metrics: dict[str, float] = {}
    for name in losses[0]:
        if all(name in part for part in losses):
            metrics[f"service/{name.replace(':', '_')}"] = float(
                _REDUCTIONS.get(name.rpartition(":")[2], np.mean)([part[name] for part in losses])
            )
    sums = [part["loss:sum"] for part in losses if "loss:sum" in part]
    if len(sums) == len(parts):
        metrics["update/loss"] = sum(value / _divisor(part) for value, part in zip(sums, parts, strict=True)) / len(parts)
    norms = [norm for step in steps if (norm := _grad_norm(step)) is not None]
    if norms:
        metrics["update/grad_norm"] = sum(norms) / len(norms)
        metrics["update/grad_norm_max"] = max(norms)
    return metrics


def _divisor(part: Batch) -> int:
    """What `optim_step` divides the part's loss by; 1 where rounding has left no token with an advantage."""
    return max(1, sum(int(segment.loss_mask.sum()) for segment in part.sent)) if part.normalize == "token" else 1


def _grad_norm(metrics: Mapping[str, float]) -> float | None:
    """The global gradient norm among a step's metrics: named `grad_norm`, or the shortest name that speaks of one."""
    named = sorted((name for name in metrics if "grad_norm" in name), key=lambda name: (len(name), name))
    return float(metrics[named[0]]) if named else None


def _require_finite(metrics: Mapping[str, float], doing: str) -> None:
    for name in ("update/loss", "update/grad_norm"):
        if not math.isfinite(metrics.get(name, 0.0)):
            raise LearnerFailed(
                f"{doing} ended with {name} = {metrics[name]}: the weights are no longer usable; load a saved state"
            )
