"""Nm: n stored elements of each m consecutive ones of a row (n:m)."""

from __future__ import annotations

import torch
from torch import Tensor

from .._arguments import named_arguments
from .._checks import require_mask
from ..ops import nm
from .groups import Groups, require_group
from .registry import register


@register
class Nm(Groups):
    """Stores n of each m consecutive inputs with their positions in the group (n:m).

    ``positions`` is uint8 [rows, groups, n] with groups = ceil(cols / m), ascending in a group, and the
    values have its shape. Products are dense ones over ``to_dense``: the layout saves memory of the
    Parameter, not time. For 2:4 use ``Semi24Layout``, which takes half a byte a group and has kernels; for
    products on the CPU ``Nmg``. Raises Error unless 1 <= n <= m <= 256.
    """

    name = "nm"
    positions: Tensor

    @classmethod
    @named_arguments
    def from_dense(  # type: ignore[override]
        cls, weight: Tensor, n: int, m: int, mask: Tensor | None = None
    ) -> Nm:
        """Stores the ``n`` elements of each group of ``m`` that are largest in magnitude (NaN counts as Inf;
        of equal ones the first); a weight that is n:m loses nothing.

        ``mask``, bool of the weight's shape, gives the stored elements instead, as a sparsifier chose them.
        Raises Error unless 1 <= n <= m <= 256, and for the first group with more than n in the mask.
        """
        weight = nm.require_weight("nm", weight)
        require_group("nm", n, m)
        if mask is not None:
            require_mask("nm", mask, weight.shape, "pass a sparsifier's select_mask")
        at = nm.largest_positions(weight, n, m) if mask is None else nm.positions(mask, n, m)
        return cls(*weight.shape, positions=at.to(weight.device), n=n, m=m)

    @classmethod
    def anywhere(cls, rows: int, cols: int, device: torch.device | None = None, *, n: int, m: int) -> Nm:
        """Returns a layout that stores the first elements of every group, as a placeholder for a weight that
        is read later."""
        first = torch.arange(n, dtype=torch.uint8, device=device)
        return cls(rows, cols, positions=first.repeat(rows, -(-cols // m), 1), n=n, m=m)

    def places(self) -> tuple[Tensor, Tensor, tuple[int, int]]:
        rows, groups, n = self.positions.shape
        first = torch.arange(groups, device=self.positions.device) * self.m
        row = torch.arange(rows, device=self.positions.device)
        at = (rows, groups * self.m)
        return row.view(-1, 1, 1).expand(rows, groups, n), first.view(-1, 1) + self.positions, at

    def sizes(self) -> tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]:
        shape = (self.rows, -(-self.cols // self.m), self.n)
        return shape, torch.uint8, shape

    def _packed(self, dense: Tensor) -> Tensor:
        return nm.nm_pack(dense, self.positions, self.m)

    def _unpacked(self, values: Tensor) -> Tensor:
        return nm.nm_unpack(values, self.positions, self.cols, self.m)

    def _require_valid(self, op: str) -> None:
        nm.require_valid(op, "nm_validate", self.positions, self.cols, self.m)
