"""Attention of a training micro-batch: causal rows that may share one prefix.

In: q, k, v of `packing.MicroBatch`'s flat layout. Out: the mix, flat again. Invariant: row i sees the prefix and its own
earlier tokens, nothing else; what padding computes is never read.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from turngrad.local.packing import MicroBatch


class BatchAttention:
    """`decoder.Attend` for one micro-batch; differentiable."""

    def __init__(self, batch: MicroBatch, device: torch.device) -> None:
        self._prefix, self._width, self._rows = batch.prefix, batch.width, len(batch.members)
        self._mask: Tensor | None = None
        if self._prefix:
            seen = torch.ones(self._width, self._prefix + self._width, dtype=torch.bool, device=device)
            self._mask = seen.tril(self._prefix)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p, rows, width = self._prefix, self._rows, self._width
        if not p:
            mixed = _causal(*(_rows(x, rows, width) for x in (q, k, v)))
            return mixed.transpose(1, 2).reshape(rows * width, -1)
        head = _causal(*(_rows(x[:p], 1, p) for x in (q, k, v)))
        q_rows, k_rows, v_rows = (_rows(x[p:], rows, width) for x in (q, k, v))
        keys, values = (
            torch.cat((_rows(x[:p], 1, p).expand(rows, -1, -1, -1), own), dim=2) for x, own in ((k, k_rows), (v, v_rows))
        )
        tail = F.scaled_dot_product_attention(q_rows, keys, values, attn_mask=self._mask, enable_gqa=True)
        flat = (head.transpose(1, 2).reshape(p, -1), tail.transpose(1, 2).reshape(rows * width, -1))
        return torch.cat(flat)


def _rows(x: Tensor, rows: int, width: int) -> Tensor:
    """[rows * width, heads, d] as [rows, heads, width, d]."""
    return x.view(rows, width, x.shape[1], x.shape[2]).transpose(1, 2)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
