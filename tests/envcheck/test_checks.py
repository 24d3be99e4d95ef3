"""check_env finds what is wrong with an environment, one fault at a time, and nothing where nothing is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hud.environment import load_environment
from hud.eval import Task
from hud.eval.runtime import LocalRuntime

from turngrad.envcheck.checks import CheckSettings, Finding, check

ROOT = Path(__file__).parents[2]
BANK = ROOT / "tests" / "envkit" / "bank.py"
ENV = """
import itertools, random, time
from turngrad.envkit import Grade, ToolError, World, environment, tool
BOOK = {{}}
NUMBERS = itertools.count()
class Odd(World):
    def __init__(self, n: int = 0) -> None:
        self.n, self.book = n, {book}
    @tool
    def put(self, key: str) -> str:
        "Put a key in the book."
        {put}
    @tool
    def size(self) -> str:
        "How many keys."
        return {size}
    def turns(self):
        yield {prompt}
    def grade(self, answer):
        return {grade}
env = environment("odd", odd=Odd)
"""
SOUND = {
    "book": "{}",
    "put": "self.book[key] = 1; return 'ok'",
    "size": "str(len(self.book))",
    "prompt": "f'task {self.n}'",
    "grade": "0.1 * len(self.book)",
}


async def findings(tmp_path: Path, **changes: str) -> list[Finding]:
    path = tmp_path / "odd_env.py"
    path.write_text(ENV.format(**{**SOUND, **changes}))
    tasks = [Task(env="odd", id="odd", args={"n": n}, slug=str(n)) for n in range(3)]
    # One environment for all of them, as a pool serves it: what is kept in the module is shared.
    settings = CheckSettings(episodes=6, calls=6, timeout=10)
    env = load_environment(path)
    async with LocalRuntime(env)(tasks[0]) as served:
        return await check(tasks, served, settings)


async def test_a_sound_environment_has_no_faults_and_no_remarks(tmp_path: Path) -> None:
    found = await findings(tmp_path)
    assert [finding.what for finding in found if finding.kind != "fine"] == []
    told = " | ".join(finding.what for finding in found)
    for what in ("3 tasks start", "2 tools with valid schemas", "starts where the last one started", "answered as they do alone"):
        assert what in told


@pytest.mark.parametrize(
    ("changes", "kind", "what"),
    [
        ({"book": "BOOK"}, "remark", "in one lone episode and"),
        ({"put": "if key in BOOK: raise ToolError('taken')\n        BOOK[key] = 1; return 'ok'"}, "fault", "fared differently"),
        ({"grade": "float('nan')"}, "fault", "do not run|does not run|not a finite"),
        ({"grade": "1.0"}, "fault", "every episode earns 1, whatever it does"),
        ({"grade": "0.6 if not self.book else 0.0"}, "remark", r"doing nothing earns 0.60 on average"),
        ({"grade": "next(NUMBERS) / 1000"}, "fault", "the same calls earned"),
        ({"prompt": "'x' * 40000"}, "remark", "about 10[0-9]{3} tokens long"),
        ({"prompt": "' '"}, "fault", "the prompt of '0' is empty"),
        ({"size": "'y' * 20000"}, "remark", "answered about 5000 tokens"),
        ({"prompt": "1 / 0"}, "fault", "does not run: .*division by zero"),
    ],
)
async def test_each_fault_is_found_and_named(tmp_path: Path, changes: dict[str, str], kind: str, what: str) -> None:
    found = await findings(tmp_path, **changes)
    assert [f for f in found if f.kind == kind and re.search(what, f.what) and f.mend], found


def test_the_script_says_its_verdict_in_words_and_status(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    rows = [{"env": "bank", "id": "bank", "args": {"start": 0, "amounts": [n, 2]}} for n in range(3)]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "scripts/check_env.py", "--env-path", str(BANK), "--tasks-file", str(tasks), "--episodes", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "served by pool" in done.stdout
    assert "verdict: ready to train" in done.stdout
