"""Convolutions and transposed ones become a BlockSparseConv1d, BlockSparseConvTranspose2d and so on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...nn import Semi24TrainingConv2d
from ...nn.conv.base import ConvModule
from ...nn.conv.layers import BLOCK_SPARSE
from ...nn.conv.transpose import TRANSPOSED
from ...pattern import Pattern
from .form import Form, Layers, Site


class ConvForm(Form):
    """nn.Conv1d, nn.Conv2d and nn.Conv3d of any kernel. Its matrix has the taps as a third axis."""

    layers = Layers(semi24=None)
    classes: Mapping[type[nn.Module], type[ConvModule]] = BLOCK_SPARSE

    def matches(self, module: nn.Module) -> bool:
        return isinstance(module, tuple(self.classes))

    def matrix(self, like_weight: Tensor) -> Tensor:
        return like_weight.flatten(2)

    def ranked(self, matrix: Tensor) -> Tensor:
        """Returns the sums of |w| over the taps, so that a block's magnitude is that of all its taps."""
        return matrix.abs().sum(2)

    def own_forward(self, module: nn.Module) -> type[nn.Module]:
        return next(cls for cls in self.classes if isinstance(module, cls))

    def cannot_move(self, by_gradient: bool) -> str:
        return "the blocks of a convolution stay: choose no method, or kernel size 1"

    def semi24_training(self, module: nn.Module) -> type[Semi24TrainingConv2d] | None:
        return Semi24TrainingConv2d if isinstance(module, nn.Conv2d) else None

    def refusal_of_kind(self, module: nn.Module) -> str:
        groups: Any = module.groups
        return "" if groups == 1 else f"its {groups} groups are block-diagonal already"

    def packed(self, site: Site, pattern: Pattern) -> ConvModule:
        module: Any = site.module
        return self.classes[self.own_forward(module)].holding(module, site.value, pattern)


class ConvTransposeForm(ConvForm):
    """nn.ConvTranspose1d, nn.ConvTranspose2d and nn.ConvTranspose3d of any kernel, which store their weight
    as [in, out, *kernel]."""

    classes = TRANSPOSED

    def matrix(self, like_weight: Tensor) -> Tensor:
        return like_weight.transpose(0, 1).flatten(2)

    def stored(self, matrix: Tensor, weight: Tensor) -> Tensor:
        return matrix.transpose(0, 1).reshape(weight.shape)
