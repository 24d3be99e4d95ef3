#!/usr/bin/env python3
"""An episode in the terminal: `uv run scripts/show.py runs/<folder> --step 7 --task multi_turn_base_12`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from turngrad.cli import run_script
from turngrad.errors import UserError


def show(
    run: Annotated[Path, tyro.conf.Positional],
    step: int | None = None,
    evaluation: Literal["held_out", "train"] | None = None,
    task: str | None = None,
    attempt: int | None = None,
    colour: Literal["mask", "logprob", "advantage"] = "mask",
    tokenizer_model: str | None = None,
) -> int:
    """Print an episode of a run token by token, or the list of a step's episodes.

    Args:
        run: the run folder.
        step: the step; without it the last one played.
        evaluation: show the evaluation after that step instead, over this split.
        task: the task's id; without it the step's episodes are listed.
        attempt: which attempt at the task; without it the first.
        colour: what the colour of a sampled token says.
        tokenizer_model: hub id or folder of the tokenizer, where the run's own cannot be loaded.
    """
    # Here, not at the top: they bring the SDK, which --help should not wait for.
    from rich.console import Console

    from turngrad.report.decode import decoder_for
    from turngrad.report.folder import read_run
    from turngrad.report.terminal import episode_table, episode_text
    from turngrad.report.training import trainings
    from turngrad.runlog import read_episodes

    folder = read_run(run)
    played = [file for file in folder.files if file.kind == (evaluation or "")]
    if not played:
        raise UserError(f"{run} has no episodes yet" if evaluation is None else f"{run} has no evaluation of {evaluation}")
    name = f"eval-{{:04d}}-{evaluation}" if evaluation else "step-{:04d}"
    file = folder.file(name.format(played[-1].step if step is None else step))
    episodes = list(read_episodes(file.path))
    training = trainings(episodes, folder.config, trains=file.trains)
    console = Console(highlight=False, soft_wrap=True)
    if task is None:
        console.print(episode_table(file.title, episodes, training))
        return 0
    found = [place for place, episode in enumerate(episodes) if episode.task_id == task]
    if not found:
        tasks = ", ".join(sorted({episode.task_id for episode in episodes}))
        raise UserError(f"--task {task}: not in {file.title}; there are {tasks}")
    chosen = [place for place in found if attempt in (None, episodes[place].attempt)]
    if not chosen:
        attempts = ", ".join(str(episodes[place].attempt) for place in found)
        raise UserError(f"--attempt {attempt}: {task} has the attempts {attempts}")
    decoder = decoder_for(folder.config, tokenizer_model)
    if decoder.note:
        print(decoder.note, file=sys.stderr)
    for line in episode_text(episodes[chosen[0]], training[chosen[0]], decoder, colour):
        console.print(line)
    return 0


if __name__ == "__main__":
    sys.exit(run_script(lambda arguments: tyro.cli(show, args=arguments)))
