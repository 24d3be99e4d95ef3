"""Defaults that depend on where the weights live and on what is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STARTER_POOL = Path(__file__).with_name("local") / "starter" / "bfcl" / "learnable.txt"
"""The training tasks from which the starter has most to gain, as `scripts/make_starter.py` found them."""

PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("fireworks", "bfcl"): {
        "base_model": "accounts/fireworks/models/qwen3p5-9b",
        "tokenizer_model": "Qwen/Qwen3.5-9B",
        "steps": 30,
        "tasks_per_step": 8,
        "group_size": 8,
        "eval_tasks": 16,
        "eval_samples": 1,
        "max_tokens": 512,
        "max_seq_len": 8192,
        "max_tool_tokens": 2048,
        "max_concurrent": 64,
        "learning_rate": 1e-5,
        "warmup_steps": 0,
        "schedule": "constant",
    },
    ("local", "bfcl"): {
        "base_model": "bfcl-starter",
        "steps": 40,
        "tasks_per_step": 8,
        "group_size": 8,
        "train_tasks": 24,
        "eval_tasks": 24,
        "eval_samples": 4,
        "max_tokens": 96,
        "max_seq_len": 2048,
        "max_tool_tokens": 512,
        "max_concurrent": 64,
        "learning_rate": 4e-4,
        "warmup_steps": 3,
        "schedule": "linear",
    },
    ("local", "arithmetic"): {
        "base_model": "smollm2-135m",
        "steps": 14,
        "tasks_per_step": 8,
        "group_size": 8,
        "eval_tasks": 16,
        "eval_samples": 4,
        "max_tokens": 40,
        "max_seq_len": 1024,
        "max_tool_tokens": 128,
        "max_concurrent": 64,
        "learning_rate": 5e-4,
        "warmup_steps": 0,
        "schedule": "constant",
        "min_a": 2,
        "max_a": 10,
        "min_b": 2,
        "max_b": 9,
        "prompt": "direct",
    },
}
"""Defaults by where the weights live and what is trained; a flag wins over them."""
PRESETS["fireworks", "arithmetic"] = PRESETS["fireworks", "bfcl"] | {
    "min_a": 100,
    "max_a": 999,
    "min_b": 100,
    "max_b": 999,
    "prompt": "work",
}
PRESETS["fireworks", "starter"] = PRESETS["fireworks", "bfcl"]
PRESETS["local", "starter"] = PRESETS["local", "bfcl"] | {"train_ids": STARTER_POOL}
PRESETS["fireworks", "own"] = {**PRESETS["fireworks", "bfcl"], "eval_tasks": 8}
PRESETS["local", "own"] = {k: v for k, v in PRESETS["local", "bfcl"].items() if k != "train_tasks"} | {"eval_tasks": 8}

# Generated tasks never run out: a pool of them is for who asks for one.
for _backend in ("fireworks", "local"):
    PRESETS[_backend, "synthetic"] = {k: v for k, v in PRESETS[_backend, "bfcl"].items() if k != "train_tasks"}
PRESETS["fireworks", "synthetic"] |= {"synthetic_turns": 0, "synthetic_calls": 0}
PRESETS["local", "synthetic"] |= {"synthetic_turns": 2, "synthetic_calls": 1, "eval_tasks": 64}
