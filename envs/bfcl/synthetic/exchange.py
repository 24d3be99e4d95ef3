"""Other values of the same kind: names, numbers, dates and secrets for those a request has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

from . import words

ROUTES = (
    ("Rivermist", "83214", "Stonebrook", "74532"),
    ("Maplecrest", "56108", "Silverpine", "62947"),
    ("Shadowridge", "71354", "Sunset Valley", "83462"),
    ("Oakendale", "47329", "Willowbend", "52013"),
    ("Crescent Hollow", "69238", "Autumnville", "51479"),
    ("San Francisco", "94016", "Rivermist", "83214"),
    ("Silverpine", "62947", "Oakendale", "47329"),
    ("San Francisco", "94016", "Silverpine", "62947"),
    ("Stonebrook", "74532", "San Francisco", "94016"),
)
COMPANIES = {
    "AAPL": "Apple",
    "GOOG": "Google",
    "TSLA": "Tesla",
    "MSFT": "Microsoft",
    "NVDA": "Nvidia",
    "ZETA": "Zeta Corp",
    "ALPH": "Alpha Tech",
    "OMEG": "Omega Industries",
    "QUAS": "Quasar Ltd.",
    "NEPT": "Neptune Systems",
    "SYNX": "Synex Solutions",
}


def another_like(value: str, rng: Random) -> str:
    """Another value of the kind `value` is."""
    if re.fullmatch(r"USR\d+", value) or value in (".", "..", "None"):
        return value
    if value[0] in "#@" and " " not in value:
        return value[0] + (words.tag(rng) if value[0] == "#" else words.user_name(rng))
    if re.fullmatch(r"[\w-]+\.[A-Za-z]{2,4}", value):
        kept = value.rsplit(".", 1)[1]
        return f"{words.identifier(rng)}.{kept if rng.random() < 0.5 else rng.choice(words.EXTENSIONS)}"
    if re.fullmatch(r"[\d-]+", value):
        return re.sub(r"\d", lambda _: str(rng.randrange(1, 10)), value)
    if re.search(r"\d", value) and " " not in value:
        if rng.random() < 0.5:
            return words.secret(rng)
        shuffled = re.sub(r"\d", lambda _: str(rng.randrange(10)), value)
        return re.sub(r"[a-z]{2,}", lambda match: words.noun(rng)[: max(2, len(match[0]))], shuffled)
    if " " in value:
        return words.sentence(rng) if len(value) > 24 or value.endswith((".", "!", "?")) else words.title(rng)
    return words.identifier(rng)


def another_number(written: str, rng: Random) -> str:
    value = float(written.replace(",", ""))
    if value == 0:
        return written
    if "." in written:
        decimals = len(written.rsplit(".", 1)[1])
        return f"{max(value * rng.uniform(0.5, 1.5), 0.01):.{decimals}f}"
    low = max(1, int(value * 0.5))
    new = rng.randrange(low, max(low + 2, int(value * 1.5) + 1))
    if value >= 100 and value % 50 == 0:
        new = max(50, new // 50 * 50)
    return f"{new:,}" if "," in written else str(new)


def ways_to_write(value: float) -> Iterator[str]:
    """How a request may write a number."""
    if float(value).is_integer():
        yield from {str(int(value)), f"{int(value):,}"}
    yield repr(value)


DATE_STYLES = (
    lambda year, month, day: f"{year}-{month:02d}-{day:02d}",
    lambda year, month, day: f"{words.MONTHS[month - 1]} {day}, {year}",
    lambda year, month, day: f"{words.MONTHS[month - 1]} {words.ordinal(day)}, {year}",
    lambda year, month, day: f"{words.MONTHS[month - 1]} {words.ordinal(day)} {year}",
    lambda year, month, day: f"{words.ordinal(day)} {words.MONTHS[month - 1]} {year}",
    lambda year, month, day: f"{day} {words.MONTHS[month - 1]} {year}",
    lambda year, month, day: f"{words.MONTHS[month - 1]} {words.ordinal(day)}",
)
