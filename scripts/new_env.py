#!/usr/bin/env python3
"""Start an environment of your own: `uv run scripts/new_env.py my_env`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from turngrad.cli import run_script
from turngrad.skeleton import write_skeleton


def new_env(arguments: list[str]) -> int:
    """Write the folder and say what to run next."""

    def command(name: Annotated[str, tyro.conf.arg(help="Its name, and its folder's.")], parent: Path = Path()) -> None:
        """Write a working environment to start from: env.py, tasks.jsonl and a test, in a folder of its name.

        Args:
            parent: Where the folder goes.
        """
        folder = write_skeleton(name, parent)
        files = f"--env-path {folder}/env.py --tasks-file {folder}/tasks.jsonl"
        print(f"{folder}/ has env.py, tasks.jsonl and test_env.py. Next:")
        print(f"  uv run pytest {folder}/test_env.py")
        print(f"  uv run scripts/check_env.py {files}")
        print(f"  uv run scripts/train.py {files} --calibrate")
        print(f"  uv run scripts/train.py {files} --steps 1")

    tyro.cli(command, args=arguments, config=(tyro.conf.PositionalRequiredArgs,))
    return 0


if __name__ == "__main__":
    sys.exit(run_script(new_env))
