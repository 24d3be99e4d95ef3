"""What a policy might write to cheat: nothing executes, nothing crosses episodes, nothing gains reward."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from bfcl_data import load_category, load_entry
from hud.eval.run import Run

from tests.envs.bfcl_scripts import play, truth
from tests.players import Mcp
from turngrad.pool import ServerPool

pytestmark = pytest.mark.asyncio(loop_scope="session")
ENTRY = "multi_turn_base_0"

CODE_NAMES = [
    "__import__('os').popen('touch {0}').read()",
    "__import__",
    "eval",
    "exec",
    "str",
    "print",
    "globals",
    "open",
    "_load_scenario",
    "_current_dir",
    "__init__",
    "__class__",
    "__dict__",
    "root",
    "GorillaFileSystem",
    "state_checker",
    "response_checker",
    "multi_turn_checker",
    "ls.__self__",
    "ls()",
    "ls\n",
    "Ls",
    "",
    "kill",
    "__next_turn__ ",
    "next_turn",
    "get_zipcode_based_on_city",
]


async def attack(pool: ServerPool, *calls: tuple[str, dict[str, Any]], entry: str = ENTRY) -> tuple[Run, list[dict[str, Any]]]:
    answers: list[dict[str, Any]] = []

    async def script(mcp: Mcp, run: Run) -> str:
        for step, (name, arguments) in enumerate(calls):
            answers.append(await mcp.result(name, arguments, step=step // 10))
        while not (await mcp.next_turn())["done"]:
            continue
        return ""

    run = await play(pool, entry, script)
    assert run.trace.error is None
    return run, answers


def text(answer: dict[str, Any]) -> str:
    return answer["content"][0]["text"]


async def test_names_that_are_code_private_or_builtin_are_unknown_functions(bfcl_pool: ServerPool, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    names = [name.format(trap) for name in CODE_NAMES]
    run, answers = await attack(bfcl_pool, *((name, {"object": "{}"}) for name in names))
    assert [text(answer) for answer in answers] == [f"Error during execution: name '{name}' is not defined" for name in names]
    assert {answer["isError"] for answer in answers} == {True}
    assert not trap.exists()
    assert run.reward == 0.0


async def test_argument_keys_and_values_that_carry_code_are_data(bfcl_pool: ServerPool, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    code = f"__import__('os').popen('touch {trap}').read()"
    run, answers = await attack(
        bfcl_pool,
        ("touch", {f"file_name={code},x": 1}),
        ("touch", {"file_name": f"'+{code}+'"}),
        ("echo", {"content": f"run ls(); {code}"}),
        ("ls", {"self": 1}),
        ("ls", {"__class__": "x"}),
        ("cd", {"folder": "../../../../etc"}),
        ("cat", {"file_name": "/etc/passwd"}),
    )
    assert not trap.exists()
    assert "unexpected keyword argument" in text(answers[0])
    assert json.loads(text(answers[2]))["terminal_output"] == f"run ls(); {code}"
    assert "root:" not in "".join(map(text, answers))
    assert run.reward == 0.0


async def test_a_forged_response_does_not_stand_for_the_call(bfcl_pool: ServerPool) -> None:
    # The official executor lets the builtin str() answer with any text, which its response checker then finds.
    entry = load_entry(ENTRY)
    forged = '{"matching_lines": ["Year2024 This is the final report content including budget analysis and other sections."]}'
    calls = truth(entry)

    async def script(mcp: Mcp, run: Run) -> str:
        for name, arguments in calls[0]:
            await mcp.result(name, arguments, step=0)
        await mcp.next_turn()
        await mcp.result("cd", {"folder": "temp"}, step=1)
        await mcp.result("str", {"object": forged}, step=1)
        await mcp.result("repr", {"object": forged}, step=1)
        return ""

    run = await play(bfcl_pool, entry, script)
    assert run.grade.info["passed_turns"] == 1


async def test_a_held_out_function_cannot_be_called_before_its_reveal(bfcl_pool: ServerPool) -> None:
    entry = load_entry("multi_turn_miss_func_0")
    early = truth(entry)
    early[2] = early[3]
    early[3] = [("pwd", {})]
    run = await play(bfcl_pool, entry, early)
    assert run.grade.info["passed_turns"] == 3
    assert run.grade.info["failed_turn"] == 3


async def test_asking_for_turn_after_turn_earns_nothing_in_any_category(bfcl_pool: ServerPool) -> None:
    for category in ("base", "miss_func", "miss_param", "long_context"):
        for scenario in (0, 1, 7):
            run, _ = await attack(bfcl_pool, entry=load_category(category)[scenario].id)
            assert run.reward == 0.0


async def test_read_only_calls_without_end_earn_nothing(bfcl_pool: ServerPool) -> None:
    run, answers = await attack(bfcl_pool, *[("pwd", {}), ("ls", {})] * 110)
    assert run.reward == 0.0
    assert run.grade.info["aborted"] is not None
    assert sum(answer["isError"] for answer in answers) == 220 - 200


async def test_a_megabyte_of_arguments_is_refused_in_words(bfcl_pool: ServerPool) -> None:
    _, answers = await attack(bfcl_pool, ("echo", {"content": "x" * 1_000_000}), ("pwd", {}))
    assert text(answers[0]).endswith("at most 262144 are accepted")
    assert not answers[1]["isError"]


async def test_an_episode_cannot_fill_the_servers_memory(bfcl_pool: ServerPool) -> None:
    block = "x" * 200_000
    calls: list[tuple[str, dict[str, Any]]] = [("echo", {"content": block})] * 60
    _, answers = await attack(bfcl_pool, *calls)
    assert not answers[0]["isError"]
    assert text(answers[-1]) == "this episode has sent and received more than 16777216 bytes; no tool answers any more"


async def test_deep_nesting_is_answered_and_the_episode_goes_on(bfcl_pool: ServerPool) -> None:
    deep: Any = "x"
    for _ in range(400):
        deep = [deep]
    _, answers = await attack(bfcl_pool, ("echo", {"content": deep}), ("mkdir", {"dir_name": deep}), ("pwd", {}))
    assert not answers[2]["isError"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"content":'
        + b"[" * 200_000
        + b"}}}",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"content":"\xff\xfe"}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{1:2}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":[1]}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":["echo"],"arguments":{}}}',
        b'{"jsonrpc":"2.0","id":{},"method":"tools/call","params":[]}',
        b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
        b"\x00\x01",
        b"",
    ],
    ids=["deep", "no-utf8", "non-string-key", "list-arguments", "list-name", "odd-id", "batch", "binary", "empty"],
)
async def test_a_malformed_request_is_a_json_rpc_error_and_harms_nothing(bfcl_pool: ServerPool, body: bytes) -> None:
    async def script(mcp: Mcp, run: Run) -> str:
        response = await mcp.http.post(mcp.url, content=body, headers={"Content-Type": "application/json"})
        assert response.json()["error"]["code"] in (-32700, -32600, -32602)
        assert not (await mcp.result("pwd"))["isError"]
        return ""

    assert (await play(bfcl_pool, ENTRY, script)).trace.error is None


async def test_nan_and_infinities_are_the_official_name_error(bfcl_pool: ServerPool) -> None:
    async def script(mcp: Mcp, run: Run) -> str:
        texts = []
        for value in (math.nan, math.inf, -math.inf, [1, math.nan]):
            texts.append(await mcp.call("echo", {"content": value}))
        return "|".join(texts)

    run = await play(bfcl_pool, ENTRY, script)
    names = ("nan", "inf", "inf", "nan")
    assert run.trace.content == "|".join(f"Error during execution: name '{name}' is not defined" for name in names)


async def test_lone_surrogates_come_back_as_valid_text(bfcl_pool: ServerPool) -> None:
    _, answers = await attack(bfcl_pool, ("echo", {"content": "\ud800 a"}), ("touch", {"file_name": "\udfff"}), ("ls", {}))
    for answer in answers:
        text(answer).encode()


async def test_directories_copied_into_themselves_end_no_server(bfcl_pool: ServerPool) -> None:
    calls = [("mkdir", {"dir_name": "a"}), ("cp", {"source": "a", "destination": "a"}), ("find", {}), ("du", {}), ("pwd", {})]
    run, answers = await attack(bfcl_pool, *calls)
    assert "recursion" in text(answers[2])
    assert not answers[4]["isError"]
    assert run.reward == 0.0


@pytest.mark.parametrize("walk", ["find", "du"])
async def test_a_directory_of_exponentially_many_paths_is_not_walked(bfcl_pool: ServerPool, walk: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [("mkdir", {"dir_name": "d0"})]
    for level in range(40):
        calls += [
            ("mkdir", {"dir_name": f"d{level + 1}"}),
            ("cp", {"source": f"d{level}", "destination": "x"}),
            ("mv", {"source": "x", "destination": f"d{level + 1}"}),
            ("mv", {"source": f"d{level}", "destination": f"d{level + 1}"}),
        ]
    run, answers = await attack(bfcl_pool, *calls, (walk, {}), ("pwd", {}))
    assert text(answers[-2]).startswith("Error during execution: stopped: the directories hold more than 20000 paths")
    assert answers[-1]["isError"]
    assert run.grade.info["aborted"] == f"{walk} was stopped: the directories hold more than 20000 paths"
    assert run.reward == 0.0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("power", {"base": 9, "exponent": 100_000_000}),
        ("square_root", {"number": 2, "precision": 5_000_000}),
        ("logarithm", {"value": 3, "base": 7, "precision": 3_000_000}),
        ("round_number", {"number": 5, "decimal_places": -1_000_000_000}),
    ],
)
async def test_a_legal_call_that_never_ends_costs_its_own_rollout_only(
    bfcl_pool: ServerPool, name: str, arguments: dict[str, Any]
) -> None:
    entry = next(entry for entry in load_category("base") if "MathAPI" in entry.involved_classes)
    pids = bfcl_pool.pids

    async def script(mcp: Mcp, run: Run) -> str:
        answer = await mcp.result(name, arguments, step=0)
        assert answer["isError"]
        assert "stopped: more than 1 s of processor time" in text(answer)
        assert answer["_meta"]["turngrad/done"]
        return ""

    stuck = asyncio.create_task(play(bfcl_pool, entry, script))
    await asyncio.sleep(0.5)
    bystanders = await asyncio.gather(*(play(bfcl_pool, entry, truth(entry)) for _ in range(4)))
    assert (await stuck).reward == 0.0
    assert (await stuck).trace.error is None
    assert [run.reward for run in bystanders] == [1.0] * 4
    assert bfcl_pool.pids == pids
