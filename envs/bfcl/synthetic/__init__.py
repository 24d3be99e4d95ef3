"""Generated BFCL multi-turn tasks, without end and without BFCL's own texts.

`generate(seed)` gives a task in the shape of BFCL's entries, `Difficulty` sets its turns and calls, and `call_strings` is its
ground truth in BFCL's own writing. The same generator feeds `bfcl-synthetic` and, beside the training entries, the warm
start of the starter policy.
"""

from .generate import Difficulty, call_strings, generate

__all__ = ["Difficulty", "call_strings", "generate"]
