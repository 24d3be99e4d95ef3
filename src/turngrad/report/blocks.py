"""A prompt's tokens cut into messages, by the marks that chat formats put before each.

In: the text pieces of context tokens. Out: blocks with a role. An episode holds tokens and no messages, since tokens are what
was trained; the cut is for reading only, and an unknown format is one block of `context`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

_HEADER = re.compile(
    r"""
      <\|im_start\|>(?:user|tool)?\s*(?P<tool><tool_response>)                # Qwen, Nemotron
    | <\|im_start\|>(?P<chatml>\w+)                                           # ChatML
    | <\|im_system\|>[^<]*<\|im_middle\|>(?P<returned>\#\#\ Return\ of)      # Kimi
    | <\|im_(?P<kimi>system|user|assistant|tool)\|>                           # Kimi
    | <\|start_header_id\|>(?P<llama>\w+)<\|end_header_id\|>                  # Llama 3
    | \]~b\](?P<minimax>\w+)                                                  # MiniMax
    | <｜(?P<deepseek>begin▁of▁sentence|User|Assistant|tool▁outputs▁begin)｜>             # DeepSeek
    | <\|(?P<glm>system|user|assistant|observation|tool)\|>                   # GLM and others
    """,
    re.VERBOSE,
)
_ROLES = {
    "<tool_response>": "tool",
    "## Return of": "tool",
    "observation": "tool",
    "ipython": "tool",
    "tool▁outputs▁begin": "tool",
    "begin▁of▁sentence": "system",
    "ai": "assistant",
    "developer": "system",
}


@dataclass(frozen=True, slots=True)
class Block:
    """`length` context tokens in a row under one `role`: system, user, assistant, tool, or context where none is known."""

    role: str
    length: int


def blocks(pieces: Sequence[str]) -> list[Block]:
    """The blocks of some context tokens, in order; their lengths add up to the number of pieces."""
    ends = list(accumulate(map(len, pieces)))
    marks: list[tuple[int, str]] = []
    for match in _HEADER.finditer("".join(pieces)):
        name = str(match[match.lastgroup or 0])
        # The token that holds the mark's first character.
        marks.append((bisect_left(ends, match.start() + 1), _ROLES.get(name, name.lower())))
    if not marks or marks[0][0] > 0:
        marks.insert(0, (0, "context"))
    borders = [start for start, _ in marks[1:]] + [len(pieces)]
    found = [Block(role, end - start) for (start, role), end in zip(marks, borders, strict=True)]
    return [block for block in found if block.length]
