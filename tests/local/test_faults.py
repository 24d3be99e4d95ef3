"""Faults on demand are what they say, and the genuine SDK gets over those it is made to get over."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
from collections.abc import Iterator
from http.client import IncompleteRead, RemoteDisconnected
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fireworks.training.sdk import AdamParams, FiretitanServiceClient

from tests.local.process import Process, engine_process
from tests.local.test_conformance import datum_of, sample, sampler_of
from turngrad.local.faults import Faults, Rule, parse_rules

os.environ.setdefault("TINKER_TELEMETRY", "0")
COMPLETION = {"prompt": [5, 6, 7], "max_tokens": 4, "stream": True, "logprobs": True, "raw_output": True}


@pytest.fixture(scope="module")
def engine(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with engine_process(tiny_folder, tmp_path_factory.mktemp("faulty")) as process:
        yield process


@pytest.fixture(autouse=True)
def no_faults_left(engine: Process) -> Iterator[None]:
    yield
    engine.faults()


@pytest.fixture
def service(engine: Process) -> FiretitanServiceClient:
    return FiretitanServiceClient(api_key="local", base_url=engine.url)


def completion(engine: Process) -> Any:
    session = engine.post("/api/v1/create_session", {})["session_id"]
    return {**COMPLETION, "model": f"accounts/local/trainingSessions/{session}", "stream": False}


def test_a_rule_skips_then_breaks_then_passes() -> None:
    faults = Faults([Rule("completions", "status", skip=1, times=2)])
    taken = [faults.take("/x/completions") is not None for _ in range(5)]
    assert taken == [False, True, True, False, False]
    assert faults.take("/x/forward") is None


@pytest.mark.parametrize("content", [[{"match": "x", "action": "explode"}], [{"match": "x"}], ["x"], [{"what": 1}], 5])
def test_a_bad_rule_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match=r"action|rules"):
        parse_rules(content)


def test_a_status_carries_its_headers(engine: Process) -> None:
    body = completion(engine)
    engine.faults({"match": "completions", "action": "status", "status": 429, "headers": {"retry-after": "1"}})
    with pytest.raises(urllib.error.HTTPError) as refused:
        engine.post("/inference/v1/completions", body)
    assert refused.value.code == 429
    assert refused.value.headers["retry-after"] == "1"
    assert engine.post("/inference/v1/completions", body)["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("action", ["drop", "lose"])
def test_a_dropped_connection_sends_not_a_byte(engine: Process, action: str) -> None:
    body = completion(engine)
    engine.faults({"match": "completions", "action": action})
    with pytest.raises((RemoteDisconnected, ConnectionResetError, urllib.error.URLError)):
        engine.post("/inference/v1/completions", body)


def test_a_truncated_answer_stops_half_way(engine: Process) -> None:
    body = completion(engine)
    engine.faults({"match": "completions", "action": "truncate"})
    with pytest.raises((IncompleteRead, ConnectionResetError)):
        engine.post("/inference/v1/completions", body)


def test_null_logprobs_are_null_and_the_tokens_are_there(engine: Process) -> None:
    body = completion(engine)
    engine.faults({"match": "completions", "action": "null_logprobs"})
    choice = engine.post("/inference/v1/completions", body)["choices"][0]
    assert {entry["sampling_logprob"] for entry in choice["logprobs"]["content"]} == {None}
    assert len(choice["raw_output"]["completion_token_ids"]) == len(choice["logprobs"]["content"])


def test_faults_cannot_be_set_where_the_flag_was_not_given(tiny_folder: Path) -> None:
    from turngrad.local.api import Api

    async def route() -> None:
        api = Api(SimpleNamespace(store=None))  # pyright: ignore[reportArgumentType]
        await api._route("POST", "/faults", b"", [])

    with pytest.raises(Exception, match="not served here"):
        asyncio.run(route())


def test_the_sdk_gets_over_errors_of_submission_and_polling(engine: Process, service: FiretitanServiceClient) -> None:
    run = _run_of(service, engine)
    data = [datum_of([5, 6, 7, 8], 2, [-5.0, -5.0], 1.0)]
    engine.faults(
        {"match": "/forward_backward", "action": "status", "status": 503},
        {"match": "/optim_step", "action": "lose"},
        {"match": "/retrieve_future", "action": "status", "status": 429},
        {"match": "/retrieve_future", "action": "status", "status": 408, "skip": 1},
        {"match": "/retrieve_future", "action": "drop", "skip": 2},
    )
    run.forward_backward(data, "ppo").result()
    # The answer to optim_step is lost and the SDK sends it again: it must count once.
    assert run.optim_step(AdamParams()).result().metrics["optimizer_step"] == 1
    run.forward_backward(data, "ppo").result()
    assert run.optim_step(AdamParams()).result().metrics["optimizer_step"] == 2


def test_a_lost_answer_to_unload_is_asked_for_again(engine: Process, service: FiretitanServiceClient, tiny_folder: Path) -> None:
    run = service.create_lora_training_client(base_model=str(tiny_folder), rank=4)
    engine.faults({"match": "unload_model", "action": "lose"})
    assert run.unload_model().result().model_id == run.model_id


def test_the_sdk_gets_over_broken_streams(engine: Process, service: FiretitanServiceClient) -> None:
    run = _run_of(service, engine)
    client = sampler_of(service, run.save_weights_for_sampler("faulty").result().path)
    client.deployment_sampler._RETRY_BASE_BACKOFF_S = 0.05
    engine.faults(
        {"match": "completions", "action": "truncate"},
        {"match": "completions", "action": "drop"},
        {"match": "completions", "action": "status", "status": 502},
        {"match": "completions", "action": "lose"},
    )
    result = sample(client)
    assert result.attempts == 5
    assert len(result.completions[0].sampling_logprobs) > 0


def test_a_rule_file_is_read_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text(json.dumps([{"match": "forward", "action": "delay", "seconds": 0.1}]))
    assert Faults.read(path).rules == [Rule("forward", "delay", seconds=0.1)]


def _run_of(service: FiretitanServiceClient, engine: Process) -> Any:
    return service.create_lora_training_client(base_model=_name_of(engine), rank=2)


def _name_of(engine: Process) -> str:
    args: Any = engine.popen.args
    return args[args.index("--model") + 1]
