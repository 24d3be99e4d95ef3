"""Every command that the pages show runs, as a process of its own, in a copy of the checkout.

Where a page trains for half an hour the test trains for one step, and where it talks to Fireworks the test serves the
embedded engine in its place: tests/docs/commands.py says what is changed. The short ones run by default, the rest with
`-m full`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.commands import HEADLINE, ROOT, RULES, Command, Rule, shown
from tests.local.process import engine_process
from tests.providers import provider
from turngrad.local.models import BFCL_STARTER_FOLDER
from turngrad.runlog import read_episodes

SECRETS = ("FIREWORKS", "HUD", "TINKER")

WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder


class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in ("torch", "peft", "gguf") else PathFinder.find_spec(name, path, target)


sys.meta_path[:] = [Hidden if finder is PathFinder else finder for finder in sys.meta_path]
"""
"""A sitecustomize.py: what `uv run --no-group local` leaves out is not to be found."""


class Workspace:
    """A folder that looks like the checkout, in which commands run, each at most once; what they write stays in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._said: dict[str, str] = {}
        self._engine: Iterator[str] | None = None
        self._opened = ExitStack()
        for name in ("README.md", "docs", "envs", "pyproject.toml", "scripts", "src", "tests"):
            (folder / name).symlink_to(ROOT / name)

    def said(self, text: str) -> str:
        """What a documented command prints, its prerequisites run before it; fails unless its status is one of its rule's."""
        if text not in self._said:
            (rule,) = Command("", text).rules
            for earlier in rule.after:
                assert earlier in {command.text for command in shown()}, f"no page shows {earlier!r} any more"
                self.said(earlier)
            self._said[text] = self._stopped(text, rule) if rule.server else self._ended(text, rule)
        return self._said[text]

    def _ended(self, text: str, rule: Rule) -> str:
        result = subprocess.run(
            self._arguments(text, rule),
            cwd=self.folder,
            env=self._environment(text, rule),
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert result.returncode in rule.statuses, f"{text}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
        assert "Traceback" not in result.stdout + result.stderr
        return result.stdout

    def _stopped(self, text: str, rule: Rule) -> str:
        with subprocess.Popen(
            self._arguments(text, rule),
            cwd=self.folder,
            env=self._environment(text, rule),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        return line

    def _arguments(self, text: str, rule: Rule) -> list[str]:
        arguments = [*Command("", text).words, *rule.flags]
        if arguments[0] == "uv":
            # The environment of the tests is what `uv run` would have made.
            del arguments[: arguments.index("run") + (3 if "--no-group" in arguments else 1)]
        python = self.venv() if "pip" in arguments else sys.executable
        if arguments[0] in ("python", "python3"):
            del arguments[0]
        elif arguments[0] in ("pytest", "pip"):
            arguments.insert(0, "-m")
        replaced = [rule.replaced.get(argument, argument) for argument in arguments]
        if rule.service:
            replaced += ["--base-url", self.service(), "--base-model", "bfcl-starter"]
            replaced += ["--tokenizer-model", str(BFCL_STARTER_FOLDER), "--max-seq-len", "2048", "--max-tokens", "96"]
        return [python, *(self._named(argument) for argument in replaced)]

    def venv(self) -> str:
        """A fresh virtual environment's Python, which has pip where that of the tests may have none."""
        python = self.folder / "venv" / "bin" / "python"
        if not python.exists():
            base = Path(sys.base_prefix) / "bin" / "python3"
            subprocess.run([base, "-m", "venv", self.folder / "venv"], check=True, timeout=300)
        return str(python)

    def _named(self, argument: str) -> str:
        """Placeholders of a run as what the headline's run left."""
        if "runs/<folder>" in argument:
            return argument.replace("runs/<folder>", str(self.run.relative_to(self.folder)))
        if argument == "TASK":
            return next(iter(read_episodes(self.run / "episodes" / "step-0001.jsonl.zst"))).task_id
        return argument

    @property
    def run(self) -> Path:
        (name,) = re.findall(r"^run folder (\S+)$", self.said(HEADLINE), re.MULTILINE)
        return self.folder / name

    def _environment(self, text: str, rule: Rule) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(SECRETS)}
        environment["OMP_NUM_THREADS"] = "1"
        if rule.service:
            environment["FIREWORKS_API_KEY"] = "any key"
        if rule.provider:
            url = self._opened.enter_context(provider(lambda asked: "I do not know.")).openai
            environment |= {"OPENAI_API_KEY": "any key", "OPENAI_BASE_URL": url}
        if "--no-group local" in text:
            (self.folder / "hidden").mkdir(exist_ok=True)
            (self.folder / "hidden" / "sitecustomize.py").write_text(WITHOUT_TORCH)
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(self.folder / "hidden"), os.environ.get("PYTHONPATH"))))
        return environment

    def service(self) -> str:
        """The URL of the engine that stands in for Fireworks."""
        if self._engine is None:
            self._engine = self._served()
        return next(self._engine)

    def _served(self) -> Iterator[str]:
        with engine_process(Path("bfcl-starter"), self.folder / "service") as process:
            while True:
                yield process.url

    def close(self) -> None:
        self._opened.close()
        if self._engine is not None:
            self._engine.close()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    made = Workspace(tmp_path_factory.mktemp("checkout"))
    yield made
    made.close()


def case(command: Command) -> object:
    short = all(rule.short for rule in command.rules)
    return pytest.param(command, id=f"{command.page}: {command.text}", marks=() if short else pytest.mark.full)


def test_every_command_shown_has_one_rule_and_every_rule_a_command() -> None:
    assert [(command.page, command.text) for command in shown() if len(command.rules) != 1] == []
    used = {rule.pattern for command in shown() for rule in command.rules}
    assert [rule.pattern for rule in RULES if rule.pattern not in used] == []


@pytest.mark.parametrize("command", [case(command) for command in shown()])
def test_a_command_that_a_page_shows_runs(workspace: Workspace, command: Command) -> None:
    (rule,) = command.rules
    said = workspace.said(command.text)
    assert re.search(rule.says, said, re.MULTILINE), said[-3000:]


def test_uv_is_asked_for_groups_that_exist() -> None:
    groups = (ROOT / "pyproject.toml").read_text()
    for command in shown():
        if "--no-group" in command.words:
            assert re.search(rf"^{command.words[command.words.index('--no-group') + 1]} = \[", groups, re.MULTILINE)
    assert shutil.which("uv"), "the pages' first command installs it"
