"""Entries: the base class of Csr, Coo and Bitmap, the layouts of single elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._arguments import named_arguments
from .._checks import require_mask, share, whole
from ..errors import Error
from ..ops import csr as _csr
from ..ops.transforms import differentiated, transformed
from ..ops.verbs import OfDw, OfDx, column_sums, multiply
from . import products
from .layout import REPACK, Layout
from .torchs import SPARSE, elements_of, is_sparse_matrix

Self = TypeVar("Self", bound="Entries")

#: The most stored elements, rows and columns: indices have 32 bits.
MOST = 2**31 - 1


class Entries(Layout):
    """Single elements of W anywhere, ordered by row and then by column, without duplicates. The values are
    [stored]. A stored element that becomes zero stays stored; an empty row stores nothing."""

    planned = True
    exact = True
    fuses = True

    def __init__(self, rows: int, cols: int, **fields: Any) -> None:
        for axis, size in (("rows", rows), ("columns", cols)):
            if whole(self.name, axis, size) > MOST:
                raise Error(self.name, f"at most 2^31 - 1 {axis}", str(size), "split the weight")
        indices = {
            name: self._index(name, field) if isinstance(field, Tensor) else field
            for name, field in fields.items()
        }
        super().__init__(rows, cols, **indices)

    def _index(self, name: str, index: Tensor) -> Tensor:
        """Returns a part of the index as it is kept; by default as int32."""
        return narrowed(self.name, name, index)

    @classmethod
    def from_places(cls: type[Self], rows: int, cols: int, row: Tensor, col: Tensor) -> Self:
        """Returns the layout that stores the elements (row[i], col[i]), which are in order and distinct."""
        raise NotImplementedError

    @classmethod
    def anywhere(
        cls: type[Self], rows: int, cols: int, stored: int, device: torch.device | None = None
    ) -> Self:
        """Returns a layout that stores the first elements, as a placeholder for a weight that is read
        later."""
        element = torch.arange(stored, device=device)
        return cls.from_places(rows, cols, element // max(1, cols), element % max(1, cols))

    @property
    def padded(self) -> bool:
        return False

    def places(self) -> tuple[Tensor, Tensor]:
        """Returns the rows and the columns of the stored elements, each int64 [stored]."""
        raise NotImplementedError

    @classmethod
    @named_arguments
    def from_dense(  # type: ignore[override]
        cls: type[Self], weight: Tensor, mask: Tensor | None = None, density: float | None = None
    ) -> Self:
        """Stores the elements of ``weight`` [rows, cols] that are not zero; NaN is not zero.

        ``mask``, bool of the weight's shape, says instead which elements are stored, zeros among them.
        ``density`` stores that share of all elements, those of the largest magnitude (NaN counts as infinite;
        of equal ones the first). Raises Error for both at once, for a weight that is no strided matrix, and
        where more than 2^31 - 1 elements would be stored.
        """
        if not isinstance(weight, Tensor) or weight.layout != torch.strided or weight.dim() != 2:
            got = f"{list(weight.shape)}, {weight.layout}" if isinstance(weight, Tensor) else repr(weight)
            remedy = "pass layer.weight; from_torch takes torch's sparse tensors"
            raise Error(cls.name, "a strided weight [out_features, in_features]", got, remedy)
        if mask is not None and density is not None:
            raise Error(
                cls.name, "mask or density", "both", "the mask says what is stored: leave density out"
            )
        weight = weight.detach()
        if mask is None:
            if weight.is_meta:
                raise Error(cls.name, "a weight with values", "one on the meta device", "pass mask=")
            mask = weight != 0 if density is None else _largest(cls.name, weight, density)
        else:
            require_mask(cls.name, mask, weight.shape)
        if not mask.is_meta and mask.numel() > MOST:  # else counting is a pass for nothing
            require_countable(cls.name, int(mask.count_nonzero()))
        return cls.of_mask(mask)

    @classmethod
    def of_mask(cls: type[Self], mask: Tensor) -> Self:
        """Returns the layout that stores the elements in ``mask``, bool [rows, cols]."""
        rows, cols = mask.shape
        return cls.from_places(rows, cols, *mask.nonzero(as_tuple=True))

    @classmethod
    def from_mask(cls: type[Self], weight: Tensor, mask: Tensor) -> Self:
        return cls.from_dense(weight, mask=mask)

    @classmethod
    def from_entries(
        cls: type[Self], rows: int, cols: int, indices: Tensor, values: Tensor
    ) -> tuple[Self, Tensor]:
        """Returns the layout and the values of the elements ``values`` [n] at ``indices`` [2, n], in any
        order. They are sorted; duplicates are summed in the given order, in fp32 if they have 16 bits. Raises
        Error if an index is out of bounds."""
        if indices.dim() != 2 or indices.shape[0] != 2 or values.shape != indices.shape[1:]:
            got = f"indices {list(indices.shape)} and values {list(values.shape)}"
            raise Error(cls.name, "indices [2, n] and values [n]", got, "pass one element for each place")
        require_countable(cls.name, values.numel())
        indices, values = indices.detach().long(), values.detach()
        require_inside(cls.name, rows, cols, *indices)
        places, values = summed(indices, values, (rows, cols))
        return cls.from_places(rows, cols, *places), values

    @classmethod
    @named_arguments
    def from_torch(cls: type[Self], tensor: Tensor) -> tuple[Self, Tensor]:
        """Returns the layout and the values of a matrix in a sparse layout of torch: COO, CSR, CSC, or blocks
        (BSR, BSC), of which every element is stored. Stored zeros stay; see ``from_entries`` for elements out
        of order and duplicates. Raises Error for any other tensor: one of another layout, with batch or dense
        dimensions, or too large."""
        if not isinstance(tensor, Tensor) or tensor.layout not in SPARSE:
            got = str(tensor.layout) if isinstance(tensor, Tensor) else repr(tensor)
            raise Error(cls.name, "a sparse tensor of torch", got, "from_dense takes strided weights")
        if not is_sparse_matrix(tensor):
            got = f"{list(tensor.shape)} with {tensor.dense_dim()} dense dimensions"
            raise Error(cls.name, "a matrix of single elements", got, "pass each matrix of the batch alone")
        tensor = tensor.detach()
        require_countable(cls.name, tensor._nnz())
        rows, cols = tensor.shape
        indices, values = elements_of(tensor)
        return cls.from_entries(rows, cols, indices, values)

    def pack(self, dense: Tensor) -> Tensor:
        return dense[self.places()]

    def to_dense(self, values: Tensor) -> Tensor:
        row, col = self.places()
        dense = values.new_zeros(self.rows * self.cols).scatter(0, row * self.cols + col, values)
        return dense.view(self.rows, self.cols)

    def csr(self) -> tuple[Tensor, Tensor]:
        """Returns crow int32 [rows + 1] and col int32 [stored]."""
        raise NotImplementedError

    def by_column(self) -> Tensor:
        """Returns ``columns_of`` the index, which dX on a GPU reads; a layer on a GPU caches it."""
        cached = self._derived.get("by_column")
        return columns_of(*self.csr(), self.cols) if cached is None else cached

    def linear(
        self, x: Tensor, values: Tensor, bias: Tensor | None,
        activation: str | None = None, residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if any(operand is not None and differentiated(operand) for operand in (x, values, bias, residual)):
            return products.linear(x, values, bias, self, activation, residual)
        return self._forward(x, values, bias, activation, residual)

    def _forward(
        self, x: Tensor, values: Any, bias: Tensor | None,
        activation: str | None = None, residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        return _csr.linear(x, values, *self.csr(), bias, self.strict, activation, residual)

    def _gradients(
        self, node: Any, dy: Tensor, x: Tensor | None, values: Tensor | None, needs: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        if torch.is_grad_enabled() or transformed() or type(self).linear is not Entries.linear:
            return super()._gradients(node, dy, x, values, needs)
        need_x, need_values, need_bias, *_ = needs
        crow, col = self.csr()
        dx = dvalues = None
        if need_x:
            assert values is not None
            by_column = self.by_column() if dy.is_cuda else None
            dx = _csr.dx(dy, values, crow, col, self.cols, by_column, self.strict)
        if need_values:
            assert x is not None
            dvalues = _csr.dw(dy, x, crow, col, self.strict)
        return dx, dvalues, column_sums(dy) if need_bias else None

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        if differentiated(dy) or differentiated(values):
            return multiply(dy, values, None, OfDx(self))
        by_column = self.by_column() if dy.is_cuda else None
        return _csr.dx(dy, values, *self.csr(), self.cols, by_column, self.strict)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        if differentiated(dy) or differentiated(x):
            return multiply(dy, x, None, OfDw(self))
        return _csr.dw(dy, x, *self.csr(), self.strict)

    def plan(
        self, m: int, direction: str, dtype: torch.dtype, bias: bool,
        activation: str | None = None, residual: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        _, col = self.csr()
        device = torch.device("cpu") if col.is_meta else col.device
        problem = direction, dtype, m, (self.rows, self.cols), col.numel(), bias, device
        return _csr.plan(*problem, strict=self.strict, activation=activation, residual=residual)

    def require_consistent(self, op: str, values: Tensor) -> None:
        """Raises Error unless the index fits this weight, is sorted, in bounds and without duplicates, and
        ``values`` has an element for each entry. Reads only the index."""
        self.require_sizes(op, values)
        if values.is_meta or any(tensor.is_meta for tensor in self.tensors().values()):
            return
        row, col = self.places()
        require_inside(op, self.rows, self.cols, row, col)
        element = row * self.cols + col
        if bool((wrong := element[1:] <= element[:-1]).any()):
            last = int(wrong.nonzero()[0])
            previous, current = torch.stack([row, col], 1)[last : last + 2].tolist()
            got = f"element {last + 1} at {current} behind {previous}"
            remedy = f"make them with layouts.{type(self).__name__}.from_entries, which sorts and sums"
            raise Error(op, "stored elements by row and column, each place once", got, remedy)

    def require_sizes(self, op: str, values: Tensor) -> None:
        """Raises Error unless the tensors' shapes and dtypes, and the sizes inside the index, agree with the
        weight and ``values``."""
        raise NotImplementedError


def summed(indices: Tensor, values: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Returns sorted int64 indices and values, with duplicates summed: in fp32 if they have 16 bits."""
    accumulated = values.float() if values.dtype.itemsize == 2 else values
    matrix = torch.sparse_coo_tensor(indices, accumulated, tuple(shape)).coalesce()
    return matrix.indices(), matrix.values().to(values.dtype)


