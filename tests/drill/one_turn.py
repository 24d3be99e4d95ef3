"""An environment of one turn that costs nothing: half of all texts are right. Even a model that babbles earns a spread."""

import zlib
from collections.abc import AsyncGenerator
from typing import Any

from hud.environment import Environment

env = Environment(name="one-turn")


@env.template(id="babble")
async def babble(number: int) -> AsyncGenerator[Any, str]:
    answer = yield f"Say something, number {number}."
    yield float(zlib.crc32((answer or "").encode()) % 2)


tasks = [babble(number=number) for number in range(12)]
