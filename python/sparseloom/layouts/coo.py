"""Coo: row and column of each stored element."""

from __future__ import annotations

import torch
from torch import Tensor

from .._arguments import named_arguments
from .csr import Csr
from .entries import Entries, bounds_of, columns_of, require_shape
from .registry import register


@register
class Coo(Entries):
    """Coordinates: ``indices`` int32 [2, stored] has the row and the column of each stored element, ordered
    by both; the values are [stored]. int64 is converted. ``from_entries`` sorts, and sums what comes twice.

    Raises Error for more than 2^31 - 1 rows, columns or elements.
    """

    name = "coo"
    derived_names = ("crow", "by_column")
    indices: Tensor

    @classmethod
    @named_arguments
    def from_places(cls, rows: int, cols: int, row: Tensor, col: Tensor) -> Coo:
        return cls(rows, cols, indices=torch.stack([row, col]))

    def places(self) -> tuple[Tensor, Tensor]:
        row, col = self.indices.long()
        return row, col

    def to_csr(self) -> Csr:
        """Returns the same elements as Csr, whose values are these; the columns are shared."""
        return Csr(self.rows, self.cols, crow=bounds_of(self.indices[0], self.rows), col=self.indices[1])

    def csr(self) -> tuple[Tensor, Tensor]:
        crow = self._derived.get("crow")
        return bounds_of(self.indices[0], self.rows) if crow is None else crow, self.indices[1]

    def derived(self) -> dict[str, Tensor]:
        if self.indices.is_meta:
            return {}
        crow = bounds_of(self.indices[0], self.rows)
        if not self.indices.is_cuda:
            return {"crow": crow}
        return {"crow": crow, "by_column": columns_of(crow, self.indices[1], self.cols)}

    def to_torch(self, values: Tensor) -> Tensor:
        """Returns W as a coalesced tensor of torch's sparse_coo layout, which shares the values."""
        shape = (self.rows, self.cols)
        return torch.sparse_coo_tensor(self.indices.long(), values, shape, is_coalesced=True)

    def require_sizes(self, op: str, values: Tensor) -> None:
        require_shape(op, "indices", self.indices, [2, self.indices.numel() // 2], torch.int32)
        require_shape(op, "values", values, [self.indices.numel() // 2], None)
