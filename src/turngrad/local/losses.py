"""The server-side losses, as functions of the trainer's logprobs at the positions that carry weight.

In: per loss token the trainer's logprob `lp`, the sampler's `q`, the advantage `a` (or the weight `w`). Out: the raw sum
over tokens, never a mean: `optim_step` normalises. Formulas, with r = exp(lp - q):
    cross_entropy        -w lp
    importance_sampling  -r a
    ppo                  -min(r a, clip(r, low, high) a)          Schulman et al. 2017
    cispo                -stopgrad(clip(r, low, high)) a lp       MiniMax-M1 2025
    dro                  -(a lp - beta/2 (lp - q)^2)              Richemond et al. 2024
    gspo                 -min(s a, clip(s, low, high) a), s = exp(mean over the sequence of lp - q)   Zheng et al. 2025
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

RL_LOSSES = ("importance_sampling", "ppo", "cispo", "dro", "gspo")
LOSSES = ("cross_entropy", *RL_LOSSES)
CLIPPED = ("ppo", "cispo", "gspo")
DEFAULT_CLIP = (0.8, 1.2)
DEFAULT_BETA = 0.05


@dataclass(frozen=True)
class LossTokens:
    """The tokens that carry weight in one micro-batch, flat: every field is [M].

    `weights` is the advantage, or cross_entropy's weight. `sequence` numbers the datum of each token from 0. `clip_low`
    and `clip_high` are ratio bounds (1 - eps, 1 + eps).
    """

    weights: Tensor
    sampled_logprobs: Tensor
    sequence: Tensor
    clip_low: Tensor
    clip_high: Tensor


def loss_sum(name: str, lp: Tensor, tokens: LossTokens, beta: float = DEFAULT_BETA) -> tuple[Tensor, dict[str, float]]:
    """The raw sum and its metrics (`name:reduction`). `lp` is [M], fp32, with gradient."""
    a, q = tokens.weights, tokens.sampled_logprobs
    if name == "cross_entropy":
        loss = -(a * lp).sum()
        return loss, {"loss:sum": float(loss.detach())}
    gap = lp - q
    ratio = gap.exp()
    if name == "importance_sampling":
        loss = -(ratio * a).sum()
    elif name == "dro":
        loss = -(a * lp - 0.5 * beta * gap.square()).sum()
    else:
        if name == "gspo":
            count = int(tokens.sequence.max()) + 1 if len(lp) else 0
            total = torch.zeros(count, dtype=lp.dtype, device=lp.device).index_add(0, tokens.sequence, gap)
            length = torch.bincount(tokens.sequence, minlength=count).clamp(min=1)
            ratio = (total / length).exp()[tokens.sequence]
        clipped = torch.minimum(torch.maximum(ratio, tokens.clip_low), tokens.clip_high)
        gain = clipped.detach() * a * lp if name == "cispo" else torch.minimum(ratio * a, clipped * a)
        loss = -gain.sum()
    return loss, {"loss:sum": float(loss.detach()), **_diagnostics(name, ratio.detach(), gap.detach(), tokens)}


def _diagnostics(name: str, ratio: Tensor, gap: Tensor, tokens: LossTokens) -> dict[str, float]:
    if not len(gap):
        return {}
    metrics = {
        "ratio_sum:sum": float(ratio.sum()),
        "ratio_max:max": float(ratio.max()),
        "logprob_gap_sum:sum": float(gap.abs().sum()),
        "logprob_gap_max:max": float(gap.abs().max()),
        "kl_k3_sum:sum": float((torch.expm1(-gap) + gap).sum()),
    }
    if name in CLIPPED:
        outside = (ratio < tokens.clip_low) | (ratio > tokens.clip_high)
        metrics["clipped_tokens:sum"] = float(outside.sum())
    return metrics


def clip_bounds(config: Mapping[str, object]) -> tuple[float, float]:
    """(low, high) ratio bounds of a loss_fn_config; 0.8 and 1.2 where absent. Raises ValueError."""
    bounds = []
    for key, default in zip(("clip_low_threshold", "clip_high_threshold"), DEFAULT_CLIP, strict=True):
        value = config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ValueError(f"loss_fn_config.{key} must be a ratio bound >= 0, got {value!r}")
        bounds.append(float(value))
    if bounds[0] > bounds[1]:
        raise ValueError(f"clip_low_threshold {bounds[0]} is above clip_high_threshold {bounds[1]}")
    return bounds[0], bounds[1]
