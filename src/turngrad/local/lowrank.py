"""A linear layer with a LoRA product, in bf16, as the sampler computes it.

In: x, the frozen weight W, and A, B of W + scaling * B A. Out: x times the merged weight rounded to bf16, differentiable in x, A
and B. peft's own layer rounds W x and B A x apart and adds them, which no merged weight gives; here trainer and sampler multiply
by the same numbers. The gradient is that of the product before rounding, and costs what LoRA's does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def merge(weight: Tensor, up: Tensor, down: Tensor, scaling: float) -> Tensor:
    """W + scaling * B A in W's precision: weight [out, in], up B [out, r], down A [r, in]."""
    return torch.addmm(weight, up, down, alpha=scaling)


def project(layer: nn.Module, x: Tensor, compute: torch.dtype) -> Tensor:
    """`layer(x)`; x is [n, in]. One that peft has wrapped goes by its merged weight unless `compute` is fp32."""
    if compute == torch.float32 or not hasattr(layer, "lora_A"):
        return layer(x)
    wrapped: Any = layer  # peft's types do not say what its layers hold
    [(name, down)] = wrapped.lora_A.items()
    up, scaling, base = wrapped.lora_B[name].weight, wrapped.scaling[name], wrapped.base_layer
    merged = _merged(wrapped, base.weight, up, down.weight, scaling, compute)
    return _Product.apply(x, merged, base.bias, up, down.weight, scaling)  # pyright: ignore[reportReturnType]


def _merged(layer: Any, weight: Tensor, up: Tensor, down: Tensor, scaling: float, compute: torch.dtype) -> Tensor:
    """Made once for each change of A or B, which optim_step and load make in place."""
    version = (up._version, down._version)
    made_of, product = getattr(layer, "as_sampled", (None, weight))
    if made_of != version:
        with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
            product = merge(weight, up, down, scaling).to(compute)
        layer.as_sampled = version, product
    return product


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, merged: Tensor, bias: Tensor | None, up: Tensor, down: Tensor, scaling: float) -> Tensor:
        low = x.to(merged.dtype)
        ctx.save_for_backward(low, merged, up, down)
        ctx.scaling, ctx.given = scaling, x.dtype
        return torch.nn.functional.linear(low, merged, None if bias is None else bias.to(merged.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, merged, up, down = ctx.saved_tensors
        grad = grads[0].to(merged.dtype)
        toward_down = x.t() @ (grad @ up.to(merged.dtype))
        toward_up = grad.t() @ (x @ down.t().to(merged.dtype))
        into_up, into_down = toward_up.float() * ctx.scaling, toward_down.t().float() * ctx.scaling
        return (grad @ merged).to(ctx.given), None, None, into_up, into_down, None
