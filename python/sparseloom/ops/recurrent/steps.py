"""Recurrent steps one by one, for cells that are no plain LSTM: products that compute their weight's gradient
once, after all steps, and the pointwise part of an LSTM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import verbs
from ..once import differentiable_once, once
from ..transforms import transformed
from ..verbs import multiply
from . import transformed as _recurrent_transformed
from .walk import LSTM_CELL, LSTM_CELL_BACKWARD, Weight


def by_functions() -> bool:
    """Returns whether the steps run by the Functions of this package. torch.func, vmap and forward mode need
    products and cells with every derivative, torch.jit.trace records no Functions, and Dynamo cannot trace
    the state that these share between steps."""
    if torch.compiler.is_compiling():
        return False
    return not transformed() and torch._C._get_tracing_state() is None


class Rows:
    """Contiguous memory for the rows of all steps of a sequence, so that a product over all of them needs no
    copy."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._all: Tensor | None = None
        self.last_dc: Tensor | None = None  # of the last backward pass; the next one may overwrite it

    def at(self, step: int, like: Tensor) -> Tensor:
        """Returns memory for the rows of a step, of the shape and dtype of ``like``; beyond the last step,
        newly allocated memory."""
        if step >= self._steps:
            return torch.empty_like(like, memory_format=torch.contiguous_format)
        if self._all is None or self._all.shape[1:] != like.shape or self._all.dtype != like.dtype:
            self._all = like.new_empty((self._steps, *like.shape))
        # .data, because for a view autograd would count each step's write as a change of all steps
        return self._all[step].data


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    """Returns the rows of all steps, given last step first: without a copy if they are contiguous in
    memory."""
    rows, first = parts[::-1], parts[-1]
    storage, size = first.untyped_storage().data_ptr(), first.numel() * first.element_size()
    if all(
        part.is_contiguous()
        and part.shape == first.shape
        and part.untyped_storage().data_ptr() == storage
        and part.data_ptr() == first.data_ptr() + i * size
        for i, part in enumerate(rows)
    ):
        return first.as_strided((len(rows) * len(first), first.shape[1]), (first.shape[1], 1))
    return torch.cat(rows)


class Products:
    """The products of one weight with the states of all steps of a sequence. dW is one product over the rows
    of all steps: the backward pass of each step computes only dX and keeps its rows, and the last one to run
    computes dW from them."""

    def __init__(self, weight: Weight) -> None:
        self._kept = _Kept(weight)
        needed = torch.is_grad_enabled() and weight.values.requires_grad
        self._token = Token.apply("SmallWorldLSTM", self._kept, weight.values) if needed else None

    def __call__(self, x: Tensor) -> Tensor:
        """Returns x W^T, for x [rows, in]; differentiable once."""
        weight = self._kept.weight
        if torch.is_grad_enabled() and (self._token is not None or x.requires_grad):
            return multiply(x, self._token, None, self._kept)
        return weight.product(x)


class _Kept(verbs.Weight):
    """The weight of a sequence's products, with a token (or None) as its values. It keeps the rows that the
    backward passes of the steps save for the last one. It does not hold the token, whose history holds this
    object: so the autograd graph is freed with its last user, without Python's garbage collector, and a CUDA
    graph captured afterwards meets no node of another stream."""

    _op, _once = "SmallWorldLSTM", True

    def __init__(self, weight: Weight) -> None:
        self.weight = weight
        self._watched = (weight.values.detach(),)  # saved only to detect writes after the forward pass
        self.rows: list[tuple[Tensor, Tensor]] = []  # (dy, x) of the steps that have run backward

    def linear(self, x: Tensor, token: Tensor | None, bias: Tensor | None, *fused: Any) -> Tensor:
        return self.weight.product(x)

    def _gradients(
        self, node: Any, dy: Tensor, x: Tensor | None, token: Tensor | None, needs: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        need_x, need_token, *_ = needs
        dy = dy.contiguous()
        if need_token and runs(node, 1):
            assert x is not None
            self.rows.append((dy, x))
        return self.weight.dx(dy) if need_x else None, None, None

    def gradients(self) -> tuple[Tensor | None]:
        """Returns dW of the steps that have run backward, and resets them."""
        if not self.rows:
            return (None,)
        dy, x = (_joined(rows) for rows in zip(*self.rows, strict=True))
        self.rows.clear()
        return (self.weight.dw(dy, x),)


def runs(ctx: Any, tensor: int) -> bool:
    """Returns whether this backward pass computes the gradient of the Function's input number ``tensor``:
    autograd.grad of other tensors skips the token, and rows kept for it would wrongly count later."""
    return bool(torch._C._will_engine_execute_node(ctx.next_functions[tensor][0]))


class Token(torch.autograd.Function):
    """Makes a token that all steps depend on: autograd calls its backward after those of all steps, and
    ``kept`` then has the gradients of the tensors."""

    @staticmethod
    def forward(ctx: Any, op: str, kept: Any, *tensors: Tensor) -> Tensor:
        ctx.op, ctx.kept = op, kept
        ctx.set_materialize_grads(False)
        return tensors[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, *once(ctx.op, lambda *_: ctx.kept.gradients(), ctx)


class _Cell(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, c: Tensor, rows: Rows, step: int, over: bool, side: int
    ) -> tuple[Tensor, Tensor]:
        gates, new_c = z if over else torch.empty_like(z), torch.empty_like(c)
        h = rows.at(step, z[:, : c.shape[1]])
        LSTM_CELL(z, c, gates, new_c, h, side)
        # gates may overwrite z: we save them detached, because their history includes this node
        ctx.save_for_backward(gates.detach(), c, new_c)
        ctx.rows, ctx.side = rows, side
        ctx.set_materialize_grads(False)
        return h, new_c

    @staticmethod
    @differentiable_once("SmallWorldLSTM")
    def backward(ctx: Any, dh: Tensor | None, dc: Tensor | None) -> tuple[Tensor | None, ...]:
        gates, c, new_c = ctx.saved_tensors
        dz = torch.empty_like(gates)
        if dc is None:
            dc = torch.zeros_like(c)
        elif dc is not ctx.rows.last_dc:  # else it came from the next step, and has no other user
            dc = dc.clone(memory_format=torch.contiguous_format)
        dh = None if dh is None else dh.contiguous()
        LSTM_CELL_BACKWARD(gates, c, new_c, dh, None, dc, dz, ctx.side)
        ctx.rows.last_dc = dc
        return dz, dc, None, None, None, None


def lstm_cell(
    z: Tensor, c: Tensor, rows: Rows | None = None, step: int = 0, over: bool = False, side: int = 0
) -> tuple[Tensor, Tensor]:
    """Returns h, of z's dtype, and c of one step of an LSTM, differentiably once.

    z is [rows, 4 hidden], the gates i, f, g, o before their activations; c is [rows, hidden] of float32,
    or of float64 if z is. ``rows`` and ``step`` are the memory of h if a gradient is needed; ``over`` lets
    the gates overwrite z, which must not be needed later; ``side``: the units of a gate that are adjacent in
    z, 0 for all.
    """
    if not by_functions():
        return _recurrent_transformed.lstm_cell(z, c)
    z, c = z.contiguous(), c.contiguous()
    if torch.is_grad_enabled() and (z.requires_grad or c.requires_grad):
        result: tuple[Tensor, Tensor] = _Cell.apply(z, c, rows or Rows(0), step, over, side)
        return result
    new_c, h = torch.empty_like(c), z.new_empty(c.shape)
    LSTM_CELL(z, c, None, new_c, h, side)
    return h, new_c
