"""Recurrent steps one by one, for cells that are no plain LSTM: products whose weight's gradient waits for
all steps, and the LSTM's pointwise half."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _operators
from ._recurrent import Weight


class Products:
    """The products of one weight with the states of a sequence's steps. Its gradient is one product over the
    rows of all steps: each step's backward pass gives dX alone and keeps its rows, and the last one to run
    makes dW of them."""

    def __init__(self, weight: Weight) -> None:
        self._weight = weight
        self._rows: list[tuple[Tensor, Tensor]] = []  # (dy, x) of the steps that have run backward
        needed = torch.is_grad_enabled() and weight.values.requires_grad
        self._token = _Gradient.apply(weight.values, self) if needed else None

    def __call__(self, x: Tensor) -> Tensor:
        """Returns x W^T, for x [rows, in]; differentiable once."""
        if torch.is_grad_enabled() and (self._token is not None or x.requires_grad):
            y: Tensor = _Product.apply(x, self._token, self._weight.values.detach(), self)
            return y
        return self._weight.product(x)

    def gradient(self) -> Tensor | None:
        """Returns dW of the steps that have run backward, and forgets them."""
        if not self._rows:
            return None
        dy, x = (torch.cat(rows) for rows in zip(*self._rows, strict=True))
        self._rows.clear()
        return self._weight.dw(dy, x)


class _Gradient(torch.autograd.Function):
    """Gives the steps' products a token to depend on: autograd calls backward when all of them have run."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, products: Products) -> Tensor:
        ctx.products = products
        ctx.set_materialize_grads(False)
        return values.new_empty(())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, None]:
        return ctx.products.gradient(), None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor | None, values: Tensor, products: Products) -> Tensor:
        ctx.products = products
        ctx.save_for_backward(x if token is not None else None, values)
        return products._weight.product(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, _ = ctx.saved_tensors  # the values are looked at for writes since the forward pass alone
        need_x, need_token, *_ = ctx.needs_input_grad
        dy = dy.contiguous()
        if need_token:
            ctx.products._rows.append((dy, x))
        return ctx.products._weight.dx(dy) if need_x else None, None, None, None


class _Cell(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gates, after, h = torch.empty_like(z), torch.empty_like(c), z.new_empty(c.shape)
        _operators.lstm_cell_pointwise(z, c, gates, after, h)
        ctx.save_for_backward(gates, c, after)
        ctx.set_materialize_grads(False)
        return h, after

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dh: Tensor | None, dc: Tensor | None) -> tuple[Tensor, Tensor]:
        gates, c, after = ctx.saved_tensors
        dz = torch.empty_like(gates)
        dc = torch.zeros_like(c) if dc is None else dc.clone(memory_format=torch.contiguous_format)
        dh = None if dh is None else dh.contiguous()
        _operators.lstm_cell_pointwise_backward(gates, c, after, dh, None, dc, dz)
        return dz, dc


def lstm_cell(z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Returns h, of z's dtype, and c of one step of an LSTM, differentiably once.

    z is [rows, 4 hidden], the gates i, f, g, o before their activations; c is [rows, hidden] of float32,
    or of float64 beside float64.
    """
    z, c = z.contiguous(), c.contiguous()
    if torch.is_grad_enabled() and (z.requires_grad or c.requires_grad):
        found: tuple[Tensor, Tensor] = _Cell.apply(z, c)
        return found
    after, h = torch.empty_like(c), z.new_empty(c.shape)
    _operators.lstm_cell_pointwise(z, c, None, after, h)
    return h, after
