"""Plain torch, one sequence at a time: what the engine's packed, cached and fused paths must agree with."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from turngrad.local.wire import Datum


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one sequence, written out: [n, heads, d] -> [n, heads * d]."""
    n, heads, d = q.shape
    group = heads // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / d**0.5
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(n, heads * d)


def logits(module: nn.Module, tokens: list[int]) -> Tensor:
    """[n, vocab] of one sequence."""
    ids = torch.tensor(tokens)
    return module(ids, torch.arange(len(ids)), causal, None)


def logprobs(module: nn.Module, tokens: list[int]) -> Tensor:
    """[n - 1]: of each token after the first."""
    scores = logits(module, tokens)[:-1].log_softmax(-1)
    return scores.gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1)


def target_logprobs(module: nn.Module, datum: Datum) -> Tensor:
    """[n]: of a datum's targets."""
    scores = logits(module, datum.tokens.tolist())
    return -F.cross_entropy(scores, torch.from_numpy(datum.targets), reduction="none")


def random_datum(rng: np.random.Generator, length: int, vocab: int, *, prefix: list[int] | None = None) -> Datum:
    """A datum whose first half is context and whose second half carries advantages; logprobs near the model's own."""
    head = list(prefix or [])
    tokens = np.array(head + rng.integers(2, vocab, length - len(head)).tolist(), dtype=np.int64)
    sampled = np.zeros(length, np.float32)
    advantages = np.zeros(length, np.float32)
    start = max(len(head), length // 2)
    sampled[start:] = rng.normal(-5.0, 0.5, length - start)
    advantages[start:] = rng.normal(0.0, 1.0, length - start)
    targets = np.concatenate([tokens[1:], rng.integers(2, vocab, 1)])
    return Datum(tokens, targets, advantages, sampled)
