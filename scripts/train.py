#!/usr/bin/env python3
"""Train a language model on multi-turn tool use: `uv run scripts/train.py --taskset bfcl-multi-turn`."""

from __future__ import annotations

import sys
from pathlib import Path

from turngrad.checkpoints import is_state_path
from turngrad.cli import flag_value, parse_flags, read_yaml, run_script
from turngrad.config import TrainConfig, config_from
from turngrad.runlog import read_config


def train(arguments: list[str]) -> int:
    """Parse and train. With --config or a run folder to resume from, flags that are not given keep the values there."""
    default = None
    file = flag_value("--config", arguments)
    if file is not None:
        default = config_from(read_yaml(Path(file)))
    folder = flag_value("--resume-from", arguments)
    if folder is not None and not is_state_path(folder):
        default = config_from({**read_config(Path(folder)), "resume_from": folder, "output_dir": None})
    config = parse_flags(TrainConfig, arguments, default)
    # Here, not at the top: it takes a moment that --help should not.
    from turngrad.run import main

    return main(config)


if __name__ == "__main__":
    sys.exit(run_script(train))
