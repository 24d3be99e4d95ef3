"""In bf16 the sampler and the trainer agree within 5e-3 on average and 0.1 at most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.local.test_sampler import body, random_prompt, run
from tests.local.test_trainer import finish
from tests.local.tiny import CPU, END, VOCAB, config, write_folder
from turngrad.local.adapter import Lora, full_policy, lora_policy
from turngrad.local.basemodel import compute_dtype, load_base_model
from turngrad.local.decoder import Spec
from turngrad.local.kvcache import KVCache
from turngrad.local.sampler import Sampler
from turngrad.local.stops import StopTable
from turngrad.local.trainer import Trainer
from turngrad.local.wire import Adam, Batch, Datum


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_sampler_and_trainer_agree(tmp_path: Path, lora: bool) -> None:
    # Matrices that keep the size of what passes through them, as trained ones do: others amplify rounding without bound.
    shape = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_hidden_layers": 4}
    folder = write_folder(tmp_path, scale=0.09, **shape)
    base = load_base_model("bf16", folder, CPU, "bf16")
    cache = KVCache(base.spec, CPU, torch.float32, 64 << 20)
    sampler = Sampler(base.freeze(base.weights), cache, StopTable(base.tokenizer, frozenset([END]), VOCAB), CPU)
    rng = np.random.default_rng(0)
    head = random_prompt(rng, 120)
    prompts = [head + random_prompt(rng, 10) for _ in range(8)]
    results = run(sampler, [body(p, 20, cache_key=str(i)) for i, p in enumerate(prompts)])
    data = []
    for prompt, result in zip(prompts, results, strict=True):
        ids = np.array(prompt + result.output_ids)
        sampled = np.zeros(len(ids) - 1, np.float32)
        sampled[len(prompt) - 1 :] = result.sampling_logprobs
        data.append(Datum(ids[:-1], ids[1:], (sampled != 0).astype(np.float32), sampled))
    policy = lora_policy(base.module, Lora(rank=4, alpha=8.0)) if lora else full_policy(base.module)
    trainer = Trainer(policy, base.spec, CPU)
    metrics = finish(trainer.forward_backward(Batch(data, "importance_sampling", {})))["metrics"]
    assert metrics["logprob_gap_sum:sum"] / metrics["loss_tokens:sum"] < 5e-3
    assert metrics["logprob_gap_max:max"] < 0.1
    assert np.isfinite(trainer.optim_step(Adam())["grad_norm"])
    assert all(p.dtype == torch.float32 for p in policy.trainable.values())


def test_auto_means_fp32_for_a_tiny_model_and_bf16_for_a_large_one_on_cuda() -> None:
    tiny = Spec.from_config(config())
    large = replace(tiny, hidden=4096, intermediate=16384, layers=24)
    assert compute_dtype("auto", torch.device("cuda"), tiny) == torch.float32
    assert compute_dtype("auto", torch.device("cuda"), large) == torch.bfloat16
    assert compute_dtype("auto", CPU, large) == torch.float32
    assert compute_dtype("fp32", torch.device("cuda"), large) == torch.float32
    assert compute_dtype("bf16", CPU, tiny) == torch.bfloat16
