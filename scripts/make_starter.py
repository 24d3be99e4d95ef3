"""Make the BFCL starter policy: its tokenizer, its weights and what the package ships of them.

1. Train the tokenizer on generated tasks and training entries.
2. Train a tiny Qwen3 model from nothing on episodes of a perfect policy: generated tasks, training entries with other
   values in them, and the training entries themselves. The held-out scenarios are never read.
3. Sample the training entries, unseen generated tasks and unseen substitutions, and print the rewards.

About 6 M tokens make the packaged weights: 15 minutes on two idle cores of the kind with bf16 arithmetic, an hour and more
on a busy machine. `--tokens 300000 --output-dir /tmp/starter` shows the whole way in a minute or two.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
import tyro
from renderers.base import ToolCallParseStatus
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from envs.bfcl.synthetic import generate
from envs.bfcl.synthetic.attempt import Attempt
from envs.bfcl.synthetic.augment import substitute
from envs.bfcl.synthetic.entries import training_entries
from envs.bfcl.synthetic.episode import play, tools_of
from envs.bfcl.synthetic.words import vocabulary
from envs.bfcl.synthetic.world import BACKENDS, function_docs
from turngrad.local.models import BFCL_STARTER_FOLDER, SMOLLM2, resolve_model
from turngrad.local.starter.renderer import CompactRenderer
from turngrad.local.starter.rollouts import play_all
from turngrad.local.starter.tokenizer import train_tokenizer
from turngrad.local.starter.warmstart import Example, Recipe, lend_embeddings, new_model, train

TEST_SEEDS = range(1_000_000, 1_000_100)
"""Generated tasks that no warm start sees: those it trains on have smaller seeds."""


@dataclass(frozen=True)
class Mixture:
    """Shares of what the policy learns from; the rest are the training entries as they are."""

    generated: float = 0.45
    substituted: float = 0.45


@dataclass(frozen=True)
class Options:
    """What to make and where to put it."""

    output_dir: Path = BFCL_STARTER_FOLDER
    """The model folder to write. The default is the packaged one."""
    vocab_size: int = 8_192
    """Entries of the tokenizer, at most."""
    lend_embeddings: bool = True
    """Start the word embeddings from SmolLM2-135M's, so that words of like meaning begin alike."""
    mixture: Mixture = field(default_factory=Mixture)
    recipe: Recipe = field(default_factory=Recipe)
    samples: int = 4
    """Samples of each training entry when the result is judged."""


def main(options: Options) -> None:
    """Make the starter and say how good it is."""
    entries = training_entries()
    tokenizer = train_tokenizer(_corpus(entries, Random(options.recipe.seed)), _names(), options.vocab_size)
    renderer = CompactRenderer(tokenizer)
    eos, pad = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    model = new_model(options.recipe, len(tokenizer), eos=eos, pad=pad)
    if options.lend_embeddings:
        found = lend_embeddings(model, tokenizer, resolve_model(SMOLLM2))
        _report(f"{found} of {len(tokenizer)} tokens start from SmolLM2's embeddings")
    examples = _examples(entries, renderer, options.mixture, Random(options.recipe.seed + 1))
    partial = options.output_dir.with_name(options.output_dir.name + ".partial")
    train(model, examples, options.recipe, _report, lambda seen: _save(model, tokenizer, partial))
    _save(model, tokenizer, options.output_dir)
    shutil.rmtree(partial, ignore_errors=True)
    rng = Random(options.recipe.seed + 2)
    for name, tasks, samples in (
        ("training entries", entries, options.samples),
        ("training entries, other values", [substitute(entry, rng) for entry in entries], 1),
        ("generated tasks", [generate(seed) for seed in TEST_SEEDS], options.samples),
    ):
        for temperature in (0.0, 1.0):
            rewards = judge(model, renderer, tasks, temperature, samples if temperature else 1)
            _report(f"{name}, temperature {temperature}: reward {sum(rewards) / len(rewards):.3f}")


