"""Sequences of recurrent layers: a loop over the steps, with one product of the recurrent weight and one pass
over the gates in each. The gradient of the weight is one product over all steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import operators
from ..operators import PLAN_CHOOSES, tf32_of
from . import fakes as fakes

LSTM_CELL_BACKWARD = operators.overload("lstm_cell_pointwise_backward")
LSTM_CELL = operators.overload("lstm_cell_pointwise")
GRU_CELL_BACKWARD = operators.overload("gru_cell_pointwise_backward")
GRU_CELL = operators.overload("gru_cell_pointwise")
_STEPS = operators.overload("recurrent_steps")
_STEPS_BACKWARD = operators.overload("recurrent_steps_backward")


class Weight(NamedTuple):
    """A matrix [out, in] of the layer: blocks with their packed index, or dense. ``numbers``: the other
    fields of ops.Index, whether only sparse kernels may run, and the ``side`` of an LSTM's gates."""

    values: Tensor
    packed: Tensor | None = None
    numbers: tuple[int, ...] = ()

    @property
    def side(self) -> int:
        """The units of a gate that are adjacent in the product's result; 0: all of them."""
        return self.numbers[7] if len(self.numbers) > 7 else 0

    def takes(self, walk: Walk, projection: Weight | None = None) -> bool:
        """Returns whether one operator runs all steps: on the CPU, where a step is short beside a call."""
        return (
            self.packed is not None
            and self.values.device.type == "cpu"
            and projection is None
            and (walk.uniform or not walk.reverse)
        )

    @property
    def of_steps(self) -> tuple[bool, int, int]:
        """The last arguments of the operators of all steps."""
        return bool(self.numbers[6]), self.numbers[5], self.side

    def product(self, x: Tensor, bias: Tensor | None = None, residual: Tensor | None = None) -> Tensor:
        if self.packed is None:
            y = F.linear(x, self.values, bias)
            return y if residual is None else y + residual
        _, rows, _, _, _, digest, strict, *_ = self.numbers
        options = bias, 0, residual, PLAN_CHOOSES, bool(strict), tf32_of(x), digest
        return operators.linear(x, self.values, self.packed, rows, *options)

    def dx(self, dy: Tensor) -> Tensor:
        if self.packed is None:
            return dy @ self.values
        _, _, cols, _, _, digest, strict, *_ = self.numbers
        return operators.linear_dx(
            dy, self.values, self.packed, cols, PLAN_CHOOSES, bool(strict), tf32_of(dy), digest
        )

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        if self.packed is None:
            return dy.t() @ x
        blocks, _, _, bm, bn, digest, strict, *_ = self.numbers
        return operators.linear_dw(
            dy, x, self.packed, blocks, bm, bn, PLAN_CHOOSES, bool(strict), tf32_of(dy), digest
        )


class Place(NamedTuple):
    """The rows of a step in the data, and the rows of the state before it in a buffer."""

    begin: int
    end: int
    before: int
    known: int  # rows that have a state before the step; the other rows start from their initial states


