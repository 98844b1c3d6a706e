"""Connects sequences of recurrent layers to autograd and to torch.compile, for which a sequence is one
operator."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..devices import on_one_device, require_one_device
from ..once import differentiable_once
from ..transforms import transformed
from . import transformed as _recurrent_transformed
from . import walk as _recurrent
from .walk import Walk, Weight, state_dtype

#: What a weight is beside its values: the packed index and the numbers of a Weight.
Where: TypeAlias = "tuple[Tensor | None, tuple[int, ...]]"
#: The arguments of a sequence that are no operands: whether it is an LSTM, where the weight's and the
#: projection's blocks lie, and the walk.
How: TypeAlias = "tuple[bool, Where, Where, Walk]"

# The schemas are written out: torch cannot read them from annotations that are strings.
_FORWARD = (
    "(bool lstm, Tensor gx, Tensor h0, Tensor? c0, Tensor values, Tensor? index, SymInt[] numbers, "
    "Tensor? bias, Tensor? projection, Tensor? projection_index, SymInt[] projection_numbers, "
    "SymInt[] sizes, bool reverse, bool save) -> Tensor[]"
)
_BACKWARD = (
    "(bool lstm, Tensor? dy, Tensor? dhn, Tensor? dcn, Tensor[] saved, Tensor values, Tensor? index, "
    "SymInt[] numbers, Tensor? projection, Tensor? projection_index, SymInt[] projection_numbers, "
    "SymInt[] sizes, bool reverse, bool[] needs) -> Tensor[]"
)


def _forward(
    lstm: bool, gx: Tensor, h0: Tensor, c0: Tensor | None, values: Tensor, index: Tensor | None,
    numbers: Any, bias: Tensor | None, projection: Tensor | None, projection_index: Tensor | None,
    projection_numbers: Any, sizes: Any, reverse: bool, save: bool,
) -> list[Tensor]:  # fmt: skip
    walk = Walk.of(sizes, gx.shape[0], h0.shape[0], reverse)
    weight = Weight(values, index, numbers)
    if not lstm:
        return _recurrent.gru_forward(gx, h0, weight, bias, walk, save)
    assert c0 is not None
    narrow = None if projection is None else Weight(projection, projection_index, projection_numbers)
    return _recurrent.lstm_forward(gx, h0, c0, weight, bias, narrow, walk, save)


def _backward(
    lstm: bool, dy: Tensor | None, dhn: Tensor | None, dcn: Tensor | None, saved: list[Tensor],
    values: Tensor, index: Tensor | None, numbers: Any, projection: Tensor | None,
    projection_index: Tensor | None, projection_numbers: Any, sizes: Any, reverse: bool, needs: Any,
) -> list[Tensor]:  # fmt: skip
    # a step's rows are read and written as they lie
    dy, dhn, dcn = (None if each is None else each.contiguous() for each in (dy, dhn, dcn))
    weight, rows = Weight(values, index, numbers), saved[2 if lstm else 1].shape[0]
    walk = Walk.of(sizes, rows, saved[0].shape[0] - rows, reverse)
    if not lstm:
        return _recurrent.gru_backward(dy, dhn, saved, weight, walk, tuple(needs))
    narrow = None if projection is None else Weight(projection, projection_index, projection_numbers)
    return _recurrent.lstm_backward(dy, dhn, dcn, saved, weight, narrow, walk, tuple(needs))


_forward_operator: Any = torch.library.custom_op(
    "sparseloom::recurrent_forward", _forward, mutates_args=(), schema=_FORWARD
)
_backward_operator: Any = torch.library.custom_op(
    "sparseloom::recurrent_backward", _backward, mutates_args=(), schema=_BACKWARD
)


@_forward_operator.register_fake
@on_one_device("recurrent", _forward_operator._opoverload._schema)
def _forward_fake(
    lstm: bool, gx: Tensor, h0: Tensor, c0: Tensor | None, values: Tensor, index: Tensor | None,
    numbers: Any, bias: Tensor | None, projection: Tensor | None, projection_index: Tensor | None,
    projection_numbers: Any, sizes: Any, reverse: bool, save: bool,
) -> list[Tensor]:  # fmt: skip
    rows, hidden = gx.shape[0], gx.shape[1] // (4 if lstm else 3)
    found = [h0.new_empty((rows + h0.shape[0], h0.shape[1])), h0.new_empty(h0.shape)]
    if c0 is None:
        return [*found, gx.new_empty((rows, 4 * hidden))] if save else found
    found.append(c0.new_empty(c0.shape))
    if not save:
        return found
    outputs = gx.new_empty((rows, hidden) if projection is not None else (0,))
    return [*found, c0.new_empty((rows + h0.shape[0], hidden)), gx.new_empty(gx.shape), outputs]


@_backward_operator.register_fake
@on_one_device("recurrent", _backward_operator._opoverload._schema)
def _backward_fake(
    lstm: bool, dy: Tensor | None, dhn: Tensor | None, dcn: Tensor | None, saved: list[Tensor],
    values: Tensor, index: Tensor | None, numbers: Any, projection: Tensor | None,
    projection_index: Tensor | None, projection_numbers: Any, sizes: Any, reverse: bool, needs: Any,
) -> list[Tensor]:  # fmt: skip
    h, gates = saved[0], saved[2 if lstm else 1]
    rows, hidden = gates.shape[0], gates.shape[1] // 4
    batch, wide = h.shape[0] - rows, (4 if lstm else 3) * hidden
    found = [gates.new_empty((rows, wide)), h.new_empty((batch, h.shape[1]))]
    found += [saved[1].new_empty((batch, hidden))] if lstm else []
    found += [values.new_empty(values.shape if needs[0] else (0,)), h.new_empty((wide if needs[1] else 0,))]
    if lstm:
        like = values if projection is None else projection
        found.append(like.new_empty(like.shape if needs[2] and projection is not None else (0,)))
    return found


class _Sequence(torch.autograd.Function):
    """A sequence whose gradient is asked for. Its outputs are h of all steps, h_n and, of an LSTM, c_n."""

    @staticmethod
    def forward(
        ctx: Any, gx: Tensor, h0: Tensor, c0: Tensor | None, values: Tensor, bias: Tensor | None,
        projection: Tensor | None, how: How,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        ctx.set_materialize_grads(False)
        lstm, where, narrow, walk = ctx.how = how
        run = _forward_operator if torch.compiler.is_compiling() else _forward
        found = run(
            lstm, gx, h0, c0, values, where[0], where[1], bias, projection, narrow[0], narrow[1], walk.sizes,
            walk.reverse, True,
        )  # fmt: skip
        results = 3 if lstm else 2
        ctx.save_for_backward(values, projection, found[0], *found[results:])
        return walk.data(found[0]), *found[1:results]

    @staticmethod
    @differentiable_once("recurrent")
    def backward(
        ctx: Any, dy: Tensor | None, dhn: Tensor | None, dcn: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        values, projection, *saved = ctx.saved_tensors
        lstm, where, narrow, walk = ctx.how
        need_x, need_h, need_c, *needs, _ = ctx.needs_input_grad
        run = _backward_operator if torch.compiler.is_compiling() else _backward
        found = run(
            lstm, dy, dhn, dcn, saved, values, where[0], where[1], projection, narrow[0], narrow[1],
            walk.sizes, walk.reverse, list(needs),
        )  # fmt: skip
        dx, dh, dc, *rest = found if lstm else (*found[:2], None, *found[2:], None)
        grads = [each if need else None for each, need in zip(rest, needs, strict=True)]
        return dx if need_x else None, dh if need_h else None, dc if need_c else None, *grads, None


def sequence(
    gx: Tensor, h0: Tensor, c0: Tensor | None, weight: Weight, bias: Tensor | None,
    projection: Weight | None, walk: Walk,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns h of all steps [rows, ..], h_n and, where c0 is given, c_n of an LSTM; without c0, those of a
    GRU. Differentiable once in all operands; to any order under torch.func, vmap and forward mode.

    Args:
        gx: [rows, 4 hidden], of a GRU [rows, 3 hidden]: the product of the inputs with its bias, step after
            step.
        h0: [batch, hidden], or [batch, projected]; c0: [batch, hidden]. All tensors have one dtype.
        weight: [4 hidden, hidden or projected], of a GRU [3 hidden, hidden]; bias: its own.
        projection: [projected, hidden] of an LSTM, or None.
    """
    names = {"x": gx, "h0": h0, "c0": c0, "weight": weight.values, "index": weight.packed, "bias": bias}
    narrowed = {} if projection is None else {"projection": projection.values, "its index": projection.packed}
    require_one_device("recurrent", names | narrowed)
    lstm, dtype = c0 is not None, gx.dtype
    # c is a sum over all steps, which 16 bits would round in each.
    c0 = None if c0 is None else c0.to(state_dtype(dtype))
    values, narrow = weight.values, None if projection is None else projection.values
    none: Where = (None, ())
    where = weight.packed, weight.numbers
    narrow_where = none if projection is None else (projection.packed, projection.numbers)
    operands = gx, h0, c0, values, bias, narrow
    found: Any
    if transformed() and not torch.compiler.is_compiling():
        found = _recurrent_transformed.sequence(gx, h0, c0, weight, bias, projection, walk)
        return (*found[:2], found[2].to(dtype)) if lstm else found
    needed = torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in operands)
    if needed and torch._C._get_tracing_state() is None:  # jit.trace records operators, but no Functions
        found = _Sequence.apply(*operands, (lstm, where, narrow_where, walk))
    else:
        run = _forward_operator if torch.compiler.is_compiling() else _forward
        h, *others = run(
            lstm, gx, h0, c0, values, *where, bias, narrow, *narrow_where, walk.sizes, walk.reverse, False
        )
        found = walk.data(h), *others
    return (*found[:2], found[2].to(dtype)) if lstm else tuple(found)
