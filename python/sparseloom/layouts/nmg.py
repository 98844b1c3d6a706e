"""Nmg: n:m weights in which every pattern is used by the same number of outputs (n:m:g)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._arguments import named_arguments
from .._checks import whole
from ..ops import nm
from ..ops.transforms import differentiated
from ..ops.verbs import OfDw, OfDx, multiply
from . import products
from .groups import Groups, require_group
from .registry import register


@register
class Nmg(Groups):
    """Grouped n:m, n:m:g (STen, Ivanov et al. 2023, arXiv 2304.07613), which has CPU kernels.

    W is cut into strips of ``m`` inputs and chunks of C(m, n) * ``g`` outputs. In each strip of a chunk every
    output stores ``n`` elements, and each of the C(m, n) patterns is used by exactly g outputs. ``order``
    int16 [chunks, strips, C(m, n) g] has the outputs in the order of their patterns; the values are [.., n].
    A last, partial chunk is padded in memory. The products on the CPU are planned; other devices use dense
    products over ``to_dense``.
    """

    name = "nmg"
    planned = True
    order: Tensor
    g: int

    def __init__(self, rows: int, cols: int, **fields: Any) -> None:
        super().__init__(rows, cols, **fields)
        whole(self.name, "g", self.g, 1)

    @classmethod
    @named_arguments
    def from_dense(  # type: ignore[override]
        cls, weight: Tensor, n: int, m: int, g: int = 16
    ) -> Nmg:
        """Stores elements of large magnitude: of all outputs of a chunk and all patterns, the pair with the
        largest sum comes first, until every pattern has g outputs. NaN counts as Inf; of equal pairs the
        lowest output comes first, then the first pattern. Chosen on the CPU. Raises Error unless 1 <= n <= m
        <= 256 and g >= 1, and where C(m, n) g reaches 2^15."""
        weight = nm.require_weight("nmg", weight)
        require_group("nmg", n, m)
        order = nm.order(weight, n, m, g).to(weight.device)
        return cls(*weight.shape, order=order, n=n, m=m, g=g)

    @classmethod
    def anywhere(
        cls, rows: int, cols: int, device: torch.device | None = None, *, n: int, m: int, g: int
    ) -> Nmg:
        """Returns a layout in which the outputs of every chunk use the patterns in turn, as a placeholder for
        a weight that is read later."""
        require_group("nmg", n, m)
        chunk_rows = math.comb(m, n) * g
        order = torch.arange(chunk_rows, dtype=torch.int16, device=device)
        return cls(rows, cols, order=order.repeat(-(-rows // chunk_rows), -(-cols // m), 1), n=n, m=m, g=g)

    def linear(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        if any(operand is not None and differentiated(operand) for operand in (x, values, bias)):
            return products.linear(x, values, bias, self)
        if nm.on_host(x, values, self.order):
            return nm.linear(x, values, self.order, bias, *self._numbers(), strict=self.strict)
        return super().linear(x, values, bias)

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        if differentiated(dy) or differentiated(values):
            return multiply(dy, values, None, OfDx(self))
        if nm.on_host(dy, values, self.order):
            return nm.dx(dy, values, self.order, *self._numbers(), strict=self.strict)
        return super().dx(dy, values)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        if differentiated(dy) or differentiated(x):
            return multiply(dy, x, None, OfDw(self))
        if nm.on_host(dy, x, self.order):
            return nm.dw(dy, x, self.order, *self._numbers(), strict=self.strict)
        return super().dw(dy, x)

    def plan(self, m: int, direction: str, dtype: torch.dtype, bias: bool) -> dict[str, Any]:
        if self.order.device.type in ("cpu", "meta"):
            return nm.plan(self._numbers(), direction, dtype, m, bias, self.strict)
        return self.dense_plan(m, direction, dtype, bias)

    def places(self) -> tuple[Tensor, Tensor, tuple[int, int]]:
        chunks, strips, chunk_rows = self.order.shape
        device = self.order.device
        first = torch.arange(chunks, device=device).view(-1, 1, 1) * chunk_rows
        table = nm.pattern_places(self.n, self.m).to(device).long().repeat_interleave(self.g, 0)
        col = torch.arange(strips, device=device).view(-1, 1, 1) * self.m + table
        row = (first + self.order).unsqueeze(-1).expand(chunks, strips, chunk_rows, self.n)
        return row, col.expand(chunks, *col.shape), (chunks * chunk_rows, strips * self.m)

    def sizes(self) -> tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]:
        chunk_rows = math.comb(self.m, self.n) * self.g
        shape = (-(-self.rows // chunk_rows), -(-self.cols // self.m), chunk_rows)
        return shape, torch.int16, (*shape, self.n)

    def _numbers(self) -> tuple[int, int, int, int, int]:
        return self.rows, self.cols, self.n, self.m, self.g

    def _packed(self, dense: Tensor) -> Tensor:
        return nm.nmg_pack(dense, self.order, self.n, self.m, self.g)

    def _unpacked(self, values: Tensor) -> Tensor:
        return nm.nmg_unpack(values, self.order, *self._numbers())

    def _require_valid(self, op: str) -> None:
        nm.require_valid(op, "nmg_validate", self.order, *self._numbers())
