"""A new environment works as it is written: it loads, is graded, passes its own test and the checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.own import call, play, resolved
from turngrad.errors import UserError
from turngrad.skeleton import write_skeleton
from turngrad.tasksets import load_taskset

ROOT = Path(__file__).parents[1]


async def test_the_skeleton_plays_from_flags_and_holds_enough_tasks_for_the_defaults(tmp_path: Path) -> None:
    folder = write_skeleton("my_env", tmp_path)
    config = resolved("--env-path", str(folder / "env.py"), "--tasks-file", str(folder / "tasks.jsonl"))
    taskset = load_taskset(config)
    assert (taskset.name, taskset.placement.kind, len(taskset.held_out)) == ("my_env", "pool", 8)
    row = taskset.train[0]
    right = [call("mkdir", dir_name=row.args["folder"]), "done", call("touch", file_name=row.args["file"]), "done"]
    ((episode,),) = (await play(config, right, tasks=[row.id])).values()
    assert (episode.reward, episode.excluded) == (1.0, None)


def test_the_skeletons_own_test_passes(tmp_path: Path) -> None:
    folder = write_skeleton("my_env", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", str(folder / "test_env.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["my-env", "1st", "class", "a/b", ""])
def test_a_name_python_cannot_import_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot name an environment"):
        write_skeleton(name, tmp_path)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    write_skeleton("my_env", tmp_path)
    with pytest.raises(UserError, match="there already"):
        write_skeleton("my_env", tmp_path)
