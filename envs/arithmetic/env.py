"""Multiplication in one turn: a plain hud environment, as any user of hud would write it.

The last integer of the answer is graded, 1 or 0. "work" asks for the working; "direct" asks for the product alone.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any

from hud.environment import Environment

PROMPTS = {
    "work": "What is {a} * {b}? Work the product out step by step, then write the final integer on a line of its own.",
    "direct": "What is {a} * {b}? Reply with the final integer only.",
}

env = Environment(name="arithmetic")


def last_integer(answer: str) -> int | None:
    """The last integer written in a text; thousands may be set off by commas, and `408.0` is the integer 408."""
    numbers = re.findall(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w)", answer)
    whole = [int(whole) for whole, _, part in (n.replace(",", "").partition(".") for n in numbers) if not part.strip("0")]
    return whole[-1] if whole else None


@env.template(id="multiply")
async def multiply(a: int, b: int, prompt: str = "work") -> AsyncGenerator[Any, str]:
    answer = yield PROMPTS[prompt].format(a=a, b=b)
    yield 1.0 if last_integer(answer or "") == a * b else 0.0
