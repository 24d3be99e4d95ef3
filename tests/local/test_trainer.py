"""Gradients, steps and resumed states against plain torch."""

from __future__ import annotations

import copy
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.local.reference import random_datum, target_logprobs
from tests.local.tiny import CPU, VOCAB
from turngrad.local import trainer as trainer_module
from turngrad.local.adapter import Lora, Policy, full_policy, lora_policy, merged, read_peft_folder
from turngrad.local.basemodel import BaseModel
from turngrad.local.losses import LossTokens, loss_sum
from turngrad.local.trainer import Trainer
from turngrad.local.wire import Adam, Batch, Datum

LORA = Lora(rank=4, alpha=8.0, seed=3)
LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo")


def finish(slices: Generator[None, None, dict[str, Any]]) -> dict[str, Any]:
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            return stop.value


def trainer_of(tiny: BaseModel, *, lora: bool = False) -> Trainer:
    policy = lora_policy(tiny.module, LORA) if lora else full_policy(tiny.module)
    if lora:
        warm(policy)
    return Trainer(policy, tiny.spec, CPU)


def warm(policy: Policy) -> None:
    """LoRA's B starts at zero, where A has no gradient: move off it."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in policy.trainable.items():
            if ".lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)


def data_of(seed: int = 0) -> list[Datum]:
    """Mixed lengths, and a group of four with one long prompt, so that packing shares a prefix."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(2, VOCAB, 80).tolist()
    loose = [random_datum(rng, int(n), VOCAB) for n in rng.integers(4, 60, 5)]
    return loose + [random_datum(rng, 80 + int(n), VOCAB, prefix=prompt) for n in rng.integers(3, 30, 4)]


def reference_gradients(module: nn.Module, trainable: dict[str, nn.Parameter], data: list[Datum], loss: str) -> list[Tensor]:
    """Each datum alone, attention written out, gradients summed by autograd."""
    losses = []
    for datum in data:
        active = np.ones(len(datum.tokens), bool) if loss == "dro" else datum.weights != 0
        where = torch.from_numpy(active)
        n = int(active.sum())
        tokens = LossTokens(
            torch.from_numpy(datum.weights)[where],
            torch.from_numpy(datum.sampled_logprobs)[where],
            torch.zeros(n, dtype=torch.int64),
            torch.full((n,), 0.8),
            torch.full((n,), 1.2),
        )
        losses.append(loss_sum(loss, target_logprobs(module, datum)[where], tokens)[0])
    total = torch.stack(losses).sum()
    return list(torch.autograd.grad(total, list(trainable.values()), allow_unused=False))


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp(min=1e-12))


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_are_those_of_plain_torch(tiny: BaseModel, loss: str, lora: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "TOKEN_BUDGET", 300)
    trainer, data = trainer_of(tiny, lora=lora), data_of()
    finish(trainer.forward_backward(Batch(data, loss, {})))
    expected = reference_gradients(trainer.policy.module, trainer.policy.trainable, data, loss)
    for parameter, reference in zip(trainer.policy.trainable.values(), expected, strict=True):
        assert parameter.grad is not None
        assert relative(parameter.grad, reference) < 1e-5


def test_logprobs_come_back_per_datum_and_only_where_something_trains(tiny: BaseModel) -> None:
    trainer, data = trainer_of(tiny), data_of()
    result = finish(trainer.forward_backward(Batch(data, "importance_sampling", {})))
    every = finish(trainer.forward(Batch(data, "importance_sampling", {})))
    for datum, returned, all_of_it in zip(data, result["logprobs"], every["logprobs"], strict=True):
        with torch.no_grad():
            expected = target_logprobs(trainer.policy.module, datum).numpy()
        active = datum.weights != 0
        np.testing.assert_allclose(returned[active], expected[active], atol=1e-5)
        assert (returned[~active] == 0).all()
        np.testing.assert_allclose(all_of_it, expected, atol=1e-5)


