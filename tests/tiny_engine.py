"""The embedded engine with a tiny random model, as a process: the peer that the genuine SDK talks to in tests."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fireworks.training.sdk import FiretitanServiceClient
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 300
END = 0


def tiny_model(folder: Path, *, seed: int = 0) -> Path:
    """A folder with a random Qwen3-architecture model of 0.1 M parameters in fp32 and a tokenizer of one word per id."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=END,
        # Wide enough that the policy has preferences: a flat one hides mistakes.
        initializer_range=0.2,
    )
    Qwen3ForCausalLM(config).float().save_pretrained(folder)
    words = {"<end>": END} | {f"w{index}": index for index in range(1, VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<end>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class TinyEngine:
    """A running engine: the URL for an SDK client, its model's name, and what it has written."""

    url: str
    model: str
    state_dir: Path
    process: subprocess.Popen[str]

    def service(self) -> FiretitanServiceClient:
        return FiretitanServiceClient(base_url=self.url, api_key="local")

    def break_requests(self, *rules: dict[str, Any]) -> None:
        """Put these rules of `turngrad.local.faults` in force instead of the present ones."""
        root = self.url.partition("/training/")[0]
        request = urllib.request.Request(
            f"{root}/faults", json.dumps(list(rules)).encode(), {"content-type": "application/json"}, method="POST"
        )
        urllib.request.urlopen(request, timeout=10).close()

    def saved(self, path: str, stem: str) -> dict[str, torch.Tensor]:
        """The tensors of a saved state by its path: `stem` is "weights" or "optimizer"."""
        return load_file(self._state(path) / f"{stem}.safetensors")

    def saved_steps(self, path: str) -> int:
        """How many optimizer steps a saved state has taken."""
        return json.loads((self._state(path) / "manifest.json").read_text())["meta"]["steps"]

    def _state(self, path: str) -> Path:
        _, run, name = path.split("/")
        return self.state_dir / run / "states" / name


@contextmanager
def tiny_engine(folder: Path) -> Iterator[TinyEngine]:
    """The engine on `folder`/model, until the end of the block."""
    model, state_dir = tiny_model(folder / "model"), folder / "state"
    rules = folder / "faults.json"
    rules.write_text("[]")
    command = [sys.executable, "-m", "turngrad.local.server", "--model", str(model), "--state-dir", str(state_dir)]
    with subprocess.Popen(
        [*command, "--threads", "1", "--faults", str(rules), "--die-with-parent"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("TURNGRAD_ENGINE "), f"the engine ended with status {process.wait()}"
            yield TinyEngine(line.split()[1], str(model), state_dir, process)
        finally:
            process.kill()
