"""A layout's products with their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..ops.autograd import activate, require_residual
from ..ops.transforms import differentiated, transformed
from ..ops.verbs import multiply
from .layout import Layout


def linear(
    x: Tensor, values: Tensor, bias: Tensor | None, layout: Layout,
    activation: str | None = None, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Returns act(x [..., cols] W^T + bias) + residual as [..., rows], with gradients of x, the values, the
    bias and the residual by the layout's own ``dx`` and ``dw``. Operands are of one dtype and on one device.
    Layouts that fuse do so in calls that need no gradient."""
    flat = x if x.dim() == 2 else x.reshape(-1, layout.cols)
    shape = (*x.shape[:-1], layout.rows)
    if activation is None and residual is None:
        y = _product(flat, values, bias, layout)
        return y if x.dim() == 2 else y.reshape(shape)
    operands = (x, values, bias, residual)
    if layout.fuses and not watched() and not any(t is not None and differentiated(t) for t in operands):
        if residual is not None:
            require_residual(residual, flat.new_empty(()).expand(shape))
            residual = residual.reshape(-1, layout.rows)
        fusing: Any = layout
        y = fusing.linear(flat, values, bias, activation, residual)
        return y if x.dim() == 2 else y.reshape(shape)
    y = activate(_product(flat, values, bias, layout).reshape(shape), activation)
    if residual is None:
        return y
    require_residual(residual, y)
    return y + residual


def watched() -> bool:
    """Returns whether torch.func, forward mode or torch.jit.trace is active."""
    return transformed() or torch._C._get_tracing_state() is not None


def _product(x: Tensor, values: Tensor, bias: Tensor | None, layout: Layout) -> Tensor:
    if transformed() and not torch.compiler.is_compiling():
        return layout.linear_transformed(x, values, bias)
    if torch._C._get_tracing_state() is not None:  # torch.jit.trace records operators, but no Functions
        with torch.no_grad():
            return layout.linear(x, values, bias)
    # The Function itself takes half of a small product's time.
    needed = any(operand is not None and differentiated(operand) for operand in (x, values, bias))
    if needed:
        return multiply(x, values, bias, layout)
    return layout.linear(x, values, bias)