class EntryPlayer:
    """One attempt at an entry, as the token-exact loop plays it: prompt tokens out, completions in."""

    def __init__(self, entry: dict[str, Any], renderer: CompactRenderer, calls_per_turn: int = 12) -> None:
        self.attempt = Attempt(entry)
        self._renderer = renderer
        self._calls_left = self._calls_per_turn = calls_per_turn
        self._prompt = renderer.render_ids(self.attempt.requests, tools=tools_of(entry), add_generation_prompt=True)  # type: ignore[arg-type]
        self._over = False

    def prompt(self) -> list[int] | None:
        return None if self._over else self._prompt

    def take(self, completion: list[int]) -> None:
        messages = [
            {
                "role": "tool",
                "content": self.attempt.call(call.name or "", call.arguments)
                if call.status == ToolCallParseStatus.OK and isinstance(call.arguments, dict)
                else "Error: the call could not be parsed",
            }
            for call in self._renderer.parse_response(completion).tool_calls
        ]
        self._calls_left -= len(messages)
        if not messages:
            self.attempt.end_turn()
            self._calls_left = self._calls_per_turn
        if self.attempt.over or self._calls_left < 0:
            self._over = True
            return
        bridged = self._renderer.bridge_to_next_turn([0], completion, messages or self.attempt.requests)  # type: ignore[arg-type]
        assert bridged is not None
        self._prompt = bridged.token_ids[1 + len(completion) :]


def judge(
    model: Qwen3ForCausalLM, renderer: CompactRenderer, entries: list[dict[str, Any]], temperature: float, samples: int
) -> list[float]:
    """The reward of `samples` attempts at each entry: the fraction of its leading turns that pass."""
    players = [EntryPlayer(entry, renderer) for entry in entries for _ in range(samples)]
    play_all(model, players, stop_ids=set(renderer.get_stop_token_ids()), temperature=temperature)
    return [player.attempt.reward for player in players]


def _examples(
    entries: list[dict[str, Any]], renderer: CompactRenderer, mixture: Mixture, rng: Random
) -> Iterator[Example]:
    """Episodes without end, in the shares of `mixture`."""
    seeds = iter(range(TEST_SEEDS.start))
    while True:
        draw = rng.random()
        if draw < mixture.generated:
            entry = generate(next(seeds))
        else:
            entry = rng.choice(entries)
            if draw < mixture.generated + mixture.substituted:
                entry = substitute(entry, rng)
        tools, messages = play(entry)
        rendered = renderer.render(messages, tools=tools)  # type: ignore[arg-type]
        yield rendered.token_ids, rendered.sampled_mask


def _corpus(entries: list[dict[str, Any]], rng: Random) -> Iterator[str]:
    """What the tokenizer learns its words from."""
    for seed in range(2_000):
        yield _text(generate(seed))
    for entry in entries:
        yield from (_text(entry) for _ in range(4))
        yield from (_text(substitute(entry, rng)) for _ in range(8))


def _text(entry: dict[str, Any]) -> str:
    lines = []
    for message in play(entry)[1]:
        calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls", ())]
        lines.append("".join([message["content"], *calls]))
    return "\n".join(lines)


def _names() -> list[str]:
    """Function and parameter names, the words of the renderer's own scaffold and frequent words: each is one token."""
    docs = [doc for class_name in BACKENDS for doc in function_docs(class_name)]
    names = {doc["name"] for doc in docs} | {name for doc in docs for name in doc["parameters"]["properties"]}
    scaffold = ("system", "user", "assistant", "Tools")
    return [*sorted(name for name in names if name.replace("_", "").isalpha()), *scaffold, *vocabulary()]


def _save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """A Hugging Face folder in bf16 that names its renderer."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    state = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    weights = {name: value.to(torch.bfloat16).contiguous() for name, value in state.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config = {**model.config.to_dict(), "architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    renderer = {"name": "custom", "import_path": "turngrad.local.starter.renderer.CompactRenderer"}
    (folder / "turngrad.json").write_text(json.dumps({"renderer": renderer}, indent=2) + "\n", encoding="utf-8")


def _report(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