def require_countable(op: str, stored: int) -> None:
    """Raises Error if a 32-bit index cannot count the elements."""
    if stored > MOST:
        remedy = "split the weight by rows into several layers"
        raise Error(op, "at most 2^31 - 1 stored elements", str(stored), remedy)


def require_inside(op: str, rows: int, cols: int, row: Tensor, col: Tensor) -> None:
    """Raises Error if an index is out of bounds."""
    for name, places, size in (("row", row, rows), ("column", col, cols)):
        if places.numel() and not places.is_meta and bool((wrong := (places < 0) | (places >= size)).any()):
            first = int(wrong.nonzero()[0])
            got = f"{name} {int(places[first])} of element {first}"
            raise Error(op, f"places in a weight {rows} x {cols}", got, REPACK)


def rows_of(crow: Tensor, stored: int) -> Tensor:
    """Returns the row of each stored element, int64 [stored], from the bounds of the rows [rows + 1]."""
    rows = torch.arange(crow.numel() - 1, device=crow.device)
    return rows.repeat_interleave(crow.long().diff(), output_size=stored)


def bounds_of(row: Tensor, rows: int) -> Tensor:
    """Returns the bounds of the rows, int32 [rows + 1]: the first element of each row, and the end of the
    last; ``row`` [stored] ascends."""
    ends = torch.arange(rows + 1, device=row.device, dtype=row.dtype)
    return torch.searchsorted(row, ends, out_int32=True)


