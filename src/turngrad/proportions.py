"""Shares of success over tasks with several attempts each: pass@1, pass^k, and intervals that hold near 0 and 1.

In: the attempts at each task, as successes. Out: estimates with 95 % intervals. Attempts at one task are alike, so tasks are
what is counted as independent; an interval by the normal approximation would have no width where every task agrees.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959964
"""The normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True, slots=True)
class Share:
    """`value` in 0..1 over `tasks` tasks, and its 95 % interval."""

    value: float
    interval: tuple[float, float]
    tasks: int


def pass_at_1(tasks: Sequence[Sequence[bool]]) -> Share | None:
    """The share of attempts that succeed, the mean over tasks of each task's share; None where there is no attempt."""
    return _share([(statistics.fmean(attempts), len(attempts)) for attempts in tasks if attempts])


def pass_hat_k(tasks: Sequence[Sequence[bool]], k: int) -> Share | None:
    """The chance that `k` attempts at a task all succeed, averaged over the tasks with at least `k` attempts.

    For a task with c successes of n attempts C(c, k) / C(n, k) is unbiased (tau-bench, arXiv:2406.12045, section 3).
    None where no task has `k` attempts.
    """
    if k < 1:
        raise ValueError(f"pass^k needs k of at least 1, got {k}")
    enough = [attempts for attempts in tasks if len(attempts) >= k]
    return _share([(math.comb(sum(attempts), k) / math.comb(len(attempts), k), 1) for attempts in enough])


def _share(tasks: Sequence[tuple[float, int]]) -> Share | None:
    """The mean of the tasks' shares with Wilson's interval (1927) at the effective number of attempts.

    That number is p (1 - p) / se^2 with se the tasks' standard error, as surveys with clustered answers have it (Dean and
    Pagano, 2015), kept between the number of tasks (attempts at one task all agree) and that of attempts (all independent).
    """
    if not tasks:
        return None
    shares = [share for share, _ in tasks]
    p, fewest, most = statistics.fmean(shares), len(tasks), sum(attempts for _, attempts in tasks)
    n = float(fewest)
    if len(shares) > 1 and 0.0 < p < 1.0:
        variance = statistics.variance(shares) / len(shares)
        n = min(max(p * (1 - p) / variance, fewest), most) if variance else float(most)
    spread = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    scale, middle = 1 + _Z**2 / n, p + _Z**2 / (2 * n)
    # At p = 0 and p = 1 one bound is p itself, but for rounding.
    low, high = max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
    return Share(p, (low if p > 0.0 else 0.0, high if p < 1.0 else 1.0), len(tasks))
