"""What of a model trains: every weight of a tiny one, LoRA matrices on a larger one.

In: the served base weights and create_model's LoRA settings. Out: `Policy`, a trainable model with named trainable
tensors, and the way from such tensors to a full set of frozen weights. Base weights are shared by all runs and never
change; peft is imported only where LoRA is used, because it costs six seconds.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from turngrad.local.lowrank import merge

FULL_BELOW = 50_000_000
"""Parameters below which a model is trained in full: LoRA has nothing to save there."""
_ADAPTER = "run"


@dataclass(frozen=True)
class Lora:
    """create_model's lora_config. `rank` 0 means full fine-tuning."""

    rank: int
    alpha: float
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank


@dataclass(eq=False)
class Policy:
    """One run's trainable model. `trainable` maps stable names to its parameters; `lora` is None under full fine-tuning."""

    module: nn.Module
    trainable: dict[str, nn.Parameter]
    lora: Lora | None

    def export(self) -> dict[str, Tensor]:
        """A copy of every trainable tensor: what a snapshot holds."""
        return {name: tensor.detach().clone() for name, tensor in self.trainable.items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrites the trainable tensors. Raises ValueError where names or shapes differ."""
        if set(tensors) != set(self.trainable):
            odd = sorted(set(tensors) ^ set(self.trainable))[:3]
            raise ValueError(f"the checkpoint trains other tensors than this run: {odd}...; use the same LoRA settings")
        for name, tensor in self.trainable.items():
            if tensor.shape != tensors[name].shape:
                raise ValueError(
                    f"{name} is {list(tensors[name].shape)} in the checkpoint and {list(tensor.shape)} in this run; "
                    "create the run with the checkpoint's LoRA rank"
                )
            tensor.copy_(tensors[name])


def full_policy(base: nn.Module) -> Policy:
    """A run that trains every weight, on its own copy of them."""
    module = copy.deepcopy(base)
    return Policy(module.requires_grad_(True), dict(module.named_parameters()), None)


def lora_policy(base: nn.Module, lora: Lora) -> Policy:
    """A run that trains LoRA matrices beside the shared `base` weights."""
    from peft import LoraConfig, inject_adapter_in_model  # six seconds: only where it is used

    shared = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
    module = copy.deepcopy(base, shared)
    targets = lora_targets(module, lora)
    if not targets:
        raise ValueError("create_model asks for no LoRA module: set one of train_attn, train_mlp, train_unembed")
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=0.0)  # pyright: ignore[reportArgumentType]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0 if lora.seed is None else lora.seed)
        module = inject_adapter_in_model(config, module, adapter_name=_ADAPTER)
    trainable = {}
    for name, parameter in module.named_parameters():
        if ".lora_" in name:
            trainable[name.replace(f".{_ADAPTER}.", ".")] = parameter
            parameter.requires_grad_(True)
        else:
            parameter.requires_grad_(False)
    return Policy(module, trainable, lora)


def lora_targets(module: nn.Module, lora: Lora) -> list[str]:
    """Full names of the linear layers that create_model's switches select."""
    targets = []
    for name, child in module.named_modules():
        if not isinstance(child, nn.Linear):
            continue
        if name.endswith("lm_head"):
            wanted = lora.train_unembed
        elif "attn" in name or "attention" in name:
            wanted = lora.train_attn
        else:
            wanted = lora.train_mlp
        if wanted:
            targets.append(name)
    return targets


def merged(base: Mapping[str, Tensor], tensors: Mapping[str, Tensor], lora: Lora | None) -> dict[str, Tensor]:
    """The full weights of a snapshot: `tensors` themselves, or `base` with every LoRA product added."""
    if lora is None:
        return dict(tensors)
    weights = dict(base)
    for name, down in tensors.items():
        stem, _, kind = name.partition(".lora_")
        if not kind.startswith("A"):
            continue
        up = tensors[f"{stem}.lora_B.weight"]
        original = base.get(f"{stem}.weight")
        if original is None and stem == "lm_head":
            original = base["model.embed_tokens.weight"]
        if original is None:
            raise ValueError(f"the snapshot adapts {stem}, which this base model does not have")
        weights[f"{stem}.weight"] = merge(original, up, down, lora.scaling)
    return weights


def read_peft_folder(folder: Path, lora: Lora) -> dict[str, Tensor]:
    """LoRA matrices of a PEFT adapter folder by our names. Raises ValueError where it is none, or scales otherwise."""
    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    if not (config.is_file() and weights.is_file()):
        raise ValueError(f"{folder} is no PEFT folder here: it needs adapter_config.json and adapter_model.safetensors")
    settings = json.loads(config.read_text(encoding="utf-8"))
    scaling = settings["lora_alpha"] / settings["r"]
    if scaling != lora.scaling:
        raise ValueError(f"{folder} scales by alpha/rank {scaling}, this run by {lora.scaling}: create the run with the same")
    return {name.removeprefix("base_model.model."): tensor for name, tensor in load_file(weights).items()}


def parameters(module: nn.Module) -> int:
    """How many numbers the model holds, tied ones once."""
    return sum(math.prod(p.shape) for p in module.parameters())
