"""What every script owes to a person who asks it for help."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from turngrad.config import config_from

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


@pytest.mark.parametrize("other", ["bfcl-multi-turn", "bfcl-multi-turn-all", "arithmetic"])
def test_a_runs_weights_are_evaluated_on_another_taskset_whatever_the_sizes_of_its_own(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turngrad.tasksets import load_taskset

    monkeypatch.syspath_prepend("scripts")
    script = importlib.import_module("evaluate")
    sizes = {"eval_tasks": 400, "tasks_per_step": 300, "max_turns": 7}
    trained = config_from({"taskset": "bfcl-synthetic", "backend": "local", **sizes}).resolve()
    (tmp_path / "config.json").write_text(trained.model_dump_json())
    settings = script.settings(script.EvaluateConfig(run=tmp_path, taskset=other))
    assert (settings.base_model, settings.max_turns) == ("bfcl-starter", 7)
    assert len(load_taskset(settings).held_out) >= 16
    same = script.settings(script.EvaluateConfig(run=tmp_path, taskset="bfcl-synthetic"))
    assert (same.eval_tasks, same.tasks_per_step) == (400, 300)
