"""Generated BFCL multi-turn tasks, without end and without BFCL's own texts.

`generate(seed)` gives a task in the shape of BFCL's entries; `Difficulty` sets its turns and calls. The same generator feeds
`bfcl-synthetic` and, beside the training entries, the warm start of the starter policy.
"""

from .generate import Difficulty, generate

__all__ = ["Difficulty", "generate"]
