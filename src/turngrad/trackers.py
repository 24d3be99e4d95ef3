"""Curves in wandb, trackio or TensorBoard, beside metrics.jsonl: the same names in each, and training never waits for them.

In: rows of metrics.jsonl. Out: their numbers as `train/<key>` and `eval/<split>/<key>` over the step. Everything of a tracker
happens on a thread of its own; the first failure turns it off with one line, since the run folder has every row anyway.
No key and no other secret leaves with the settings (`public_settings`).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import json
import queue
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit, urlunsplit

from turngrad.config import TrainConfig
from turngrad.errors import UserError

TrackerName = Literal["wandb", "trackio", "tensorboard"]

_PROJECT = "turngrad"
_OPEN_TIMEOUT, _CLOSE_TIMEOUT = 90.0, 10.0
_SECRET_SETTINGS = ("mcp_header", "mcp_env")


class Tracker(Protocol):
    """One run in a tracker. Called from one thread; may raise anything."""

    where: str

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Tracking:
    """A tracker at work. `row` takes a row of metrics.jsonl and returns at once; `say` gets the one line of a failure."""

    def __init__(self, name: TrackerName, say: Callable[[str], None]) -> None:
        self._name, self._say = name, say
        self._rows: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._ended: asyncio.Future[None] | None = None

    @classmethod
    async def start(
        cls, name: TrackerName, config: TrainConfig, folder: Path, *, done: int, say: Callable[[str], None]
    ) -> Tracking:
        """Open the tracker for the run in `folder`, of which `done` steps are over: it goes on with the same run there.

        Raises:
            UserError: it cannot be opened; nothing has been sampled yet, so this is the moment to say so.
        """
        tracking = cls(name, say)
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[str] = loop.create_future()
        ended: asyncio.Future[None] = loop.create_future()
        tracking._ended = ended
        settings = public_settings(config)

        def tell(call: Callable[..., object], *values: object) -> None:
            try:
                loop.call_soon_threadsafe(call, *values)
            except RuntimeError:
                # The loop is closed: whoever waited has given up.
                return

        def settle(future: asyncio.Future[Any], value: object, error: BaseException | None = None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def work() -> None:
            try:
                tracker = _OPENERS[name](settings, folder, done)
            except BaseException as error:
                tell(settle, opened, None, UserError(f"--track {name} cannot start: {_one_line(error)}"))
            else:
                tell(settle, opened, tracker.where)
                try:
                    tracking._pass_on(tracker)
                except BaseException as error:
                    tell(say, f"--track {name} failed and is off from here on ({_one_line(error)}); metrics.jsonl has every row")
            tell(settle, ended, None)

        threading.Thread(target=work, name=f"{name} tracker", daemon=True).start()
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT):
                where = await opened
        except TimeoutError:
            raise UserError(f"--track {name} cannot start: it did not answer within {_OPEN_TIMEOUT:g} s") from None
        say(f"curves in {name}: {where}")
        return tracking

    def row(self, row: dict[str, Any]) -> None:
        """Send the numbers of a row."""
        self._rows.put(row)

    async def close(self) -> None:
        """Wait until what was given is sent, for a few seconds at most."""
        self._rows.put(None)
        assert self._ended is not None
        done, _ = await asyncio.wait({self._ended}, timeout=_CLOSE_TIMEOUT)
        if not done:
            self._say(f"--track {self._name} did not end within {_CLOSE_TIMEOUT:g} s: its last rows may be missing there")

    def _pass_on(self, tracker: Tracker) -> None:
        while (row := self._rows.get()) is not None:
            tracker.log(row["step"], numbers(row))
        tracker.close()


@contextlib.asynccontextmanager
async def tracked(
    name: TrackerName | None, config: TrainConfig, folder: Path, *, done: int, say: Callable[[str], None]
) -> AsyncIterator[Callable[[dict[str, Any]], None]]:
    """What takes the rows of a run until the end of the block; nothing does where `name` is None. Raises as `Tracking.start`."""
    if name is None:
        yield lambda row: None
        return
    tracking = await Tracking.start(name, config, folder, done=done, say=say)
    try:
        yield tracking.row
    finally:
        await tracking.close()


def require_tracker(name: TrackerName) -> None:
    """Raises UserError where the tracker's package is missing."""
    if importlib.util.find_spec(name) is None:
        raise UserError(
            f"--track {name} needs the package {name}, which is not installed: it comes with the extra of its name, "
            f"`uv run --extra {name} scripts/train.py ...` or `pip install 'turngrad[{name}]'`"
        )


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """What a tracker gets of a row of metrics.jsonl: its numbers, by names that are the same in every tracker.

    An interval `x_ci95` becomes `x_ci95_low` and `x_ci95_high`, a count by class `failures/<class>`. Left out: text, nulls, and
    the shares by task, of which there are as many names as tasks.
    """
    prefix = f"eval/{row['split']}/" if row["kind"] == "eval" else "train/"
    found: dict[str, float] = {}
    for key, value in row.items():
        if key == "step" or key.startswith("gradient/task/"):
            continue
        if isinstance(value, bool | int | float):
            found[prefix + key] = float(value)
        elif key.endswith("_ci95") and value is not None:
            found[f"{prefix}{key}_low"], found[f"{prefix}{key}_high"] = map(float, value)
        elif isinstance(value, dict):
            found |= {f"{prefix}{key}/{name}": float(count) for name, count in value.items()}
    return found


