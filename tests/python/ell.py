"""Ell, a layout of a user: every row stores the same number of elements, and brings its own product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparseloom import SparseTensor, layouts


@layouts.register
class Ell(layouts.Layout):
    """Values [rows, width]."""

    name = "ell_rows"  # that of no other test
    col: Tensor  # int64 [rows, width], ascending in each row

    @classmethod
    def from_dense(cls, weight: Tensor, width: int = 3) -> Ell:
        return cls(*weight.shape, col=weight.abs().topk(width, dim=1).indices.sort(dim=1).values)

    def pack(self, dense: Tensor) -> Tensor:
        return dense.gather(1, self.col)

    def to_dense(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.rows, self.cols).scatter(1, self.col, values)


class EllMm:
    """W X of an Ell W [rows, cols] and a dense X [cols, n]."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, w: SparseTensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(w, x)
        return (w.stored.unsqueeze(-1) * x[w.layout_index.col]).sum(1)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        w, x = ctx.saved_tensors
        col = w.layout_index.col
        stored = (dy.unsqueeze(1) * x[col]).sum(-1)
        dx = torch.zeros_like(x).index_add(
            0, col.flatten(), (w.stored.unsqueeze(-1) * dy.unsqueeze(1)).flatten(0, 1)
        )
        return SparseTensor(w.layout_index, stored), dx
