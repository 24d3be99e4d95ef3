"""In bf16 on a CPU the sampler and the trainer agree as well as in fp32, whatever ran beside, was cached or shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model

from tests.local.test_sampler import body, random_prompt, run
from tests.local.test_trainer import finish
from tests.local.tiny import CPU, END, VOCAB, config, write_folder
from turngrad.local.adapter import Lora, full_policy, lora_policy, merged
from turngrad.local.basemodel import BaseModel, compute_dtype, load_base_model
from turngrad.local.decoder import Spec
from turngrad.local.kvcache import KVCache
from turngrad.local.lowrank import project
from turngrad.local.sampler import Sampler
from turngrad.local.stops import StopTable
from turngrad.local.trainer import Trainer
from turngrad.local.wire import Adam, Batch, Datum


@pytest.fixture
def base(tmp_path: Path) -> BaseModel:
    # Matrices that keep the size of what passes through them, as trained ones do: others amplify rounding without bound.
    shape = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_hidden_layers": 6}
    return load_base_model("bf16", write_folder(tmp_path, scale=0.09, **shape), CPU, "bf16")


def rollouts(base: BaseModel, weights: Mapping[str, torch.Tensor]) -> list[Datum]:
    """Prompts that share a long beginning, a short one or none, sampled together and alone, then continued from the cache."""
    cache = KVCache(base.spec, CPU, base.cache_dtype, 64 << 20)
    sampler = Sampler(base.freeze(weights), cache, StopTable(base.tokenizer, frozenset([END]), VOCAB), CPU)
    rng = np.random.default_rng(0)
    head = random_prompt(rng, 120)
    prompts = [head + random_prompt(rng, 5 + i) for i in range(6)] + [head[:30] + random_prompt(rng, 9), random_prompt(rng, 3)]
    results = run(sampler, [body(p, 20, cache_key=str(i)) for i, p in enumerate(prompts)])
    results += run(sampler, [body(prompts[0], 20)])
    prompts.append(prompts[0])
    prompts.append(prompts[1] + results[1].output_ids + random_prompt(rng, 8))
    results += run(sampler, [body(prompts[-1], 20, cache_key="1")])
    data = []
    for prompt, result in zip(prompts, results, strict=True):
        ids = np.array(prompt + result.output_ids)
        sampled = np.zeros(len(ids) - 1, np.float32)
        sampled[len(prompt) - 1 :] = result.sampling_logprobs
        data.append(Datum(ids[:-1], ids[1:], (sampled != 0).astype(np.float32), sampled))
    return data


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_sampler_and_trainer_agree_before_and_after_an_update(base: BaseModel, lora: bool) -> None:
    policy = lora_policy(base.module, Lora(rank=4, alpha=8.0)) if lora else full_policy(base.module)
    trainer = Trainer(policy, base.spec, CPU)
    for _ in range(2):
        data = rollouts(base, merged(base.weights, policy.export(), policy.lora))
        metrics = finish(trainer.forward_backward(Batch(data, "importance_sampling", {})))["metrics"]
        assert metrics["loss_tokens:sum"] > 100
        # The head is fp32: its sums may differ in their last bits. Everything below it must not differ at all.
        assert metrics["logprob_gap_max:max"] < 1e-5
        one = finish(trainer.forward_backward(Batch(data[3:4], "importance_sampling", {})))["metrics"]
        assert one["logprob_gap_max:max"] < 1e-5
        assert np.isfinite(trainer.optim_step(Adam(learning_rate=1e-2))["grad_norm"])
    assert all(p.dtype == torch.float32 for p in policy.trainable.values())


def test_a_single_token_is_scored_as_it_was_sampled(base: BaseModel) -> None:
    [datum] = rollouts(base, base.weights)[-1:]
    alone = np.zeros_like(datum.weights)
    alone[len(alone) - 1] = 1
    trainer = Trainer(full_policy(base.module), base.spec, CPU)
    only = replace(datum, weights=alone)
    metrics = finish(trainer.forward_backward(Batch([only], "importance_sampling", {})))["metrics"]
    assert metrics["loss_tokens:sum"] == 1
    assert metrics["logprob_gap_max:max"] < 1e-5


def test_the_gradient_of_a_lora_layer_is_that_of_its_product() -> None:
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        # Powers of two: bf16 holds them and their sums here exactly, so that both ways give the same numbers.
        return torch.randint(-2, 3, shape, generator=generator).float() / 4

    layer: Any = inject_adapter_in_model(
        LoraConfig(r=2, lora_alpha=4, target_modules=["0"]), torch.nn.Sequential(torch.nn.Linear(6, 5))
    )[0]
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with torch.no_grad():
        for tensor in (layer.base_layer.weight, layer.base_layer.bias, down, up):
            tensor.copy_(numbers(*tensor.shape))
    x, toward = numbers(7, 6), numbers(7, 5)
    results = []
    for compute in (torch.float32, torch.bfloat16):
        given = x.clone().requires_grad_(True)
        y = project(layer, given, compute)
        results.append([y.detach().float(), *torch.autograd.grad((y.float() * toward).sum(), (given, down, up))])
    for own, reference in zip(results[1], results[0], strict=True):
        assert torch.equal(own, reference)
    with torch.no_grad():
        up.mul_(2)
    assert torch.equal(project(layer, x, torch.bfloat16).float(), project(layer, x, torch.float32))


def test_auto_means_fp32_for_a_tiny_model_and_bf16_for_a_large_one_on_cuda() -> None:
    tiny = Spec.from_config(config())
    large = replace(tiny, hidden=4096, intermediate=16384, layers=24)
    assert compute_dtype("auto", torch.device("cuda"), tiny) == torch.float32
    assert compute_dtype("auto", torch.device("cuda"), large) == torch.bfloat16
    assert compute_dtype("auto", CPU, large) == torch.float32
    assert compute_dtype("fp32", torch.device("cuda"), large) == torch.float32
    assert compute_dtype("bf16", CPU, tiny) == torch.bfloat16