def columns_of(crow: Tensor, col: Tensor, cols: int) -> Tensor:
    """Returns the index by column, int32 [cols + 1 + 2 stored]: the bounds of the columns, then the row of
    each element, then its position among the values, both ordered by column and then by row."""
    order = torch.argsort(col, stable=True)
    rows = rows_of(crow, col.numel())[order]
    return torch.cat([bounds_of(col[order], cols), rows.int(), order.int()])


def require_shape(op: str, name: str, tensor: Tensor, shape: list[int], dtype: torch.dtype | None) -> None:
    """Raises Error unless the tensor has this shape, and the dtype where one is given."""
    if list(tensor.shape) != shape or (dtype is not None and tensor.dtype != dtype):
        kind = "" if dtype is None else f"{dtype} "
        raise Error(op, f"{name} {kind}{shape}", f"{tensor.dtype} {list(tensor.shape)}", REPACK)


def narrowed(op: str, name: str, index: Tensor) -> Tensor:
    """Returns an index as int32. Raises Error if it is not an integer tensor, or has too many elements."""
    require_countable(op, index.shape[-1] if name != "crow" and index.dim() else 0)
    if index.dtype not in (torch.int32, torch.int64):
        raise Error(op, f"{name} of int32 or int64", str(index.dtype), "convert it with .int() or .long()")
    return index.to(torch.int32).contiguous()


def _largest(op: str, weight: Tensor, density: float) -> Tensor:
    """Returns the bool mask of the share ``density`` of elements with the largest magnitudes."""
    if not 0 <= share(op, density) <= 1:
        raise Error(op, "density in [0, 1]", repr(density), "pass the share to store: density=0.1")
    count = round(density * weight.numel())
    if count in (0, weight.numel()):
        return torch.full(weight.shape, count != 0, device=weight.device)
    size = weight.abs().flatten().nan_to_num(float("inf"), float("inf"))
    limit = size.kthvalue(size.numel() - count + 1).values
    above, equal = size > limit, size == limit
    equal &= equal.cumsum(0) <= count - above.count_nonzero()
    return (above | equal).view(weight.shape)
