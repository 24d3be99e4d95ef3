"""A run in a few figures, for who looks at nothing else: did it learn, could it learn, may its numbers be trusted?

In: a run's rows, and the rewards of every task by episode file. Out: `Figure`s. A difference between two evaluations is
taken task by task, with the interval of `turngrad.compare`; "rises" and "falls" are intervals that leave out 0.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from turngrad.compare import Comparison, compare
from turngrad.report.folder import EpisodeFile, Row, RunFolder
from turngrad.report.tables import Visit

Tone = Literal["good", "bad", ""]
Visits = dict[EpisodeFile, dict[str, Visit]]

_SPLITS = {"held_out": "Held-out tasks", "train": "Training pool, evaluated"}
_GAP_BAR = 0.03
"""Mean difference of logprobs, in nats, above which sampler and trainer do not compute the same model (docs/metrics.md)."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: what it is, its value, a sentence beside it, and whether that is good news."""

    title: str
    value: str
    note: str
    tone: Tone = ""


def summary(run: RunFolder, visits: Visits) -> list[Figure]:
    """The figures of one run; those that need more than there is yet are left out."""
    found = [_evaluated(split, title, run, visits) for split, title in _SPLITS.items()]
    return [figure for figure in (*found, _spread(run.steps), _gap(run.steps), _entropy(run.steps), _lost(run.steps)) if figure]


def between(runs: Sequence[RunFolder], visits: Sequence[Visits]) -> list[Figure]:
    """Run B against run A on the tasks that both evaluated last, by split."""
    found = []
    for split, title in _SPLITS.items():
        last = [_means(files[-1], seen) for run, seen in zip(runs, visits, strict=True) if (files := _files(run, split))]
        if len(last) == 2 and last[0].keys() & last[1].keys():
            found.append(_difference(title, compare(*last), "A", "B"))
    return found


def _evaluated(split: str, title: str, run: RunFolder, visits: Visits) -> Figure | None:
    files = _files(run, split)
    rewards = [_means(file, visits) for file in files]
    if not rewards or not rewards[0]:
        return None
    if len(rewards) == 1 or not rewards[0].keys() & rewards[-1].keys():
        mean = statistics.fmean(rewards[-1].values()) if rewards[-1] else 0.0
        return Figure(title, f"{mean:.3f}", f"after step {files[-1].step}; no second evaluation to compare with yet")
    return _difference(title, compare(rewards[0], rewards[-1]), f"step {files[0].step}", f"step {files[-1].step}")


def _difference(title: str, found: Comparison, first: str, second: str) -> Figure:
    values = f"{found.first:.3f} → {found.second:.3f}"
    where = f"{first} to {second}, {found.tasks} tasks"
    if found.interval is None:
        return Figure(title, values, where)
    low, high = found.interval
    verdict: tuple[str, Tone] = ("rises", "good") if low > 0 else ("falls", "bad") if high < 0 else ("no clear difference", "")
    # A tiny negative number would be written -0.000.
    shown = [f"{round(value, 3) + 0.0:+.3f}" for value in (found.difference, low, high)]
    note = f"{verdict[0]}: {shown[0]} (95 % {shown[1]} to {shown[2]}), {where}"
    return Figure(title, values, note, verdict[1])


def _files(run: RunFolder, split: str) -> list[EpisodeFile]:
    return [file for file in run.files if file.kind == split]


def _means(file: EpisodeFile, visits: Visits) -> dict[str, float]:
    return {task: statistics.fmean(visit.rewards) for task, visit in visits[file].items() if visit.rewards}


def _spread(rows: Sequence[Row]) -> Figure | None:
    recent = rows[-5:]
    if not recent:
        return None
    kept, played = (statistics.fmean(row[name] for row in recent) for name in ("kept_groups", "groups"))
    note = f"mean of the last {len(recent)} steps; the others' attempts all earned the same"
    return Figure("Groups that train", f"{kept:.1f} of {played:.0f}", note, "bad" if kept < 1 else "")


def _gap(rows: Sequence[Row]) -> Figure | None:
    gaps = [row["gap/mean"] for row in rows if row.get("gap/mean") is not None]
    if not gaps:
        return None
    worst = max(gaps)
    note = "nats between sampler and trainer, the worst step's mean"
    if worst > _GAP_BAR:
        note += ": they do not compute the same model"
    return Figure("Gap", f"{worst:.1g}", note, "bad" if worst > _GAP_BAR else "good")


def _entropy(rows: Sequence[Row]) -> Figure | None:
    found = [row for row in rows if row.get("entropy/sampled") is not None]
    if not found:
        return None
    first, last = found[0], found[-1]
    values = f"{first['entropy/sampled']:.2f} → {last['entropy/sampled']:.2f}"
    return Figure(
        "Entropy", values, f"nats a sampled token, step {first['step']} to step {last['step']}; towards 0 it no longer explores"
    )


def _lost(rows: Sequence[Row]) -> Figure | None:
    played = sum(row["rollouts"] for row in rows)
    if not played:
        return None
    lost = played - sum(row["valid_rollouts"] for row in rows)
    return Figure(
        "Rollouts lost",
        f"{lost} of {played}",
        "to infrastructure: not trained, not in any baseline",
        "bad" if lost > 0.05 * played else "",
    )
