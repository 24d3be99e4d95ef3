"""One run: gradients summed over forward_backward calls, Adam at optim_step.

In: batches of datums and Adam's settings. Out: per-datum logprobs and metrics. `forward_backward` is a generator that
yields between micro-batches, so that completions are served meanwhile; its return value is the result. Invariants: the
gradient held is that of the raw sum of losses since the last optim_step; a failed batch leaves it as it was.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turngrad.local.adam import AdamState
from turngrad.local.adapter import Policy
from turngrad.local.attention import BatchAttention
from turngrad.local.decoder import Spec
from turngrad.local.losses import DEFAULT_BETA, LossTokens, clip_bounds, loss_sum
from turngrad.local.packing import MicroBatch, pack
from turngrad.local.wire import Adam, Batch, Datum

TOKEN_BUDGET = 4096
"""Tokens in one micro-batch: bounds the activations held for backward."""
LOGIT_BYTES = 128 << 20
"""fp32 logits held at once."""


class Trainer:
    """Gradient, optimizer and counters of one run."""

    def __init__(self, policy: Policy, spec: Spec, device: torch.device) -> None:
        self.policy, self._spec, self._device = policy, spec, device
        self._adam = AdamState(policy.trainable)
        self._loss_tokens = 0
        self._sequences = 0
        self._accumulated = 0

    @property
    def steps(self) -> int:
        """Optimizer steps taken, those before a resume included."""
        return self._adam.steps

    # -- forward and backward -----------------------------------------------------------------------------------------

    def forward(self, batch: Batch) -> Generator[None, None, dict[str, Any]]:
        """Logprobs of every target, and the loss; no gradient."""
        every = [np.ones(len(datum.tokens), bool) for datum in batch.data]
        return (yield from self._run(batch, every, backward=False))

    def forward_backward(self, batch: Batch) -> Generator[None, None, dict[str, Any]]:
        """Adds the batch's gradient. Logprobs are returned where weight or advantage is not zero; 0.0 elsewhere."""
        if not self.policy.trainable:
            raise ValueError("this is a base-only reference model: it runs forward passes alone")
        active = [np.ones(len(d.tokens), bool) if batch.loss_fn == "dro" else d.weights != 0 for d in batch.data]
        before = [p.grad.clone() if p.grad is not None else None for p in self.policy.trainable.values()]
        try:
            result = yield from self._run(batch, active, backward=True)
        except BaseException:
            for parameter, grad in zip(self.policy.trainable.values(), before, strict=True):
                parameter.grad = grad
            raise
        self._loss_tokens += sum(int(a.sum()) for a in active)
        self._sequences += sum(bool(a.any()) for a in active)
        self._accumulated += 1
        return result

    def _run(self, batch: Batch, active: list[np.ndarray], *, backward: bool) -> Generator[None, None, dict[str, Any]]:
        bounds = clip_bounds(batch.config)
        logprobs = [np.zeros(len(datum.tokens), np.float32) for datum in batch.data]
        metrics = {"loss:sum": 0.0, "total_tokens:sum": 0.0, "loss_tokens:sum": 0.0, "model_seconds:sum": 0.0}
        todo = [i for i, a in enumerate(active) if a.any()]
        logit_budget = max(1, LOGIT_BYTES // (4 * self._spec.vocab))
        tokens = [batch.data[i].tokens for i in todo]
        for micro in pack(tokens, [active[i] for i in todo], TOKEN_BUDGET, logit_budget) if todo else []:
            data = [batch.data[todo[member]] for member in micro.members]
            started = time.perf_counter()
            with torch.set_grad_enabled(backward):
                lp = self._logprobs(micro, data)
                loss, parts = loss_sum(
                    batch.loss_fn, lp, self._loss_tokens_of(micro, data, bounds), float(batch.config.get("beta", DEFAULT_BETA))
                )
                if backward:
                    loss.backward()
            metrics["model_seconds:sum"] += time.perf_counter() - started
            _scatter(micro, [logprobs[todo[member]] for member in micro.members], lp.detach().cpu().numpy())
            _add(metrics, parts)
            yield
        metrics["total_tokens:sum"] = float(sum(len(d.tokens) for d in batch.data))
        metrics["loss_tokens:sum"] = float(sum(int(a.sum()) for a in active))
        return {"logprobs": logprobs, "metrics": metrics}

    def _logprobs(self, micro: MicroBatch, data: list[Datum]) -> Tensor:
        """[M] logprobs of the kept targets."""
        keep = self._tensor(micro.keep)
        attention = BatchAttention(micro, self._device)
        logits = self.policy.module(self._tensor(micro.tokens), self._tensor(micro.positions), attention, keep)
        targets = self._tensor(_gather(micro, [datum.targets for datum in data]))
        return logits.gather(1, targets.unsqueeze(1)).squeeze(1) - logits.logsumexp(-1)

    def _loss_tokens_of(self, micro: MicroBatch, data: list[Datum], bounds: tuple[float, float]) -> LossTokens:
        count = len(micro.keep)
        low, high = (
            np.concatenate(
                [
                    np.full(int((micro.kept_row == row).sum()), bound, np.float32)
                    if given is None
                    else given[micro.kept_offset[micro.kept_row == row]]
                    for row, given in enumerate(getattr(datum, field) for datum in data)
                ]
            )
            if any(getattr(datum, field) is not None for datum in data)
            else np.full(count, bound, np.float32)
            for bound, field in zip(bounds, ("clip_low", "clip_high"), strict=True)
        )
        return LossTokens(
            weights=self._tensor(_gather(micro, [datum.weights for datum in data])),
            sampled_logprobs=self._tensor(_gather(micro, [datum.sampled_logprobs for datum in data])),
            sequence=self._tensor(micro.kept_row),
            clip_low=self._tensor(low),
            clip_high=self._tensor(high),
        )

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)

    # -- the optimizer ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def optim_step(self, adam: Adam) -> dict[str, float]:
        """Normalises, clips and applies the gradient, then clears it. Returns grad_norm before clipping."""
        if not self._accumulated:
            raise ValueError("optim_step without a forward_backward since the last one: there is no gradient to apply")
        divisor = {"none": 1, "num_loss_tokens": self._loss_tokens, "num_sequences": self._sequences}[adam.normalization]
        grads = [parameter.grad for parameter in self.policy.trainable.values() if parameter.grad is not None]
        if divisor > 1:
            _scale(grads, 1.0 / divisor)
        norm = float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0
        if not np.isfinite(norm):
            self.clear()
            raise ValueError("the gradient is not finite; nothing was applied and the gradient is cleared")
        if 0 < adam.grad_clip_norm < norm:
            _scale(grads, adam.grad_clip_norm / norm)
        self._adam.step(adam)
        metrics = {
            "grad_norm": norm,
            "loss_tokens": float(self._loss_tokens),
            "sequences": float(self._sequences),
            "optimizer_step": float(self.steps),
        }
        self.clear()
        return metrics

    def clear(self) -> None:
        """Forgets the accumulated gradient."""
        for parameter in self.policy.trainable.values():
            parameter.grad = None
        self._loss_tokens = self._sequences = self._accumulated = 0

    # -- state --------------------------------------------------------------------------------------------------------

    def moments(self) -> dict[str, Tensor]:
        """Adam's moments, for a resumable state."""
        return self._adam.export()

    def load(self, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor] | None, steps: int) -> None:
        """Overwrites the weights and, where given, the moments; without them Adam starts afresh."""
        self.policy.load(weights)
        self._adam.load(moments, steps)
        self.clear()


def _scale(tensors: list[Tensor], factor: float) -> None:
    for tensor in tensors:
        tensor.mul_(factor)


def _gather(micro: MicroBatch, arrays: list[np.ndarray]) -> np.ndarray:
    """The kept positions of per-datum arrays, flat [M]."""
    parts = np.split(micro.kept_offset, np.flatnonzero(np.diff(micro.kept_row)) + 1)
    rows = [int(micro.kept_row[0])] if len(micro.kept_row) else []
    rows += micro.kept_row[np.flatnonzero(np.diff(micro.kept_row)) + 1].tolist()
    return np.concatenate([arrays[row][offsets] for row, offsets in zip(rows, parts, strict=True)])


def _scatter(micro: MicroBatch, targets: list[np.ndarray], values: np.ndarray) -> None:
    for row, target in enumerate(targets):
        of_row = micro.kept_row == row
        target[micro.kept_offset[of_row]] = values[of_row]


def _add(total: dict[str, float], parts: Mapping[str, float]) -> None:
    for name, value in parts.items():
        total[name] = max(total.get(name, value), value) if name.endswith(":max") else total.get(name, 0.0) + value
