"""The report: one or two run folders as one HTML file that needs no network.

In: run folders. Out: a file. `Report` remembers what it has read, so that writing it again during a run (`watch`) reads new
episode files only. The page's policy lets no script run but its own, by their hashes, and lets nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from turngrad.errors import UserError
from turngrad.report.charts import charts
from turngrad.report.decode import Decoder, decoder_for
from turngrad.report.figures import Chart, page_key, page_name
from turngrad.report.folder import EpisodeFile, Row, RunFolder, read_run
from turngrad.report.pages import Page, PageWriter, shown, spread_out
from turngrad.report.summary import Figure, between, summary
from turngrad.report.tables import TaskLine, Visit, task_lines, visits
from turngrad.report.training import trainings
from turngrad.runlog import read_episodes
from turngrad.transcript import printable

MAX_BYTES = 10_000_000
"""What a report may weigh unless told otherwise; plotly takes about half."""

_PAGE_BYTES, _TASK_BYTES, _VISIT_BYTES, _SUMMARY_BYTES = 300, 300, 40, 4000
"""Room kept for what a page, a task, one visit of a task and the few figures of a run add to the file beside the episodes."""

_SCRIPTS = ("format.js", "tables.js", "charts.js", "episode.js", "app.js")
_TABLE_FIELDS = (
    "step",
    "reward",
    "reward_ci95",
    "reward_std_within_group",
    "solved",
    "pass_at_1",
    "kept_groups",
    "groups",
    "rollouts",
    "valid_rollouts",
    "samples",
    "turns_per_episode",
    "tool_calls_per_episode",
    "bad_call_rate",
    "tool_error_rate",
    "sampled_tokens",
    "seconds",
    "updated",
)
_RUN_FIELDS = (
    ("taskset", "taskset"),
    ("base_model", "model"),
    ("tasks_per_step", "tasks a step"),
    ("group_size", "attempts a task"),
    ("learning_rate", "learning rate"),
    ("loss_fn", "loss"),
    ("advantage", "advantage"),
    ("history", "history"),
    ("seed", "seed"),
)


class Report:
    """The report of `folders`, one or two; `tokenizer_model` decodes their tokens instead of their own models' tokenizers."""

    def __init__(self, folders: Sequence[Path], *, tokenizer_model: str | None = None, max_bytes: int = MAX_BYTES) -> None:
        if not 1 <= len(folders) <= 2:
            raise UserError(f"a report shows one run, or two side by side; {len(folders)} were given")
        self.folders = list(folders)
        self.max_bytes = max_bytes
        self.tokenizer_model = tokenizer_model
        self._decoders: dict[Path, Decoder] = {}

    def write(self, out: Path, *, refresh_seconds: float | None = None) -> bool:
        """Write the report to `out`, whole or not at all; whether every run has finished.

        With `refresh_seconds` an open page loads itself again that often.
        """
        runs = [read_run(folder) for folder in self.folders]
        data: dict[str, Any] = {
            "written": datetime.now().astimezone().isoformat(timespec="seconds"),
            "refresh": refresh_seconds,
            "charts": [_chart_data(chart) for chart in charts(runs)],
            "runs": [self._run_data(run, number) for number, run in enumerate(runs)],
        }
        taken = len(render(data).encode()) + sum(map(_room, runs))
        if taken >= self.max_bytes:
            raise UserError(
                f"--max-bytes {self.max_bytes} leaves nothing for episodes: curves and tables take {taken} bytes; raise it"
            )
        data |= self._episode_data(runs, self.max_bytes - taken)
        partial = out.with_name(out.name + ".partial")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(render(data), encoding="utf-8")
            partial.replace(out)
        except OSError as error:
            raise UserError(f"cannot write the report to {out}: {error.strerror}; --out names another file") from error
        return all(run.finished for run in runs)

    def _run_data(self, run: RunFolder, number: int) -> dict[str, Any]:
        note = self._decoder(run).note
        facts = [(label, run.config.get(name)) for name, label in _RUN_FIELDS]
        facts += [("started", run.environment.get("started")), ("version", run.environment.get("git"))]
        return {
            "label": "AB"[number] if len(self.folders) > 1 else "",
            "name": printable(run.name),
            "state": f"{len(run.steps)} of {run.config.get('steps')} steps{'' if run.finished else ', not finished'}",
            "facts": [[label, shown(str(value))] for label, value in facts if value is not None],
            "notes": [shown(note)] if note else [],
            "rows": [_row_data(row, number) for row in sorted(run.steps + run.evaluations, key=_row_order)],
        }

    def _episode_data(self, runs: Sequence[RunFolder], budget: int) -> dict[str, Any]:
        """Pages, vocabulary and task tables, with every episode file read once."""
        wanted = [(number, run, file) for number, run in enumerate(runs) for file in run.files]
        writer = PageWriter(budget)
        pages: dict[tuple[int, EpisodeFile], Page] = {}
        seen: dict[tuple[int, EpisodeFile], dict[str, Visit]] = {}
        for done, place in enumerate(spread_out(len(wanted))):
            number, run, file = wanted[place]
            episodes = list(read_episodes(file.path))
            training = trainings(episodes, run.config, trains=file.trains)
            pages[number, file] = writer.write(file, episodes, training, self._decoder(run), len(wanted) - done)
            seen[number, file] = visits(file, episodes)
        by_run = [{file: seen[number, file] for file in run.files} for number, run in enumerate(runs)]
        return {
            "summaries": [[_figure_data(figure) for figure in summary(run, by_run[n])] for n, run in enumerate(runs)],
            "between": [_figure_data(figure) for figure in between(runs, by_run)] if len(runs) > 1 else [],
            "pages": [_page_data(pages[number, file], number) for number, _, file in wanted],
            "vocabulary": [list(column) for column in zip(*writer.vocabulary.entries, strict=True)] or [[], []],
            "tasks": [
                [_task_data(line, number) for line in task_lines([by_run[number][file] for file in run.files])]
                for number, run in enumerate(runs)
            ],
        }

    def _decoder(self, run: RunFolder) -> Decoder:
        if run.path not in self._decoders:
            self._decoders[run.path] = decoder_for(run.config, self.tokenizer_model)
        return self._decoders[run.path]


