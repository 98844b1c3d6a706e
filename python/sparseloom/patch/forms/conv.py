"""Convolutions become a BlockSparseConv1d, BlockSparseConv2d or BlockSparseConv3d."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...nn.conv import BLOCK_SPARSE, BlockSparseConv
from ...pattern import Pattern
from .form import Form, Layers, Site


class ConvForm(Form):
    """nn.Conv1d, nn.Conv2d and nn.Conv3d of any kernel. Its matrix has the taps as a third axis."""

    layers = Layers(semi24=None)

    def matches(self, module: nn.Module) -> bool:
        return isinstance(module, tuple(BLOCK_SPARSE))

    def matrix(self, like_weight: Tensor) -> Tensor:
        return like_weight.flatten(2)

    def ranked(self, matrix: Tensor) -> Tensor:
        """Sums of magnitudes over the taps, so that a block's magnitude is that of all its taps."""
        return matrix.abs().sum(2)

    def own_forward(self, module: nn.Module) -> type[nn.Module]:
        return next(cls for cls in BLOCK_SPARSE if isinstance(module, cls))

    def refusal_of_kind(self, module: nn.Module) -> str:
        groups: Any = module.groups
        return "" if groups == 1 else f"its {groups} groups are block-diagonal already"

    def packed(self, site: Site, pattern: Pattern) -> BlockSparseConv:
        module: Any = site.module
        return BLOCK_SPARSE[self.own_forward(module)].holding(module, site.value, pattern)
