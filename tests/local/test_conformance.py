"""The genuine SDK through every call. `TURNGRAD_CONFORMANCE_URL` and `_KEY` point the same tests at a real service.

There, set `TURNGRAD_CONFORMANCE_MODEL` to its base model; the tests that look inside the engine are skipped.
"""

from __future__ import annotations

import asyncio
import os
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fireworks.training.sdk import AdamParams, Datum, FiretitanServiceClient, ModelInput, SamplingParams
from fireworks.training.sdk._core._exceptions import BadRequestError, NotFoundError, RequestFailedError
from fireworks.training.sdk.client import FiretitanSamplingClient, FiretitanTrainingClient
from fireworks.training.sdk.fireworks_client import FireworksClient

from tests.local.process import Process, engine_process
from tests.local.tiny import END, VOCAB, tokenizer

os.environ.setdefault("TINKER_TELEMETRY", "0")
SERVICE_URL = os.environ.get("TURNGRAD_CONFORMANCE_URL")
KEY = os.environ.get("TURNGRAD_CONFORMANCE_KEY", "local")
PROMPT = [20, 30, 40, 50, 60]
RL_LOSSES = ("importance_sampling", "ppo", "cispo")


class Text:
    """The part of a transformers tokenizer that the SDK's sampler uses."""

    def __init__(self) -> None:
        self._tokenizer = tokenizer()

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.fixture(scope="module")
def engine(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process | None]:
    if SERVICE_URL:
        yield None
        return
    with engine_process(tiny_folder, tmp_path_factory.mktemp("engine")) as process:
        yield process


@pytest.fixture(scope="module")
def base_model(tiny_folder: Path) -> str:
    return os.environ.get("TURNGRAD_CONFORMANCE_MODEL", str(tiny_folder))


@pytest.fixture
def service(engine: Process | None) -> Iterator[FiretitanServiceClient]:
    client = FiretitanServiceClient(api_key=KEY, base_url=SERVICE_URL or engine.url)  # pyright: ignore[reportOptionalMemberAccess]
    yield client
    client.delete_training_session()
    client.close()


@pytest.fixture
def run(service: FiretitanServiceClient, base_model: str) -> FiretitanTrainingClient:
    return service.create_lora_training_client(base_model=base_model, rank=4)


def root_of(engine: Process | None) -> str:
    return engine.root if engine else str(SERVICE_URL).removesuffix("/training/v1/serverless")


def sampler_of(service: FiretitanServiceClient, path: str) -> FiretitanSamplingClient:
    return service.create_sampling_client(model_path=path, tokenizer=Text())


def sample(client: FiretitanSamplingClient, prompt: list[int] | None = None, **fields: Any) -> Any:
    fields = {"max_tokens": 8, "logprobs": True, **fields}
    return asyncio.run(client.deployment_sampler.sample_with_prompt_tokens_result(prompt or PROMPT, **fields))


def datum_of(full: list[int], prompt: int, logprobs: list[float], advantage: float) -> Datum:
    n = len(full) - 1
    sampled, advantages = np.zeros(n, np.float32), np.zeros(n, np.float32)
    sampled[prompt - 1 :], advantages[prompt - 1 :] = logprobs, advantage
    inputs = {"target_tokens": full[1:], "logprobs": sampled, "advantages": advantages}
    return Datum(model_input=ModelInput.from_ints(full[:-1]), loss_fn_inputs=inputs)


def weighed(datum: Datum) -> Datum:
    inputs = datum.loss_fn_inputs
    return Datum(
        model_input=datum.model_input,
        loss_fn_inputs={"target_tokens": inputs["target_tokens"], "weights": inputs["advantages"]},
    )


def rollouts(client: FiretitanSamplingClient, count: int = 4, **fields: Any) -> list[Datum]:
    data = []
    for index in range(count):
        [completion] = sample(client, **fields).completions
        full, prompt = completion.full_tokens, completion.prompt_len
        data.append(datum_of(full, prompt, list(completion.sampling_logprobs), 1.0 if index % 2 else -1.0))
    return data


def logprobs_of(output: Any) -> list[list[float]]:
    return [item["logprobs"].data for item in output.loss_fn_outputs]


