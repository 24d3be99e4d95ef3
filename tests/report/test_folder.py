"""Reading a run folder, also one that is being written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.runs import write_run
from turngrad.errors import UserError
from turngrad.report.folder import read_run


def test_files_come_in_the_order_they_were_played(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", steps=2))
    assert [file.name for file in run.files] == [
        "eval-0000-held_out",
        "eval-0000-train",
        "step-0001",
        "step-0002",
        "eval-0002-held_out",
        "eval-0002-train",
    ]
    assert [file.trains for file in run.files] == [False, False, True, True, False, False]
    assert run.file("eval-0002-held_out").title == "evaluation after step 2, held-out tasks"


def test_a_line_that_is_half_written_is_left_out_and_left_alone(tmp_path: Path) -> None:
    rows = write_run(tmp_path / "run", steps=2) / "metrics.jsonl"
    torn = rows.read_text() + '{"kind": "train", "ste'
    rows.write_text(torn)
    assert [row["step"] for row in read_run(tmp_path / "run").steps] == [1, 2]
    assert rows.read_text() == torn


def test_a_run_is_finished_when_the_state_of_its_last_step_is_saved(tmp_path: Path) -> None:
    assert read_run(write_run(tmp_path / "whole", steps=1)).finished
    assert not read_run(write_run(tmp_path / "part", steps=1, planned=3)).finished


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        read_run(tmp_path)


def test_a_step_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", steps=1))
    with pytest.raises(UserError, match=r"no episodes of step-0009; there are: .*step-0001"):
        run.file("step-0009")