class Walk(NamedTuple):
    """The steps of a batch of sequences, longest first. Their rows are ordered by step, as in a
    PackedSequence. A buffer of states also has the initial states: before the others, or after them if the
    steps run in reverse."""

    sizes: tuple[int, ...]  # sequences of each step; they never grow
    batch: int
    reverse: bool
    rows: int  # of all steps

    @classmethod
    def of(cls, sizes: Sequence[int], rows: int, batch: int, reverse: bool) -> Walk:
        """Returns the walk over that many rows. A single size is that of every step: compiled code, which
        serves any number of steps, cannot list them."""
        if len(sizes) == 1 and sizes[0] < rows:
            sizes = [sizes[0]] * (rows // sizes[0])
        return cls(tuple(sizes), batch, reverse, rows)

    @property
    def uniform(self) -> bool:
        """Whether all sequences have one length."""
        return self.sizes[-1] == self.batch

    def places(self) -> list[Place]:
        """Returns the steps in the order in which they are taken."""
        ends, offset = list[int](), 0 if self.reverse else self.batch
        for size in self.sizes:
            ends.append((ends[-1] if ends else 0) + size)
        steps, state_row, count = list[Place](), self.rows if self.reverse else 0, self.batch
        order = range(len(ends))
        for step in reversed(order) if self.reverse else order:
            begin = ends[step] - self.sizes[step]
            steps.append(Place(begin, ends[step], state_row, count))
            state_row, count = offset + begin, self.sizes[step]
        return steps

    def buffer(self, initial: Tensor) -> Tensor:
        """Returns a buffer whose initial states are set."""
        states = initial.new_empty((self.rows + self.batch, initial.shape[1]))
        self.initial(states).copy_(initial)
        return states

    def initial(self, buffer: Tensor) -> Tensor:
        return buffer[self.rows :] if self.reverse else buffer[: self.batch]

    def data(self, buffer: Tensor) -> Tensor:
        """Returns the states after the steps, in the order of the data (a view)."""
        return buffer[: self.rows] if self.reverse else buffer[self.batch :]

    def before(self, buffer: Tensor, place: Place) -> Tensor:
        """Returns the states before a step."""
        size, count = place.end - place.begin, place.known
        if size <= count:
            return buffer[place.before : place.before + size]
        begun = self.initial(buffer)[count:size]  # in reverse, shorter sequences begin at this step
        return torch.cat([buffer[place.before : place.before + count], begun])

    def all_before(self, buffer: Tensor, places: list[Place]) -> Tensor:
        """Returns the states before all steps, in the order of the data."""
        if self.uniform:
            return buffer[self.batch :] if self.reverse else buffer[: self.rows]
        return torch.cat([self.before(buffer, place) for place in sorted(places)])

    def final(self, buffer: Tensor, places: list[Place]) -> Tensor:
        """Returns the states after each sequence's last step (copied)."""
        data = self.data(buffer)
        if self.reverse or self.uniform:
            place = places[-1]
            return data[place.begin : place.end].clone()
        pieces, taken = list[Tensor](), 0
        for place in reversed(places):
            size = place.end - place.begin
            pieces.append(data[place.begin + taken : place.end])
            taken = size
        return torch.cat(pieces)


def lstm_forward(
    gx: Tensor, h0: Tensor, c0: Tensor, weight: Weight, bias: Tensor | None, projection: Weight | None,
    walk: Walk, save: bool,
) -> list[Tensor]:  # fmt: skip
    """Returns h [rows + batch, ..], h_n and c_n, and with ``save`` what the gradient needs: c, the gates, and
    the outputs before the projection (empty without one)."""
    places, hidden = walk.places(), c0.shape[1]
    h = walk.buffer(h0)
    # Without ``save`` the state c is overwritten in each step.
    c = walk.buffer(c0) if save else c0.clone()
    gates = torch.empty_like(gx) if save else None
    m = walk.data(h) if projection is None else gx.new_empty((walk.rows, hidden))
    states = walk.data(c) if save else c
    in_one = weight.takes(walk, projection)
    if in_one:
        _STEPS(
            True, gx.contiguous(), h, c, gates, weight.values, weight.packed, bias, walk.sizes, walk.reverse,
            *weight.of_steps,
        )  # fmt: skip
    for place in [] if in_one else places:
        begin, end, size = place.begin, place.end, place.end - place.begin
        z = weight.product(walk.before(h, place), bias, gx[begin:end])
        old_c, new_c = (walk.before(c, place), states[begin:end]) if save else (c[:size], c[:size])
        step = None if gates is None else gates[begin:end]
        LSTM_CELL(z, old_c, step, new_c, m[begin:end], weight.side)
        if projection is not None:
            walk.data(h)[begin:end] = projection.product(m[begin:end])
    results = [h, walk.final(h, places), walk.final(c, places) if save else c]
    if gates is None:
        return results
    return [*results, c, gates, m if projection is not None else gx.new_empty(0)]


def lstm_backward(
    dy: Tensor | None, dhn: Tensor | None, dcn: Tensor | None, saved: list[Tensor], weight: Weight,
    projection: Weight | None, walk: Walk, needs: tuple[bool, bool, bool],
) -> list[Tensor]:  # fmt: skip
    """Returns the gradients of gx, h0 and c0, and those of the weight, the bias and the projection, empty
    unless ``needs`` asks for them. ``saved``: h, c, gates and m."""
    h, c, gates, m = saved
    need_weight, need_bias, need_projection = needs
    dz, places = torch.empty_like(gates), walk.places()
    dc = c.new_zeros((walk.batch, c.shape[1])) if dcn is None else dcn.clone()
    dh = h.new_zeros((walk.batch, h.shape[1])) if dhn is None else dhn.clone()
    totals = dz.new_empty((walk.rows, h.shape[1])) if projection is not None else None
    in_one = weight.takes(walk, projection)
    if in_one:
        _STEPS_BACKWARD(
            dy, dh, dc, h, c, gates, dz, None, None, weight.values, weight.packed, walk.sizes, walk.reverse,
            *weight.of_steps,
        )  # fmt: skip
    for place in [] if in_one else reversed(places):
        begin, end, size = place.begin, place.end, place.end - place.begin
        first: Tensor | None = None if dy is None else dy[begin:end]
        second: Tensor | None = dh[:size]
        if projection is not None and totals is not None:
            totals[begin:end] = dh[:size] if first is None else first + dh[:size]
            first, second = projection.dx(totals[begin:end]), None
        LSTM_CELL_BACKWARD(
            gates[begin:end], walk.before(c, place), walk.data(c)[begin:end], first, second, dc[:size],
            dz[begin:end], weight.side,
        )  # fmt: skip
        dx = weight.dx(dz[begin:end])
        if walk.uniform:
            dh = dx
        else:
            dh[:size] = dx
    nothing = dz.new_empty(0)
    return [
        dz,
        dh,
        dc,
        weight.dw(dz, walk.all_before(h, places)) if need_weight else nothing,
        dz.sum(0) if need_bias else nothing,
        projection.dw(totals, m) if need_projection and projection and totals is not None else nothing,
    ]


def gru_forward(
    gx: Tensor, h0: Tensor, weight: Weight, bias: Tensor | None, walk: Walk, save: bool
) -> list[Tensor]:
    """Returns h [rows + batch, hidden] and h_n, and with ``save`` the gates [rows, 4 hidden]."""
    places, h = walk.places(), walk.buffer(h0)
    gates = gx.new_empty((walk.rows, 4 * h0.shape[1])) if save else None
    in_one = weight.takes(walk)
    if in_one:
        _STEPS(
            False, gx.contiguous(), h, None, gates, weight.values, weight.packed, bias, walk.sizes,
            walk.reverse, *weight.of_steps,
        )  # fmt: skip
    for place in [] if in_one else places:
        begin, end, old_h = place.begin, place.end, walk.before(h, place)
        step = None if gates is None else gates[begin:end]
        g = weight.product(old_h, bias)
        GRU_CELL(gx[begin:end], g, old_h, step, walk.data(h)[begin:end])
    results = [h, walk.final(h, places)]
    return results if gates is None else [*results, gates]


def gru_backward(
    dy: Tensor | None, dhn: Tensor | None, saved: list[Tensor], weight: Weight, walk: Walk,
    needs: tuple[bool, bool, bool],
) -> list[Tensor]:  # fmt: skip
    """Returns the gradients of gx and h0, and those of the weight and the bias, empty unless ``needs`` asks
    for them. ``saved``: h and gates."""
    h, gates = saved
    places, hidden = walk.places(), h.shape[1]
    dgx, dg = (gates.new_empty((walk.rows, 3 * hidden)) for _ in range(2))
    dh = h.new_zeros((walk.batch, hidden)) if dhn is None else dhn.clone()  # beside the product
    by_product = torch.zeros_like(dh)
    in_one = weight.takes(walk)
    if in_one:
        _STEPS_BACKWARD(
            dy, dh, None, h, None, gates, dgx, dg, by_product, weight.values, weight.packed, walk.sizes,
            walk.reverse, *weight.of_steps,
        )  # fmt: skip
    for place in [] if in_one else reversed(places):
        begin, end, size = place.begin, place.end, place.end - place.begin
        GRU_CELL_BACKWARD(
            gates[begin:end], walk.before(h, place), None if dy is None else dy[begin:end], dh[:size],
            by_product[:size], dgx[begin:end], dg[begin:end], dh[:size],
        )  # fmt: skip
        dx = weight.dx(dg[begin:end])
        if walk.uniform:
            by_product = dx
        else:
            by_product[:size] = dx
    nothing = dg.new_empty(0)
    return [
        dgx,
        dh + by_product,
        weight.dw(dg, walk.all_before(h, places)) if needs[0] else nothing,
        dg.sum(0) if needs[1] else nothing,
    ]


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of the LSTM's state c between steps."""
    return torch.float64 if dtype is torch.float64 else torch.float32
