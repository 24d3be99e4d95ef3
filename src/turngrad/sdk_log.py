"""What Fireworks' SDK writes into its log while it waits, as sentences for the display.

In: the SDK's log records, from any thread. Out: a sentence for each that a user can act on or should wait out, the same one at
most once a minute. The SDK pauses and retries inside of its calls, an empty account for an hour and a full service without
end, and nothing but its log says so.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_REPEAT_SECONDS = 60.0
_SENTENCES = (
    (
        r"The job is paused due to billing status\. Error: (?P<why>.*)",
        "the account has no credit left, and training is paused until it has ({why})",
    ),
    (r"(?P<what>.+) for .+ is paused\. Reason: (?P<why>.*)\.$", "{what}: the service makes it wait ({why})"),
    (
        r"Session heartbeat failed for (?P<seconds>\d+).* Last exception: (?P<why>.*)\.$",
        "the service has not heard of this run for {seconds} s ({why}); still trying",
    ),
)
"""What the SDK writes (1.2.30) and what is made of it. Its texts speak of Tinker, the service it was first written for."""


def sentence(record: logging.LogRecord) -> str | None:
    """What `record` means to the user; None where it means nothing. What it cannot translate it passes on from errors up."""
    text = record.getMessage().partition("\n")[0].strip()
    for pattern, meaning in _SENTENCES:
        if found := re.match(pattern, text):
            return meaning.format(**found.groupdict()).replace("Tinker backend", "the service")
    return f"Fireworks' SDK: {text}" if record.levelno >= logging.ERROR else None


class _Teller(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._said: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if (said := sentence(record)) is None:
            return
        # Seconds count up from one to the next.
        kind, now = re.sub(r"\d+", "", said), time.monotonic()
        if kind not in self._said or now - self._said[kind] >= _REPEAT_SECONDS:
            self._said[kind] = now
            self._say(said)


@contextmanager
def told(say: Callable[[str], None]) -> Iterator[None]:
    """Inside, the SDK's log goes to `say` as sentences, and nowhere else."""
    logger, teller = logging.getLogger("fireworks"), _Teller(say)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(teller)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(teller)
        logger.setLevel(level)
        logger.propagate = propagate
