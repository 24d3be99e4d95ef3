"""scripts/show.py: lists, episodes and mistakes, and that a hostile episode does nothing to a terminal."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.report.runs import HOSTILE, hostile, play, tokenizer, write_run
from turngrad.episodes import Episode
from turngrad.report.decode import Decoder
from turngrad.report.terminal import COLOURS, Colour, episode_table, episode_text
from turngrad.report.training import trainings

ROOT = Path(__file__).resolve().parents[1]
CONFIG = {"advantage": "group-zscore", "max_seq_len": 2048}


def printed(episodes: list[Episode], at: int = 0, colour: Colour = "mask", *, terminal: bool = False) -> str:
    out = io.StringIO()
    colours = "truecolor" if terminal else None
    console = Console(file=out, highlight=False, soft_wrap=True, force_terminal=terminal, color_system=colours, width=200)
    found = trainings(episodes, CONFIG, trains=True)
    decoder = Decoder(lambda ids: tokenizer().decode(list(ids), skip_special_tokens=False))
    console.print(episode_table("step 1", episodes, found))
    for line in episode_text(episodes[at], found[at], decoder, colour):
        console.print(line)
    return out.getvalue()


def show(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ROOT / "scripts/show.py", *arguments], capture_output=True, text=True, check=False)


def test_an_episode_reads_in_the_order_it_happened() -> None:
    text = printed([play("a", 0, 1.0), play("a", 1, 0.0)])
    order = [
        "a, attempt 0: reward 1.000",
        "trained with advantage 0.707",
        "[system, ",
        "[user, ",
        "[assistant turn 1, 7 of 7 tokens trained",
        '<tool_call>{"name": "ls", "arguments": {}}</tool_call><|im_end|>',
        "-> ls: done",
        "[tool, ",
        "It is done.",
        "-- new segment before turn 3: length --",
    ]
    places = [text.find(part) for part in order]
    assert -1 not in places, list(zip(order, places, strict=True))
    assert places == sorted(places)


@pytest.mark.parametrize("colour", COLOURS)
def test_sampled_tokens_are_coloured_and_context_is_not(colour: Colour) -> None:
    text = printed([play("a", 0, 1.0), play("a", 1, 0.0)], colour=colour, terminal=True)
    line = next(line for line in text.splitlines() if "mIt" in line or "It is done" in line)
    coloured = {"mask": "48;2;31;92;60m", "logprob": "", "advantage": "48;2;34;112;173m"}[colour]
    assert coloured in line
    context = next(line for line in text.splitlines() if "Tools: ls" in line)
    assert "48;2" not in context


@pytest.mark.parametrize("terminal", [True, False])
def test_a_hostile_episode_sends_a_terminal_nothing_but_text(terminal: bool) -> None:
    episodes = [hostile("a \x1b[2J", 0, 1), play("a", 1, 0.5)]
    text = printed(episodes, terminal=terminal)
    assert "\\u001b[2J" in text
    for control in ("\x1b[2J", "\x1b]0;", "\x07", "\u202e", "\u2066", "\x00"):
        assert control not in text
    # Rich's markup is shown, and a line of 100 kB is cut.
    assert "[bold red]rich[/]" in text
    assert f"of {len(HOSTILE)} characters not shown" in text
    assert max(map(len, text.splitlines())) < 20_000


def test_the_script_lists_a_step_shows_an_episode_and_names_mistakes(tmp_path: Path) -> None:
    # No tokenizer there: ids are shown, and the reason goes to the standard error.
    run = write_run(tmp_path / "run", steps=2, base_model=str(tmp_path / "gone"))
    listed = show(run)
    assert listed.returncode == 0
    assert listed.stdout.startswith("step 2")
    assert "tool_server" in listed.stdout
    shown = show(run, "--step", "1", "--task", "rising_2", "--attempt", "3")
    assert "rising_2, attempt 3: reward 0.000" in shown.stdout
    assert "shown as ids" in shown.stderr
    assert "evaluation after step 2, held-out tasks" in show(run, "--evaluation", "held_out").stdout
    for arguments, told in (
        (["--step", "9"], "no episodes of step-0009; there are"),
        (["--task", "gone"], "--task gone: not in step 2; there are"),
        (["--task", "rising_2", "--attempt", "9"], "has the attempts 0, 1, 2, 3"),
    ):
        failed = show(run, *arguments)
        assert failed.returncode == 2
        assert told in failed.stderr
        assert "Traceback" not in failed.stderr
