"""Multiplies with a dense copy of a layer's weight, for inference where dense is faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..errors import Error
from .parametrized import require_own_values

if TYPE_CHECKING:
    from .indexed import IndexedModule
    from .linear import BlockSparseLinear


def freeze(layer: IndexedModule) -> None:
    """Makes the dense copy. Raises Error where ``strict`` forbids it, or where the values are computed."""
    require_own_values("freeze", layer)
    if layer.strict:
        raise Error(
            "freeze", "strict=False", "strict=True", "strict forbids dense products: set layer.strict = False"
        )
    index = layer.index
    layer.frozen_weight = ops.call(
        "unpack", layer.values.detach(), index.crow, index.col, index.rows, index.cols
    )
    layer._frozen_version = layer.values._version


def forward(layer: BlockSparseLinear, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """Returns act(x W^T + bias) + residual with torch's own product. Raises Error where values may have
    changed since the copy was made, or are to be trained."""
    # Values other than the layer's own Parameter come from functional_call. Compiled code keeps the version
    # that it was compiled with.
    foreign = not isinstance(layer.values, nn.Parameter)
    changed = not torch.compiler.is_compiling() and (
        foreign or layer.values._version != layer._frozen_version
    )
    if changed or layer.strict or (layer.values.requires_grad and torch.is_grad_enabled()):
        got = "changed values" if changed else "values that need a gradient"
        if layer.strict:
            got = "strict=True, which forbids the dense copy"
        raise Error(
            "frozen linear",
            "inference on unchanged values",
            got,
            "call unfreeze(), or run in torch.no_grad()",
        )
    assert layer.frozen_weight is not None
    y = ops.activate(F.linear(x, layer.frozen_weight.to(x.dtype), bias), layer.activation)
    if residual is None:
        return y
    ops.require_residual(residual, y)
    return y + residual
