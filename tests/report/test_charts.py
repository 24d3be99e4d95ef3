"""Curves: what every point says and opens."""

from __future__ import annotations

from typing import Any

import pytest

from tests.report.runs import write_run
from turngrad.report.charts import charts
from turngrad.report.figures import Chart
from turngrad.report.folder import RunFolder, read_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return read_run(write_run(tmp_path_factory.mktemp("charts") / "run"))


def chart(found: list[Chart], key: str) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for each in found if each.key == key for trace in each.figure["data"]}


def test_reward_has_training_and_evaluations_and_every_point_opens_its_episodes(run: RunFolder) -> None:
    lines = chart(charts([run]), "reward")
    assert list(lines["training"]["x"]) == [1, 2, 3]
    assert list(lines["training"]["customdata"]) == ["0/step-0001", "0/step-0002", "0/step-0003"]
    assert list(lines["held-out tasks"]["customdata"]) == ["0/eval-0000-held_out", "0/eval-0003-held_out"]
    names = {file.name for file in run.files}
    for line in (lines["training"], lines["held-out tasks"], lines["training pool, evaluated"]):
        assert {point.removeprefix("0/") for point in line["customdata"]} <= names


def test_the_band_is_the_spread_within_groups(run: RunFolder) -> None:
    band = list(chart(charts([run]), "reward")["spread"]["y"])
    row = run.steps[0]
    assert band[0] == pytest.approx(row["reward"] + row["reward_std_within_group"])
    assert band[-1] == pytest.approx(row["reward"] - row["reward_std_within_group"])


def test_intervals_are_the_rows_own(run: RunFolder) -> None:
    line = chart(charts([run]), "reward")["held-out tasks"]
    low, high = run.evaluations[0]["reward_ci95"]
    assert line["error_y"]["array"][0] == pytest.approx(high - line["y"][0])
    assert line["error_y"]["arrayminus"][0] == pytest.approx(line["y"][0] - low)


def test_lost_rollouts_are_told_from_those_tried_again_with_success(run: RunFolder) -> None:
    bars = chart(charts([run]), "lost")
    assert list(bars["left out: tool server"]["y"]) == [1.0, 1.0, 1.0]
    assert list(bars["tried again"]["y"]) == [1.0, 1.0, 1.0]


def test_a_chart_without_a_single_figure_is_left_out(run: RunFolder) -> None:
    found = {each.key for each in charts([run])}
    assert "gap" in found
    assert "ratio" not in found
    assert charts([RunFolder(run.path, {}, {}, (), (), (), False)]) == []


def test_two_runs_are_told_apart(run: RunFolder) -> None:
    lines = chart(charts([run, run]), "reward")
    assert lines["A: training"]["customdata"][0] == "0/step-0001"
    assert lines["B: training"]["customdata"][0] == "1/step-0001"
    assert lines["A: training"]["line"]["dash"] != lines["B: training"]["line"]["dash"]


def test_the_summary_says_where_each_line_begins_and_ends(run: RunFolder) -> None:
    summary = next(each.summary for each in charts([run]) if each.key == "loss")
    assert summary == "loss: -0.1 at step 1, -0.3 at step 3."
