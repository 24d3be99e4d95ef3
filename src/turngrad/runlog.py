"""The run folder: everything a run leaves behind, and all that resume needs.

    config.json        the settings in force, without keys
    environment.json   versions and git state
    split.json         the ids of the training pool and the held-out tasks
    metrics.jsonl      one row a step, one row an evaluation (`"kind": "eval"`)
    checkpoints.jsonl  one row a saved state: step, state path, sampler path (see `checkpoints`)
    episodes/          step-0001.jsonl.zst: every episode, token by token
    lock               held while a trainer works here

Invariants: a row is written whole, in one call, and flushed to disk before the run goes on; a torn last line is cut off at
resume, and rows beyond the resumed step are dropped, so that steps strictly increase and every line parses (C12).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from turngrad.config import TrainConfig
from turngrad.episodes import Episode
from turngrad.errors import RunError, UserError
from turngrad.redaction import hidden_headers, hidden_variables, redacted

_EPISODES = re.compile(r"(?:step|eval)-(\d+)")
_PACKAGES = ("turngrad", "hud", "fireworks-ai", "mcp", "transformers", "renderers", "numpy", "torch", "peft", "bfcl-eval")


class RunLog:
    """One run folder, locked for one trainer. `created` says whether it was made for this run."""

    def __init__(self, folder: Path, *, created: bool) -> None:
        self.folder = folder
        self.created = created
        try:
            (folder / "episodes").mkdir(parents=True, exist_ok=True)
            self._lock = open(folder / "lock", "w")  # noqa: SIM115 - held for the life of the run
        except OSError as error:
            raise UserError(f"cannot write to the run folder {folder}: {error.strerror}; --output-dir names another") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"another trainer is at work in {folder}; --output-dir names a folder of its own") from error

    @classmethod
    def create(cls, config: TrainConfig) -> RunLog:
        """A new folder: `--output-dir`, which must be empty or new, or one named by taskset and time below runs/."""
        folder = config.output_dir or Path("runs") / f"{config.taskset.replace('/', '-')}-{datetime.now():%Y%m%d-%H%M%S}"
        if (folder / "metrics.jsonl").exists():
            raise UserError(
                f"{folder} already holds a run; go on with it by --resume-from {folder}, or name another --output-dir"
            )
        log = cls(folder, created=True)
        # At once: a run that is killed from here on can be resumed.
        log.write_config(config)
        log._write_json("environment.json", _environment())
        return log

    @classmethod
    def reopen(cls, folder: Path) -> RunLog:
        """The folder of an earlier run, repaired where a kill tore a line."""
        if not (folder / "config.json").exists():
            raise UserError(f"--resume-from {folder}: no config.json there, so it is not a run folder")
        log = cls(folder, created=False)
        for name in ("metrics.jsonl", "checkpoints.jsonl"):
            _cut_torn_line(folder / name)
        return log

    def close(self) -> None:
        self._lock.close()

    def write_config(self, config: TrainConfig) -> None:
        """Write the settings in force; what was told by flag as a header or a server's variable stays out."""
        settings = config.model_dump(mode="json")
        settings["mcp_header"] = hidden_headers(config.mcp_header)
        settings["mcp_env"] = hidden_variables(config.mcp_env)
        self._write_json("config.json", settings)

    def write_split(self, train: Iterable[str], held_out: Iterable[str]) -> None:
        """Write which tasks train and which are held out.

        Raises:
            UserError: a task that this run held out before would train now (C10).
        """
        train = list(train)
        if (self.folder / "split.json").exists():
            before = json.loads((self.folder / "split.json").read_text())["held_out"]
            if moved := sorted(set(before).intersection(train)):
                raise UserError(
                    f"{self.folder} held out {len(moved)} tasks that would train now, such as {moved[0]!r}; resume with the "
                    "tasks and the --eval-tasks it was started with"
                )
        self._write_json("split.json", {"train": train, "held_out": list(held_out)})

    def metrics(self, row: dict[str, Any]) -> None:
        self._append("metrics.jsonl", row)

    def checkpoint(self, row: dict[str, Any]) -> None:
        self._append("checkpoints.jsonl", row)

    def set_checkpoints(self, rows: Iterable[dict[str, Any]]) -> None:
        """Put these rows in the place of those there are, all at once."""
        self._replace("checkpoints.jsonl", rows)

    def episodes(self, name: str, episodes: Iterable[Episode]) -> Path:
        """Write one step's episodes, whole or not at all; `name` is such as "step-0001" or "eval-0000-held_out"."""
        path = self.folder / "episodes" / f"{name}.jsonl.zst"
        with _replacing(path) as file, zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False) as writer:
            for episode in episodes:
                writer.write(redacted(episode.to_json()).encode() + b"\n")
        return path

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The parsed rows of metrics.jsonl or checkpoints.jsonl."""
        return read_rows(self.folder / name)

    def drop_after(self, step: int) -> None:
        """Forget rows and episodes of steps beyond `step`: the state that is resumed knows nothing of them."""
        for name in ("metrics.jsonl", "checkpoints.jsonl"):
            self._replace(name, (row for row in self.rows(name) if row["step"] <= step))
        for path in (self.folder / "episodes").iterdir():
            number = _EPISODES.match(path.name)
            if path.suffix == ".partial" or (number is not None and int(number[1]) > step):
                with _told(path):
                    path.unlink()

    def _append(self, name: str, row: dict[str, Any]) -> None:
        line = redacted(json.dumps(row, allow_nan=False)).encode() + b"\n"
        path = self.folder / name
        with _told(path):
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                before = os.fstat(file).st_size
                try:
                    if os.write(file, line) != len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file)
                except OSError:
                    # Half a row would swallow the next one.
                    os.truncate(file, before)
                    raise
            finally:
                os.close(file)

    def _replace(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        lines = [json.dumps(row, allow_nan=False) + "\n" for row in rows]
        with _replacing(self.folder / name) as file:
            file.write(redacted("".join(lines)).encode())

    def _write_json(self, name: str, data: Any) -> None:
        with _replacing(self.folder / name) as file:
            file.write(redacted(json.dumps(data, indent=2) + "\n").encode())


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Errors of the file system as the run's last sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(f"cannot write {path}: {reason}; make room there, then --resume-from goes on") from error


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end of the block, on disk and whole, or leaves it as it was."""
    partial = path.with_name(f"{path.name}.partial")
    with _told(path):
        try:
            with open(partial, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def read_episodes(path: Path) -> Iterator[Episode]:
    """The episodes of one `episodes/*.jsonl.zst`, one at a time."""
    with open(path, "rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        pending = b""
        while chunk := reader.read(1 << 20):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                yield Episode.from_json(line.decode())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The parsed rows of a metrics.jsonl or checkpoints.jsonl; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []


def read_config(folder: Path) -> dict[str, Any]:
    """The settings of an earlier run."""
    try:
        return json.loads((folder / "config.json").read_text())
    except FileNotFoundError as error:
        raise UserError(
            f"{folder} is not a run folder: it has no config.json, or its run ended before it began; start one with --output-dir"
        ) from error
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"{folder} is not a run folder: its config.json cannot be read ({error})") from error


def _cut_torn_line(path: Path) -> None:
    """Drop bytes after the last newline, and a last line that does not parse."""
    if not path.exists():
        return
    data = path.read_bytes()
    keep = data[: data.rfind(b"\n") + 1]
    lines = keep.splitlines(keepends=True)
    while lines:
        try:
            json.loads(lines[-1])
            break
        except json.JSONDecodeError:
            lines.pop()
    keep = b"".join(lines)
    if keep != data:
        os.truncate(path, len(keep))


def _environment() -> dict[str, Any]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    git = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "git": git.stdout.strip() or None,
        "packages": versions,
    }
