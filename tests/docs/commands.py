"""The commands that the pages show, as a reader meets them, and how a test runs each of them.

In: README.md and docs/*.md. Out: `Command`s, each under exactly one `Rule`. A rule changes a command in the open: flags that
make a long training short, a key and a URL where the service would be, a name for each `<placeholder>`. Everything else is
the page's own text, so a page that drifts from the program fails.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

HEADLINE = "uv run scripts/train.py --taskset bfcl-multi-turn"
"""The README's first command; its run is what the other pages look at as `runs/<folder>`."""

NEW_ENV = "uv run scripts/new_env.py my_env"

_TRAIN = ("--steps", "1", "--tasks-per-step", "2", "--group-size", "2", "--eval-tasks", "2", "--eval-samples", "1")
_CALIBRATE = ("--tasks-per-step", "2", "--group-size", "2", "--eval-tasks", "2")


@dataclass(frozen=True)
class Rule:
    """How the commands that match `pattern` run: with what more, what they say, and with which status they may end.

    `after` are commands that must have run before; `short` rules run by default, the others with the mark `full`.
    `server` commands go on until they are stopped; `service` ones need a Fireworks to talk to, `provider` ones another model.
    """

    pattern: str
    says: str
    flags: tuple[str, ...] = ()
    replaced: dict[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    short: bool = False
    server: bool = False
    service: bool = False
    provider: bool = False
    statuses: tuple[int, ...] = (0,)


_EPISODE = {"7": "1", "multi_turn_base_12": "TASK", "<id>": "TASK", "3": "1"}
"""A run of one step over two tasks has no step 7 and not every task; TASK is one that it has."""

RULES = [
    Rule(r"uv run scripts/train\.py --help", "--tasks-per-step", short=True),
    Rule(re.escape(HEADLINE), r"step +1/1 ", _TRAIN, short=True),
    Rule(r"python scripts/train\.py --taskset bfcl-multi-turn", r"step +1/1 ", _TRAIN),
    Rule(r"uv run scripts/train\.py --taskset (arithmetic|bfcl-synthetic)", r"step +1/1 ", _TRAIN),
    Rule(r"uv run --no-group local scripts/train\.py .* --calibrate .*", r"groups_with_spread \d/2", _CALIBRATE, service=True),
    Rule(r"uv run --no-group local scripts/train\.py --taskset \S+", r"step +1/1 ", _TRAIN, service=True),
    Rule(r"uv run scripts/train\.py --resume-from runs/<folder>", "already has its 1 steps", after=(HEADLINE,)),
    Rule(r"uv run scripts/report\.py runs/<folder>", r"wrote .*report\.html: \d\.\d MB", after=(HEADLINE,), short=True),
    Rule(r"uv run scripts/show\.py runs/<folder>", r"^step 1\b", after=(HEADLINE,)),
    Rule(
        r"uv run scripts/show\.py runs/<folder> --step 7 --task multi_turn_base_12",
        "attempt 0: reward",
        replaced=_EPISODE,
        after=(HEADLINE,),
        short=True,
    ),
    Rule(
        r"uv run scripts/show\.py runs/<folder> --step 7 --task <id>", "attempt 0: reward", replaced=_EPISODE, after=(HEADLINE,)
    ),
    Rule(
        r"uv run scripts/show\.py runs/<folder> --step 7 .* --attempt 3 .*",
        "attempt 1: reward",
        replaced=_EPISODE,
        after=(HEADLINE,),
    ),
    Rule(r"uv run scripts/show\.py runs/<folder> --evaluation .*", "evaluation after step 1", after=(HEADLINE,)),
    Rule(r"uv run scripts/evaluate\.py --run .*", "result in", ("--tasks", "2", "--samples", "1"), after=(HEADLINE,)),
    Rule(
        r"uv run scripts/evaluate\.py --agent .*", r"multi_turn_base +reward 0\.000 .* tasks 2", ("--tasks", "2"), provider=True
    ),
    Rule(
        r"uv run scripts/evaluate\.py --compare .*",
        r"^2 common tasks: ",
        after=(
            "uv run scripts/evaluate.py --run runs/<folder> --snapshot base --samples 4 --json-file before.json",
            "uv run scripts/evaluate.py --run runs/<folder> --snapshot final --samples 4 --json-file after.json",
        ),
    ),
    Rule(re.escape(NEW_ENV), "my_env/ has env.py", short=True),
    Rule(r"uv run pytest my_env/test_env\.py", r"\d passed", after=(NEW_ENV,)),
    Rule(r"uv run scripts/check_env\.py --env-path my_env.*", "verdict: ready to train", after=(NEW_ENV,), short=True),
    Rule(r"uv run scripts/train\.py --env-path my_env.* --calibrate", r"groups_with_spread \d/2", _CALIBRATE, after=(NEW_ENV,)),
    Rule(r"uv run scripts/train\.py --env-path my_env[^-]*--tasks-file \S+", r"step +1/1 ", _TRAIN, after=(NEW_ENV,)),
    Rule(r"uv run scripts/check_env\.py --mcp .*", "verdict: ready to train"),
    Rule(r"uv run scripts/train\.py --mcp .* --calibrate", r"groups_with_spread \d/2", _CALIBRATE),
    Rule(
        r"uv run scripts/serve_local\.py .*",
        r"TURNGRAD_ENGINE http://127\.0\.0\.1:\d+/training/v1/serverless",
        replaced={"<folder>": "bfcl-starter", "8123": "0"},
        server=True,
    ),
    # 1 says that a ratio is below its bar, as it may be where other work runs beside.
    Rule(r"uv run scripts/bench\.py (batch|turns|scale).*", r"ratio", statuses=(0, 1)),
    Rule(r"uv run pytest( -m full| -m drill)?", r"\d+ tests collected|\d+/\d+ tests collected", ("--collect-only",)),
    Rule(r"python3 -m pip install uv", "uv", ("--dry-run",)),
    Rule(r"pip install .*", "Would install|already satisfied", ("--dry-run",)),
]


@dataclass(frozen=True)
class Command:
    """One line that a page shows."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)

    @property
    def rules(self) -> list[Rule]:
        """The rules it falls under: exactly one, or the test of the pages fails."""
        return [rule for rule in RULES if re.fullmatch(rule.pattern, self.text)]


@cache
def shown() -> tuple[Command, ...]:
    """The commands of all pages, those in running text included, each text once, by its first page."""
    found: dict[str, Command] = {}
    for page in PAGES:
        text = page.read_text()
        lines = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
        lines += re.findall(r"`(uv run [^`]+)`", text)
        for line in lines:
            if line.strip() and not line.startswith(("#", "export ")):
                found.setdefault(line, Command(page.name, line))
    return tuple(found.values())


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
