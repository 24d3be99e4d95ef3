"""Attention of a training micro-batch: causal rows that may share one prefix, computed once.

In: q, k, v of `packing.MicroBatch`'s flat layout. Out: the mix, flat again, differentiable. Row i sees the prefix and its
own earlier tokens, nothing else; what padding computes is never read. A row's attention is computed in two parts, over
the prefix and over itself, and joined by their log-sum-exps; in the backward pass each part uses the joint output and
log-sum-exp, which gives exactly its share of the gradient (as in ring attention, Liu et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from turngrad.local.packing import MicroBatch

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class BatchAttention:
    """`decoder.Attend` for one micro-batch."""

    def __init__(self, batch: MicroBatch, device: torch.device) -> None:
        self._prefix, self._rows, self._width = batch.prefix, len(batch.members), batch.width
        self._mask: Tensor | None = None
        if device.type != "cpu" and self._prefix:
            seen = torch.ones(self._width, self._prefix + self._width, dtype=torch.bool, device=device)
            self._mask = seen.tril(self._prefix)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.device.type == "cpu":
            return _SharedPrefix.apply(q, k, v, self._prefix, self._rows, self._width)  # pyright: ignore[reportReturnType]
        return self._masked(q, k, v)

    def _masked(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The same through torch's own attention, for devices whose kernels give no log-sum-exp."""
        p, rows, width = self._prefix, self._rows, self._width
        own_q, own_k, own_v = (_by_row(x[p:], rows, width) for x in (q, k, v))
        if not p:
            mixed = F.scaled_dot_product_attention(own_q, own_k, own_v, is_causal=True, enable_gqa=True)
            return mixed.transpose(1, 2).reshape(rows * width, -1)
        first_q, first_k, first_v = (_by_row(x[:p], 1, p) for x in (q, k, v))
        head = F.scaled_dot_product_attention(first_q, first_k, first_v, is_causal=True, enable_gqa=True)
        keys = torch.cat((first_k.expand(rows, -1, -1, -1), own_k), 2)
        values = torch.cat((first_v.expand(rows, -1, -1, -1), own_v), 2)
        tail = F.scaled_dot_product_attention(own_q, keys, values, attn_mask=self._mask, enable_gqa=True)
        return torch.cat((head.transpose(1, 2).reshape(p, -1), tail.transpose(1, 2).reshape(rows * width, -1)))


def _by_row(x: Tensor, rows: int, width: int) -> Tensor:
    """[rows * width, heads, d] as a view [rows, heads, width, d]."""
    return x.view(rows, width, x.shape[1], x.shape[2]).transpose(1, 2)


def _to_heads(x: Tensor, group: int) -> Tensor:
    """[b, kv_heads, n, d] as a view [b * group, kv_heads, n, d] for b = 1, or a copy: each query head's own keys."""
    return x.repeat_interleave(group, 1) if group > 1 else x


class _SharedPrefix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, prefix: int, rows: int, width: int) -> Tensor:
        ctx.layout = prefix, rows, width
        heads, kv_heads, d = q.shape[1], k.shape[1], q.shape[2]
        group = heads // kv_heads
        own = [_by_row(x[prefix:], rows, width) for x in (q, k, v)]
        tail, tail_lse = _flash(own[0], _to_heads(own[1], group), _to_heads(own[2], group), causal=True)
        if not prefix:
            ctx.save_for_backward(q, k, v, tail, tail_lse, tail[:0], tail_lse[:0])
            return tail.transpose(1, 2).reshape(rows * width, heads * d)
        first = [_by_row(x[:prefix], 1, prefix) for x in (q, k, v)]
        head, head_lse = _flash(first[0], _to_heads(first[1], group), _to_heads(first[2], group), causal=True)
        cross, cross_lse = _flash(_fold(own[0], kv_heads), first[1], first[2])
        share = torch.sigmoid(_unfold_lse(cross_lse, rows, heads) - tail_lse)
        tail = torch.lerp(tail, _unfold(cross, rows, heads), share.unsqueeze(-1).to(tail.dtype))
        tail_lse = torch.logaddexp(tail_lse, _unfold_lse(cross_lse, rows, heads))
        ctx.save_for_backward(q, k, v, tail, tail_lse, head, head_lse)
        flat = [x.transpose(1, 2).reshape(-1, heads * d) for x in (head, tail)]
        return torch.cat(flat)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        prefix, rows, width = ctx.layout
        q, k, v, tail, tail_lse, head, head_lse = ctx.saved_tensors
        heads, kv_heads, d = q.shape[1], k.shape[1], q.shape[2]
        grad = grads[0].view(-1, heads, d)
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)

        def causal(part: slice, count: int, length: int, out: Tensor, lse: Tensor) -> None:
            x = [_by_row(t[part], count, length) for t in (q, k, v)]
            group = heads // kv_heads
            keys, values = _to_heads(x[1], group), _to_heads(x[2], group)
            g = _BACKWARD(_by_row(grad[part], count, length), x[0], keys, values, out, lse, 0.0, True)
            dq[part] = g[0].transpose(1, 2).reshape(-1, heads, d)
            for target, given in ((dk, g[1]), (dv, g[2])):
                summed = given.view(count, kv_heads, group, length, d).sum(2)
                target[part] = summed.transpose(1, 2).reshape(-1, kv_heads, d)

        causal(slice(prefix, None), rows, width, tail, tail_lse)
        if prefix:
            causal(slice(0, prefix), 1, prefix, head, head_lse)
            own, given = (_by_row(t[prefix:], rows, width) for t in (q, grad))
            first = [_by_row(t[:prefix], 1, prefix) for t in (k, v)]
            fold: Callable[[Tensor], Tensor] = lambda t: _fold(t, kv_heads)  # noqa: E731
            lse = _fold(tail_lse.unsqueeze(-1), kv_heads).squeeze(-1)
            g = _BACKWARD(fold(given), fold(own), first[0], first[1], fold(tail), lse, 0.0, False)
            dq[prefix:] += _unfold(g[0], rows, heads).transpose(1, 2).reshape(-1, heads, d)
            dk[:prefix] += g[1].transpose(1, 2).reshape(-1, kv_heads, d)
            dv[:prefix] += g[2].transpose(1, 2).reshape(-1, kv_heads, d)
        return dq, dk, dv, None, None, None


def _flash(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> tuple[Tensor, Tensor]:
    return _FORWARD(q, k, v, 0.0, causal)


def _fold(x: Tensor, kv_heads: int) -> Tensor:
    """[rows, heads, width, d] as [1, kv_heads, rows * group * width, d]: all queries that read the same keys."""
    rows, heads, width, d = x.shape
    grouped = x.reshape(rows, kv_heads, heads // kv_heads, width, d).transpose(0, 1)
    return grouped.reshape(1, kv_heads, rows * (heads // kv_heads) * width, d)


def _unfold(x: Tensor, rows: int, heads: int) -> Tensor:
    """The inverse of `_fold`."""
    _, kv_heads, _, d = x.shape
    return x.reshape(kv_heads, rows, heads // kv_heads, -1, d).transpose(0, 1).reshape(rows, heads, -1, d)


def _unfold_lse(x: Tensor, rows: int, heads: int) -> Tensor:
    """[1, kv_heads, rows * group * width] as [rows, heads, width]."""
    return _unfold(x.unsqueeze(-1), rows, heads).squeeze(-1)
