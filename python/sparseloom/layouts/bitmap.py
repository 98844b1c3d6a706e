"""Bitmap: a bit for each element of W, and the stored elements one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import Error
from ..ops import bitmap
from ..ops.transforms import differentiated, transformed
from ..ops.verbs import OfDw, OfDx, multiply
from .entries import Entries, columns_of, require_shape
from .layout import REPACK, Layout
from .registry import register

_COPIED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@register
class Bitmap(Entries):
    """Single elements anywhere, for weights of which half to a tenth is stored. At half, the weight takes .56
    of a dense one in 16 bits, and products of few tokens read that much less. On the CPU, forward and dX read
    it packed and multiply it as a dense weight; of dW's dense sums the stored elements are kept.
    On a GPU, the products are those of ``Csr``, whose index is then made beside the bits.

    ``bits`` is uint8 [rows, ceil(cols / 8)]: bit c % 8 (of value 1 << c % 8) of byte c // 8 says whether the
    element of column c is stored; the bits behind the last column are 0. It is numpy.packbits(mask, axis=1,
    bitorder="little"). ``stored`` is their number; the values are [stored], by rows and then by columns.
    Raises Error for more than 2^31 - 1 rows, columns or elements.
    """

    name = "bitmap"
    derived_names = ("crow", "col", "by_column")
    counts = ("stored",)
    bits: Tensor
    stored: int

    def _index(self, name: str, index: Tensor) -> Tensor:
        if index.dtype != torch.uint8:
            raise Error(self.name, f"{name} of uint8", str(index.dtype), "make them with Bitmap.from_dense")
        return index.contiguous()

    @classmethod
    def of_mask(cls, mask: Tensor) -> Bitmap:
        rows, cols = mask.shape
        padded = torch.nn.functional.pad(mask, (0, -cols % 8)).view(rows, -(-cols // 8), 8)
        bits = (padded.to(torch.uint8) << _places(mask.device)).sum(-1, dtype=torch.uint8)
        return cls(rows, cols, bits=bits, stored=int(mask.count_nonzero()))

    @classmethod
    def from_places(cls, rows: int, cols: int, row: Tensor, col: Tensor) -> Bitmap:
        mask = torch.zeros(rows, cols, dtype=torch.bool, device=row.device)
        mask[row.long(), col.long()] = True
        if mask.is_meta:
            bits = torch.empty(rows, -(-cols // 8), dtype=torch.uint8, device="meta")
            return cls(rows, cols, bits=bits, stored=row.numel())
        return cls.of_mask(mask)

    def of_entries(self, tensors: Mapping[str, Tensor]) -> Bitmap:
        bits = tensors["bits"]
        if bits.is_meta:
            return self.with_tensors(tensors)
        bits, shape = self._index("bits", bits), [self.rows, -(-self.cols // 8)]
        if list(bits.shape) != shape:  # before they are counted
            raise Error(self.name, f"bits {shape}", str(list(bits.shape)), "take an undamaged copy")
        return type(self)(self.rows, self.cols, bits=bits, stored=int(_unpacked(bits).count_nonzero()))

    def mask(self) -> Tensor:
        """Returns which elements are stored, bool [rows, cols]."""
        return _unpacked(self.bits)[:, : self.cols]

    def places(self) -> tuple[Tensor, Tensor]:
        row, col = torch.nonzero_static(self.mask(), size=self.stored).unbind(1)
        return row, col

    def pack(self, dense: Tensor) -> Tensor:
        if transformed() or torch.compiler.is_compiling() or dense.is_meta:  # a size that the data decides
            return super().pack(dense)
        if self._copies(dense):
            return bitmap.pack(dense, self.bits, self.bounds(), self.stored)
        return dense.masked_select(self.mask())

    def _copies(self, elements: Tensor) -> bool:
        """Whether the operators copy these elements: on the CPU, of a dtype of layers, without gradients."""
        known = elements.dtype in _COPIED and not (self.bits.is_cuda or elements.is_cuda)
        return known and not transformed() and not differentiated(elements)

    def to_dense(self, values: Tensor) -> Tensor:
        if not values.is_meta and self._copies(values):
            return bitmap.unpack(values, self.bits, self.bounds(), self.cols)
        mask = self.mask()
        if not transformed() or not self.stored:
            return values.new_zeros(self.rows, self.cols).masked_scatter(mask, values)
        slot = (mask.flatten().cumsum(0) - 1).clamp(min=0).view(self.rows, self.cols)
        return torch.where(mask, values[slot], 0)

    def to_torch(self, values: Tensor) -> Tensor:
        """Returns W as a tensor of torch's sparse_csr layout, which shares the values."""
        return torch.sparse_csr_tensor(*self.csr(), values, (self.rows, self.cols))

    def bounds(self) -> Tensor:
        """Returns where the values of each row begin, and the last ones end: int32 [rows + 1]."""
        cached = self._derived.get("crow")
        if cached is not None:
            return cached
        ends = _unpacked(self.bits).sum(1).cumsum(0)
        return torch.nn.functional.pad(ends, (1, 0)).to(torch.int32)

    def csr(self) -> tuple[Tensor, Tensor]:
        col = self._derived.get("col")
        return self.bounds(), self.places()[1].to(torch.int32) if col is None else col

    def derived(self) -> dict[str, Tensor]:
        if not self.bits.is_cuda:
            return {} if self.bits.is_meta else {"crow": self.bounds()}
        crow, col = self.csr()
        return {"crow": crow, "col": col, "by_column": columns_of(crow, col, self.cols)}

    def _forward(
        self, x: Tensor, values: Any, bias: Tensor | None,
        activation: str | None = None, residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if self.bits.is_cuda:
            return super()._forward(x, values, bias, activation, residual)
        return bitmap.linear(x, values, self.bits, self.bounds(), bias, self.strict, activation, residual)

    def _gradients(
        self, node: Any, dy: Tensor, x: Tensor | None, values: Tensor | None, needs: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        if self.bits.is_cuda:
            return super()._gradients(node, dy, x, values, needs)
        return Layout._gradients(self, node, dy, x, values, needs)

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        if self.bits.is_cuda:
            return super().dx(dy, values)
        if differentiated(dy) or differentiated(values):
            return multiply(dy, values, None, OfDx(self))
        return bitmap.dx(dy, values, self.bits, self.bounds(), self.cols, self.strict)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        if self.bits.is_cuda:
            return super().dw(dy, x)
        if differentiated(dy) or differentiated(x):
            return multiply(dy, x, None, OfDw(self))
        return bitmap.dw(dy, x, self.bits, self.bounds(), self.stored, self.strict)

    def plan(
        self, m: int, direction: str, dtype: torch.dtype, bias: bool,
        activation: str | None = None, residual: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        if self.bits.is_cuda:
            return super().plan(m, direction, dtype, bias, activation, residual)
        problem = direction, dtype, m, (self.rows, self.cols, self.stored), bias
        return bitmap.plan(*problem, strict=self.strict, activation=activation, residual=residual)

    def require_consistent(self, op: str, values: Tensor) -> None:
        self.require_sizes(op, values)
        if values.is_meta or self.bits.is_meta:
            return
        mask = _unpacked(self.bits)
        if bool((behind := mask[:, self.cols :].any(1)).any()):
            got = f"one in row {int(behind.nonzero()[0])}"
            raise Error(op, f"no bit behind column {self.cols - 1}", got, REPACK)
        if int(mask.count_nonzero()) != values.numel():
            got = f"{int(mask.count_nonzero())} bits and {values.numel()} values"
            raise Error(op, "a bit for each value", got, REPACK)

    def require_sizes(self, op: str, values: Tensor) -> None:
        require_shape(op, "bits", self.bits, [self.rows, -(-self.cols // 8)], torch.uint8)
        require_shape(op, "values", values, [self.stored], None)


def _places(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


def _unpacked(bits: Tensor) -> Tensor:
    """Returns the bits as bool [rows, 8 * bytes of a row]."""
    return (bits.unsqueeze(-1) >> _places(bits.device) & 1).bool().flatten(1)