def public_settings(config: TrainConfig) -> dict[str, Any]:
    """The settings as they may leave this machine: headers and environment variables by name alone, URLs without credentials."""
    settings = config.model_dump(mode="json")
    for name in _SECRET_SETTINGS:
        settings[name] = [item.partition(":" if name == "mcp_header" else "=")[0] for item in settings[name]]
    return {name: _without_credentials(value) if isinstance(value, str) else value for name, value in settings.items()}


def _without_credentials(text: str) -> str:
    if "://" not in text:
        return text
    parts = urlsplit(text)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


class _Wandb:
    def __init__(self, settings: dict[str, Any], folder: Path, done: int) -> None:
        wandb: Any = importlib.import_module("wandb")
        self._run = wandb.init(
            project=_PROJECT,
            name=folder.name,
            id=_run_id(folder),
            resume="allow",
            dir=folder,
            config=settings,
            # Its record of machine, command line and console would carry what a flag holds.
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True
            ),
        )
        # An axis of our own: wandb's must not go back, which a resumed run does.
        self._run.define_metric("*", step_metric="step")
        self.where = str(Path(self._run.dir).parent) if self._run.offline else self._run.url

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    def __init__(self, settings: dict[str, Any], folder: Path, done: int) -> None:
        trackio: Any = importlib.import_module("trackio")
        name = f"{folder.name}-{_run_id(folder)}"
        self._run = trackio.init(
            project=_PROJECT,
            name=name,
            resume="allow",
            config=settings,
            embed=False,
            # Names of its own, which the others do not have.
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.where = f"run {name}; `trackio show --project {_PROJECT}` shows it"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class _TensorBoard:
    def __init__(self, settings: dict[str, Any], folder: Path, done: int) -> None:
        self._event: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summary: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        writer: Any = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        self.where = str(folder / "tensorboard")
        self._writer = writer.EventFileWriter(self.where)
        if done:
            # TensorBoard forgets what an earlier file says of the steps from here on.
            start = self._event.SessionLog(status=self._event.SessionLog.START)
            self._writer.add_event(self._event.Event(step=done + 1, wall_time=time.time(), session_log=start))
            self._writer.flush()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(self._event.Event(step=step, wall_time=time.time(), summary=self._summary.Summary(value=scalars)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


_OPENERS: dict[str, Callable[[dict[str, Any], Path, int], Tracker]] = {
    "wandb": _Wandb,
    "trackio": _Trackio,
    "tensorboard": _TensorBoard,
}


def _run_id(folder: Path) -> str:
    """The run's id in a tracker, the same after a resume."""
    path = folder / "tracking.json"
    if not path.exists():
        path.write_text(json.dumps({"id": secrets.token_hex(4)}) + "\n")
    return json.loads(path.read_text())["id"]


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."
