"""What the service would refuse is refused at the door, in a sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from turngrad.local.losses import LOSSES
from turngrad.local.wire import (
    Adam,
    ApiError,
    check_name,
    parse_adam,
    parse_batch,
    parse_completion,
    parse_run_path,
    parse_sampling_model,
)

RUN = "run-" + "a" * 32


def tensor(data: list[Any], dtype: str = "float32") -> dict[str, Any]:
    return {"data": data, "dtype": dtype, "shape": [len(data)]}


def body(loss_fn: str = "ppo", **inputs: Any) -> dict[str, Any]:
    fields = {"target_tokens": tensor([6, 7, 8], "int64"), "logprobs": tensor([0.0, -1.0, -2.0])}
    fields |= {"advantages": tensor([0.0, 1.0, 1.0])}
    datum = {
        "model_input": {"chunks": [{"tokens": [5, 6], "type": "encoded_text"}, {"tokens": [7], "type": "encoded_text"}]},
        "loss_fn_inputs": {**fields, **inputs},
    }
    return {"forward_backward_input": {"data": [datum], "loss_fn": loss_fn}, "model_id": "m", "seq_id": 1}


def parse(content: dict[str, Any]) -> Any:
    return parse_batch(content, "forward_backward_input", LOSSES, vocab=100, max_length=8)


def test_a_datum_of_two_chunks_is_one_sequence() -> None:
    [datum] = parse(body()).data
    assert datum.tokens.tolist() == [5, 6, 7]
    assert datum.targets.tolist() == [6, 7, 8]
    assert datum.weights.tolist() == [0.0, 1.0, 1.0]
    assert datum.sampled_logprobs.tolist() == [0.0, -1.0, -2.0]


def test_cross_entropy_without_weights_weighs_every_target_once() -> None:
    content = body("cross_entropy")
    del content["forward_backward_input"]["data"][0]["loss_fn_inputs"]["logprobs"]
    del content["forward_backward_input"]["data"][0]["loss_fn_inputs"]["advantages"]
    assert parse(content).data[0].weights.tolist() == [1.0, 1.0, 1.0]


def test_a_masked_target_may_be_outside_the_vocabulary() -> None:
    assert parse(body(target_tokens=tensor([-100, 7, 8], "int64"))).data[0].targets.tolist() == [0, 7, 8]


def test_per_token_clip_bounds_are_read() -> None:
    [datum] = parse(body(clip_low_threshold=tensor([0.5, 0.6, 0.7]))).data
    assert datum.clip_low.tolist() == pytest.approx([0.5, 0.6, 0.7])
    assert datum.clip_high is None


def change(path: list[Any], value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(content: dict[str, Any]) -> None:
        target: Any = content["forward_backward_input"]
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return apply


INPUTS = ["data", 0, "loss_fn_inputs"]


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (change(["loss_fn"], "dapo"), "not served here"),
        (change(["data"], []), "empty"),
        (change([*INPUTS, "mask"], tensor([0.0, 1.0, 1.0])), "take no 'mask'"),
        (change([*INPUTS, "values"], tensor([0.0, 1.0, 1.0])), "does not read"),
        (change([*INPUTS, "advantages"], tensor([1.0, 1.0])), r"shape \[3\]"),
        (change([*INPUTS, "advantages"], {"data": [1.0] * 3, "dtype": "float32", "shape": [1, 3]}), "shape"),
        (change([*INPUTS, "advantages"], tensor([1.0, 1.0, None])), "None"),
        (change([*INPUTS, "advantages"], tensor([1.0, 1.0, 1e39])), "not finite"),
        (change([*INPUTS, "advantages"], tensor([1, 1, 1], "int64")), "must be float32"),
        (change([*INPUTS, "target_tokens"], tensor([6.0, 7.0, 8.0])), "must be int64"),
        (change([*INPUTS, "target_tokens"], tensor([6, 7, 100], "int64")), "vocabulary is 0 to 99"),
        (change([*INPUTS, "logprobs"], {"data": [1.0], "dtype": "float32", "sparse_crow_indices": [0]}), "sparse"),
        (change([*INPUTS, "logprobs"], [0.0, 1.0, 2.0]), "tensor object"),
        (change(["data", 0, "model_input", "chunks", 0, "tokens"], [5, 100]), "vocabulary"),
        (change(["data", 0, "model_input", "chunks", 0, "tokens"], [5.5, 6]), "int64"),
        (change(["data", 0, "model_input", "chunks", 0, "type"], "image"), "encoded_text"),
        (change(["data", 0, "model_input", "chunks", 0, "tokens"], [5] * 9), "1 to 8"),
        (change(["data", 0, "model_input", "chunks"], []), "0 tokens"),
    ],
)
def test_a_bad_batch_is_refused_with_a_sentence(fault: Callable[[dict[str, Any]], None], word: str) -> None:
    content = copy.deepcopy(body())
    fault(content)
    with pytest.raises(ApiError, match=word) as refused:
        parse(content)
    assert 400 <= refused.value.status < 500


def test_a_missing_input_is_named() -> None:
    content = body()
    del content["forward_backward_input"]["data"][0]["loss_fn_inputs"]["logprobs"]
    with pytest.raises(ApiError, match="logprobs"):
        parse(content)


def test_adam_defaults_are_the_sdks() -> None:
    from fireworks.training.sdk import AdamParams

    theirs = AdamParams()
    ours = parse_adam({"adam_params": {}})
    for name in ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours == Adam()


@pytest.mark.parametrize(
    "content",
    [
        {"adam_params": {"learning_rate": -1.0}},
        {"adam_params": {"beta1": 1.0}},
        {"adam_params": {"eps": "small"}},
        {"adam_params": {}, "grad_accumulation_normalization": "mean"},
        {},
    ],
)
def test_bad_adam_settings_are_refused(content: dict[str, Any]) -> None:
    with pytest.raises(ApiError):
        parse_adam(content)


def test_zero_is_a_setting_and_not_a_missing_one() -> None:
    assert parse_adam({"adam_params": {"learning_rate": 0.0, "beta1": 0}}) == Adam(learning_rate=0.0, beta1=0.0)


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "accounts/local/trainingSessions/ts-1", "prompt": [1, 2, 3], "max_tokens": 4, **fields}


def test_max_tokens_is_cut_to_the_room_left() -> None:
    assert parse_completion(completion(max_tokens=100), vocab=10, max_length=8).max_tokens == 5


def test_the_cache_key_is_prompt_cache_key_or_user() -> None:
    assert parse_completion(completion(user="u"), 10, 8).cache_key == "u"
    assert parse_completion(completion(user="u", prompt_cache_key="k"), 10, 8).cache_key == "k"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"prompt": []}, "empty"),
        ({"prompt": [1, 99]}, "vocabulary"),
        ({"prompt": "text"}, "prompt"),
        ({"prompt": [1] * 8}, "no room"),
        ({"n": 2}, "n must be 1"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"stop": [7]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"model": None}, "model"),
    ],
)
def test_a_bad_completion_is_refused_with_a_sentence(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(ApiError, match=word) as refused:
        parse_completion(completion(**fields), vocab=10, max_length=8)
    assert 400 <= refused.value.status < 500


def test_checkpoint_paths_are_read_whole_or_by_name_within_a_run() -> None:
    assert parse_run_path(f"local/{RUN}/state-1") == (RUN, "state-1")
    assert parse_run_path("state-1", RUN) == (RUN, "state-1")


BAD_PATHS = ["", "../etc", f"local/{RUN}/../x", f"local/{RUN}/Bad", "local/run-1/x", f"other/{RUN}/x", "state-1"]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_anything_else_is_no_path(path: str) -> None:
    with pytest.raises(ApiError):
        parse_run_path(path)


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a" * 64, "..", "a/b"])
def test_names_the_sdk_could_not_load_again_are_refused(name: str) -> None:
    with pytest.raises(ApiError):
        check_name(name)


def test_sampling_models_name_a_checkpoint_or_the_base() -> None:
    assert parse_sampling_model(f"accounts/local/trainingSessions/ts-1/checkpoints/local/{RUN}/p") == f"local/{RUN}/p"
    assert parse_sampling_model(f"accounts/local/trainingSamplers/checkpoints/local/{RUN}/p") == f"local/{RUN}/p"
    assert parse_sampling_model("accounts/local/trainingSessions/ts-1") is None


@pytest.mark.parametrize("model", ["gpt-4", "accounts/other/trainingSessions/ts-1", "accounts/local/models/x"])
def test_other_models_are_404(model: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_sampling_model(model)
    assert refused.value.status == 404