def test_a_policy_is_sampled_trained_saved_and_resumed(
    service: FiretitanServiceClient, run: FiretitanTrainingClient, engine: Process | None, base_model: str
) -> None:
    first = run.save_weights_for_sampler("policy-0000").result().path
    client = sampler_of(service, first)
    data = rollouts(client)
    for loss in RL_LOSSES:
        output = run.forward_backward(data, loss).result()
        for datum, logprobs in zip(data, logprobs_of(output), strict=True):
            trained = np.array(datum.loss_fn_inputs["advantages"].data) != 0
            gap = np.array(logprobs)[trained] - np.array(datum.loss_fn_inputs["logprobs"].data)[trained]
            assert np.abs(gap).max() < (1e-4 if engine else 0.2)
    metrics = run.optim_step(AdamParams(learning_rate=1e-2), grad_accumulation_normalization="num_loss_tokens").result().metrics
    assert metrics["grad_norm"] > 0
    saved = run.save_state("state-0001").result().path
    after = run.forward([weighed(d) for d in data], "cross_entropy").result()
    run.forward_backward(data, "ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2})
    run.optim_step(AdamParams(learning_rate=1e-2)).result()
    moved = run.forward([weighed(d) for d in data], "cross_entropy").result()
    assert logprobs_of(moved) != logprobs_of(after)
    if engine:
        # The service's own form of names is not ours to know.
        assert saved in run.list_checkpoints()
    run.load_state_with_optimizer(saved).result()
    assert logprobs_of(run.forward([weighed(d) for d in data], "cross_entropy").result()) == logprobs_of(after)
    other = FiretitanServiceClient(api_key=KEY, base_url=SERVICE_URL or engine.url)  # pyright: ignore[reportOptionalMemberAccess]
    resumed = other.create_training_client_from_state_with_optimizer(saved)
    assert logprobs_of(resumed.forward([weighed(d) for d in data], "cross_entropy").result()) == logprobs_of(after)
    for client_of in (run, resumed):
        client_of.forward_backward(data, "ppo")
        client_of.optim_step(AdamParams(learning_rate=1e-2)).result()
    ends = [logprobs_of(c.forward([weighed(d) for d in data], "cross_entropy").result()) for c in (run, resumed)]
    assert ends[0] == ends[1]
    resumed.unload_model().result()
    other.delete_training_session()


def test_a_snapshot_never_changes(service: FiretitanServiceClient, run: FiretitanTrainingClient) -> None:
    path = run.save_weights_for_sampler("fixed").result().path
    before = sample(sampler_of(service, path), seed=3).completions[0]
    data = rollouts(sampler_of(service, path))
    run.forward_backward(data, "importance_sampling")
    run.optim_step(AdamParams(learning_rate=0.1)).result()
    later = run.save_weights_for_sampler("moved").result().path
    again = sample(sampler_of(service, path), seed=3).completions[0]
    assert again.full_tokens == before.full_tokens
    assert list(again.sampling_logprobs) == pytest.approx(list(before.sampling_logprobs), abs=1e-5)
    moved = sample(sampler_of(service, later), seed=3).completions[0]
    assert list(moved.sampling_logprobs) != pytest.approx(list(before.sampling_logprobs), abs=1e-3)


def test_the_base_weights_and_a_foreign_runs_snapshot_can_be_sampled(
    service: FiretitanServiceClient, run: FiretitanTrainingClient, engine: Process | None, base_model: str
) -> None:
    path = run.save_weights_for_sampler("shared").result().path
    other = FiretitanServiceClient(api_key=KEY, base_url=SERVICE_URL or engine.url)  # pyright: ignore[reportOptionalMemberAccess]
    foreign = sample(sampler_of(other, path), seed=5).completions[0]
    own = sample(sampler_of(service, path), seed=5).completions[0]
    assert foreign.full_tokens == own.full_tokens
    base = service.create_sampling_client(base_model=base_model, tokenizer=Text())
    standalone = other.create_sampling_client(base_model=base_model, tokenizer=Text())
    answers = [sample(client, seed=5).completions[0].full_tokens for client in (base, standalone)]
    assert answers[0] == answers[1] == own.full_tokens
    other.delete_training_session()


def test_prompt_logprobs_are_the_trainers(service: FiretitanServiceClient, run: FiretitanTrainingClient) -> None:
    client = sampler_of(service, run.save_weights_for_sampler("echo").result().path)
    params = SamplingParams(max_tokens=3, temperature=0.7, top_p=0.9, top_k=20, seed=1)
    response = client.sample(
        prompt=ModelInput.from_ints(PROMPT), num_samples=1, sampling_params=params, include_prompt_logprobs=True
    ).result()
    inputs = {"target_tokens": PROMPT[1:], "weights": [1.0] * 4}
    datum = Datum(model_input=ModelInput.from_ints(PROMPT[:-1]), loss_fn_inputs=inputs)
    expected = logprobs_of(run.forward([datum], "cross_entropy").result())[0]
    assert response.prompt_logprobs[0] is None
    assert response.prompt_logprobs[1:] == pytest.approx(expected, abs=1e-4)
    assert client.compute_logprobs(ModelInput.from_ints(PROMPT)).result()[1:] == pytest.approx(expected, abs=1e-4)


def test_stops_end_at_the_token_that_completes_them(service: FiretitanServiceClient, run: FiretitanTrainingClient) -> None:
    client = sampler_of(service, run.save_weights_for_sampler("stops").result().path)
    whole = sample(client, seed=11, max_tokens=30).completions[0]
    ids = whole.full_tokens[len(PROMPT) :]
    text = Text()
    wanted = text.decode([ids[4]])
    expected = next(n for n in range(1, len(ids) + 1) if wanted in text.decode(ids[:n]))
    for stop in ([wanted], [ids[4]]):
        cut = sample(client, seed=11, max_tokens=30, stop=stop).completions[0]
        assert cut.full_tokens[len(PROMPT) :] == ids[:expected]
        assert cut.finish_reason == "stop"
        assert len(cut.sampling_logprobs) == expected


def test_usage_tells_cached_prompt_tokens(service: FiretitanServiceClient, run: FiretitanTrainingClient) -> None:
    client = sampler_of(service, run.save_weights_for_sampler("usage").result().path)
    first = sample(client, PROMPT * 10, prompt_cache_key="e").completions[0]
    again = sample(client, [*first.full_tokens, 7, 8], prompt_cache_key="e")
    metrics = again.server_metrics
    assert metrics.prompt_tokens == len(first.full_tokens) + 2
    assert metrics.cached_prompt_tokens == len(first.full_tokens) - 1


def test_many_chunks_are_one_batch(run: FiretitanTrainingClient) -> None:
    rng = np.random.default_rng(0)
    data = []
    for _ in range(1100):
        ids = rng.integers(2, VOCAB, 6).tolist()
        data.append(datum_of(ids, 2, [-5.0] * 4, 1.0))
    output = run.forward_backward(data, "importance_sampling").result()
    assert len(output.loss_fn_outputs) == 1100
    assert output.metrics["loss_tokens:sum"] == 4400
    metrics = run.optim_step(AdamParams(), grad_accumulation_normalization="num_sequences").result().metrics
    assert metrics["sequences"] == 1100


def test_pipelined_operations_run_in_the_order_they_were_issued(
    service: FiretitanServiceClient, run: FiretitanTrainingClient
) -> None:
    data = rollouts(sampler_of(service, run.save_weights_for_sampler("pipe").result().path))
    futures = [run.forward_backward(data, "ppo") for _ in range(8)]
    step = run.optim_step(AdamParams(learning_rate=1e-2))
    after = run.forward([weighed(d) for d in data], "cross_entropy")
    losses = {round(f.result().metrics["loss:sum"], 4) for f in futures}
    assert len(losses) == 1
    # Not every sample is as long as it might be: one may end with the stop token.
    trained = sum(int(np.count_nonzero(d.loss_fn_inputs["advantages"].to_numpy())) for d in data)
    assert step.result().metrics["loss_tokens"] == 8 * trained
    assert logprobs_of(after.result()) != logprobs_of(futures[0].result())


def test_a_custom_loss_is_the_built_in_one(service: FiretitanServiceClient, run: FiretitanTrainingClient) -> None:
    data = rollouts(sampler_of(service, run.save_weights_for_sampler("custom").result().path))
    sampled = [torch.tensor(d.loss_fn_inputs["logprobs"].data) for d in data]
    advantages = [torch.tensor(d.loss_fn_inputs["advantages"].data) for d in data]

    def importance(_: Any, logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        pairs = zip(logprobs, sampled, advantages, strict=True)
        loss = torch.stack([-((lp - q).exp() * a)[a != 0].sum() for lp, q, a in pairs]).sum()
        return loss, {"custom": float(loss.detach())}

    targets = [
        Datum(model_input=d.model_input, loss_fn_inputs={"target_tokens": d.loss_fn_inputs["target_tokens"]}) for d in data
    ]
    run.forward_backward(data, "importance_sampling").result()
    built_in = run.optim_step(AdamParams(learning_rate=0.0)).result().metrics["grad_norm"]
    run.forward_backward_custom(targets, importance).result()
    custom = run.optim_step(AdamParams(learning_rate=0.0)).result().metrics["grad_norm"]
    assert custom == pytest.approx(built_in, rel=1e-4)


async def test_the_async_calls_do_the_same(service: FiretitanServiceClient, base_model: str) -> None:
    run = await service.create_lora_training_client_async(base_model=base_model, rank=2)
    path = (await (await run.save_weights_for_sampler_async("async"))).path
    client = await asyncio.to_thread(sampler_of, service, path)
    params = SamplingParams(max_tokens=4, stop=[END])
    response = await client.sample_async(prompt=ModelInput.from_ints(PROMPT), num_samples=3, sampling_params=params)
    data = [datum_of(PROMPT + s.tokens, len(PROMPT), s.logprobs, 1.0) for s in response.sequences]
    await (await run.forward_backward_async(data, "cispo"))
    await (await run.optim_step_async(AdamParams()))
    await (await run.forward_async([weighed(d) for d in data], "cross_entropy"))
    state = await (await run.save_state_async("async-state"))
    await (await run.load_state_async(state.path))


def test_a_reference_model_gives_the_base_logprobs(
    service: FiretitanServiceClient, run: FiretitanTrainingClient, base_model: str
) -> None:
    inputs = {"target_tokens": PROMPT[1:], "weights": [1.0] * 4}
    datum = Datum(model_input=ModelInput.from_ints(PROMPT[:-1]), loss_fn_inputs=inputs)
    before = logprobs_of(run.forward([datum], "cross_entropy").result())
    run.forward_backward([datum], "cross_entropy")
    run.optim_step(AdamParams(learning_rate=0.05)).result()
    reference = service.create_base_training_client(base_model)
    assert logprobs_of(reference.forward([datum], "cross_entropy").result()) == before


def test_several_sessions_and_runs_train_apart(service: FiretitanServiceClient, engine: Process | None, base_model: str) -> None:
    def train(seed: int) -> list[list[float]]:
        own = FiretitanServiceClient(api_key=KEY, base_url=SERVICE_URL or engine.url)  # pyright: ignore[reportOptionalMemberAccess]
        run = own.create_lora_training_client(base_model=base_model, rank=4, seed=seed)
        ids = np.random.default_rng(seed).integers(2, VOCAB, 12).tolist()
        inputs = {"target_tokens": ids[1:], "weights": [1.0] * 11}
        datum = Datum(model_input=ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)
        for _ in range(3):
            run.forward_backward([datum], "cross_entropy")
            run.optim_step(AdamParams(learning_rate=1e-2)).result()
        result = logprobs_of(run.forward([datum], "cross_entropy").result())
        own.delete_training_session()
        return result

    alone = [train(seed) for seed in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(train, (1, 2)))
    assert together == alone


def test_a_sessions_checkpoints_are_listed_page_by_page_oldest_first(
    service: FiretitanServiceClient, run: FiretitanTrainingClient, engine: Process | None
) -> None:
    saved = [run.save_weights_for_sampler("listed").result().path, run.save_state("listed-state").result().path]
    run.unload_model().result()
    name = service.training_session_name
    assert name is not None
    with FireworksClient(api_key=KEY, base_url=root_of(engine)) as client:
        rows = client.list_training_session_checkpoints(name, page_size=1)
        assert [row["createTime"] for row in rows] == sorted(row["createTime"] for row in rows)
        names = [row["name"] for row in rows]
        assert len(rows) == 2
        assert all(full.startswith(f"{name}/checkpoints/") for full in names)
        assert all(path.rpartition("/")[2] in full for path, full in zip(saved, names, strict=True))
        if engine:
            with pytest.raises(RuntimeError, match="belongs to the service"):
                client.promote_session_checkpoint(names[0], "my-model", "accounts/fireworks/models/any")
            deleted = client._delete(f"/v1/{names[1]}")
            assert deleted.status_code == 200
            assert [row["name"] for row in client.list_training_session_checkpoints(name)] == names[:1]


def test_a_deleted_session_takes_its_models_along_and_may_be_deleted_again(engine: Process | None, base_model: str) -> None:
    own = FiretitanServiceClient(api_key=KEY, base_url=SERVICE_URL or engine.url)  # pyright: ignore[reportOptionalMemberAccess]
    run = own.create_lora_training_client(base_model=base_model, rank=4)
    own.delete_training_session()
    own.delete_training_session()
    if engine:
        with pytest.raises(NotFoundError, match="not loaded"):
            run.forward([weighed(datum_of([5, 6, 7], 1, [-1.0, -1.0], 1.0))], "cross_entropy").result()


def test_an_unloaded_model_is_gone_and_its_session_goes_on(
    service: FiretitanServiceClient, run: FiretitanTrainingClient, engine: Process | None, base_model: str
) -> None:
    assert run.unload_model().result().model_id == run.model_id
    if engine:
        # The SDK itself lets no call through after unload_model.
        with pytest.raises(urllib.error.HTTPError) as refused:
            engine.post("/api/v1/optim_step", {"model_id": run.model_id, "adam_params": {}, "seq_id": 1})
        assert refused.value.code == 404
    assert service.create_lora_training_client(base_model=base_model, rank=5).get_info().model_id


def test_what_is_known_of_a_run(run: FiretitanTrainingClient, base_model: str, engine: Process | None) -> None:
    info = run.get_info()
    assert info.model_id == run.model_id
    if engine:
        assert info.model_data.model_name == base_model
        assert info.model_data.arch == "qwen3"


def test_an_adapter_is_refused_where_every_weight_is_trained(run: FiretitanTrainingClient, engine: Process | None) -> None:
    if not engine:
        pytest.skip("the service trains LoRA alone")
    with pytest.raises(RequestFailedError, match="no adapter to load"):
        run.load_adapter("accounts/local/models/some-adapter").result()


def test_what_the_service_would_refuse_is_a_4xx(service: FiretitanServiceClient, engine: Process | None, base_model: str) -> None:
    with pytest.raises(NotFoundError, match="not served here"):
        service.create_lora_training_client(base_model="accounts/fireworks/models/no-such-model", rank=4)
    run = service.create_lora_training_client(base_model=base_model, rank=3)
    bad = datum_of([5, 6, 7, 8], 2, [-1.0, -1.0], 1.0)
    bad.loss_fn_inputs["advantages"] = bad.loss_fn_inputs["advantages"].from_numpy(np.ones(2, np.float32))
    with pytest.raises(BadRequestError, match="shape"):
        run.forward_backward([bad], "ppo").result()
    with pytest.raises(Exception, match="no checkpoint"):
        service.create_lora_training_client(base_model=base_model, rank=5).load_state("never-saved").result()


def test_an_operation_that_fails_is_an_error_of_its_future_and_the_run_goes_on(
    service: FiretitanServiceClient, base_model: str
) -> None:
    run = service.create_lora_training_client(base_model=base_model, rank=6)
    with pytest.raises(RequestFailedError, match="no gradient to apply"):
        run.optim_step(AdamParams()).result()
    data = [datum_of([5, 6, 7, 8], 2, [-5.0, -5.0], 1.0)]
    run.forward_backward(data, "ppo").result()
    assert run.optim_step(AdamParams()).result().metrics["grad_norm"] > 0
