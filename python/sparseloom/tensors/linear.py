"""The operators that every layout supports: linear layers and products with one SparseTensor operand. They
are differentiable once, because a backward reads ``stored``, which autograd does not track."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..layouts import Dense, Layout
from ..ops.once import differentiable_once
from ..ops.registry import OURS
from ..sparsify import KeepAll
from .sparse_tensor import SparseTensor

_TO_DENSE = [(KeepAll, Dense)]


class Linear:
    """x [..., cols] W^T + bias, by the layout's own three products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: SparseTensor, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, weight)
        index = weight.layout_index
        x, stored, bias = _cast(x, weight.stored, bias)
        y = index.linear(x.reshape(-1, index.cols), stored, bias)
        return y.reshape(*x.shape[:-1], index.rows)

    @staticmethod
    @differentiable_once("SparseTensor")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        index, dy = weight.layout_index, gradient.reshape(-1, weight.shape[0])
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = index.dx(dy, weight.stored.to(dy.dtype)).reshape(x.shape)
        if ctx.needs_input_grad[1]:
            stored = index.dw(dy, x.reshape(-1, index.cols).to(dy.dtype))
            dw = SparseTensor(index, stored, weight.shape, weight.registry)
        if len(ctx.needs_input_grad) == 3 and ctx.needs_input_grad[2]:
            db = dy.sum(0)
        return (dx, dw, db)[: len(ctx.needs_input_grad)]


class Product:
    """W [rows, cols] X [cols, n], which is (X^T W^T)^T."""

    @staticmethod
    def forward(ctx: Any, weight: SparseTensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(weight, x)
        stored, x = _cast(weight.stored, x)
        return weight.layout_index.linear(x.t().contiguous(), stored, None).t()

    @staticmethod
    @differentiable_once("SparseTensor")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weight, x = ctx.saved_tensors
        index, dy = weight.layout_index, gradient.t().contiguous()
        dw = dx = None
        if ctx.needs_input_grad[0]:
            stored = index.dw(dy, x.t().contiguous().to(dy.dtype))
            dw = SparseTensor(index, stored, weight.shape, weight.registry)
        if ctx.needs_input_grad[1]:
            dx = index.dx(dy, weight.stored.to(dy.dtype)).t()
        return dw, dx


class LinearOfSparse:
    """X W^T + bias of a SparseTensor X [..., cols] and a dense W [n, cols], which is (W X^T)^T + bias."""

    @staticmethod
    def forward(ctx: Any, x: SparseTensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, weight)
        index, stored = _rows(x)
        weight, stored, bias = _cast(weight, stored, bias)
        y = index.linear(weight, stored, None).t()
        y = y if bias is None else y + bias
        return y.reshape(*x.shape[:-1], weight.shape[0])

    @staticmethod
    @differentiable_once("SparseTensor")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        index, stored = _rows(x)
        dy = gradient.reshape(-1, weight.shape[0])
        weight, stored = weight.to(dy.dtype), stored.to(dy.dtype)
        turned = dy.t().contiguous()
        dx: Tensor | None = None
        dw = db = None
        if ctx.needs_input_grad[0]:
            at_stored = index.dw(turned, weight) if "dw" in index.directions else index.pack(dy @ weight)
            if index.plain:
                dx = at_stored.reshape(x.shape)
            else:
                dx = SparseTensor(index, at_stored, x.shape, x.registry)
        if ctx.needs_input_grad[1]:
            dw = index.dx(turned, stored)
        if len(ctx.needs_input_grad) == 3 and ctx.needs_input_grad[2]:
            db = dy.sum(0)
        return (dx, dw, db)[: len(ctx.needs_input_grad)]


def _cast(*operands: Any) -> Any:
    """Returns the operands in the dtype of autocast, if it is on."""
    kind = operands[0].device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind) or operands[0].dtype == torch.float64:
        return operands
    dtype = torch.get_autocast_dtype(kind)
    return tuple(None if operand is None else operand.to(dtype) for operand in operands)


def _rows(x: SparseTensor) -> tuple[Layout, Tensor]:
    """Returns layout and values of x as a matrix [product of the others, last size]; as a dense matrix if its
    layout has another shape."""
    index = x.layout_index
    if index.cols == x.shape[-1]:
        return index, x.stored
    dense = index.to_dense(x.stored).reshape(-1, x.shape[-1])
    return Dense.from_dense(dense), dense


OURS.register(functional.linear, inputs=(Layout, Dense), outputs=_TO_DENSE)(LinearOfSparse)
OURS.register(functional.linear, inputs=(Layout, Dense, Dense), outputs=_TO_DENSE)(LinearOfSparse)
OURS.register(functional.linear, inputs=(Dense, Layout), outputs=_TO_DENSE)(Linear)
OURS.register(functional.linear, inputs=(Dense, Layout, Dense), outputs=_TO_DENSE)(Linear)
OURS.register(torch.mm, inputs=(Layout, Dense), outputs=_TO_DENSE)(Product)
