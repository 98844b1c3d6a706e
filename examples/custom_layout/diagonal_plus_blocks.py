"""The C++ layout of this folder as a layout of ``sparseloom.nn.SparseLinear``.

Build it first (CMakeLists.txt says how), then:

    >>> diagonal_plus_blocks.load("build/custom_layout.so")
    >>> layer = sparseloom.nn.SparseLinear(256, 128, layout="diagonal_plus_blocks", side=16, blocks=24)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparseloom import layouts

operators = torch.ops.custom_layout


def load(library: str | Path) -> None:
    """Registers the operators, and says what shapes they return, for torch.compile and torch.export."""
    torch.ops.load_library(str(library))
    fake = torch.library.register_fake
    fake("custom_layout::forward", lambda x, *rest: x.new_empty(x.shape[0], rest[-3]))
    fake("custom_layout::dx", lambda dy, *rest: dy.new_empty(dy.shape[0], rest[-2]))
    fake(
        "custom_layout::dw",
        lambda dy, x, crow, col, rows, cols, side: x.new_empty(min(rows, cols) + col.numel() * side**2),
    )


@layouts.register
class DiagonalPlusBlocks(layouts.Layout):
    """Values: the diagonal, then the blocks [blocks, side, side], as one row."""

    planned = True  # the plan predicts times, so that a report tells kernels and times the layer alone
    crow: Tensor  # int32 [rows / side + 1]
    col: Tensor  # int32 [blocks]
    side: int

    @classmethod
    def from_dense(cls, weight: Tensor, side: int, blocks: int) -> DiagonalPlusBlocks:
        """Stores the diagonal, and the ``blocks`` blocks off the diagonal with the largest sums of |w|."""
        rows, cols = weight.shape
        scores = weight.abs().view(rows // side, side, cols // side, side).sum((1, 3)).fill_diagonal_(-1)
        chosen = torch.zeros_like(scores, dtype=torch.bool)
        chosen.view(-1)[scores.flatten().topk(blocks).indices] = True
        crow = torch.nn.functional.pad(chosen.sum(1).cumsum(0), (1, 0))
        return cls(rows, cols, crow=crow.int(), col=chosen.nonzero()[:, 1].int(), side=side)

    def pack(self, dense: Tensor) -> Tensor:
        return torch.cat([dense.diagonal(), self._grid(dense)[self._places()].flatten()])

    def to_dense(self, values: Tensor) -> Tensor:
        size = min(self.rows, self.cols)
        dense = values.new_zeros(self.rows, self.cols)
        self._grid(dense)[self._places()] = values[size:].view(-1, self.side, self.side)
        return dense.diagonal_scatter(values[:size])

    def linear(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        return operators.forward(x.contiguous(), values, bias, *self._index())

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        return operators.dx(dy.contiguous(), values, *self._index())

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        return operators.dw(dy.contiguous(), x.contiguous(), *self._index())

    def plan(self, m: int, direction: str, dtype: torch.dtype, bias: bool) -> dict[str, Any]:
        kernel, us, workspace, *candidates, text = operators.plan(*self._index(), m, direction, dtype, bias)
        keys = ("kernel", "refusal", "predicted_us")
        listed = [dict(zip(keys, each, strict=True)) for each in zip(*candidates, strict=True)]
        told = {"kernel": kernel, "predicted_us": us, "workspace_bytes": workspace}
        return {**told, "candidates": listed, "text": text}

    def _index(self) -> tuple[Tensor, Tensor, int, int, int]:
        return self.crow, self.col, self.rows, self.cols, self.side

    def _grid(self, dense: Tensor) -> Tensor:
        """Returns a view [block rows, block columns, side, side]."""
        return dense.view(self.rows // self.side, self.side, self.cols // self.side, self.side).transpose(
            1, 2
        )

    def _places(self) -> tuple[Tensor, Tensor]:
        counts = self.crow.diff().long()
        return torch.repeat_interleave(
            torch.arange(len(counts), device=counts.device), counts
        ), self.col.long()
