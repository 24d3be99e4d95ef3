"""The documentation holds: examples run, links resolve, every metric and every flag is explained, commands exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.docs.commands import PAGES, ROOT, blocks, shown
from tests.families import FAMILIES, QWEN_FAMILIES
from tests.own import call, play, resolved
from tests.report.runs import step_groups, write_run
from turngrad.advantages import group_advantages
from turngrad.batch import build_batch
from turngrad.config import BUILT_IN_TASKSETS, TrainConfig
from turngrad.diagnostics import batch_metrics, comparison_metrics
from turngrad.episodes import BadCall, Break, Failure, StopReason
from turngrad.flags import flag_page
from turngrad.local.losses import LOSSES
from turngrad.metrics import evaluation_metrics, rollout_metrics
from turngrad.report.folder import read_run


def explained(page: str) -> set[str]:
    """The names in code style at the left of a page's tables."""
    cells = re.findall(r"^\| (.*?) \|", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {"__name__": f"docs_{page.stem}"}
    if page.name == "reports.md":
        names["RUN"] = write_run(tmp_path / "run", steps=1)
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), names)
    capsys.readouterr()


async def test_the_grader_and_the_task_of_the_page_on_mcp_servers_grade_as_it_says(tmp_path: Path) -> None:
    page = ROOT / "docs" / "mcp-servers.md"
    (task,) = blocks(page, "json")
    (grader,) = blocks(page, "python")
    (tmp_path / "grading.py").write_text(grader)
    asked = json.loads(task)
    graders = {"call": asked["grader"], "python": {"type": "python", "function": "grading:score"}}
    rows = [{**asked, "id": name, "prompt": f"{asked['prompt']} ({name})", "grader": each} for name, each in graders.items()]
    rows += [{"prompt": f"filler {n}", "grader": {"type": "exact", "value": "x"}} for n in range(3)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ("--mcp", f"python {ROOT}/envs/notes/server.py", "--tasks-file", str(tmp_path / "tasks.jsonl"))
    config = resolved(*files, "--tasks-per-step", "2", "--eval-tasks", "1")
    found = await play(config, [call("append_note", title="Ana", text="soap"), "Done.", "Done."], tasks=list(graders))
    assert {name: episode.reward for name, (episode,) in found.items()} == {"call": 1.0, "python": 0.8}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not target.startswith("http"):
            path, _, heading = target.partition("#")
            linked = page.parent / path if path else page
            assert linked.exists(), target
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE) if heading else []
            assert not heading or heading in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}, target


def test_every_page_is_reached_from_the_readme() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text()))
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert "(docs/README.md)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    for path in re.findall(r"`((?:src|scripts|envs|docs|tests)/[\w./]+\.\w+)", page.read_text()):
        assert (ROOT / path).exists(), path


def commands() -> list[tuple[str, list[str]]]:
    """Every script that the pages run, with its arguments."""
    words = [command.words for command in shown()]
    starts = [next((place for place, word in enumerate(each) if word.startswith("scripts/")), None) for each in words]
    return [(each[start], each[start + 1 :]) for each, start in zip(words, starts, strict=True) if start is not None]


@pytest.mark.parametrize("script", sorted({script for script, _ in commands()}))
def test_the_flags_of_every_command_shown_are_flags_of_its_script(script: str) -> None:
    said = subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True, timeout=120, check=False)
    assert said.returncode == 0, said.stderr
    for arguments in (arguments for name, arguments in commands() if name == script):
        for flag in (argument for argument in arguments if argument.startswith("--") and argument != "--help"):
            assert re.search(rf"{flag}\b", said.stdout), f"{script} {flag}"


def test_every_metric_of_a_real_row_is_explained() -> None:
    pairs = [(group, group_advantages(group, "group-zscore")) for group in step_groups(1)]
    batch = build_batch(pairs, normalize="token", max_seq_len=2048)
    logprobs = [np.full(len(segment.ids) - 1, -0.5) for segment in batch.sent]
    compared = comparison_metrics([batch], [logprobs], logprobs, loss_fn="ppo", clip_low=0.8, clip_high=1.2)
    rows = {
        **rollout_metrics([group for group, _ in pairs]),
        **batch_metrics(pairs, batch),
        **compared,
        **evaluation_metrics([group for group, _ in pairs]),
    }
    assert {"gap/mean", "ratio/clip_fraction", "stop_done", "gradient/largest_task", "pass_hat_k_ci95"} <= set(rows)
    names = explained("metrics.md")
    families = [name.removesuffix("*") for name in names if name.endswith("*")]
    assert [key for key in rows if key not in names and not key.startswith(tuple(families))] == []


def test_every_key_that_the_loop_adds_is_explained(tmp_path: Path) -> None:
    source = "".join((ROOT / f"src/turngrad/{name}.py").read_text() for name in ("training", "steprow", "evaluation"))
    added = set(re.findall(r'^ +"([a-z_]+)": ', source, re.MULTILINE)) | set(re.findall(r'metrics\["(update/\w+)"\]', source))
    learner = (ROOT / "src/turngrad/learner.py").read_text()
    added |= set(re.findall(r'"(update/\w+)"', learner))
    run = read_run(write_run(tmp_path / "run", steps=1))
    assert added >= {"kept_groups", "why_not_updated", "update/grad_norm", "split"}
    names = explained("metrics.md")
    missing = {key for key in added if key not in names and key not in ("state", "held_out")}
    assert missing == set(), f"explain them in docs/metrics.md: {missing}"
    assert run.steps


def test_the_page_of_flags_is_the_settings() -> None:
    assert (ROOT / "docs/flags.md").read_text() == flag_page(), "python -m turngrad.flags > docs/flags.md writes it anew"


def test_the_page_of_flags_is_the_help() -> None:
    said = subprocess.run([sys.executable, ROOT / "scripts/train.py", "--help"], capture_output=True, text=True, check=True)
    shown = set(re.findall(r"--([a-z][a-z-]*)", said.stdout)) - {"help"}
    for name in TrainConfig.model_fields:
        assert f"`--{name.replace('_', '-')}`" in flag_page()
        assert name.replace("_", "-") in shown


def test_the_table_of_families_is_what_the_tests_of_conversations_play() -> None:
    rows = re.findall(r"^\| `([\w.-]+)` \| (.*) \|$", (ROOT / "docs" / "families.md").read_text(), re.MULTILINE)
    verified = {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}
    assert set(verified) == set(FAMILIES)
    assert all(cells[2] == "yes" for cells in verified.values())
    assert {name for name, cells in verified.items() if cells[3] == "yes"} == set(QWEN_FAMILIES)


def test_every_taskset_and_every_loss_is_on_its_page() -> None:
    bfcl = {name for name in BUILT_IN_TASKSETS if name.startswith("bfcl")}
    assert bfcl <= explained("bfcl.md")
    (losses,) = re.findall(
        r"^\| losses \|.*\| (.*), by the same formulas", (ROOT / "docs" / "engine.md").read_text(), re.MULTILINE
    )
    assert set(re.findall(r"`(\w+)`", losses)) == set(LOSSES)


def test_every_benchmark_is_explained() -> None:
    names = {path.stem for path in (ROOT / "scripts" / "benchmarks").glob("[!_]*.py") if not path.stem.endswith("_peer")}
    assert names <= explained("benchmarks.md")


def test_every_class_of_failure_is_explained() -> None:
    names = explained("failures.md")
    ends = {reason.value for reason in StopReason} - {"timeout", "infrastructure"}
    assert {failure.value for failure in Failure} | ends | {bad.value for bad in BadCall} <= names
    assert {reason.value for reason in Break} <= explained("masking.md")
