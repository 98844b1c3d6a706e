"""Csr: the stored elements of each row in sequence, with their columns."""

from __future__ import annotations

import torch
from torch import Tensor

from .._arguments import named_arguments
from ..errors import Error
from .entries import Entries, bounds_of, columns_of, require_shape, rows_of
from .layout import REPACK
from .registry import register


@register
class Csr(Entries):
    """Compressed sparse rows: row r stores the elements crow[r] to crow[r + 1], whose columns are in ``col``,
    ascending.

    ``crow`` int32 [rows + 1] and ``col`` int32 [stored]; the values are [stored]. int64 is converted. Raises
    Error for more than 2^31 - 1 rows, columns or elements.
    """

    name = "csr"
    derived_names = ("by_column",)
    crow: Tensor
    col: Tensor

    @classmethod
    @named_arguments
    def from_places(cls, rows: int, cols: int, row: Tensor, col: Tensor) -> Csr:
        return cls(rows, cols, crow=bounds_of(row, rows), col=col)

    def places(self) -> tuple[Tensor, Tensor]:
        return rows_of(self.crow, self.col.numel()), self.col.long()

    def csr(self) -> tuple[Tensor, Tensor]:
        return self.crow, self.col

    def derived(self) -> dict[str, Tensor]:
        return {"by_column": columns_of(self.crow, self.col, self.cols)} if self.col.is_cuda else {}

    def to_torch(self, values: Tensor) -> Tensor:
        """Returns W as a tensor of torch's sparse_csr layout, which shares index and values."""
        return torch.sparse_csr_tensor(self.crow, self.col, values, (self.rows, self.cols))

    def require_sizes(self, op: str, values: Tensor) -> None:
        require_shape(op, "crow", self.crow, [self.rows + 1], torch.int32)
        require_shape(op, "col", self.col, [self.col.numel()], torch.int32)
        require_shape(op, "values", values, [self.col.numel()], None)
        if self.crow.is_meta:
            return
        steps = self.crow.diff()
        if self.crow[0] != 0 or self.crow[-1] != self.col.numel() or bool((steps < 0).any()):
            got = f"from {int(self.crow[0])} to {int(self.crow[-1])}, with {int((steps < 0).sum())} descents"
            raise Error(op, f"crow ascending from 0 to {self.col.numel()}", got, REPACK)