def watch(report: Report, out: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Write the report every `seconds` in which a run has moved, until all have finished."""
    before = None
    while True:
        state = [_fingerprint(folder) for folder in report.folders]
        if state != before:
            finished = report.write(out, refresh_seconds=seconds)
            if finished:
                report.write(out)
                say("every run has finished")
                return
            before = state
            say(f"{datetime.now():%H:%M:%S} wrote {out}")
        time.sleep(seconds)


def render(data: dict[str, Any]) -> str:
    """The page around its data. Scripts run by their hashes alone, and the data is no script."""
    parts = files("turngrad.report") / "assets"
    scripts = [get_plotlyjs(), *((parts / name).read_text("utf-8") for name in _SCRIPTS)]
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" for code in scripts)
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    title = " and ".join(run["name"] for run in data["runs"])
    fields = {
        "POLICY": policy,
        "TITLE": html.escape(title),
        "STYLE": (parts / "page.css").read_text("utf-8"),
        "DATA": script_json(data),
        "SCRIPTS": "\n".join(f"<script>{code}</script>" for code in scripts),
    }
    page = (parts / "page.html").read_text("utf-8")
    return re.sub("@@([A-Z]+)@@", lambda match: fields[match[1]], page)


def script_json(data: Any) -> str:
    """JSON that can stand in a `<script>` element: none of its characters begins a tag, a comment or an entity."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, default=_plain)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _plain(value: Any) -> Any:
    """Plotly's figures hold tuples and numpy arrays."""
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _page_data(page: Page, number: int) -> dict[str, Any]:
    return {
        "key": page_key(number, page.file.name),
        "run": number,
        "title": page.file.title,
        "step": page.file.step,
        "trains": page.file.trains,
        "kept": page.kept,
        "total": page.total,
        "data": page.data,
    }


def _figure_data(figure: Figure) -> dict[str, Any]:
    return {"title": figure.title, "value": figure.value, "note": figure.note, "tone": figure.tone}


def _chart_data(chart: Chart) -> dict[str, Any]:
    return {
        "key": chart.key,
        "title": chart.title,
        "caption": chart.caption,
        "summary": chart.summary,
        "figure": chart.figure,
    }


def _task_data(line: TaskLine, number: int) -> dict[str, Any]:
    means = [None if mean is None else round(mean, 3) for mean in line.means]
    keys = [page_key(number, visit.file.name) for visit in line.visits]
    return {
        "task": printable(line.task_id),
        "kind": line.kind,
        "verdict": line.verdict,
        "attempts": line.attempts,
        "lost": sum(visit.lost for visit in line.visits),
        "visits": [[key, mean] for key, mean in zip(keys, means, strict=True)],
    }


def _row_data(row: Row, number: int) -> dict[str, Any]:
    """What the table of steps shows of a row."""
    return {
        "key": page_key(number, page_name(row)),
        "kind": "step" if row["kind"] == "train" else f"evaluation, {row['split'].replace('_', '-')}",
        **{name: row.get(name) for name in _TABLE_FIELDS},
        "why": None if row.get("why_not_updated") is None else shown(row["why_not_updated"]),
        "lastError": None if row.get("last_error") is None else shown(row["last_error"]),
    }


def _row_order(row: Row) -> tuple[int, bool]:
    return row["step"], row["kind"] == "eval"


def _room(run: RunFolder) -> int:
    """Bytes that pages and tasks will take beside the episodes, by the rows and not by reading every episode."""
    tasks = {(row["kind"], task) for row in run.steps for task in row["tasks"]}
    evaluated = sum({row["split"]: row["tasks"] + row["tasks_left_out"] for row in run.evaluations}.values())
    visits = sum(len(row["tasks"]) for row in run.steps) + sum(row["tasks"] for row in run.evaluations)
    return _SUMMARY_BYTES + _PAGE_BYTES * len(run.files) + _TASK_BYTES * (len(tasks) + evaluated) + _VISIT_BYTES * visits


def _fingerprint(folder: Path) -> tuple[int, ...]:
    """Changes whenever a row is written."""
    files = [folder / name for name in ("metrics.jsonl", "checkpoints.jsonl")]
    return tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)
