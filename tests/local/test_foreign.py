"""Other decoders of transformers are served with their own numbers, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.local.test_sampler import body, random_prompt, run, sampler_of
from tests.local.test_trainer import finish
from tests.local.tiny import CPU, VOCAB, tokenizer
from turngrad.local.adapter import Lora, full_policy, lora_policy, merged
from turngrad.local.basemodel import BaseModel, load_base_model
from turngrad.local.trainer import Trainer
from turngrad.local.wire import Adam, Batch, Datum

SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
OTHERS: list[dict[str, Any]] = [
    {"model_type": "llama", "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    {"model_type": "olmo2", "num_key_value_heads": 2},
    {"model_type": "phi3", "num_key_value_heads": 2, "pad_token_id": 0},
    {"model_type": "granite", "attention_multiplier": 0.3, "logits_scaling": 2.0},
]


def write(folder: Path, kind: dict[str, Any]) -> Path:
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**SMALL, "max_position_embeddings": 512, "eos_token_id": 1, **kind})
    AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(params=OTHERS, ids=lambda kind: kind["model_type"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> BaseModel:
    return load_base_model("other", write(tmp_path / "model", request.param), CPU)


def expected_logprobs(folder: Path, ids: list[int], weights: dict[str, Any] | None = None) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    if weights is not None:
        model.load_state_dict(weights, strict=False)
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    return scores.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1).numpy()


def test_sampling_and_training_give_the_models_own_logprobs(other: BaseModel) -> None:
    rng = np.random.default_rng(0)
    head = random_prompt(rng, 130)
    prompts = [head + random_prompt(rng, 5) for _ in range(3)]
    results = run(sampler_of(other), [body(p, 6) for p in prompts])
    trainer = Trainer(full_policy(other.module), other.spec, CPU)
    data = []
    for prompt, result in zip(prompts, results, strict=True):
        ids = np.array(prompt + result.output_ids)
        expected = expected_logprobs(other.folder, ids.tolist())
        np.testing.assert_allclose(result.logprobs, expected[len(prompt) - 1 :], atol=1e-4)
        advantages = (np.arange(len(ids) - 1) >= len(prompt) - 1).astype(np.float32)
        sampled = advantages * expected
        data.append(Datum(ids[:-1], ids[1:], advantages, sampled.astype(np.float32)))
    output = finish(trainer.forward_backward(Batch(data, "importance_sampling", {})))
    for datum, logprobs in zip(data, output["logprobs"], strict=True):
        np.testing.assert_allclose(logprobs, datum.sampled_logprobs, atol=1e-4)
    assert trainer.optim_step(Adam())["grad_norm"] > 0
    frozen = other.freeze(trainer.policy.export())
    ids = data[0].tokens.tolist()
    moved = expected_logprobs(other.folder, ids, trainer.policy.export())
    from tests.local.reference import logprobs as ours

    np.testing.assert_allclose(ours(frozen, ids).numpy(), moved, atol=1e-4)  # pyright: ignore[reportArgumentType]


def test_lora_trains_and_merges(other: BaseModel) -> None:
    lora = Lora(rank=2, alpha=4.0, train_unembed=False)
    policy = lora_policy(other.module, lora)
    trainer = Trainer(policy, other.spec, CPU)
    ids = np.arange(5, 30)
    datum = Datum(ids[:-1], ids[1:], np.ones(24, np.float32), np.zeros(24, np.float32))
    before = finish(trainer.forward(Batch([datum], "cross_entropy", {})))["metrics"]["loss:sum"]
    for _ in range(3):
        finish(trainer.forward_backward(Batch([datum], "cross_entropy", {})))
        trainer.optim_step(Adam(learning_rate=1e-2))
    after = finish(trainer.forward(Batch([datum], "cross_entropy", {})))
    assert after["metrics"]["loss:sum"] < before
    from tests.local.reference import logprobs as ours

    frozen = other.freeze(merged(other.weights, policy.export(), lora))
    got = ours(frozen, ids.tolist()).detach().numpy()  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(got, after["logprobs"][0], atol=1e-4)


@pytest.mark.parametrize(
    "kind",
    [
        {"model_type": "mistral", "sliding_window": 16, "num_key_value_heads": 2},
        {"model_type": "mamba", "state_size": 4},
        {"model_type": "bloom"},
    ],
    ids=lambda kind: kind["model_type"],
)
def test_what_mixes_positions_otherwise_is_refused_by_name(tmp_path: Path, kind: dict[str, Any]) -> None:
    folder = write(tmp_path / "model", kind)
    with pytest.raises(ValueError, match=kind["model_type"]):
        load_base_model("other", folder, CPU)
