"""The tasks of a run: which rise, which fall, which never move, which are always right.

In: the rewards of every attempt, visit by visit. Out: one `TaskLine` per task and split.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from turngrad.episodes import Episode
from turngrad.report.folder import EpisodeFile


@dataclass(frozen=True, slots=True)
class Visit:
    """One file's attempts at one task: the rewards of its sound episodes, and how many failed for infrastructure."""

    file: EpisodeFile
    rewards: tuple[float, ...]
    lost: int


@dataclass(frozen=True, slots=True)
class TaskLine:
    """One task over its visits in order. `kind` is `training` or the evaluation's split."""

    task_id: str
    kind: str
    visits: tuple[Visit, ...]

    @property
    def attempts(self) -> int:
        return sum(len(visit.rewards) for visit in self.visits)

    @property
    def means(self) -> list[float | None]:
        """The mean reward of each visit, None where no attempt was sound."""
        return [statistics.fmean(visit.rewards) if visit.rewards else None for visit in self.visits]

    @property
    def verdict(self) -> str:
        """What the rewards say.

        "rises" and "falls" need a difference between the later and the earlier half of the visits of more than two standard
        errors (Welch); anything less is "no clear trend".
        """
        judged = [visit.rewards for visit in self.visits if visit.rewards]
        rewards = [reward for visit in judged for reward in visit]
        if not rewards:
            return "lost"
        if min(rewards) >= 1.0:
            return "always right"
        if max(rewards) == min(rewards):
            return "never moves"
        if len(judged) < 2:
            return "one visit"
        half = len(judged) // 2
        before = [reward for visit in judged[:half] for reward in visit]
        after = [reward for visit in judged[-half:] for reward in visit]
        difference = statistics.fmean(after) - statistics.fmean(before)
        error = math.sqrt(_squared_error(before) + _squared_error(after))
        if len(before) < 2 or len(after) < 2 or abs(difference) <= 2 * error:
            return "no clear trend"
        return "rises" if difference > 0 else "falls"


def visits(file: EpisodeFile, episodes: Iterable[Episode]) -> dict[str, Visit]:
    """The visits of one file, by task."""
    rewards: dict[str, list[float]] = defaultdict(list)
    lost: dict[str, int] = defaultdict(int)
    for episode in episodes:
        rewards[episode.task_id] += [episode.reward] if episode.excluded is None and episode.reward is not None else []
        lost[episode.task_id] += episode.excluded is not None
    return {task: Visit(file, tuple(found), lost[task]) for task, found in rewards.items()}


def task_lines(by_file: Sequence[dict[str, Visit]]) -> list[TaskLine]:
    """The lines of all tasks, training tasks first, each in the order of its name."""
    found: dict[tuple[bool, str, str], list[Visit]] = defaultdict(list)
    for file_visits in by_file:
        for task, visit in file_visits.items():
            kind = "training" if visit.file.trains else f"evaluation, {visit.file.kind.replace('_', '-')}"
            found[not visit.file.trains, kind, task].append(visit)
    return [TaskLine(task, kind, tuple(found[key])) for key in sorted(found, key=_natural) for _, kind, task in [key]]


def _natural(key: tuple[bool, str, str]) -> tuple[bool, str, list[tuple[int, int, str]]]:
    """`multi_turn_base_9` before `multi_turn_base_10`."""
    evaluation, kind, task = key
    parts = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in task.replace("-", "_").split("_")]
    return evaluation, kind, parts


def _squared_error(rewards: Sequence[float]) -> float:
    return statistics.variance(rewards) / len(rewards) if len(rewards) > 1 else 0.0
