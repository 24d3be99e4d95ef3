"""Serve a model on this machine behind Fireworks' training and sampling protocol.

    uv run scripts/serve_local.py --model bfcl-starter --port 8123

Then, in any Fireworks serverless training script, with any API key:

    FiretitanServiceClient(api_key="local", base_url="http://127.0.0.1:8123/training/v1/serverless")
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from turngrad.local.server import main


@dataclass(frozen=True)
class Serve:
    """Serve a model on this machine behind Fireworks' training and sampling protocol. Stop it with Ctrl-C."""

    model: str
    """`bfcl-starter`, `smollm2-135m`, a Hugging Face folder (config.json, safetensors, tokenizer.json), or an id of the hub,
    which is taken from its cache or downloaded."""
    port: int = 8123
    """Port on 127.0.0.1; 0 picks a free one. The line that names the URL is printed when the engine answers."""
    state_dir: Path = Path("turngrad-state")
    """Where states and snapshots are kept. A later engine on the same folder can resume them."""
    threads: int = 0
    """CPU threads for the model; 0 means one a core. Lower it where tools or the trainer need the cores."""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """What layers compute in; auto is fp32 on CPUs. Sampler and trainer agree to 1e-5 in fp32 and, on CPUs, in bf16 too, which
    is faster where the processor has it; elsewhere the gap of bf16 is reported with every forward_backward."""
    full_finetune: Literal["auto", "yes", "no"] = "auto"
    """Train every weight instead of LoRA matrices. auto: for models below 50 M parameters."""
    faults: Path | None = None
    """For tests: a JSON list of faults to inject (see turngrad.local.faults), which also opens POST /faults."""
    verbose: bool = True
    """Say on stderr what is served and how."""


def flags(serve: Serve) -> list[str]:
    """The same, as arguments of turngrad.local.server."""
    given = ["--model", serve.model, "--port", str(serve.port), "--state-dir", str(serve.state_dir)]
    given += ["--threads", str(serve.threads), "--dtype", serve.dtype, "--full-finetune", serve.full_finetune]
    given += ["--faults", str(serve.faults)] if serve.faults is not None else []
    return [*given, *(["--verbose"] if serve.verbose else [])]


if __name__ == "__main__":
    sys.exit(main(flags(tyro.cli(Serve, description=__doc__))))
