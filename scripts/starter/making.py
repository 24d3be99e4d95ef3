"""How the starter policy is made: tokenizer, four stages of warm start, judgement. `scripts/make_starter.py` tells the whole.

In: `Options`, the training entries of BFCL and generated tasks. Out: a model folder, and its rewards on standard output.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from renderers.base import ToolCallParseStatus
from safetensors.torch import save_file
from torch.multiprocessing.spawn import spawn
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from envs.bfcl.synthetic import Difficulty, generate
from envs.bfcl.synthetic.attempt import Attempt
from envs.bfcl.synthetic.augment import substitute
from envs.bfcl.synthetic.entries import training_entries
from envs.bfcl.synthetic.episode import play, tools_of
from envs.bfcl.synthetic.world import BACKENDS, function_docs
from turngrad.headroom import headroom, learnable
from turngrad.local.starter.plan import Options, Stage
from turngrad.local.starter.renderer import CHAT_TEMPLATE, CompactRenderer
from turngrad.local.starter.rollouts import play_all
from turngrad.local.starter.tokenizer import train_tokenizer
from turngrad.local.starter.warmstart import Example, new_model, train
from turngrad.presets import PRESETS, STARTER_POOL

_LOCAL = PRESETS["local", "synthetic"]
SHORT = Difficulty(turns=_LOCAL["synthetic_turns"], calls=_LOCAL["synthetic_calls"])
"""Generated tasks as `scripts/train.py --taskset bfcl-synthetic` has them here by default."""

TEST_SEEDS = range(1_000_000, 1_000_100)
"""Generated tasks that no warm start sees: those it trains on have smaller seeds."""


def make(options: Options) -> None:
    """Make the starter and say how good it is."""
    entries = training_entries()
    tokenizer = train_tokenizer(_corpus(entries, Random(options.seed)), _names(), options.vocab_size)
    tokenizer.chat_template = CHAT_TEMPLATE
    partial = options.output_dir.with_name(options.output_dir.name + ".partial")
    tokenizer.save_pretrained(partial)
    if options.workers == 1:
        _train(0, options, partial, None)
    else:
        with tempfile.TemporaryDirectory() as folder:
            spawn(_train, (options, partial, Path(folder) / "meeting"), nprocs=options.workers)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    for path in partial.iterdir():
        os.replace(path, options.output_dir / path.name)
    partial.rmdir()
    figures(options)


def figures(options: Options) -> None:
    """Sample the policy in the output folder, print its rewards, and list the tasks it has most to gain from."""
    renderer = CompactRenderer(PreTrainedTokenizerFast.from_pretrained(options.output_dir))  # type: ignore[arg-type]
    entries = training_entries()
    rng = Random(options.seed + 1)
    for name, tasks in (
        ("training entries", entries),
        ("training entries, other values", [substitute(entry, rng) for entry in entries]),
        ("generated tasks", [generate(seed) for seed in TEST_SEEDS]),
        ("generated tasks, two turns of one call", [generate(seed, SHORT) for seed in TEST_SEEDS]),
    ):
        # Only what is chosen from needs many.
        for temperature, samples in ((0.0, 1), (1.0, options.samples if tasks is entries else min(4, options.samples))):
            rewards = judge(options.output_dir, renderer, tasks, temperature, samples)
            _report(f"{name}, temperature {temperature}: reward {sum(rewards) / len(rewards):.3f}")
            if tasks is entries and samples > 1:
                _save_learnable(options, entries, rewards)


def _save_learnable(options: Options, entries: list[dict[str, Any]], rewards: list[float]) -> None:
    """The training entries from which the policy has most to gain: what `scripts/train.py` trains it on."""
    size = options.samples
    found = {entry["id"]: rewards[size * place : size * (place + 1)] for place, entry in enumerate(entries)}
    ids = learnable(found, options.pool)
    (options.output_dir / STARTER_POOL.name).write_text("".join(f"{name}\n" for name in ids), encoding="utf-8")
    mean = sum(sum(found[name]) for name in ids) / (size * len(ids)) if ids else 0.0
    best = mean + sum(headroom(found[name]) for name in ids) / len(ids) if ids else 0.0
    _report(f"the {len(ids)} of them with most to gain: reward {mean:.3f}, at their best {best:.3f}")


def _train(rank: int, options: Options, folder: Path, meeting: Path | None) -> None:
    """One worker's training, with the tokenizer of `folder`, which gets the weights. `meeting` is a file all workers share."""
    if meeting is not None:
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=options.workers)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    renderer = CompactRenderer(tokenizer)  # type: ignore[arg-type]
    eos, pad = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    model = new_model(options.shape, len(tokenizer), eos=eos, pad=pad, seed=options.seed)
    seeds = iter(range(rank, TEST_SEEDS.start, options.workers))
    report = _report if rank == 0 else lambda line: None
    save = (lambda: _save(model, folder)) if rank == 0 else (lambda: None)
    entries = training_entries()
    for number, stage in enumerate((options.first, options.second, options.third, options.last)):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        report(f"stage {number + 1}: {stage.schedule.tokens:,} tokens")
        examples = _examples(entries, renderer, stage, seeds, Random(f"{options.seed}/{number}/{rank}"))
        train(model, examples, stage.schedule, report, save)
        if stage is options.third:
            kept, after = options.kept, model.state_dict()
            model.load_state_dict({name: kept * before[name] + (1 - kept) * after[name] for name in after})
    save()


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
        bridged = self._renderer.bridge_to_next_turn(self._prompt, completion, messages or self.attempt.requests)  # type: ignore[arg-type]
        assert bridged is not None
        self._prompt = bridged.token_ids


