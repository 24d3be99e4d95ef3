"""MathAPI in a child process: stateless, and the one backend whose arguments decide how long a call takes.

`power(9, 100000000)`, `square_root(2, 5000000)` and their like are legal and do not end; the environment's Guard runs
`execute` where it can be killed. The child also keeps mpmath's process-wide precision away from the grader.
"""

from __future__ import annotations

from typing import Any

from bfcl_eval.eval_checker.multi_turn_eval.func_source_code.math_api import MathAPI
from bfcl_execute import run

MATH = MathAPI()
FUNCTIONS = frozenset(name for name, member in vars(MathAPI).items() if callable(member) and not name.startswith("_"))


def execute(name: str, arguments: dict[str, Any]) -> str:
    """The official text for one MathAPI call. Raises ValueError for a name that is no function of it."""
    if name not in FUNCTIONS:
        raise ValueError(f"MathAPI has no function {name!r}")
    return run(getattr(MATH, name), arguments)
