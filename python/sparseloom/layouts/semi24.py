"""Semi24Layout: at most two of four consecutive elements of a row (2:4), which tensor cores skip."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._arguments import named_arguments
from ..errors import Error
from ..ops import semi24
from .layout import REPACK, Layout
from .registry import register


@register
class Semi24Layout(Layout):
    """The positions of the two stored elements of each group of four. Groups are consecutive elements of a
    row; the last one may reach over the edge, where its values are zero padding.

    ``positions`` is uint8 [rows, ceil(groups / 2)] with groups = ceil(cols / 4), and the values are [rows,
    2 * groups]. This layout is the same in memory, in files and on every device; kernels that need another
    order make it themselves. Values do not train: ``dw`` raises Error.
    """

    name = "semi24"
    directions = ("forward", "dx")
    positions: Tensor

    @classmethod
    @named_arguments
    def from_dense(cls, weight: Tensor, prune: str | None = None) -> Semi24Layout:  # type: ignore[override]
        """Stores the nonzeros of a weight that is 2:4; of any other weight, the elements that ``prune``
        chooses: "magnitude", "transposable_greedy" or "transposable_exact". If ``prune`` is None, raises an
        Error that names the first group with more than two nonzeros."""
        return packed(weight, prune)[0]

    @classmethod
    def anywhere(cls, rows: int, cols: int, device: torch.device | None = None) -> Semi24Layout:
        """Returns a layout that stores the first two elements of every group, as a placeholder for weights
        that are read later."""
        groups = _groups(cols)
        # 0100 in each half: the first element at place 0, the second at place 1
        positions = torch.full((rows, -(-groups // 2)), 0x44, dtype=torch.uint8, device=device)
        if groups % 2:
            positions[:, -1] = 0x04
        return cls(rows, cols, positions=positions)

    @property
    def values_shape(self) -> tuple[int, int]:
        """The shape of the values."""
        return self.rows, 2 * _groups(self.cols)

    def pack(self, dense: Tensor) -> Tensor:
        """Returns the stored elements of ``dense``, and zero for padding over the edge."""
        missing = -self.cols % 4
        padded = torch.nn.functional.pad(dense, (0, missing)) if missing else dense
        grouped = padded.unflatten(-1, (_groups(self.cols), 4))
        return grouped.gather(-1, self.places()).flatten(-2)

    def to_dense(self, values: Tensor) -> Tensor:
        return semi24.unpack(values, self.positions, self.cols)

    def places(self) -> Tensor:
        """Returns the positions inside their groups, int64 [rows, groups, 2], each 0 to 3."""
        pairs = torch.stack([self.positions & 15, self.positions >> 4], -1).flatten(-2)
        halves = pairs[:, : _groups(self.cols)].long()
        return torch.stack([halves & 3, halves >> 2], -1)

    def linear(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        return semi24.linear(x, values, self.positions, self.cols, bias, strict=self.strict)

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        return semi24.dx(dy, values, self.positions, self.cols, strict=self.strict)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        """Raises Error: packed values do not train."""
        raise semi24.not_trainable("dw")

    def plan(self, m: int, direction: str, dtype: torch.dtype, bias: bool) -> dict[str, Any]:
        shape, device = (self.rows, self.cols), self.positions.device
        device = torch.device("cpu") if device.type == "meta" else device
        return semi24.plan(direction, dtype, m, shape, bias, None, False, device, strict=self.strict)

    def require_consistent(self, op: str, values: Tensor) -> None:
        """Raises Error unless values and positions have the sizes of the weight, the places of each group
        ascend, and no value but zero lies over the edge. Looks at the positions alone."""
        groups = _groups(self.cols)
        sizes = {"values": self.values_shape, "positions": (self.rows, -(-groups // 2))}
        for name, tensor in {"values": values, "positions": self.positions}.items():
            if tuple(tensor.shape) != sizes[name] or (name == "positions" and tensor.dtype != torch.uint8):
                got = f"{tensor.dtype} {list(tensor.shape)}"
                expected = f"{name} {list(sizes[name])} of a weight {self.rows} x {self.cols}"
                raise Error(op, expected + (", uint8" if name == "positions" else ""), got, REPACK)
        if values.is_meta or self.positions.is_meta or not self.positions.numel():
            return
        places = self.places()
        if bool((wrong := places[..., 0] >= places[..., 1]).any()):
            row, group = (int(index) for index in wrong.nonzero()[0])
            got = f"places {places[row, group].tolist()} in row {row}, group {group}"
            raise Error(op, "two places of each group in ascending order", got, REPACK)
        if groups % 2 and bool((self.positions[:, -1] > 15).any()):
            raise Error(op, "zero in the unused bits of the last positions", "other bits", REPACK)
        inside = self.cols - 4 * (groups - 1)
        # float8 has no comparison
        if bool(((places[:, -1] >= inside) & (values[:, -2:].double() != 0)).any()):
            raise Error(op, "zeros as padding right of the last column", "another value there", REPACK)


def packed(weight: Tensor, prune: str | None = None) -> tuple[Semi24Layout, Tensor]:
    """Returns the layout and the values of a weight [rows, cols], pruned first by the method ``prune``, if
    given; see Semi24Layout.from_dense."""
    semi24.require_method("semi24", prune)
    if not isinstance(weight, Tensor) or weight.layout != torch.strided or weight.dim() != 2:
        got = f"{list(weight.shape)}, {weight.layout}" if isinstance(weight, Tensor) else repr(weight)
        remedy = "pass layer.weight; Semi24Linear.from_torch takes torch's semi-structured tensors"
        raise Error("semi24", "a strided weight [out_features, in_features]", got, remedy)
    weight = weight.detach()
    values, positions = semi24.pack(weight) if prune is None else semi24.compress(weight, prune)[:2]
    return Semi24Layout(*weight.shape, positions=positions), values


def _groups(cols: int) -> int:
    return -(-cols // 4)
