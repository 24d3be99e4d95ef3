"""Warm start: a tiny Qwen3 model learns to play by next-token loss on what a perfect policy would say.

In: an endless stream of rendered episodes (token ids, and which of them the policy samples). Out: a model. The loss is the
mean over sampled tokens alone, exactly those that carry gradient in reinforcement learning. Matrices are updated by Muon
(Jordan et al. 2024), embeddings and norms by AdamW; the learning rates rise linearly, stay, and fall linearly to zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

from turngrad.local.starter.plan import Schedule, Shape

Example = tuple[list[int], list[bool]]
"""Token ids of an episode, and for each whether the policy samples it."""


def new_model(shape: Shape, vocab_size: int, *, eos: int, pad: int, seed: int) -> Qwen3ForCausalLM:
    """An untrained Qwen3 model with tied embeddings."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocab_size,
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=64,
            intermediate_size=shape.feed_forward,
            tie_word_embeddings=True,
            max_position_embeddings=8192,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            eos_token_id=eos,
            pad_token_id=pad,
            bos_token_id=None,
            use_cache=True,
        )
    )


def train(
    model: Qwen3ForCausalLM,
    examples: Iterator[Example],
    schedule: Schedule,
    report: Callable[[str], None],
    checkpoint: Callable[[], None] = lambda: None,
) -> None:
    """Train `model` in place on `examples` for one stage; every 20 steps `report` gets a line and `checkpoint` is called.

    With several workers each runs this on the same weights and examples of its own, inside a process group. Beside other
    work on the machine that is twice as fast as threads: they wait for each other at every operation, workers once a step.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon(matrices, lr=schedule.muon_rate, momentum=0.95, weight_decay=0.01)
    adam = torch.optim.AdamW(others, lr=schedule.adam_rate, betas=(0.9, 0.98), weight_decay=0.0)
    workers = dist.get_world_size() if dist.is_initialized() else 1
    limit = 60 * schedule.minutes if schedule.minutes else float("inf")
    model.train()
    started, progress, seen, losses = time.monotonic(), 0.0, 0, []
    while progress < 1:
        share = _rate_share(progress, schedule)
        muon.param_groups[0]["lr"] = schedule.muon_rate * share
        adam.param_groups[0]["lr"] = schedule.adam_rate * share
        batches, tokens = _draw(examples, schedule.batch_tokens // workers)
        loss_sum, sampled = 0.0, 0
        for ids, mask in batches:
            loss = batch_loss(model, ids, mask)
            loss.backward()
            loss_sum += float(loss.detach())
            sampled += int(mask[:, 1:].sum())
        sums = _share(model, [loss_sum, sampled, tokens, (time.monotonic() - started) / workers])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in (muon, adam):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(sums[0] / sums[1])
        seen += int(sums[2])
        progress = max(seen / schedule.tokens, sums[3] / limit)
        if len(losses) % 20 == 0:
            mean, seconds = sum(losses[-20:]) / 20, sums[3]
            pace = f"{seen / seconds:,.0f} tokens/s  {seconds:,.0f} s"
            report(f"step {len(losses)}  {seen / 1e6:.2f} M tokens  loss {mean:.4f}  {pace}")
            checkpoint()
    model.eval()


def batch_loss(model: Qwen3ForCausalLM, ids: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
    """Summed next-token loss over sampled tokens. `ids` [rows, length], padded on the right; `sampled` like it, bool.

    Only positions before a sampled token reach the output layer. With padding on the right no attention mask is needed.
    """
    target = sampled[:, 1:]
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(ids[:, :-1]).last_hidden_state[target]
        logits = F.linear(hidden, model.model.embed_tokens.weight)
    return F.cross_entropy(logits.float(), ids[:, 1:][target], reduction="sum")


def _share(model: Qwen3ForCausalLM, numbers: list[float]) -> list[float]:
    """Make summed gradients the mean over the sampled tokens of all workers; `numbers`, of which the second counts those
    tokens, are summed over the workers as well."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not dist.is_initialized():
        for gradient in gradients:
            gradient /= numbers[1]
        return numbers
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), torch.tensor(numbers, dtype=torch.float32)])
    dist.all_reduce(flat)
    *parts, sums = flat.split([*(gradient.numel() for gradient in gradients), len(numbers)])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient) / sums[1])
    return sums.tolist()


def _draw(examples: Iterator[Example], batch_tokens: int) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], int]:
    """About `batch_tokens` tokens as two batches of episodes of like length, and the exact number of tokens."""
    drawn: list[Example] = []
    tokens = 0
    while tokens < batch_tokens:
        drawn.append(next(examples))
        tokens += len(drawn[-1][0])
    drawn.sort(key=lambda example: len(example[0]))
    half = (len(drawn) + 1) // 2
    return [_pad(part) for part in (drawn[:half], drawn[half:]) if part], tokens


def _pad(examples: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    # Lengths are rounded up so that few shapes occur: memory would grow with each new one.
    length = -(-max(len(ids) for ids, _ in examples) // 64) * 64 + 1
    ids = torch.zeros(len(examples), length, dtype=torch.long)
    mask = torch.zeros(len(examples), length, dtype=torch.bool)
    for row, (tokens, sampled) in enumerate(examples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(sampled)] = torch.tensor(sampled)
    return ids, mask


def _rate_share(progress: float, schedule: Schedule) -> float:
    """The share of the full learning rate at a point of the stage between 0 and 1."""
    return max(0.0, min(1.0, progress / schedule.warm_share + 0.01, (1 - progress) / schedule.cool_share))
