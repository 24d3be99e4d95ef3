"""The served base model: a Hugging Face folder read once, shared by every run and never changed.

In: a folder with config.json, safetensors and tokenizer.json. Out: a trainable module, its weights by name, the
tokenizer, and the sampler's frozen form of any weights of that shape.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from turngrad.local.decoder import CausalLM, Decoder, FrozenDecoder, Spec, UnsupportedModel


@dataclass(frozen=True, eq=False)
class BaseModel:
    """`weights` are the module's own tensors by Hugging Face name; `freeze` turns such a dict into a sampler's model."""

    name: str
    folder: Path
    spec: Spec
    module: nn.Module
    weights: dict[str, Tensor]
    tokenizer: Tokenizer | None
    end_ids: frozenset[int]
    freeze: Callable[[Mapping[str, Tensor]], CausalLM]

    def is_called(self, base_model: str) -> bool:
        """Whether a client's `base_model` means this model: its name, folder, or `accounts/.../models/<name>`."""
        wanted = base_model.rstrip("/")
        names = {self.name, str(self.folder), self.folder.name}
        return wanted in names or (wanted.startswith("accounts/") and wanted.rpartition("/models/")[2] in names)


def load_base_model(name: str, folder: Path, device: torch.device) -> BaseModel:
    """Reads `folder`. Raises ValueError, in a sentence for the person who named it, for what cannot be served."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    try:
        spec = Spec.from_config(config)
    except UnsupportedModel as error:
        raise ValueError(f"{folder} cannot be served: {error}") from error
    module = Decoder(spec)
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            tensors.update(load_file(file))
        except SafetensorError as error:
            raise ValueError(f"{file} cannot be read: {error}; copy or download it again") from error
    if spec.tied:
        tensors.pop("lm_head.weight", None)
    wanted = dict(module.named_parameters())
    missing, extra = sorted(set(wanted) - set(tensors)), sorted(set(tensors) - set(wanted))
    if missing or extra:
        raise ValueError(f"{folder} does not hold the weights of its config.json: missing {missing[:3]}, extra {extra[:3]}")
    with torch.no_grad():
        for key, parameter in wanted.items():
            if parameter.shape != tensors[key].shape:
                raise ValueError(f"{folder}: {key} is {list(tensors[key].shape)}, its config.json says {list(parameter.shape)}")
            parameter.copy_(tensors[key].float())
    module.requires_grad_(False).to(device)
    weights = {key: parameter.data for key, parameter in module.named_parameters()}
    tokenizer_file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(tokenizer_file)) if tokenizer_file.exists() else None
    return BaseModel(
        name=name,
        folder=folder,
        spec=spec,
        module=module,
        weights=weights,
        tokenizer=tokenizer,
        end_ids=_end_ids(folder, config, tokenizer),
        freeze=lambda given: FrozenDecoder(spec, given),
    )


def _end_ids(folder: Path, config: Mapping[str, Any], tokenizer: Tokenizer | None) -> frozenset[int]:
    """Tokens that end a completion: those of generation_config.json, else config.json's, else the tokenizer's."""
    generation = folder / "generation_config.json"
    sources = [json.loads(generation.read_text(encoding="utf-8"))] if generation.exists() else []
    for source in (*sources, config):
        ids = source.get("eos_token_id")
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    file = folder / "tokenizer_config.json"
    if tokenizer is not None and file.exists():
        token = json.loads(file.read_text(encoding="utf-8")).get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        found = tokenizer.token_to_id(token) if token else None
        if found is not None:
            return frozenset([found])
    return frozenset()
