"""Checkpoints on disk: states that resume a run bit for bit, and sampler snapshots.

Layout: `<root>/<run>/<kind>/<name>/` with `manifest.json` and safetensors files. Invariant: a checkpoint is there whole
or not at all (written beside, flushed, renamed), and is used only if every file still has the sha256 its manifest lists.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file, save_file
from torch import Tensor

Kind = Literal["states", "snapshots"]


class StoreError(Exception):
    """A checkpoint that cannot be written or read; the message names the file."""


class MissingCheckpoint(StoreError):
    """No such checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """What is in a checkpoint folder: `meta` as it was given, tensors by file stem."""

    meta: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]


class Store:
    """All checkpoints under one folder."""

    def __init__(self, root: Path, keep_snapshots: int) -> None:
        """Creates `root`; removes what an interrupted write or deletion left.

        Of each run the newest `keep_snapshots` of every series stay: of names that are alike up to their first digit.
        """
        self._root, self._keep = root, keep_snapshots
        root.mkdir(parents=True, exist_ok=True)
        for left in (*root.glob("*/*/.writing-*"), *root.glob("*/*/.deleting-*")):
            shutil.rmtree(left, ignore_errors=True)

    def save(self, run: str, kind: Kind, name: str, meta: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Writes a checkpoint, replacing one of the same name. Raises StoreError (a full disk names the file)."""
        folder = self._root / run / kind
        try:
            folder.mkdir(parents=True, exist_ok=True)
            writing = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder))
        except OSError as error:
            raise StoreError(f"cannot write {folder}: {error.strerror}") from error
        path = writing
        try:
            digests = {}
            for stem, group in tensors.items():
                path = writing / f"{stem}.safetensors"
                save_file({key: value.contiguous().cpu() for key, value in group.items()}, path)
                digests[path.name] = _sha256(path)
                _flush(path)
            path = writing / "manifest.json"
            path.write_text(json.dumps({"meta": dict(meta), "sha256": digests}, indent=1))
            _flush(path)
            target = folder / name
            if target.exists():
                shutil.rmtree(target)
            path = target
            newest = max((_age(other) for other in _folders(folder)), default=0)
            os.rename(writing, target)
            if _age(target) <= newest:
                # The clock went back: a checkpoint that looks older than the others would be the next to go.
                os.utime(target, ns=(newest + 1, newest + 1))
            _flush(folder)
        except Exception as error:
            shutil.rmtree(writing, ignore_errors=True)
            reason = error.strerror if isinstance(error, OSError) else error
            lost = folder / name / path.name
            raise StoreError(f"cannot write {lost}: {reason}; free some disk space or move --state-dir") from error
        if kind == "snapshots":
            self._forget_old(folder, _series(name))

    def load(self, run: str, kind: Kind, name: str) -> Checkpoint:
        """Raises MissingCheckpoint, or StoreError for a torn or altered file."""
        folder = self._root / run / kind / name
        manifest = folder / "manifest.json"
        if not manifest.exists():
            raise MissingCheckpoint(f"no checkpoint {name!r} of {run} here; it has {self.names(run, kind) or 'none'}")
        try:
            content = json.loads(manifest.read_text())
            digests = content["sha256"]
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(f"{manifest} cannot be read: {error}") from error
        tensors = {}
        for file, digest in digests.items():
            path = folder / file
            if not path.exists() or _sha256(path) != digest:
                raise StoreError(f"{path} is torn or altered: its sha256 is not the one in its manifest; use another checkpoint")
            tensors[path.stem] = load_file(path)
        return Checkpoint(content["meta"], tensors)

    def delete(self, run: str, kind: Kind, name: str) -> None:
        """Removes a checkpoint, whole or not at all; one that is not there is no error. Raises StoreError."""
        folder = self._root / run / kind
        leaving = folder / f".deleting-{name}"
        try:
            os.rename(folder / name, leaving)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot delete {folder / name}: {error.strerror}") from error
        _flush(folder)
        shutil.rmtree(leaving, ignore_errors=True)

    def meta(self, run: str, kind: Kind, name: str) -> dict[str, Any]:
        """The `meta` of a checkpoint without its tensors. Raises MissingCheckpoint."""
        manifest = self._root / run / kind / name / "manifest.json"
        if not manifest.exists():
            raise MissingCheckpoint(f"no checkpoint {name!r} of {run} here; it has {self.names(run, kind) or 'none'}")
        return json.loads(manifest.read_text())["meta"]

    def names(self, run: str, kind: Kind) -> list[str]:
        """Names of a run's checkpoints, oldest first."""
        return [path.name for path in _folders(self._root / run / kind)]

    def created(self, run: str, kind: Kind) -> list[tuple[str, float]]:
        """Name and time (seconds since the epoch) of a run's checkpoints, oldest first."""
        return [(path.name, path.stat().st_mtime) for path in _folders(self._root / run / kind)]

    def runs(self) -> list[str]:
        """Runs that have a checkpoint."""
        return sorted(path.name for path in self._root.iterdir() if path.is_dir())

    def _forget_old(self, folder: Path, series: str) -> None:
        for old in [path for path in _folders(folder) if _series(path.name) == series][: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)


def _folders(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("[a-z0-9]*") if path.is_dir()] if folder.exists() else []
    return sorted(found, key=_age)


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns


def _series(name: str) -> str:
    """`policy-` of policy-0005-1a2b3c4d."""
    return re.split(r"\d", name, maxsplit=1)[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
