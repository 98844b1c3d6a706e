"""Finds the units and heads of a layer that have no effect, or a constant one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Effect(NamedTuple):
    """Which units matter. ``constant`` [units] is what a unit without effect hands on, whatever x is."""

    alive: Tensor
    constant: Tensor


def units(
    up: tuple[Tensor, Tensor | None],
    gate: tuple[Tensor, Tensor | None] | None,
    down: Tensor,
    act: Callable[[Tensor], Tensor],
    takes_constants: bool,
) -> Effect:
    """Finds the units of y = down (act(up x + b)), or, with a gate, of y = down (act(gate x + b') * (up x +
    b)).

    ``up`` and ``gate`` are (weight [units, in], bias [units] or None), ``down`` is [out, units]. A unit has
    no effect if its column of ``down`` is zero, or if it is the constant 0; another constant is as good if
    ``takes_constants`` says that a bias behind can take it.
    """
    silent = ~down.ne(0).any(0)
    flat, bias = _flat(up)
    if gate is None:
        constant, is_constant = act(bias), flat
    else:
        gate_flat, gate_bias = _flat(gate)
        gated = act(gate_bias)
        constant = torch.where(flat & gate_flat, gated * bias, torch.zeros_like(bias))
        is_zero = (flat & (bias == 0)) | (gate_flat & (gated == 0))
        is_constant = is_zero | (flat & gate_flat)
    constant = torch.where(silent, torch.zeros_like(constant), constant)
    usable = constant.isfinite() if takes_constants else constant == 0
    return Effect(~(silent | (is_constant & usable)), constant)


def heads(value: tuple[Tensor, Tensor | None], output: Tensor, size: int, takes_constants: bool) -> Effect:
    """Finds the query heads of an attention, [KV groups, queries of a group], that have an effect.

    ``value`` is (weight [groups * size, in], bias), ``output`` [out, heads * size]. The weights of a row of
    attention sum to 1, so that a head whose values are all one constant hands that on: ``constant`` is
    [groups, size].
    """
    rows, bias = _flat(value)
    groups = len(rows) // size
    silent = ~output.ne(0).any(0).unflatten(0, (groups, -1, size)).any(-1)
    constant = torch.where(rows, bias, torch.zeros_like(bias)).unflatten(0, (groups, size))
    usable = constant.isfinite() if takes_constants else constant == 0
    is_constant = (rows.unflatten(0, (groups, size)) & usable).all(1)
    return Effect(~(silent | is_constant[:, None]), constant)


def _flat(layer: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
    """Returns which rows of a weight are zero, and its bias."""
    weight, bias = layer
    return ~weight.ne(0).any(1), weight.new_zeros(len(weight)) if bias is None else bias
