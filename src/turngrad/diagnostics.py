"""Diagnostics: what a batch was made of, and how far the trainer's logprobs are from the sampler's.

In: the groups of a step, their `Batch`, and the logprobs that training returned. Out: flat dicts of floats for metrics.jsonl.
Nothing here changes what is trained.

Names. `tokens/`, `segments/` and `gradient/` speak of what is sent to the service, `groups/`, `episodes/` and `breaks/` of
all that was rolled out. `gap/` compares trainer and sampler where they should agree: the same weights, before the first
optimizer step. `ratio/` compares them as the loss does, later minibatches and older samples included.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from turngrad.advantages import GroupAdvantages
from turngrad.episodes import Break, Episode

if TYPE_CHECKING:
    from turngrad.batch import Batch, Segment

_LARGEST_EXPONENT = 60.0
"""exp of more would overflow the float32 a loss is computed in; a ratio that large is broken in any case."""


def batch_metrics(groups: Sequence[tuple[Sequence[Episode], GroupAdvantages]], batch: Batch) -> dict[str, float]:
    """The composition of a batch, as counts, means and shares."""
    return {
        **_group_metrics(groups),
        **_episode_metrics([episode for members, _ in groups for episode in members]),
        **_token_metrics(batch),
        **_gradient_metrics(batch),
    }


def comparison_metrics(
    parts: Sequence[Batch],
    passes: Sequence[Sequence[NDArray[Any] | None]],
    first: Sequence[NDArray[Any] | None],
    *,
    loss_fn: str,
    clip_low: float,
    clip_high: float,
) -> dict[str, float]:
    """Trainer against sampler, over trained tokens, with delta = trainer's logprob - sampler's and ratio = exp(delta).

    `passes` holds, for each minibatch in the order of its `sent`, the logprobs at its forward pass (None where the service gave
    none); `first` the same for the first minibatch before any optimizer step, possibly for its first segments only.
    `ratio/k3` is mean(ratio - 1 - delta), the low-variance estimate of KL(sampler || trainer). `ratio/clip_fraction` counts
    tokens whose gradient the loss cuts off: in ppo those beyond a bound in the direction the advantage pushes, in cispo those
    beyond either bound, whose weight is capped. Figures without data are left out.
    """
    metrics: dict[str, float] = {}
    fresh = [
        delta
        for segment, values in zip(parts[0].sent, first, strict=False)
        if values is not None and parts[0].episodes[segment.episode].lag == 0
        for delta in [_delta(segment, values)]
    ]
    if fresh:
        gap = np.abs(np.concatenate(fresh))
        metrics |= {"gap/mean": float(gap.mean()), "gap/max": float(gap.max()), "gap/tokens": float(gap.size)}

    compared = [
        (segment, _delta(segment, values))
        for part, logprobs in zip(parts, passes, strict=True)
        for segment, values in zip(part.sent, logprobs, strict=True)
        if values is not None
    ]
    if compared:
        delta = np.concatenate([delta for _, delta in compared])
        ratio = np.exp(np.minimum(delta, _LARGEST_EXPONENT))
        metrics |= {
            "ratio/mean": float(ratio.mean()),
            "ratio/max": float(ratio.max()),
            "ratio/min": float(ratio.min()),
            "ratio/k3": float((ratio - 1 - delta).mean()),
        }
        advantages = np.concatenate([segment.target_advantages[segment.loss_mask] for segment, _ in compared])
        clipped = _clipped(loss_fn, ratio, advantages, clip_low, clip_high)
        if clipped is not None:
            metrics["ratio/clip_fraction"] = float(clipped.mean())
    return metrics


def _delta(segment: Segment, trainer: NDArray[Any]) -> NDArray[np.float64]:
    # A service may leave out the logprobs of tokens without gradient.
    mask = segment.loss_mask
    return trainer[mask].astype(np.float64) - segment.target_logprobs[mask]


def _clipped(
    loss_fn: str, ratio: NDArray[np.float64], advantages: NDArray[np.float32], low: float, high: float
) -> NDArray[np.bool_] | None:
    if loss_fn == "ppo":
        return ((advantages > 0) & (ratio > high)) | ((advantages < 0) & (ratio < low))
    if loss_fn == "cispo":
        return (ratio < low) | (ratio > high)
    return None


def _group_metrics(groups: Sequence[tuple[Sequence[Episode], GroupAdvantages]]) -> dict[str, float]:
    reasons = Counter(result.reason.value for _, result in groups if result.reason is not None)
    metrics = {"groups/kept": float(len(groups) - reasons.total())}
    metrics |= {f"groups/dropped_{reason}": float(count) for reason, count in sorted(reasons.items())}
    metrics["episodes/clipped_advantages"] = float(sum(result.clipped for _, result in groups))
    return metrics


def _episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    sound = [episode for episode in episodes if episode.excluded is None]
    excluded = Counter(reason for episode in episodes if (reason := episode.excluded) is not None)
    metrics = {"episodes/excluded": float(excluded.total())}
    metrics |= {f"episodes/excluded_{reason}": float(count) for reason, count in sorted(excluded.items())}
    turns = [turn for episode in sound for turn in episode.turns]
    breaks = Counter(turn.segment_break for turn in turns if turn.segment_break is not None)
    metrics |= {f"breaks/{reason}": float(breaks[reason]) for reason in Break}
    metrics["episodes/untrainable_turns"] = float(sum(turn.untrainable is not None for turn in turns))
    return metrics


def _token_metrics(batch: Batch) -> dict[str, float]:
    sent = batch.sent
    trained = sum(segment.trained for segment in sent)
    total = sum(len(segment.target_mask) for segment in sent)
    metrics = {
        "tokens/trained": float(trained),
        "tokens/masked": float(total - trained),
        "tokens/cut": float(batch.cut_tokens),
        "segments/sent": float(len(sent)),
        "segments/per_episode": len(batch.segments) / len(batch.episodes) if batch.episodes else 0.0,
        "episodes/in_batch": float(len(batch.episodes)),
        "episodes/untrained": float(batch.untrained),
    }
    if total:
        episodes = {segment.episode for segment in sent}
        metrics["tokens/merge_factor"] = sum(unmerged_tokens(batch.episodes[episode]) for episode in episodes) / total
        sampled = np.concatenate([segment.target_logprobs[segment.target_mask] for segment in sent])
        metrics["entropy/sampled"] = -float(sampled.mean(dtype=np.float64))
    return metrics


def unmerged_tokens(episode: Episode) -> int:
    """Positions that one datum per trained turn would send: each turn's whole prompt and output, less one for the shift."""
    total = length = 0
    for turn in episode.turns:
        if turn.segment_break is not None:
            length = 0
        length += len(turn.context_ids) + len(turn.output_ids)
        if turn.untrainable is None and len(turn.output_ids):
            total += length - 1
    return total


def _gradient_metrics(batch: Batch) -> dict[str, float]:
    """Shares of sum |a_t|, the weight of a step's tokens before their gradients: by sign, by stop reason and by task."""
    shares: dict[str, float] = defaultdict(float)
    total = 0.0
    for segment in batch.sent:
        episode = batch.episodes[segment.episode]
        advantages = segment.target_advantages
        weight = float(np.abs(advantages).sum(dtype=np.float64))
        better = float(advantages[advantages > 0].sum(dtype=np.float64))
        total += weight
        for name, share in (("better", better), ("worse", weight - better)):
            if share > 0:
                shares[f"gradient/{name}"] += share
        shares[f"gradient/stop_{episode.stop_reason}"] += weight
        shares[f"gradient/task/{episode.task_id}"] += weight
    if not total:
        return {}
    metrics = {name: weight / total for name, weight in sorted(shares.items())}
    metrics["gradient/largest_task"] = max(share for name, share in metrics.items() if name.startswith("gradient/task/"))
    return metrics
