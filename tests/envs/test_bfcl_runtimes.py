"""The BFCL environment file runs where hud runs any file, and leaves nothing behind there."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from bfcl_data import load_category
from hud.eval.runtime import LocalRuntime, SubprocessRuntime

from tests.envs.bfcl_scripts import play, truth

ENV = Path(__file__).parents[2] / "envs" / "bfcl" / "env.py"


def children() -> int:
    return sum(f" {os.getpid()} " in path.read_text() for path in Path("/proc").glob("[0-9]*/stat") if path.exists())


@pytest.mark.parametrize("runtime", [LocalRuntime(ENV), SubprocessRuntime(ENV)], ids=["local", "subprocess"])
async def test_an_entry_with_a_guarded_backend_is_played_under_huds_own_runtimes(runtime: Any) -> None:
    entry = next(entry for entry in load_category("base") if "MathAPI" in entry.involved_classes)
    before = children()
    runs = await asyncio.gather(*(play(runtime, entry, truth(entry)) for _ in range(2)))
    assert [(run.trace.error, run.reward) for run in runs] == [(None, 1.0)] * 2
    assert children() == before
