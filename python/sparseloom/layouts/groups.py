"""Groups: the base class of Nm and Nmg, the layouts that store n of each m consecutive elements."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._checks import whole
from ..errors import Error
from ..ops import nm
from ..ops.devices import require_one_device
from ..ops.transforms import differentiated, transformed
from ..ops.verbs import Map, mapped
from .layout import REPACK, Layout


class Groups(Layout):
    """Some n elements of each group of m consecutive elements of a row. The last group may reach over the
    edge, where values are zero padding."""

    n: int
    m: int

    def __init__(self, rows: int, cols: int, **fields: Any) -> None:
        super().__init__(rows, cols, **fields)
        require_group(self.name, self.n, self.m)

    def pack(self, dense: Tensor) -> Tensor:
        if not transformed() and differentiated(dense):
            return mapped(dense, _Pack(self))
        if nm.on_host(dense, self.index) and not transformed():
            return self._packed(dense)
        require_one_device(self.name, {"weight": dense, "index": self.index})
        row, col, (rows, cols) = self.places()
        padded = pad(dense, (0, cols - self.cols, 0, rows - self.rows))
        return padded.flatten().gather(0, (row * cols + col).flatten()).view(col.shape)

    def to_dense(self, values: Tensor) -> Tensor:
        if not transformed() and differentiated(values):
            return mapped(values, _Unpack(self))
        if nm.on_host(values, self.index) and not transformed():
            return self._unpacked(values)
        require_one_device(self.name, {"values": values, "index": self.index})
        row, col, (rows, cols) = self.places()
        padded = values.new_zeros(rows * cols)
        padded = padded.scatter(0, (row * cols + col).flatten(), values.flatten())
        return padded.view(rows, cols)[: self.rows, : self.cols]

    @property
    def index(self) -> Tensor:
        """The one tensor of the index."""
        (index,) = self.tensors().values()
        return index

    @property
    def padded(self) -> bool:
        return math.prod(self.sizes()[2]) * self.m != self.rows * self.cols * self.n

    def places(self) -> tuple[Tensor, Tensor, tuple[int, int]]:
        """Returns the row and the column of each value, int64 in the values' shape, and the shape of the
        padded W that they index."""
        raise NotImplementedError

    def require_consistent(self, op: str, values: Tensor) -> None:
        """Raises Error unless the index fits this weight, and ``values`` has an element for each entry, zero
        in the padding."""
        shape, dtype, of_values = self.sizes()
        index = self.index
        if tuple(index.shape) != shape or index.dtype != dtype or tuple(values.shape) != of_values:
            got = f"{index.dtype} {list(index.shape)} and {list(values.shape)}"
            raise Error(op, f"{dtype} {list(shape)} and values {list(of_values)}", got, REPACK)
        if index.is_meta or values.is_meta:
            return
        self._require_valid(op)
        row, col, _ = self.places()
        if bool((((row >= self.rows) | (col >= self.cols)) & (values.detach() != 0)).any()):
            raise Error(op, "zeros as padding over the edge", "another value there", REPACK)

    def sizes(self) -> tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]:
        """Returns shape and dtype of the index, and the shape of the values."""
        raise NotImplementedError

    def _packed(self, dense: Tensor) -> Tensor:
        raise NotImplementedError

    def _unpacked(self, values: Tensor) -> Tensor:
        raise NotImplementedError

    def _require_valid(self, op: str) -> None:
        raise NotImplementedError


def require_group(op: str, n: int, m: int) -> None:
    """Raises Error unless n of m elements can be stored."""
    if not 1 <= whole(op, "n", n) <= whole(op, "m", m) <= 256:
        raise Error(op, "1 <= n <= m <= 256", f"n={n} and m={m}", "pass n=1, m=8 to store an eighth")


class _Pack(Map):
    """Copies a dense matrix to the stored elements; the transpose copies back."""

    def __init__(self, layout: Groups) -> None:
        self.layout = layout

    def there(self, tensor: Tensor) -> Tensor:
        return self.layout.pack(tensor)

    def back(self, gradient: Tensor) -> Tensor:
        return self.layout.to_dense(gradient)


class _Unpack(Map):
    """Copies the stored elements to a dense matrix; the transpose packs."""

    def __init__(self, layout: Groups) -> None:
        self.layout = layout

    def there(self, tensor: Tensor) -> Tensor:
        return self.layout.to_dense(tensor)

    def back(self, gradient: Tensor) -> Tensor:
        return self.layout.pack(gradient)