def judge(
    folder: Path, renderer: CompactRenderer, entries: list[dict[str, Any]], temperature: float, samples: int
) -> list[float]:
    """The reward of `samples` attempts at each entry: the fraction of its leading turns that pass."""
    players = [EntryPlayer(entry, renderer) for entry in entries for _ in range(samples)]
    play_all(folder, players, temperature=temperature)
    return [player.attempt.reward for player in players]


def _examples(
    entries: list[dict[str, Any]], renderer: CompactRenderer, stage: Stage, seeds: Iterator[int], rng: Random
) -> Iterator[Example]:
    """Episodes without end, in the shares of `stage`; the generated ones take their seeds from `seeds`."""

    def made(calls: int) -> int:
        return rng.randrange(calls) if calls and stage.haste and rng.random() < stage.haste else calls

    while True:
        draw = rng.random() - stage.short
        if draw < 0:
            entry = generate(next(seeds), SHORT)
        elif draw < stage.generated:
            entry = generate(next(seeds))
        else:
            entry = rng.choice(entries)
            if draw < stage.generated + stage.substituted:
                entry = substitute(entry, rng)
        tools, messages = play(entry, made)
        rendered = renderer.render(messages, tools=tools)  # type: ignore[arg-type]
        yield rendered.token_ids, rendered.sampled_mask


def _corpus(entries: list[dict[str, Any]], rng: Random) -> Iterator[str]:
    """What the tokenizer learns its words from."""
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
    """Function and parameter names, and the words of the renderer's own scaffold: each is one token."""
    docs = [doc for class_name in BACKENDS for doc in function_docs(class_name)]
    names = {doc["name"] for doc in docs} | {name for doc in docs for name in doc["parameters"]["properties"]}
    scaffold = ("system", "user", "assistant", "Tools")
    return [*sorted(name for name in names if name.replace("_", "").isalpha()), *scaffold]


def _save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """The weights in bf16, the configuration, and the name of the renderer, beside the tokenizer."""
    state = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    weights = {name: value.to(torch.bfloat16).contiguous() for name, value in state.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config = {**model.config.to_dict(), "architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16"}
    config.pop("_name_or_path", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    renderer = {"name": "custom", "import_path": "turngrad.local.starter.renderer.CompactRenderer"}
    (folder / "turngrad.json").write_text(json.dumps({"renderer": renderer}, indent=2) + "\n", encoding="utf-8")


def _report(line: str) -> None:
    print(line, flush=True)
