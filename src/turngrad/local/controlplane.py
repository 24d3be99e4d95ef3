"""The control plane: the account, and training sessions as resources with checkpoints.

In: GET, DELETE and POST under `/v1/accounts`. Out: their JSON. A checkpoint's resource id is `<run>-<name>`, because resource
names have no room for the slashes of its path (which DELETE takes too). Promotion belongs to the service: here a checkpoint is a
folder already.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.parse import parse_qs

import orjson

from turngrad.local.sessions import Sessions
from turngrad.local.store import Kind, Store
from turngrad.local.wire import ACCOUNT, ApiError, parse_run_path

ROOT = "/v1/accounts"
_SESSION = re.compile(
    rf"{ROOT}/{ACCOUNT}/trainingSessions/(?P<session>ts-[0-9a-f]+)(?P<under>/checkpoints(/[^:]+)?)?(?P<verb>:\w+)?"
)
_LISTED = re.compile(r"(?P<run>run-[0-9a-f]{32})-(?P<name>[a-z0-9-]+)")
_TYPES: tuple[tuple[str, Kind], ...] = (("SAMPLER", "snapshots"), ("TRAINING", "states"))
_PAGE = 200


class ControlPlane:
    """Endpoints beside the training plane; used from the event loop only."""

    def __init__(self, sessions: Sessions, store: Store) -> None:
        self._sessions, self._store = sessions, store

    def answer(self, method: str, path: str, query: bytes) -> bytes:
        """The body of a request under ROOT. Raises ApiError."""
        if method == "GET" and path == ROOT:
            return orjson.dumps({"accounts": [{"name": f"accounts/{ACCOUNT}"}]})
        match = _SESSION.fullmatch(path)
        if match is None:
            raise ApiError(404, f"{method} {path} is not served here")
        if match["verb"] is not None:
            raise ApiError(501, f"{match['verb'][1:]} belongs to the service: this engine keeps checkpoints in its --state-dir")
        if method == "DELETE" and match["under"] is None:
            self._sessions.close(match["session"])
            return b"{}"
        if method == "DELETE" and match["under"] is not None:
            # States outlive their session: a resumed run deletes those of the one before it by its own session's name.
            run, name = parse_run_path(_path(match["under"].removeprefix("/checkpoints").removeprefix("/")))
            self._store.delete(run, "states", name)
            return b"{}"
        if method == "GET" and match["under"] == "/checkpoints":
            return self._checkpoints(match["session"], query)
        raise ApiError(404, f"{method} {path} is not served here")

    def _checkpoints(self, session: str, query: bytes) -> bytes:
        """One page, oldest first; `pageToken` is the number of rows before it."""
        self._sessions.check(session)
        rows = []
        for run in self._sessions.runs(session):
            for label, kind in _TYPES:
                for name, created in self._store.created(run, kind):
                    row = {
                        "name": f"accounts/{ACCOUNT}/trainingSessions/{session}/checkpoints/{run}-{name}",
                        "checkpointType": label,
                        "promotable": False,
                        "createTime": datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z"),
                    }
                    rows.append((created, row))
        rows.sort(key=lambda pair: pair[0])
        asked = {key: values[-1] for key, values in parse_qs(query.decode()).items()}
        size, start = (_count(asked, key, default) for key, default in (("pageSize", _PAGE), ("pageToken", 0)))
        stop = start + max(1, size)
        page = {"trainingSessionCheckpoints": [row for _, row in rows[start:stop]]}
        return orjson.dumps(page | ({"nextPageToken": str(stop)} if stop < len(rows) else {}))


def _path(checkpoint: str) -> str:
    """The path of a checkpoint that is named by its path or by its listed id."""
    listed = _LISTED.fullmatch(checkpoint)
    return checkpoint if listed is None else f"{ACCOUNT}/{listed['run']}/{listed['name']}"


def _count(asked: dict[str, str], key: str, default: int) -> int:
    value = asked.get(key, str(default))
    if not value.isdecimal():
        raise ApiError(400, f"{key} must be a count, found {value!r:.80}")
    return int(value)
