"""The served base model: a Hugging Face folder read once, shared by every run and never changed.

In: a folder with config.json, safetensors and tokenizer.json. Out: a trainable module, its weights by name, the
tokenizer, and the sampler's frozen form of any weights of that shape.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from turngrad.local.decoder import CausalLM, Decoder, Spec, UnsupportedModel, attention_dtype
from turngrad.local.frozen import FrozenDecoder

if TYPE_CHECKING:
    from turngrad.local.foreign import ForeignDecoder

log = logging.getLogger("turngrad.local")
LARGE = 1_000_000_000
"""Parameters from which `--dtype auto` is bf16 on CUDA: below it fp32 is fast enough there."""


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
    compute: torch.dtype = torch.float32

    @property
    def cache_dtype(self) -> torch.dtype:
        """What the sampler's cache of keys and values must hold: attention's precision."""
        return attention_dtype(self.compute, next(iter(self.weights.values())).device)

    def is_called(self, base_model: str) -> bool:
        """Whether a client's `base_model` means this model: its name, folder, or `accounts/.../models/<name>`."""
        wanted = base_model.rstrip("/")
        names = {self.name, self.name.rpartition("/")[2], str(self.folder), self.folder.name}
        return wanted in names or (wanted.startswith("accounts/") and wanted.rpartition("/models/")[2] in names)


def load_base_model(name: str, folder: Path, device: torch.device, dtype: str = "fp32") -> BaseModel:
    """Reads `folder`. `dtype` is fp32, bf16 or auto: what layers compute in; weights and their gradients are always fp32.
    Raises ValueError, in a sentence for the person who named it, for what cannot be served."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    try:
        spec = Spec.from_config(config)
        compute = compute_dtype(dtype, device, spec)
        module: Decoder | ForeignDecoder = _own_decoder(folder, spec, compute)
    except UnsupportedModel as reason:
        log.info("%s: %s, so it runs through transformers, in fp32", folder, reason)
        from turngrad.local.foreign import load_foreign  # transformers takes six seconds to import

        module, compute = load_foreign(folder), torch.float32
    module.requires_grad_(False).to(device)
    spec = module.spec
    freeze = (lambda given: FrozenDecoder(spec, given, compute)) if isinstance(module, Decoder) else module.frozen
    tokenizer_file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(tokenizer_file)) if tokenizer_file.exists() else None
    return BaseModel(
        name=name,
        folder=folder,
        spec=spec,
        module=module,
        weights={key: parameter.data for key, parameter in module.named_parameters()},
        tokenizer=tokenizer,
        end_ids=_end_ids(folder, config, tokenizer),
        freeze=freeze,
        compute=compute,
    )


def compute_dtype(wanted: str, device: torch.device, spec: Spec) -> torch.dtype:
    """bf16 where asked for, or under `auto` for a large model on CUDA; else fp32."""
    if wanted != "auto":
        return torch.bfloat16 if wanted == "bf16" else torch.float32
    return torch.bfloat16 if device.type == "cuda" and spec.parameters >= LARGE else torch.float32


def _own_decoder(folder: Path, spec: Spec, compute: torch.dtype) -> Decoder:
    module = Decoder(spec, compute)
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
    return module


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
