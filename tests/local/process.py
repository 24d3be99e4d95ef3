"""The engine as a process, as a trainer starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Process:
    """A running engine."""

    url: str
    root: str
    state_dir: Path
    popen: subprocess.Popen[str]

    def post(self, path: str, body: Any, *, root: bool = False) -> Any:
        """The JSON answer; urllib.error.HTTPError for a refusal."""
        request = urllib.request.Request(
            (self.root if root else self.url) + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def faults(self, *rules: dict[str, Any]) -> None:
        """Replaces the rules in force."""
        self.post("/faults", list(rules), root=True)


@contextmanager
def engine_process(model: Path, state_dir: Path, *flags: str) -> Iterator[Process]:
    """Starts the engine with faults enabled and waits for its line."""
    state_dir.mkdir(parents=True, exist_ok=True)
    rules = state_dir / "faults.json"
    rules.write_text("[]")
    command = [sys.executable, "-m", "turngrad.local.server", "--model", str(model), "--state-dir", str(state_dir / "state")]
    popen = subprocess.Popen(
        [*command, "--faults", str(rules), "--threads", "1", "--die-with-parent", *flags],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert popen.stdout is not None
        words = popen.stdout.readline().split()
        assert words[:1] == ["TURNGRAD_ENGINE"], words
        yield Process(words[1], words[1].partition("/training/")[0], state_dir / "state", popen)
    finally:
        popen.terminate()
        popen.wait(timeout=20)
