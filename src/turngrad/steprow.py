"""The row of metrics.jsonl that one training step leaves.

In: the step's groups with their advantages, the batch, what the update gave and what was counted meanwhile. Out: one dict with
`"kind": "train"`; docs/metrics.md says what each key means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turngrad.advantages import GroupAdvantages
from turngrad.batch import Batch
from turngrad.config import TrainConfig
from turngrad.costs import price_of_row
from turngrad.diagnostics import batch_metrics
from turngrad.learner import UpdateResult
from turngrad.metrics import rollout_metrics
from turngrad.rollout import Group, RolloutCounts


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Moments of `time.monotonic()`: the rollouts begin, the update begins, all is done."""

    started: float
    rolled: float
    ended: float


def step_row(
    config: TrainConfig,
    step: int,
    groups: Sequence[Group],
    advantages: Sequence[GroupAdvantages],
    batch: Batch,
    result: UpdateResult,
    counts: RolloutCounts,
    seconds: StepSeconds,
    *,
    kl: float | None,
    snapshot: str,
    recoveries: int,
) -> dict[str, Any]:
    """The row of `step`, whose groups were sampled from `snapshot`; `advantages` are in the order of `groups`."""
    pairs = [(group.episodes, found) for group, found in zip(groups, advantages, strict=True)]
    row: dict[str, Any] = {
        "kind": "train",
        "step": step,
        **rollout_metrics([group.episodes for group in groups]),
        "kept_groups": sum(found.reason is None for found in advantages),
        "training_datums": len(batch.sent),
        "updated": result.steps > 0,
        "why_not_updated": result.skipped,
        "loss": result.metrics.get("update/loss"),
        "kl": kl,
        "snapshot": snapshot,
        "tasks": sorted(group.row.id for group in groups),
        "rollouts_started": counts.started,
        "failures": dict(counts.failures),
        "last_error": counts.last_error,
        "recoveries": recoveries,
        "seconds": round(seconds.ended - seconds.started, 3),
        "seconds_rollout": round(seconds.rolled - seconds.started, 3),
        "seconds_update": round(seconds.ended - seconds.rolled, 3),
        **batch_metrics(pairs, batch),
        **result.metrics,
    }
    return row | {"cost": price_of_row(config, row)}
