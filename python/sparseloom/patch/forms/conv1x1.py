"""Convolutions with kernel size 1 become a BlockSparseConv1x1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...nn import BlockSparseConv1x1, Semi24TrainingConv2d
from .form import Form

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Conv1x1Form(Form):
    """nn.Conv1d, nn.Conv2d and nn.Conv3d with kernel size 1, of any stride, that pad nothing."""

    inside = "linear"

    def matches(self, module: nn.Module) -> bool:
        if not isinstance(module, _CONVOLUTIONS) or set(module.kernel_size) != {1}:
            return False
        # with padding, border outputs are the bias alone: ConvForm takes those
        return isinstance(module.padding, str) or not any(module.padding)

    def matrix(self, like_weight: Tensor) -> Tensor:
        return like_weight.flatten(1)

    def own_forward(self, module: nn.Module) -> type[nn.Module]:
        return next(cls for cls in _CONVOLUTIONS if isinstance(module, cls))

    def refusal_of_kind(self, module: nn.Module) -> str:
        assert isinstance(module, _CONVOLUTIONS)
        return "" if module.groups == 1 else f"its {module.groups} groups are block-diagonal already"

    def semi24_training(self, module: nn.Module) -> type[Semi24TrainingConv2d] | None:
        return Semi24TrainingConv2d if isinstance(module, nn.Conv2d) else None

    def made(self, module: nn.Module, layers: Mapping[str, Any]) -> nn.Module:
        if isinstance(layer := layers["weight"], Semi24TrainingConv2d):
            return layer
        assert isinstance(module, _CONVOLUTIONS)
        return BlockSparseConv1x1(layers["weight"], len(module.kernel_size), module.stride)
