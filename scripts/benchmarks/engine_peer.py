"""One GRPO step of TRL on the engine benchmark's model and shapes: 4 prompts of 360 tokens, 8 completions of 64 each.

Run by `engine.py` under a Python that has trl: engine_peer.py MODEL_FOLDER STEPS. Waits for a line on stdin before each step, so
that the two sides take turns, and prints {"seconds": wall time} after it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from typing import Any

import numpy as np
import torch
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]


class Turns(TrainerCallback):
    """Begins each step when told to, and tells its wall seconds."""

    def __init__(self) -> None:
        self.started = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        sys.stdin.readline()
        self.started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        print(json.dumps({"seconds": time.perf_counter() - self.started}), flush=True)


def main(folder: str, steps: int) -> None:
    """Trains for `steps` steps with random rewards, which leave no group without spread."""
    torch.set_num_threads(os.cpu_count() or 1)
    warnings.simplefilter("ignore")
    disable_progress_bar()
    rng = np.random.default_rng(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or "w0"
    tokenizer.eos_token = tokenizer.eos_token or "w1"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    words = [" ".join(f"w{i}" for i in rng.integers(2, 4096, 360)) for _ in range(4 * steps)]
    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output_dir=output,
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=64,
            max_steps=steps,
            learning_rate=1e-4,
            beta=0.0,
            temperature=1.0,
            generation_kwargs={"min_new_tokens": 64},
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            dataloader_num_workers=0,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: rng.normal(size=len(completions)).tolist(),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": words}),
            processing_class=tokenizer,
            callbacks=[Turns()],
        )
        trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
