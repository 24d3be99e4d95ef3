"""What every script owes to a person who asks it for help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted(path.name for path in Path("scripts").glob("*.py"))
HEAVY = ("torch", "hud", "transformers", "fireworks", "renderers", "mcp")
WATCHED = f"""
import json, runpy, sys, time
sys.argv = [sys.argv[1], "--help"]
sys.path[0] = "scripts"
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    loaded = sorted(set({HEAVY!r}) & set(sys.modules))
    print(json.dumps([loaded, time.process_time()]), file=sys.stderr)
"""


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_there_at_once_and_loads_nothing_heavy(script: str) -> None:
    """In processor time, which a busy machine does not stretch."""
    result = subprocess.run(
        [sys.executable, "-c", WATCHED, f"scripts/{script}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("usage: ")
    loaded, seconds = json.loads(result.stderr.splitlines()[-1])
    assert loaded == []
    assert seconds < 1.5
