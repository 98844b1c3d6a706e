"""Convolutions with kernel size 1 become a BlockSparseConv1x1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ...nn import BlockSparseConv1x1
from .form import Form

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Conv1x1Form(Form):
    """nn.Conv1d, nn.Conv2d and nn.Conv3d with kernel size 1, of any stride."""

    inside = "linear"

    def matches(self, module: nn.Module) -> bool:
        return isinstance(module, _CONVOLUTIONS) and set(module.kernel_size) == {1}

    def matrix(self, like_weight: Tensor) -> Tensor:
        return like_weight.flatten(1)

    def own_forward(self, module: nn.Module) -> type[nn.Module]:
        return next(cls for cls in _CONVOLUTIONS if isinstance(module, cls))

    def refusal_of_kind(self, module: nn.Module) -> str:
        assert isinstance(module, _CONVOLUTIONS)
        if module.groups != 1:
            return f"its {module.groups} groups are block-diagonal already"
        if not isinstance(module.padding, str) and any(module.padding):
            return "it pads its input, where a 1x1 convolution gives the bias"
        return ""

    def made(self, module: nn.Module, layers: Mapping[str, Any]) -> nn.Module:
        assert isinstance(module, _CONVOLUTIONS)
        return BlockSparseConv1x1(layers["weight"], len(module.kernel_size), module.stride)
