"""A user's own HUD files: loaded and played unchanged, split once and for all, refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.own import MODEL, call, load, play, resolved
from turngrad.episodes import Episode
from turngrad.errors import UserError
from turngrad.runlog import RunLog
from turngrad.task_files import split_rows
from turngrad.tasksets import TaskRow

HERE = Path(__file__).parent
PLAIN = HERE / "userenvs" / "plain.py"
PLAIN_TASKS = str(HERE / "userenvs" / "plain_tasks.py")
BANK = HERE / "envkit" / "bank.py"
ARITHMETIC = HERE.parent / "envs" / "arithmetic" / "env.py"
SMALL = ("--tasks-per-step", "4", "--eval-tasks", "3")


def bank_tasks(tmp_path: Path, count: int = 8) -> str:
    rows = [{"env": "bank", "id": "bank", "args": {"start": 0, "amounts": [n + 1, 2]}} for n in range(count)]
    return write(tmp_path / "tasks.jsonl", rows)


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@given(
    ids=st.lists(st.text(min_size=1, max_size=4), unique=True, max_size=30),
    prompts=st.lists(st.integers(0, 8), min_size=30, max_size=30),
    count=st.integers(0, 10),
    order=st.randoms(),
)
def test_the_split_depends_on_ids_alone_and_keeps_what_belongs_together(ids, prompts, count, order) -> None:  # type: ignore[no-untyped-def]
    rows = [TaskRow(name, "e", "t", {}, f"s{name}", f"p{prompt}") for name, prompt in zip(ids, prompts, strict=False)]
    train, held_out = split_rows(rows, count)
    order.shuffle(rows)
    assert split_rows(rows, count) == (train, held_out)
    assert sorted(row.id for row in (*train, *held_out)) == sorted(ids)
    assert not {row.prompt for row in train} & {row.prompt for row in held_out}
    assert len(held_out) >= min(count, len(ids))


def test_a_larger_evaluation_holds_out_the_same_tasks_and_more() -> None:
    rows = [TaskRow(str(n), "e", "t", {}, str(n), str(n)) for n in range(40)]
    few, many = split_rows(rows, 5)[1], split_rows(rows, 9)[1]
    assert (len(few), many[:5]) == (5, few)


async def test_a_plain_environment_is_fresh_for_each_rollout_with_its_servers_and_messages() -> None:
    script = [call("left__put", item="a") + "\n" + call("right__put", item="b"), "done"]
    flags = resolved("--tasks-file", PLAIN_TASKS, *SMALL)
    (episodes,) = (await play(flags, script, attempts=4, tasks=[load("--tasks-file", PLAIN_TASKS, *SMALL).train[0].id])).values()
    for episode in episodes:
        assert episode.excluded is None, episode.error
        assert episode.info["played"] == 1
        assert episode.info["answer"] == "done"
        assert sorted(episode.info["shelf"]) == ["left:a", "right:b"]
        assert [call.is_error for call in episode.turns[0].tool_calls] == [False, False]
        prompt = MODEL.decode(episode.turns[0].context_ids)
        assert prompt.startswith("<|im_start|>system\nYou keep a shelf.")
        assert episode.info["subscores"][0]["name"] == "filled"
        assert episode.info["subscores"][0]["value"] == episode.reward


async def test_tools_left_out_by_flag_are_not_offered_and_not_called() -> None:
    flags = resolved("--tasks-file", PLAIN_TASKS, *SMALL, "--exclude-tools", "put")
    name = load("--tasks-file", PLAIN_TASKS, *SMALL).train[0].id
    ((episode,),) = (await play(flags, ["x"], tasks=[name])).values()
    assert "leave none of the tools put, put" in (episode.error or "")


def test_a_kit_environment_goes_to_a_pool_and_a_plain_one_runs_here(tmp_path: Path) -> None:
    kit = load("--tasks-file", bank_tasks(tmp_path), "--env-path", str(BANK), *SMALL)
    plain = load("--tasks-file", PLAIN_TASKS, *SMALL)
    assert (kit.placement.kind, kit.placement.env_file, kit.placement.env) == ("pool", BANK, "bank")
    assert (plain.placement.kind, plain.placement.env_file) == ("local", PLAIN)
    assert kit.has_tools
    assert kit.name == tmp_path.name
    assert len({row.id for row in (*kit.train, *kit.held_out)}) == 8
    assert len(kit.held_out) == 3


def test_a_folder_and_a_module_that_python_caches_still_give_every_rollout_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "shop_impl.py").write_text(ARITHMETIC.read_text().replace('name="arithmetic"', 'name="shop"'))
    rows = [{"env": "shop", "id": "multiply", "args": {"a": 2, "b": n}} for n in range(8)]
    tasks = write(tmp_path / "tasks.jsonl", rows)
    assert load("--tasks-file", tasks, "--env-path", str(folder), *SMALL).placement.env_file == folder / "shop_impl.py"
    (folder / "shop_env.py").write_text("from shop_impl import env\n")
    cached = load("--tasks-file", tasks, "--env-path", str(folder / "shop_env.py"), *SMALL)
    assert cached.placement.kind == "subprocess"


async def test_a_single_turn_environment_of_huds_loads_unchanged(tmp_path: Path) -> None:
    rows = [{"env": "arithmetic", "id": "multiply", "args": {"a": 6, "b": n}, "slug": f"by-{n}"} for n in range(7, 15)]
    tasks = tmp_path / "tasks.json"
    tasks.write_text(json.dumps(rows))
    flags = resolved("--tasks-file", str(tasks), "--env-path", str(ARITHMETIC), *SMALL)
    episodes = await play(flags, ["42"], tasks=["by-7", "by-8"])
    assert {name: episode.reward for name, (episode,) in episodes.items()} == {"by-7": 1.0, "by-8": 0.0}


async def test_a_kit_environment_plays_from_flags(tmp_path: Path) -> None:
    flags = resolved("--tasks-file", bank_tasks(tmp_path, 7), "--env-path", str(BANK), *SMALL)
    taskset = load("--tasks-file", bank_tasks(tmp_path, 7), "--env-path", str(BANK), *SMALL)
    row = taskset.train[0]
    script = [call("pay_in", amount=row.args["amounts"][0]), "paid", call("pay_in", amount=99), "paid again"]
    ((episode,),) = (await play(flags, script, tasks=[row.id])).values()
    assert isinstance(episode, Episode)
    assert (episode.reward, episode.info["answer"], episode.excluded) == (0.5, "paid again", None)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tasks-file", "nowhere.py"], "no such file"),
        (["--env-path", str(BANK)], "--env-path needs --tasks-file"),
        (["--tasks-file", "TASKS"], "add --env-path with the environment's file, the one that declares 'bank'"),
        (["--tasks-file", "TASKS", "--env-path", "nowhere.py"], "--env-path .*nowhere.py: there is no such file"),
        (["--tasks-file", "TASKS", "--env-path", str(PLAIN)], "no environment 'bank'"),
        (["--tasks-file", "BROKEN", "--env-path", str(BANK)], "does not load: ZeroDivisionError.*broken.py line 1"),
        (["--tasks-file", "EMPTY", "--env-path", str(BANK)], "holds no tasks"),
        (["--tasks-file", "TASKS", "--env-path", str(BANK)], "8 tasks, 16 are needed.*--eval-tasks 8 held out"),
        (["--tasks-file", "TASKS", "--env-path", str(BANK), "--calibrate", "--tasks-per-step", "9"], "a calibration needs"),
        (["--tasks-file", "TASKS", "--runtime", "url"], "--runtime url needs --runtime-url"),
        (["--tasks-file", "TASKS", "--env-path", str(BANK), "--mcp", "x"], "two environments"),
    ],
)
def test_what_is_wrong_with_files_is_said_with_what_to_do(tmp_path: Path, flags: list[str], said: str) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "empty.json").write_text("[]")
    names = {"TASKS": bank_tasks(tmp_path), "BROKEN": str(tmp_path / "broken.py"), "EMPTY": str(tmp_path / "empty.json")}
    with pytest.raises(UserError, match=said):
        load(*[names.get(flag, flag) for flag in flags])


def test_a_calibration_makes_do_with_one_steps_tasks(tmp_path: Path) -> None:
    files = ("--tasks-file", bank_tasks(tmp_path), "--env-path", str(BANK))
    assert len(load(*files, "--calibrate").train) == 8
    training = load(*files, *SMALL)
    assert load(*files, *SMALL, "--calibrate").train == training.train


def test_a_task_that_is_there_twice_is_refused_by_name(tmp_path: Path) -> None:
    rows = [{"env": "bank", "id": "bank", "args": {"start": 0, "amounts": [1]}}] * 2
    with pytest.raises(UserError, match="duplicate task slugs"):
        load("--tasks-file", write(tmp_path / "tasks.jsonl", rows), "--env-path", str(BANK))


def test_same_task_under_two_names_stays_on_one_side(tmp_path: Path) -> None:
    rows = [
        {"env": "bank", "id": "bank", "args": {"start": 0, "amounts": [n]}, "slug": f"{n}-{twin}"}
        for n in range(6)
        for twin in "ab"
    ]
    taskset = load("--tasks-file", write(tmp_path / "tasks.jsonl", rows), "--env-path", str(BANK), *SMALL)
    assert len(taskset.held_out) == 4
    assert {row.id[0] for row in taskset.held_out}.isdisjoint(row.id[0] for row in taskset.train)


def test_a_resumed_run_refuses_to_train_on_what_it_held_out(tmp_path: Path) -> None:
    files = ("--tasks-file", bank_tasks(tmp_path), "--env-path", str(BANK), "--tasks-per-step", "4")
    before, now = load(*files, "--eval-tasks", "3"), load(*files, "--eval-tasks", "2")
    log = RunLog.create(resolved(*files, "--eval-tasks", "3", "--output-dir", str(tmp_path / "run")))
    try:
        for _ in range(2):
            log.write_split((row.id for row in before.train), (row.id for row in before.held_out))
        with pytest.raises(UserError, match=f"held out 1 tasks that would train now, such as '{before.held_out[2].id}'"):
            log.write_split((row.id for row in now.train), (row.id for row in now.held_out))
    finally:
        log.close()
