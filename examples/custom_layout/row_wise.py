"""A layout in Python alone: every output keeps the same number of inputs, those of the largest weights.

    >>> layer = sparseloom.nn.SparseLinear(256, 128, layout="row_wise", keep=32)

Four of its lines are the layout: what is stored, which elements those are, and the way there and back.
"""

from __future__ import annotations

from torch import Tensor

from sparseloom import layouts


@layouts.register
class RowWise(layouts.Layout):
    """Values [rows, keep], in the order of the columns that ``col`` names."""

    col: Tensor  # int64 [rows, keep], ascending in each row

    @classmethod
    def from_dense(cls, weight: Tensor, keep: int) -> RowWise:
        return cls(*weight.shape, col=weight.abs().topk(keep, dim=1).indices.sort(dim=1).values)

    def pack(self, dense: Tensor) -> Tensor:
        return dense.gather(1, self.col)

    def to_dense(self, values: Tensor) -> Tensor:
        dense = values.new_zeros(self.rows, self.cols)
        return dense.scatter(1, self.col, values)
