"""Adam with decoupled weight decay (Kingma & Ba 2015; Loshchilov & Hutter 2019), as `optim_step` defines it.

In: parameters with gradients and the step's settings. Out: the parameters, moved. Not torch.optim: its first optimizer
imports torch's compiler, which costs seconds at create_model. Invariant: `moments` and `steps` are the whole state, so a
resumed run continues bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from turngrad.local.wire import Adam


class AdamState:
    """First and second moments of each named parameter, zero before the first step."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self.steps = 0
        self._first = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self._second = {name: torch.zeros_like(p) for name, p in parameters.items()}

    @torch.no_grad()
    def step(self, adam: Adam) -> None:
        """One update from the gradients the parameters hold; a parameter without one counts as gradient zero."""
        self.steps += 1
        first_scale = 1 - adam.beta1**self.steps
        second_scale = math.sqrt(1 - adam.beta2**self.steps)
        for name, parameter in self._parameters.items():
            grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            first, second = self._first[name], self._second[name]
            first.lerp_(grad, 1 - adam.beta1)
            second.mul_(adam.beta2).addcmul_(grad, grad, value=1 - adam.beta2)
            if adam.weight_decay:
                parameter.mul_(1 - adam.learning_rate * adam.weight_decay)
            denominator = second.sqrt().div_(second_scale).add_(adam.eps)
            parameter.addcdiv_(first, denominator, value=-adam.learning_rate / first_scale)

    def export(self) -> dict[str, Tensor]:
        """Copies of the moments as `<parameter>.first` and `.second`."""
        groups = (("first", self._first), ("second", self._second))
        return {f"{name}.{moment}": tensor.clone() for moment, group in groups for name, tensor in group.items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor] | None, steps: int) -> None:
        """Overwrites the moments; None starts afresh."""
        self.steps = 0 if tensors is None else steps
        for moment, group in (("first", self._first), ("second", self._second)):
            for name, tensor in group.items():
                if tensors is None:
                    tensor.zero_()
                else:
                    tensor.copy_(tensors[f"{name}.{moment}"])
