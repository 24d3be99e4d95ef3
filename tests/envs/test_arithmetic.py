"""Multiplication: distinct seeded pairs, the last integer graded, no hud where none is needed."""

import subprocess
import sys
from pathlib import Path

import pytest
from hud.agents.base import Agent
from hud.agents.types import AgentConfig
from hud.eval import Task, rollout
from hud.eval.run import Run
from hud.eval.runtime import LocalRuntime

from envs.arithmetic.env import last_integer
from envs.arithmetic.tasks import make_tasks

ENV = Path(__file__).parents[2] / "envs" / "arithmetic" / "env.py"


class Answers(Agent):
    def __init__(self, answer: str) -> None:
        super().__init__(AgentConfig())
        self.answer = answer

    async def __call__(self, run: Run) -> None:
        run.trace.content = self.answer


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("408", 408),
        ("12 * 34 = 408", 408),
        ("so it is 408.", 408),
        ("**408**", 408),
        ("408.0", 408),
        ("1,234,567", 1234567),
        ("first 12, then 34", 34),
        ("-15", -15),
        ("12 - 15", 15),
        ("408.5", None),
        ("a2b", None),
        ("no number", None),
        ("", None),
        ("408\n\n", 408),
        ("12*34=408", 408),
    ],
)
def test_the_last_integer_of_a_text_is_found(answer: str, found: int | None) -> None:
    assert last_integer(answer) == found


@pytest.mark.parametrize(("answer", "reward"), [("12 * 34:\n408", 1.0), ("409", 0.0), ("", 0.0), ("408, I think, of 500", 0.0)])
@pytest.mark.parametrize("prompt", ["work", "direct"])
async def test_the_product_earns_one_and_anything_else_nothing(answer: str, reward: float, prompt: str) -> None:
    task = Task(env="arithmetic", id="multiply", args={"a": 12, "b": 34, "prompt": prompt})
    run = await rollout(task, Answers(answer), runtime=LocalRuntime(ENV))
    assert (run.trace.error, run.reward) == (None, reward)
    assert run.prompt_text.startswith("What is 12 * 34?")


def test_pairs_are_distinct_within_their_ranges_and_decided_by_the_seed() -> None:
    tasks = make_tasks(60, seed=3, min_a=2, max_a=9, min_b=10, max_b=19, prompt="direct")
    pairs = {(task.args["a"], task.args["b"]) for task in tasks}
    assert len(pairs) == len({task.id for task in tasks}) == 60
    assert all(2 <= a <= 9 and 10 <= b <= 19 for a, b in pairs)
    assert {task.args["prompt"] for task in tasks} == {"direct"}
    assert [task.scenario for task in tasks] == list(range(60))
    assert make_tasks(60, 3, 2, 9, 10, 19) != make_tasks(60, 4, 2, 9, 10, 19)
    assert make_tasks(60, 3, 2, 9, 10, 19) == make_tasks(60, 3, 2, 9, 10, 19)


def test_every_pair_of_a_range_can_be_asked_for_and_no_more() -> None:
    assert len({task.id for task in make_tasks(9, min_a=1, max_a=3, min_b=1, max_b=3)}) == 9
    with pytest.raises(ValueError, match="10 tasks asked of 9 pairs"):
        make_tasks(10, min_a=1, max_a=3, min_b=1, max_b=3)
    with pytest.raises(ValueError, match="expected 'work' or 'direct'"):
        make_tasks(1, prompt="rhyme")


@pytest.mark.parametrize("module", ["envs.arithmetic.tasks", "envs.bfcl.tasks"])
def test_task_lists_import_without_hud(module: str) -> None:
    code = f"import sys, {module}; sys.exit(any(name.split('.')[0] in ('hud', 'torch', 'mcp') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ENV.parents[2])
