"""Recurrent steps one by one, for cells that are no plain LSTM: products whose weight's gradient waits for
all steps, and the LSTM's pointwise half."""

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
    """Returns whether the steps run by the Functions of this room. torch.func, vmap and forward mode want
    products and cells that have every derivative, torch.jit.trace records no Functions, and Dynamo cannot
    trace what these share from step to step."""
    if torch.compiler.is_compiling():
        return False
    return not transformed() and torch._C._get_tracing_state() is None


class Rows:
    """Memory for the rows of a sequence's steps, one step behind the other, so that a product over all of
    them needs no copy."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._all: Tensor | None = None
        self.kept: Tensor | None = None  # what a step's backward pass returned and the next may write to

    def at(self, step: int, like: Tensor) -> Tensor:
        """Returns memory for the rows of a step, of the shape and dtype of ``like``; beyond the last step,
        memory of its own."""
        if step >= self._steps:
            return torch.empty_like(like, memory_format=torch.contiguous_format)
        if self._all is None or self._all.shape[1:] != like.shape or self._all.dtype != like.dtype:
            self._all = like.new_empty((self._steps, *like.shape))
        # not a view for autograd, which would take each step's writing for a change of all steps
        return self._all[step].data


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    """Returns the rows of all steps, given last step first: without a copy where they lie one behind the
    other."""
    rows, first = parts[::-1], parts[-1]
    storage, size = first.untyped_storage().data_ptr(), first.numel() * first.element_size()
    if all(
        each.is_contiguous()
        and each.shape == first.shape
        and each.untyped_storage().data_ptr() == storage
        and each.data_ptr() == first.data_ptr() + i * size
        for i, each in enumerate(rows)
    ):
        return first.as_strided((len(rows) * len(first), first.shape[1]), (first.shape[1], 1))
    return torch.cat(rows)


class Products:
    """The products of one weight with the states of a sequence's steps. Its gradient is one product over the
    rows of all steps: each step's backward pass gives dX alone and keeps its rows, and the last one to run
    makes dW of them."""

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
    """The weight of a sequence's products, with a token in the place of its values, or None. It has what the
    backward passes of the steps leave for the last one. It does not know the token, whose history leads here:
    the graph of a sequence then goes when its last user does, without Python's garbage collector, and a CUDA
    graph captured after it meets no node of another stream."""

    _op, _once = "SmallWorldLSTM", True

    def __init__(self, weight: Weight) -> None:
        self.weight = weight
        self._watched = (weight.values.detach(),)  # looked at for writes since the forward pass alone
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
        """Returns dW of the steps that have run backward, and forgets them."""
        if not self.rows:
            return (None,)
        dy, x = (_joined(rows) for rows in zip(*self.rows, strict=True))
        self.rows.clear()
        return (self.weight.dw(dy, x),)


def runs(ctx: Any, tensor: int) -> bool:
    """Returns whether this backward pass goes on to the ``tensor``-th tensor that a Function was given:
    autograd.grad of others leaves a token's gradient out, and what was kept for it would count later."""
    return bool(torch._C._will_engine_execute_node(ctx.next_functions[tensor][0]))


class Token(torch.autograd.Function):
    """Gives the steps a token to depend on: autograd calls backward when all of them have run, and ``kept``
    then has the gradients of the tensors."""

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
        gates, after = z if over else torch.empty_like(z), torch.empty_like(c)
        h = rows.at(step, z[:, : c.shape[1]])
        LSTM_CELL(z, c, gates, after, h, side)
        # gates that overwrite z are kept without their history, which leads here
        ctx.save_for_backward(gates.detach(), c, after)
        ctx.rows, ctx.side = rows, side
        ctx.set_materialize_grads(False)
        return h, after

    @staticmethod
    @differentiable_once("SmallWorldLSTM")
    def backward(ctx: Any, dh: Tensor | None, dc: Tensor | None) -> tuple[Tensor | None, ...]:
        gates, c, after = ctx.saved_tensors
        dz = torch.empty_like(gates)
        if dc is None:
            dc = torch.zeros_like(c)
        elif dc is not ctx.rows.kept:  # of the step behind this one, it is nobody else's
            dc = dc.clone(memory_format=torch.contiguous_format)
        dh = None if dh is None else dh.contiguous()
        LSTM_CELL_BACKWARD(gates, c, after, dh, None, dc, dz, ctx.side)
        ctx.rows.kept = dc
        return dz, dc, None, None, None, None


def lstm_cell(
    z: Tensor, c: Tensor, rows: Rows | None = None, step: int = 0, over: bool = False, side: int = 0
) -> tuple[Tensor, Tensor]:
    """Returns h, of z's dtype, and c of one step of an LSTM, differentiably once.

    z is [rows, 4 hidden], the gates i, f, g, o before their activations; c is [rows, hidden] of float32,
    or of float64 beside float64. ``rows`` and ``step`` say where h lies if a gradient is asked for; ``over``
    lets the gates overwrite z, which nobody may need later; ``side``: units of a gate that lie side by side
    in z, 0 for all.
    """
    if not by_functions():
        return _recurrent_transformed.lstm_cell(z, c)
    z, c = z.contiguous(), c.contiguous()
    if torch.is_grad_enabled() and (z.requires_grad or c.requires_grad):
        found: tuple[Tensor, Tensor] = _Cell.apply(z, c, rows or Rows(0), step, over, side)
        return found
    after, h = torch.empty_like(c), z.new_empty(c.shape)
    LSTM_CELL(z, c, None, after, h, side)
    return h, after