def test_two_calls_accumulate_what_one_call_would(tiny: BaseModel) -> None:
    once, twice, data = trainer_of(tiny), trainer_of(tiny), data_of()
    finish(once.forward_backward(Batch(data, "ppo", {})))
    finish(twice.forward_backward(Batch(data[:3], "ppo", {})))
    finish(twice.forward_backward(Batch(data[3:], "ppo", {})))
    for a, b in zip(once.policy.trainable.values(), twice.policy.trainable.values(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert relative(b.grad, a.grad) < 1e-5


def test_forward_leaves_no_gradient(tiny: BaseModel) -> None:
    trainer = trainer_of(tiny)
    finish(trainer.forward(Batch(data_of(), "cross_entropy", {})))
    assert all(p.grad is None for p in trainer.policy.trainable.values())
    with pytest.raises(ValueError, match="no gradient to apply"):
        trainer.optim_step(Adam())


@pytest.mark.parametrize("normalization", ["none", "num_loss_tokens", "num_sequences"])
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_steps_are_those_of_torchs_adamw(tiny: BaseModel, normalization: str, clip: float) -> None:
    trainer = trainer_of(tiny)
    module = copy.deepcopy(trainer.policy.module)
    parameters = dict(module.named_parameters())
    adamw = torch.optim.AdamW(parameters.values(), lr=3e-3, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.1)
    adam = Adam(learning_rate=3e-3, weight_decay=0.1, grad_clip_norm=clip, normalization=normalization)
    for seed in range(3):
        data = data_of(seed)
        finish(trainer.forward_backward(Batch(data, "importance_sampling", {})))
        gradients = reference_gradients(module, parameters, data, "importance_sampling")
        divisor = {
            "none": 1,
            "num_loss_tokens": sum(int((d.weights != 0).sum()) for d in data),
            "num_sequences": len(data),
        }[normalization]
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.grad = gradient / divisor
        norm = float(torch.nn.utils.clip_grad_norm_(parameters.values(), clip or 1e30))
        adamw.step()
        assert trainer.optim_step(adam)["grad_norm"] == pytest.approx(norm, rel=1e-4)
    for name, parameter in trainer.policy.trainable.items():
        # Adam divides by the gradient's own size, so rounding in a tiny gradient shows whole: compare moves, not bits.
        assert relative(parameter.detach(), parameters[name].detach()) < 2e-4


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tiny: BaseModel, lora: bool) -> None:
    def step(trainer: Trainer, seed: int) -> None:
        finish(trainer.forward_backward(Batch(data_of(seed), "ppo", {})))
        trainer.optim_step(Adam(learning_rate=1e-3, normalization="num_loss_tokens"))

    whole = trainer_of(tiny, lora=lora)
    step(whole, 0)
    step(whole, 1)
    weights, moments, steps = whole.policy.export(), whole.moments(), whole.steps
    step(whole, 2)
    resumed = trainer_of(tiny, lora=lora)
    step(resumed, 7)
    resumed.load(weights, moments, steps)
    step(resumed, 2)
    for name, parameter in whole.policy.trainable.items():
        assert torch.equal(parameter, resumed.policy.trainable[name])
    assert all(torch.equal(moment, resumed.moments()[name]) for name, moment in whole.moments().items())


def test_loading_weights_alone_starts_adam_afresh(tiny: BaseModel) -> None:
    trainer = trainer_of(tiny)
    finish(trainer.forward_backward(Batch(data_of(), "ppo", {})))
    trainer.optim_step(Adam())
    trainer.load(trainer.policy.export(), None, trainer.steps)
    assert trainer.steps == 0
    assert all(not moment.any() for moment in trainer.moments().values())


def test_a_state_of_another_rank_is_refused_by_name(tiny: BaseModel) -> None:
    other = lora_policy(tiny.module, Lora(rank=2, alpha=8.0))
    with pytest.raises(ValueError, match="LoRA rank"):
        trainer_of(tiny, lora=True).policy.load(other.export())
    with pytest.raises(ValueError, match="same LoRA settings"):
        trainer_of(tiny).policy.load(other.export())


@pytest.mark.parametrize(
    ("switches", "expected"),
    [({"train_mlp": False, "train_unembed": False}, "self_attn"), ({"train_attn": False, "train_unembed": False}, "mlp")],
)
def test_lora_sits_on_the_modules_create_model_asks_for(tiny: BaseModel, switches: dict[str, bool], expected: str) -> None:
    policy = lora_policy(tiny.module, Lora(rank=2, alpha=4.0, **switches))
    assert policy.trainable
    assert all(expected in name for name in policy.trainable)


def test_merged_lora_weights_give_the_adapted_models_logprobs(tiny: BaseModel) -> None:
    trainer, data = trainer_of(tiny, lora=True), data_of()
    frozen = tiny.freeze(merged(tiny.weights, trainer.policy.export(), LORA))
    with torch.no_grad():
        for datum in data:
            expected = target_logprobs(trainer.policy.module, datum)
            got = target_logprobs(frozen, datum)  # pyright: ignore[reportArgumentType]
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_a_peft_folder_warm_starts_a_run_of_the_same_scale(tiny: BaseModel, tmp_path: Path) -> None:
    trained = trainer_of(tiny, lora=True).policy.export()
    save_file({f"base_model.model.{name}": tensor for name, tensor in trained.items()}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": LORA.rank, "lora_alpha": LORA.alpha}))
    fresh = lora_policy(tiny.module, LORA)
    fresh.load(read_peft_folder(tmp_path, LORA))
    assert all(torch.equal(tensor, trained[name]) for name, tensor in fresh.export().items())
    with pytest.raises(ValueError, match="alpha/rank"):
        read_peft_folder(tmp_path, Lora(rank=4, alpha=32.0))
    with pytest.raises(ValueError, match="no PEFT folder"):
        read_peft_folder(tmp_path / "absent", LORA)


def test_training_a_lora_run_leaves_the_base_weights_alone(tiny: BaseModel) -> None:
    before = {name: tensor.clone() for name, tensor in tiny.weights.items()}
    trainer = trainer_of(tiny, lora=True)
    finish(trainer.forward_backward(Batch(data_of(), "ppo", {})))
    trainer.optim_step(Adam(learning_rate=0.1))
    assert all(torch.equal(tiny.weights[name], tensor) for name, tensor in before.items())


def test_a_reference_model_runs_forward_and_refuses_to_train(tiny: BaseModel) -> None:
    trainer = Trainer(Policy(tiny.module, {}, None), tiny.spec, CPU)
    assert finish(trainer.forward(Batch(data_of(), "cross_entropy", {})))["metrics"]["loss_tokens:sum"] > 0
    with pytest.raises(ValueError, match="reference"):
        finish(trainer.forward_backward(Batch(data_of(), "cross_entropy", {})))


def test_a_batch_that_fails_midway_leaves_the_gradient_as_it_was(tiny: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, data = trainer_of(tiny), data_of()
    finish(trainer.forward_backward(Batch(data, "ppo", {})))
    before = [p.grad.clone() for p in trainer.policy.trainable.values() if p.grad is not None]
    monkeypatch.setattr(trainer_module, "TOKEN_BUDGET", 100)
    slices = trainer.forward_backward(Batch(data, "ppo", {}))
    next(slices)
    with pytest.raises(KeyError):
        slices.throw(KeyError("out of memory, say"))
    after = [p.grad for p in trainer.policy.trainable.values()]
    assert all(b is not None and torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_gradient_that_is_not_finite_changes_nothing(tiny: BaseModel) -> None:
    trainer = trainer_of(tiny)
    datum = data_of()[0]
    far = Datum(datum.tokens, datum.targets, datum.weights, datum.sampled_logprobs - 1000)
    finish(trainer.forward_backward(Batch([far], "importance_sampling", {})))
    before = trainer.policy.export()
    with pytest.raises(ValueError, match="not finite"):
        trainer.optim_step(Adam())
    assert all(torch.equal(p, before[name]) for name, p in trainer.policy.trainable.items())
