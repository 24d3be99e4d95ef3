#!/usr/bin/env python3
"""Make the BFCL starter policy: its tokenizer, its weights, everything of it that the package ships.

1. Train the tokenizer on the training entries, as they are and with other values in them.
2. Train a tiny Qwen3 model from nothing on episodes of a perfect policy, in three stages: first mostly training entries,
   which teach it to play; then a mixture with generated tasks and other values, which teaches it to read; then no entry as
   it is, so that it forgets what it knows by heart. The weights are a mean of those before and after the third stage,
   which reads better than either. A short fourth stage is of episodes of a hasty policy, which takes a turn for done before
   it is: a habit for reinforcement learning to undo. The held-out scenarios are never read.
3. Sample the training entries and tasks it never saw, and print the rewards.

The defaults made the packaged weights; src/turngrad/local/starter/README.md has the time and the figures. To see the whole
way in about six minutes: `--first.schedule.tokens 10000 --second.schedule.tokens 10000 --third.schedule.tokens 10000
--last.schedule.tokens 10000` with an `--output-dir` of your own.
"""

from __future__ import annotations

import sys

import tyro

from turngrad.cli import run_script
from turngrad.local.starter.plan import Options


def main(arguments: list[str]) -> int:
    options = tyro.cli(Options, description=__doc__, args=arguments)
    # Here, not at the top: torch takes seconds that --help should not.
    from starter.making import make

    make(options)
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
