"""Bsr: the dense blocks of BlockSparseLinear as a layout for results and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .. import pattern as patterns
from .._arguments import named_arguments
from ..ops.scores import scores_on_device
from ..pattern import Block, Pattern, block_shape
from .layout import Layout
from .registry import register


@register
class Bsr(Layout):
    """Blocks anywhere on a grid, each dense; the values are [blocks, block rows, block columns], with zeros
    beyond the edge of W.

    ``packed`` is the index by block rows and by block columns, as ``ops.make_index`` makes it; the sides of a
    block are each one of {8, 16, 32, 64, 128}. For trained weights use BlockSparseLinear, which supports
    files, plans and moving blocks. Its name is "blocks", because files call those layers "bsr".
    """

    name = "blocks"
    counts = ("blocks", "digest")
    packed: Tensor  # int32
    blocks: int
    block_rows: int
    block_cols: int
    digest: int

    @classmethod
    @named_arguments
    def of(cls, pattern: Pattern, device: torch.device | None = None) -> Bsr:
        """Returns the layout of a pattern."""
        rows, cols, (bm, bn) = pattern.rows, pattern.cols, pattern.block
        index = ops.make_index(*pattern.index(), rows, cols, (bm, bn))
        packed = index.packed.to(device)
        sizes: dict[str, Any] = {"blocks": index.blocks, "block_rows": bm, "block_cols": bn}
        return cls(rows, cols, packed=packed, digest=index.digest, **sizes)

    @classmethod
    @named_arguments
    def from_dense(  # type: ignore[override]
        cls, weight: Tensor, block: Block = 32, density: float | None = None
    ) -> Bsr:
        """Stores the blocks of ``weight`` that are not all zero; with ``density`` that share of all blocks,
        those with the largest sums of magnitudes. Raises Error as the patterns do."""
        if density is None:
            return cls.from_mask(weight, weight.detach() != 0, block)
        return cls.of(patterns.from_dense(weight.detach(), block, density), weight.device)

    @classmethod
    @named_arguments
    def from_mask(cls, weight: Tensor, mask: Tensor, block: Block = 32) -> Bsr:
        """Stores the blocks with at least one element in ``mask``."""
        sides = block_shape(cls.name, block)
        any_of_block = scores_on_device(mask.float(), sides, "max") > 0
        rows, cols = weight.shape
        return cls.of(patterns.from_mask(rows, cols, sides, any_of_block.cpu()), weight.device)

    def of_entries(self, tensors: Mapping[str, Tensor]) -> Bsr:
        packed = tensors["packed"]
        blocks = self.blocks if packed.is_meta else self.index.blocks_in(packed)
        sizes = {"blocks": blocks, "digest": self.index.holding(tensors["packed"], blocks).digest}
        return type(self)(self.rows, self.cols, **{**self.options(), **tensors, **sizes})

    @property
    def index(self) -> ops.Index:
        """The index as the operators take it."""
        sizes = self.blocks, self.rows, self.cols, self.block_rows, self.block_cols
        return ops.Index(self.packed, *sizes, self.digest)

    @property
    def padded(self) -> bool:
        return self.rows % self.block_rows != 0 or self.cols % self.block_cols != 0

    def pattern(self) -> Pattern:
        """Returns which blocks are stored."""
        crow, col = self.index.crow.cpu(), self.index.col.cpu()
        return Pattern.from_index(crow, col, self.rows, self.cols, (self.block_rows, self.block_cols))

    def pack(self, dense: Tensor) -> Tensor:
        index = self.index
        blocks: Tensor = ops.call(
            "pack", dense.detach().contiguous(), index.crow, index.col, index.bm, index.bn
        )
        return blocks

    def to_dense(self, values: Tensor) -> Tensor:
        index, contiguous = self.index, values.detach().contiguous()
        dense: Tensor = ops.call("unpack", contiguous, index.crow, index.col, self.rows, self.cols)
        return dense

    def linear(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        return ops.linear(x, values, self.index, bias)

    def linear_transformed(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        return ops.linear(x, values, self.index, bias)

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        return ops.linear_dx(dy, values, self.index)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        return ops.linear_dw(dy, x, self.index)

    def plan(self, m: int, direction: str, dtype: torch.dtype, bias: bool) -> dict[str, Any]:
        device = "cpu" if self.packed.is_meta else self.packed.device
        return ops.plan(self.index.to("cpu"), direction, dtype, m, bias, device=device)
