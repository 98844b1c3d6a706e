"""Connects sequences of recurrent layers to autograd and to torch.compile, for which a sequence is one
operator."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..._home import NAMESPACE
from ..devices import on_one_device, require_one_device
from ..once import differentiable_once
from ..transforms import transformed
from . import transformed as _recurrent_transformed
from . import walk as _recurrent
from .walk import Walk, Weight, state_dtype

#: A Weight without its values: the packed index and the numbers.
Placement: TypeAlias = "tuple[Tensor | None, tuple[int, ...]]"
#: The arguments of a sequence that are no operands: whether it is an LSTM, the placement of the weight's and
#: the projection's blocks, and the walk.
SequenceOptions: TypeAlias = "tuple[bool, Placement, Placement, Walk]"

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
    projected = None if projection is None else Weight(projection, projection_index, projection_numbers)
    return _recurrent.lstm_forward(gx, h0, c0, weight, bias, projected, walk, save)


def _backward(
    lstm: bool, dy: Tensor | None, dhn: Tensor | None, dcn: Tensor | None, saved: list[Tensor],
    values: Tensor, index: Tensor | None, numbers: Any, projection: Tensor | None,
    projection_index: Tensor | None, projection_numbers: Any, sizes: Any, reverse: bool, needs: Any,
) -> list[Tensor]:  # fmt: skip
    # the kernels need contiguous rows
    dy, dhn, dcn = (None if gradient is None else gradient.contiguous() for gradient in (dy, dhn, dcn))
    weight, rows = Weight(values, index, numbers), saved[2 if lstm else 1].shape[0]
    walk = Walk.of(sizes, rows, saved[0].shape[0] - rows, reverse)
    if not lstm:
        return _recurrent.gru_backward(dy, dhn, saved, weight, walk, tuple(needs))
    projected = None if projection is None else Weight(projection, projection_index, projection_numbers)
    return _recurrent.lstm_backward(dy, dhn, dcn, saved, weight, projected, walk, tuple(needs))


_forward_operator: Any = torch.library.custom_op(
    f"{NAMESPACE}::recurrent_forward", _forward, mutates_args=(), schema=_FORWARD
)
_backward_operator: Any = torch.library.custom_op(
    f"{NAMESPACE}::recurrent_backward", _backward, mutates_args=(), schema=_BACKWARD
)


@_forward_operator.register_fake
@on_one_device("recurrent", _forward_operator._opoverload._schema)
def _forward_fake(
    lstm: bool, gx: Tensor, h0: Tensor, c0: Tensor | None, values: Tensor, index: Tensor | None,
    numbers: Any, bias: Tensor | None, projection: Tensor | None, projection_index: Tensor | None,
    projection_numbers: Any, sizes: Any, reverse: bool, save: bool,
) -> list[Tensor]:  # fmt: skip
    rows, hidden = gx.shape[0], gx.shape[1] // (4 if lstm else 3)
    results = [h0.new_empty((rows + h0.shape[0], h0.shape[1])), h0.new_empty(h0.shape)]
    if c0 is None:
        return [*results, gx.new_empty((rows, 4 * hidden))] if save else results
    results.append(c0.new_empty(c0.shape))
    if not save:
        return results
    outputs = gx.new_empty((rows, hidden) if projection is not None else (0,))
    return [*results, c0.new_empty((rows + h0.shape[0], hidden)), gx.new_empty(gx.shape), outputs]


@_backward_operator.register_fake
@on_one_device("recurrent", _backward_operator._opoverload._schema)
def _backward_fake(
    lstm: bool, dy: Tensor | None, dhn: Tensor | None, dcn: Tensor | None, saved: list[Tensor],
    values: Tensor, index: Tensor | None, numbers: Any, projection: Tensor | None,
    projection_index: Tensor | None, projection_numbers: Any, sizes: Any, reverse: bool, needs: Any,
) -> list[Tensor]:  # fmt: skip
    h, gates = saved[0], saved[2 if lstm else 1]
    rows, hidden = gates.shape[0], gates.shape[1] // 4
    batch, width = h.shape[0] - rows, (4 if lstm else 3) * hidden
    gradients = [gates.new_empty((rows, width)), h.new_empty((batch, h.shape[1]))]
    gradients += [saved[1].new_empty((batch, hidden))] if lstm else []
    gradients += [
        values.new_empty(values.shape if needs[0] else (0,)),
        h.new_empty((width if needs[1] else 0,)),
    ]
    if lstm:
        shape_of = values if projection is None else projection
        gradients.append(shape_of.new_empty(shape_of.shape if needs[2] and projection is not None else (0,)))
    return gradients


class _Sequence(torch.autograd.Function):
    """A sequence with a gradient. Its outputs are h of all steps, h_n and, for an LSTM, c_n."""

    @staticmethod
    def forward(
        ctx: Any, gx: Tensor, h0: Tensor, c0: Tensor | None, values: Tensor, bias: Tensor | None,
        projection: Tensor | None, options: SequenceOptions,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        ctx.set_materialize_grads(False)
        lstm, place, projection_place, walk = ctx.options = options
        run = _forward_operator if torch.compiler.is_compiling() else _forward
        outputs = run(
            lstm, gx, h0, c0, values, *place, bias, projection, *projection_place, walk.sizes, walk.reverse,
            True,
        )  # fmt: skip
        results = 3 if lstm else 2
        ctx.save_for_backward(values, projection, outputs[0], *outputs[results:])
        return walk.data(outputs[0]), *outputs[1:results]

    @staticmethod
    @differentiable_once("recurrent")
    def backward(
        ctx: Any, dy: Tensor | None, dhn: Tensor | None, dcn: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        values, projection, *saved = ctx.saved_tensors
        lstm, (index, numbers), (projection_index, projection_numbers), walk = ctx.options
        need_x, need_h, need_c, *needs, _ = ctx.needs_input_grad
        run = _backward_operator if torch.compiler.is_compiling() else _backward
        gradients = run(
            lstm, dy, dhn, dcn, saved, values, index, numbers, projection, projection_index,
            projection_numbers, walk.sizes, walk.reverse, list(needs),
        )  # fmt: skip
        dx, dh, dc, *parameter_gradients = gradients if lstm else (*gradients[:2], None, *gradients[2:], None)
        grads = [
            gradient if need else None for gradient, need in zip(parameter_gradients, needs, strict=True)
        ]
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
    if projection is not None:
        names |= {"projection": projection.values, "its index": projection.packed}
    require_one_device("recurrent", names)
    lstm, dtype = c0 is not None, gx.dtype
    # c is a sum over all steps; 16 bits would round it in each step.
    c0 = None if c0 is None else c0.to(state_dtype(dtype))
    values, projection_values = weight.values, None if projection is None else projection.values
    none: Placement = (None, ())
    place = weight.packed, weight.numbers
    projection_place = none if projection is None else (projection.packed, projection.numbers)
    operands = gx, h0, c0, values, bias, projection_values
    results: Any
    if transformed() and not torch.compiler.is_compiling():
        results = _recurrent_transformed.sequence(gx, h0, c0, weight, bias, projection, walk)
        return (*results[:2], results[2].to(dtype)) if lstm else results
    needed = torch.is_grad_enabled() and any(
        operand is not None and operand.requires_grad for operand in operands
    )
    if needed and torch._C._get_tracing_state() is None:  # jit.trace records operators, but no Functions
        results = _Sequence.apply(*operands, (lstm, place, projection_place, walk))
    else:
        run = _forward_operator if torch.compiler.is_compiling() else _forward
        h, *finals = run(
            lstm, gx, h0, c0, values, *place, bias, projection_values, *projection_place, walk.sizes,
            walk.reverse, False,
        )  # fmt: skip
        results = walk.data(h), *finals
    return (*results[:2], results[2].to(dtype)) if lstm else tuple(results)
