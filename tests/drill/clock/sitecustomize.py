"""For a process and all its children: a wall clock that jumps a day back and forth, a second each way.

Python imports a module of this name at its start when this folder is on PYTHONPATH.
"""

import time

_true = time.time
_true_ns = time.time_ns
_DAY = 86_400


def _jump() -> int:
    return (0, -_DAY, _DAY)[int(time.monotonic()) % 3]


time.time = lambda: _true() + _jump()
time.time_ns = lambda: _true_ns() + _jump() * 10**9
