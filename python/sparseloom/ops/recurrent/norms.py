"""LayerNorms between the steps of a recurrent cell. Each is fused with the input of some units and with relu;
the gradients of its parameters are computed once, after all steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import operators
from ..once import differentiable_once
from . import fakes as fakes
from .steps import Rows, Token, runs
from .walk import state_dtype

#: Rows of partial sums of the parameters' gradients (kUnitNormParts in unit_norm.h).
_PARTS = 8

_UNIT_NORM_BACKWARD = operators.overload("unit_norm_backward")
_UNIT_NORM = operators.overload("unit_norm")


class Reach(NamedTuple):
    """How extra numbers are applied to units: to every ``stride``-th unit of one group, multiplied or added,
    times ``scale``."""

    stride: int = 1
    group: int = 0
    multiply: bool = False
    scale: float = 1.0


class Norm:
    """One LayerNorm in all steps of a sequence: y = relu(extra(norm(z) weight + bias)).

    Args:
        weight, bias: [groups, units]; each group of a row is normalised by itself.
        dtype: of z. eps: as in nn.LayerNorm. relu: whether it follows.
        side: 0, or the number of units of a group that are adjacent in z before those of the next group.
        steps: the number of calls to come. Results and gradients of all calls share contiguous memory.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        dtype: torch.dtype,
        steps: int,
        relu: bool,
        side: int = 0,
    ) -> None:
        weight_copy, bias_copy = (parameter.detach().to(dtype).contiguous() for parameter in (weight, bias))
        dtypes = weight.dtype, bias.dtype
        self._kept, self._next = _Kept(weight_copy, bias_copy, dtypes, eps, steps, relu, side), 0
        needed = torch.is_grad_enabled() and (weight.requires_grad or bias.requires_grad)
        self._token = Token.apply("SmallWorldLSTM", self._kept, weight, bias) if needed else None

    @property
    def dtype(self) -> torch.dtype:
        return self._kept.weight.dtype

    def __call__(self, z: Tensor, extra: Tensor | None = None, reach: Reach | None = None) -> Tensor:
        """Returns y of z [rows, groups x units]; differentiable once. ``extra``: [rows, units / stride] of
        z's dtype."""
        reach = reach or Reach()
        tracked = z.requires_grad or self._token is not None or (extra is not None and extra.requires_grad)
        if torch.is_grad_enabled() and tracked:
            step, self._next = self._next, self._next + 1
            shared = self._kept
            y: Tensor = _Norm.apply(z, extra, self._token, shared.weight, shared.bias, shared, reach, step)
            return y
        y = torch.empty_like(z, memory_format=torch.contiguous_format)
        self._kept.run(z.contiguous(), None if extra is None else extra.contiguous(), reach, y, None)
        return y


class _Kept:
    """The operands of all steps, and the sums that their backward passes accumulate for the last one. It does
    not hold the token: see steps._Kept."""

    def __init__(
        self, weight: Tensor, bias: Tensor, dtypes: tuple[torch.dtype, torch.dtype], eps: float, steps: int,
        relu: bool, side: int,
    ) -> None:  # fmt: skip
        self.weight, self.bias, self.eps, self.relu, self.side = weight, bias, eps, relu, side
        self.results, self.rows, self._steps = Rows(steps), Rows(steps), steps
        self._dtypes = dtypes  # those of the gradients
        self._sums: Tensor | None = None

    def run(
        self, z: Tensor, extra: Tensor | None, reach: Reach, y: Tensor, statistics: Tensor | None
    ) -> None:
        _UNIT_NORM(
            z, self.weight, self.bias, extra, *reach, self.relu, self.side, self.eps, y, statistics
        )  # fmt: skip

    def sums(self) -> Tensor:
        """Returns the partial sums that the steps' backward passes add to."""
        if self._sums is None:
            dtype = state_dtype(self.weight.dtype)
            self._sums = self.weight.new_zeros((_PARTS, 2, *self.weight.shape), dtype=dtype)
        return self._sums

    def gradients(self) -> tuple[Tensor | None, Tensor | None]:
        """Returns the gradients [groups, units] of weight and bias from the steps that have run backward, and
        resets them."""
        sums, self._sums = self._sums, None
        self.rows = Rows(self._steps)
        if sums is None:
            return None, None
        of_weight, of_bias = sums.sum(0)
        return of_weight.to(self._dtypes[0]), of_bias.to(self._dtypes[1])


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, extra: Tensor | None, token: Tensor | None, weight: Tensor, bias: Tensor,
        norm: _Kept, reach: Reach, step: int,
    ) -> Tensor:  # fmt: skip
        z = z.contiguous()
        extra = None if extra is None else extra.contiguous()
        dtype = state_dtype(z.dtype)
        statistics = z.new_empty((len(z), len(weight), 2), dtype=dtype)
        y = norm.results.at(step, z)
        norm.run(z, extra, reach, y, statistics)
        ctx.save_for_backward(z, extra, weight, bias, statistics)
        ctx.norm, ctx.reach, ctx.step = norm, reach, step
        return y

    @staticmethod
    @differentiable_once("SmallWorldLSTM")
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        z, extra, weight, bias, statistics = ctx.saved_tensors
        _, need_extra, need_token, *_ = ctx.needs_input_grad
        need_token = need_token and runs(ctx, 1 if extra is None else 2)
        norm = ctx.norm
        # without the token the end of this backward pass is unknown: a second one would overwrite the rows
        dz = norm.rows.at(ctx.step, z) if need_token else torch.empty_like(z)
        dextra = torch.empty_like(extra) if need_extra else None
        _UNIT_NORM_BACKWARD(
            dy.contiguous(), z, weight, bias, extra, *ctx.reach, norm.relu, norm.side, statistics, dz, dextra,
            torch.empty_like(statistics), norm.sums() if need_token else None,
        )  # fmt: skip
        return dz, dextra, *[None] * 6
