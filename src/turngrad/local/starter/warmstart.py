"""Warm start: a tiny Qwen3 model learns to play by next-token loss on what a perfect policy would say.

In: an endless stream of rendered episodes (token ids, and which of them the policy samples). Out: a model. The loss is the
mean over sampled tokens alone, exactly those that carry gradient in reinforcement learning. Matrices are updated by Muon
(Jordan et al. 2024), embeddings and norms by AdamW; the learning rates rise linearly, stay, and fall linearly to zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from turngrad.local.starter.tokenizer import ESCAPE, GLUE, WORD

Example = tuple[list[int], list[bool]]
"""Token ids of an episode, and for each whether the policy samples it."""


@dataclass(frozen=True)
class Recipe:
    """Sizes and rates of a warm start. Tokens count all tokens of an episode, sampled or not."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 640
    tokens: int = 6_000_000
    batch_tokens: int = 4_096
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    warm_share: float = 0.02
    cool_share: float = 0.5
    seed: int = 0
    threads: int = 0


def new_model(recipe: Recipe, vocab_size: int, *, eos: int, pad: int) -> Qwen3ForCausalLM:
    """An untrained Qwen3 model with tied embeddings, head size 64."""
    torch.manual_seed(recipe.seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocab_size,
            hidden_size=recipe.width,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.kv_heads,
            head_dim=64,
            intermediate_size=recipe.feed_forward,
            tie_word_embeddings=True,
            max_position_embeddings=8192,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            eos_token_id=eos,
            pad_token_id=pad,
            bos_token_id=None,
            use_cache=True,
            attn_implementation="sdpa",
        )
    )


@torch.no_grad()
def lend_embeddings(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, source: Path) -> int:
    """Start the embeddings from those of the language model in the folder `source`; how many tokens were found there.

    A tiny model meets few words often enough to learn what they mean; a larger one has. Each of our tokens takes the mean of
    the source's embeddings of its text, projected on the leading principal components and scaled to the size that random
    ones have. Tokens without a text of their own (control tokens, bytes, marks) stay random.
    """
    teacher = AutoTokenizer.from_pretrained(source)
    table = load_file(source / "model.safetensors")["model.embed_tokens.weight"].float()
    target = model.model.embed_tokens.weight
    rows: list[int] = []
    values: list[torch.Tensor] = []
    for token, index in tokenizer.get_vocab().items():
        text = token.replace(GLUE, "").replace(WORD, " ")
        if index in tokenizer.all_special_ids or token.startswith("<0x") or not text.strip() or ESCAPE in text:
            continue
        rows.append(index)
        values.append(table[teacher(text, add_special_tokens=False)["input_ids"]].mean(0))
    known = torch.stack(values)
    known = known - known.mean(0)
    _, _, components = torch.linalg.svd(known, full_matrices=False)
    projected = F.normalize(known @ components[: target.shape[1]].T, dim=-1)
    target[rows] = projected * target.norm(dim=-1).mean()
    return len(rows)


def train(
    model: Qwen3ForCausalLM,
    examples: Iterator[Example],
    recipe: Recipe,
    report: Callable[[str], None],
    checkpoint: Callable[[int], None] = lambda seen: None,
) -> None:
    """Train `model` in place on `recipe.tokens` tokens of `examples`; `report` gets a line now and then."""
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = (
        torch.optim.Muon(matrices, lr=recipe.muon_rate, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=recipe.adam_rate, betas=(0.9, 0.98), weight_decay=0.0),
    )
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    model.train()
    started, seen, step, losses = time.monotonic(), 0, 0, []
    while seen < recipe.tokens:
        share = _rate_share(seen / recipe.tokens, recipe)
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * share
        batches, tokens = _draw(examples, recipe.batch_tokens)
        sampled = sum(int(mask.sum()) for _, mask in batches)
        total = 0.0
        for ids, mask in batches:
            loss = batch_loss(model, ids, mask) / sampled
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seen += tokens
        step += 1
        losses.append(total)
        if step % 20 == 0:
            elapsed = time.monotonic() - started
            mean = sum(losses[-20:]) / len(losses[-20:])
            report(f"step {step}  {seen / 1e6:.2f} M tokens  loss {mean:.4f}  {seen / elapsed:,.0f} tokens/s  {elapsed:,.0f} s")
            checkpoint(seen)
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


def _rate_share(progress: float, recipe: Recipe) -> float:
    """The share of the full learning rate at a point of the run between 0 and 1."""
    return max(0.0, min(1.0, progress / recipe.warm_share + 0.01, (1 - progress) / recipe.cool_share))
