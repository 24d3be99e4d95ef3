"""From logits to tokens: temperature, top-k, top-p, and one draw by inverse CDF.

In: fp32 logits [B, V] and per-row settings and uniforms. Out: a token, its raw logprob and its sampling logprob (after
temperature and filters) per row. Inverse CDF costs one softmax where torch.multinomial costs several passes over the
vocabulary, and it makes a seeded row independent of its batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 256


def draw(
    logits: Tensor, temperature: Tensor, top_k: list[int], top_p: list[float], uniform: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens, raw logprobs, sampling logprobs), each [B]. Temperature 0 is the argmax, with sampling logprob 0."""
    raw_total = logits.logsumexp(-1)
    plain = bool((temperature == 1).all())
    scaled = logits if plain else logits / temperature.clamp(min=1e-6).unsqueeze(1)
    filtered = [row for row in range(len(top_k)) if 0 < top_k[row] < logits.shape[1] or top_p[row] < 1]
    if filtered:
        scaled = scaled.clone()
        for row in filtered:
            scaled[row] = _filtered(scaled[row], top_k[row], top_p[row])
    total = raw_total if plain and not filtered else scaled.logsumexp(-1)
    tokens = _inverse_cdf((scaled - total.unsqueeze(1)).exp_(), uniform)
    greedy = temperature == 0
    if bool(greedy.any()):
        tokens = torch.where(greedy, logits.argmax(-1), tokens)
    chosen = tokens.unsqueeze(1)
    raw = logits.gather(1, chosen).squeeze(1) - raw_total
    sampled = raw if total is raw_total else scaled.gather(1, chosen).squeeze(1) - total
    return tokens, raw, torch.where(greedy, torch.zeros_like(sampled), sampled)


def _filtered(row: Tensor, top_k: int, top_p: float) -> Tensor:
    """`row` with -inf outside the top-k tokens, then outside the smallest set that holds `top_p` of what is left."""
    values, order = row.sort(descending=True)
    keep = torch.ones_like(values, dtype=torch.bool)
    if top_k > 0:
        keep[top_k:] = False
    if top_p < 1:
        probabilities = values.masked_fill(~keep, float("-inf")).softmax(-1)
        keep &= probabilities.cumsum(-1) - probabilities < top_p
    return torch.full_like(row, float("-inf")).scatter_(0, order[keep], values[keep])


def _inverse_cdf(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The first index whose cumulative probability exceeds `uniform` [B]; in two levels, blocks then tokens."""
    rows, vocab = probabilities.shape
    pad = -vocab % _BLOCK
    if pad:
        probabilities = torch.nn.functional.pad(probabilities, (0, pad))
    blocks = probabilities.view(rows, -1, _BLOCK)
    wide = widest(probabilities.device)
    sums = blocks.sum(-1, dtype=wide).cumsum(-1)
    target = uniform.to(wide).clamp(max=1 - torch.finfo(wide).eps) * sums[:, -1]
    block = torch.searchsorted(sums, target.unsqueeze(1), right=True).clamp_(max=sums.shape[1] - 1)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp(min=0)), torch.zeros_like(target).unsqueeze(1))
    inside = blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, _BLOCK)).squeeze(1)
    cumulative = inside.to(wide).cumsum(-1) + before
    offset = (cumulative <= target.unsqueeze(1)).sum(-1)
    # Rounding may put the target past the last token that has any probability: step back to it.
    last = _BLOCK - 1 - (inside > 0).to(torch.int8).flip(-1).argmax(-1)
    return block.squeeze(1) * _BLOCK + torch.minimum(offset, last)


def widest(device: torch.device) -> torch.dtype:
    """fp64, which Apple's GPUs do not have."""
    return torch.float32 if device.type == "mps" else torch.float64
