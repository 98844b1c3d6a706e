"""CooNd: coordinates of a tensor with any number of dimensions; trailing dimensions may be dense."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .._arguments import named_arguments
from ..errors import Error
from .entries import MOST, narrowed, require_countable, require_shape, summed
from .layout import REPACK, Layout
from .registry import register

_REMEDY = "make it with layouts.CooNd.from_entries, which sorts and sums"


@register
class CooNd(Layout):
    """Coordinates in any number of dimensions: ``indices`` int32 [sparse dimensions, stored] has the place of
    each entry, ordered and distinct. The last ``dense_dim`` dimensions are dense (torch calls that hybrid):
    an entry is a tensor of their sizes, and the values are [stored, *dense sizes]. An entry stays stored when
    all of it is zero.

    ``sizes`` are those of all dimensions, as "4x5x6". As a matrix the tensor is [sparse sizes, dense sizes],
    or [the others, last size] if no dimension is dense. Raises Error if no dimension is sparse, and for more
    than 2^31 - 1 entries or indices along a dimension.
    """

    name = "coo_nd"
    indices: Tensor
    sizes: str
    dense_dim: int

    def __init__(self, rows: int, cols: int, *, indices: Tensor, sizes: str, dense_dim: int) -> None:
        shape = _numbers(sizes)
        sparse = len(shape) - dense_dim
        if dense_dim < 0 or sparse < 1:
            got = f"{dense_dim} of {len(shape)} dimensions dense"
            raise Error(self.name, "at least one sparse dimension", got, "lower dense_dim")
        if max(shape[:sparse]) > MOST:
            raise Error(self.name, "at most 2^31 - 1 places along a dimension", sizes, "split the tensor")
        if (rows, cols) != _matrix(shape, dense_dim):
            got = f"[{rows}, {cols}] of sizes {sizes}"
            raise Error(self.name, f"the matrix {list(_matrix(shape, dense_dim))}", got, REPACK)
        indices = narrowed(self.name, "indices", indices)
        super().__init__(rows, cols, indices=indices, sizes=sizes, dense_dim=dense_dim)

    @classmethod
    @named_arguments
    def at(cls, indices: Tensor, shape: Sequence[int], dense_dim: int = 0) -> CooNd:
        """Returns the layout of entries at ``indices`` [sparse dimensions, stored], ordered and distinct, in
        a tensor of that shape."""
        sizes = "x".join(str(int(size)) for size in shape)
        return cls(*_matrix(tuple(shape), dense_dim), indices=indices, sizes=sizes, dense_dim=dense_dim)

    @classmethod
    @named_arguments
    def from_dense(  # type: ignore[override]
        cls, weight: Tensor, shape: Sequence[int] | None = None, dense_dim: int = 0
    ) -> CooNd:
        """Stores the entries of ``weight`` that are not zero; NaN is not zero. ``shape`` is that of the
        tensor whose matrix ``weight`` is, by default its own, of any number of dimensions. Raises Error for a
        weight that is not strided or has no values, and where the shape does not fit."""
        if weight.layout != torch.strided or weight.is_meta:
            got = f"{weight.layout} on {weight.device}"
            raise Error(cls.name, "a strided tensor with values", got, "from_torch takes torch's sparse ones")
        sizes = tuple(weight.shape if shape is None else shape)
        if math.prod(sizes) != weight.numel():
            raise Error(cls.name, f"{weight.numel()} elements", f"shape {list(sizes)}", "pass its own shape")
        nonzero = weight.detach().reshape(sizes) != 0
        stored = nonzero.flatten(len(sizes) - dense_dim).any(-1) if 0 < dense_dim < len(sizes) else nonzero
        if stored.numel() > MOST:
            require_countable(cls.name, int(stored.count_nonzero()))
        return cls.at(stored.nonzero().t(), sizes, dense_dim)

    @classmethod
    @named_arguments
    def from_entries(cls, indices: Tensor, values: Tensor, shape: Sequence[int]) -> tuple[CooNd, Tensor]:
        """Returns the layout and the values of the entries ``values`` [n, *dense sizes] at ``indices``
        [sparse dimensions, n], in any order: they are sorted, and duplicates are summed, as by
        Coo.from_entries. Raises Error if they do not fit the shape, or an index is out of bounds."""
        shape = tuple(shape)
        dense = values.dim() - 1
        sparse = len(shape) - dense
        fit = indices.dim() == 2 and values.dim() and (*values.shape[1:],) == shape[sparse:]
        if not fit or sparse < 1 or indices.shape != (sparse, values.shape[0]):
            got = f"indices {list(indices.shape)} and values {list(values.shape)} of {list(shape)}"
            expected = "indices [sparse dimensions, n] and values [n, *dense sizes]"
            raise Error(cls.name, expected, got, "pass one entry for each place")
        require_countable(cls.name, values.shape[0])
        indices = indices.detach().long()
        _require_inside(cls.name, indices, shape[:sparse])
        indices, values = summed(indices, values.detach(), shape)
        return cls.at(indices, shape, dense), values

    @classmethod
    @named_arguments
    def from_torch(cls, tensor: Tensor) -> tuple[CooNd, Tensor]:
        """Returns the layout and the values of a tensor of torch's sparse_coo layout, with or without dense
        dimensions, coalesced or not. Raises Error for any other."""
        if not isinstance(tensor, Tensor) or tensor.layout != torch.sparse_coo:
            got = str(tensor.layout) if isinstance(tensor, Tensor) else repr(tensor)
            raise Error(cls.name, "a sparse_coo tensor", got, "from_dense takes strided tensors")
        tensor = tensor.detach()
        return cls.from_entries(tensor._indices(), tensor._values(), tensor.shape)

    def to_torch(self, values: Tensor) -> Tensor:
        """Returns the tensor as a coalesced one of torch's sparse_coo layout, which shares the values."""
        return torch.sparse_coo_tensor(self.indices.long(), values, self.shape, is_coalesced=True)

    @property
    def padded(self) -> bool:
        return False

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of all dimensions."""
        return _numbers(self.sizes)

    def pack(self, dense: Tensor) -> Tensor:
        return dense.reshape(self.shape)[tuple(self.indices.long())]

    def to_dense(self, values: Tensor) -> Tensor:
        dense = values.new_zeros(self.shape).index_put(tuple(self.indices.long()), values)
        return dense.view(self.rows, self.cols)

    def require_consistent(self, op: str, values: Tensor) -> None:
        sparse = len(self.shape) - self.dense_dim
        stored = self.indices.shape[-1] if self.indices.dim() else 0
        require_shape(op, "indices", self.indices, [sparse, stored], torch.int32)
        require_shape(op, "values", values, [stored, *self.shape[sparse:]], None)
        if values.is_meta or self.indices.is_meta:
            return
        indices = self.indices.long()
        _require_inside(op, indices, self.shape[:sparse])
        ascends = torch.zeros(max(0, stored - 1), dtype=torch.bool, device=indices.device)
        for row in indices.flip(0):  # the first dimension decides, where it differs
            ascends = (row[1:] > row[:-1]) | ((row[1:] == row[:-1]) & ascends)
        if not bool(ascends.all()):
            last = int((~ascends).nonzero()[0])
            got = f"entry {last + 1} at {indices[:, last + 1].tolist()} behind {indices[:, last].tolist()}"
            raise Error(op, "entries in order, each place once", got, _REMEDY)


def _numbers(sizes: str) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes.split("x"))


def _matrix(shape: tuple[int, ...], dense_dim: int) -> tuple[int, int]:
    """Returns the sizes as a matrix: [sparse, dense], or [the others, last] if no dimension is dense."""
    first = len(shape) - (dense_dim or 1)
    return math.prod(shape[:first]), math.prod(shape[first:])


def _require_inside(op: str, indices: Tensor, sizes: Sequence[int]) -> None:
    """Raises Error if an index is out of bounds."""
    for dim, (places, size) in enumerate(zip(indices, sizes, strict=True)):
        if bool((wrong := (places < 0) | (places >= size)).any()):
            first = int(wrong.nonzero()[0])
            got = f"{int(places[first])} along dimension {dim} of entry {first}"
            raise Error(op, f"places in a tensor of {list(sizes)}", got, REPACK)
