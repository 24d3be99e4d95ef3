"""Where an environment runs, by flag: each runtime serves the same file, and what is missing is named."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from hud.eval import Task
from hud.eval.runtime import LocalRuntime

from tests.own import call, load, play, resolved
from turngrad.errors import UserError
from turngrad.runtimes import Placement, open_runtime, pool_processes

BANK = Path(__file__).parent / "envkit" / "bank.py"
SMALL = ("--tasks-per-step", "2", "--eval-tasks", "1")


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    path = tmp_path / "tasks.jsonl"
    rows = [{"env": "bank", "id": "bank", "args": {"start": 0, "amounts": [n]}, "slug": f"pay-{n}"} for n in range(1, 5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("runtime", ["local", "subprocess", "pool"])
async def test_one_file_plays_the_same_wherever_it_runs(tasks: str, runtime: str) -> None:
    config = resolved("--tasks-file", tasks, "--env-path", str(BANK), "--runtime", runtime, *SMALL)
    episodes = (await play(config, [call("pay_in", amount=3), "done"], tasks=["pay-3"], attempts=2))["pay-3"]
    assert [(episode.reward, episode.excluded) for episode in episodes] == [(1.0, None)] * 2


async def test_an_environment_served_elsewhere_plays_by_its_url(tasks: str) -> None:
    async with LocalRuntime(BANK)(Task(env="bank", id="bank")) as served:
        config = resolved("--tasks-file", tasks, "--runtime", "url", "--runtime-url", served.url, *SMALL)
        ((episode,),) = (await play(config, [call("pay_in", amount=3), "done"], tasks=["pay-3"])).values()
    assert (episode.reward, episode.excluded) == (1.0, None)


@pytest.mark.parametrize(
    ("runtime", "said"),
    [
        ("docker", "needs the docker command"),
        ("modal", r"pip install 'hud\[modal\]'"),
        ("daytona", r"pip install 'hud\[daytona\]'"),
    ],
)
async def test_what_a_runtime_lacks_is_named(tasks: str, runtime: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngrad.runtimes.shutil.which", lambda name: None)
    monkeypatch.setattr("turngrad.runtimes.importlib.util.find_spec", lambda name: None)
    placement = load("--tasks-file", tasks, "--runtime", runtime, "--runtime-image", "an/image", *SMALL).placement
    assert (placement.kind, placement.image) == (runtime, "an/image")
    with pytest.raises(UserError, match=said):
        async with open_runtime(placement):
            pass


async def test_a_pool_whose_file_does_not_load_ends_the_run_before_a_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngrad.pool.START_ATTEMPTS", 1)
    (tmp_path / "broken_env.py").write_text("import no_such_module\n")
    with pytest.raises(UserError, match="No module named 'no_such_module'"):
        async with open_runtime(Placement("pool", tmp_path / "broken_env.py")):
            pass


async def test_the_limit_on_file_handles_is_raised_to_what_the_rollouts_take() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        async with open_runtime(Placement("url", url="tcp://127.0.0.1:1"), concurrent=64):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (2 * (4 * 64 + 256), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_more_rollouts_than_the_system_has_file_handles_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngrad.runtimes.resource.getrlimit", lambda which: (256, 1024))
    with pytest.raises(UserError, match=r"--max-concurrent 512 takes about 2304 file handles, .* allows a process 1024"):
        async with open_runtime(Placement("url", url="tcp://127.0.0.1:1"), concurrent=512):
            pass


def test_servers_come_one_to_64_rollouts_on_half_of_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    for processors, concurrent, expected in ((2, 512, 1), (16, 64, 1), (16, 65, 2), (16, 512, 8), (16, 1024, 8), (None, 8, 1)):
        monkeypatch.setattr("turngrad.runtimes.os.cpu_count", lambda processors=processors: processors)
        assert pool_processes(concurrent) == expected
