"""ConvWeight: the SparseWeight of a convolution."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ...ops.conv import product
from ..held import state
from ..held.sparse_weight import SparseWeight


class ConvWeight(SparseWeight):
    """The weight of a convolution, transposed or not: each block has values for every tap."""

    @property
    def taps(self) -> int:
        return math.prod(self.owner.kernel_size)

    def unpacked(self, like_values: Tensor) -> Tensor:
        """Returns a tensor of the values' shape in the places of the values: [out, in, taps]."""
        return product.dense(like_values.detach(), self.index, like_values.shape[1:2])

    def packed(self, like_dense: Tensor) -> Tensor:
        """Returns the stored elements of a tensor [out, in, taps] in the shape of the values."""
        return product.blocks_of(like_dense.detach(), self.index)

    def stored_as(self) -> dict[str, Any]:
        return {**super().stored_as(), "kernel": list(self.owner.kernel_size)}

    def require_readable(self, tensors: Any, prefix: str, computed: Tensor | None) -> None:
        stored = self.owner.stored_shape
        state.read_entries(self.whole_shape, self.block, computed, tensors, prefix, stored)
