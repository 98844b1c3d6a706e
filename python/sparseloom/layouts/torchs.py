"""The index and the values of torch's sparse tensors, whatever their layout."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import Error

#: The layouts of matrices that torch has, beside the strided one.
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
#: Those that store blocks.
BLOCKS = (torch.sparse_bsr, torch.sparse_bsc)
_BY_COLUMN = (torch.sparse_csc, torch.sparse_bsc)


def is_sparse_matrix(tensor: object) -> bool:
    """Returns whether a tensor is a matrix in a sparse layout of torch, without batch or dense dimensions
    (except those of blocks)."""
    if not isinstance(tensor, Tensor) or tensor.layout not in SPARSE or tensor.dim() != 2:
        return False
    return tensor.dense_dim() == 0


def places_of(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rows and columns of a sparse matrix's stored elements, or of its blocks on their grid:
    int64 [stored], in its own order."""
    if tensor.layout == torch.sparse_coo:
        row, col = tensor._indices()
        return row, col
    if tensor.layout in _BY_COLUMN:
        along, across = tensor.ccol_indices(), tensor.row_indices()
    else:
        along, across = tensor.crow_indices(), tensor.col_indices()
    line = _lines(along, across.numel())
    return (across.long(), line) if tensor.layout in _BY_COLUMN else (line, across.long())


def values_of(tensor: Tensor) -> Tensor:
    """Returns the values of a sparse matrix, [stored] or [stored, block rows, block columns]."""
    tensor = tensor.detach()
    return tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()


def _lines(along: Tensor, count: int) -> Tensor:
    """Returns the line of each of ``count`` indices. Raises RuntimeError for an ``along`` that is not one of
    so many: repeat_interleave of torch 2.11 writes past a smaller output_size."""
    counts = along.long().diff()
    if along.dim() != 1 or along.numel() == 0 or bool((counts < 0).any()) or int(counts.sum()) != count:
        raise RuntimeError(f"compressed indices that are not those of {count} in ascending order")
    lines = torch.arange(along.numel() - 1, device=along.device)
    return lines.repeat_interleave(counts, output_size=count)


def _ascending(along: Tensor, across: Tensor) -> Tensor:
    """Returns the indices of each line in ascending order. Raises RuntimeError for an ``along`` that is not
    one of so many."""
    line = _lines(along, across.numel())
    by_index = across.argsort(stable=True)
    return across[by_index[line[by_index].argsort(stable=True)]]


def require_consistent(op: str, tensor: Tensor) -> None:
    """Raises Error unless the indices of a sparse matrix fit its values and shape: torch builds one without a
    look at them, in torch.load and wherever check_invariants is off, which is its default. Those of a line
    may come in any order, which torch's own check refuses."""
    if tensor.is_meta:
        return
    try:
        if tensor.layout == torch.sparse_coo:
            torch._validate_sparse_coo_tensor_args(tensor._indices(), tensor._values(), tensor.shape)
            dims = 1
        else:
            by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
            lists = ("crow_indices", "col_indices") if by_row else ("ccol_indices", "row_indices")
            along, across = (getattr(tensor, name)() for name in lists)
            rest = tensor.values(), tensor.shape, tensor.layout
            try:
                torch._validate_sparse_compressed_tensor_args(along, across, *rest)
            except RuntimeError as error:
                if "sorted and distinct" not in str(error):
                    raise
                torch._validate_sparse_compressed_tensor_args(along, _ascending(along, across), *rest)
            dims = 3 if tensor.layout in BLOCKS else 1
        if (values := values_of(tensor)).dim() != dims:
            raise RuntimeError(f"values of {list(values.shape)}")
    except RuntimeError as error:
        expected = f"a {tensor.layout} tensor whose indices fit its values"
        raise Error(op, expected, str(error).partition("\n")[0], "take an undamaged copy") from None


def elements_of(tensor: Tensor, op: str = "from_torch") -> tuple[Tensor, Tensor]:
    """Returns the indices, int64 [2, n], and the values [n] of the stored elements of a sparse matrix; all
    elements of blocks are stored, also zeros. Raises Error where they do not fit."""
    require_consistent(op, tensor)
    (row, col), values = places_of(tensor), values_of(tensor)
    if tensor.layout in BLOCKS:
        _, bm, bn = values.shape
        row = (row[:, None, None] * bm + torch.arange(bm, device=row.device)[:, None]).expand(values.shape)
        col = (col[:, None, None] * bn + torch.arange(bn, device=col.device)).expand(values.shape)
    return torch.stack([row.flatten(), col.flatten()]), values.flatten()


def strided(tensor: Tensor, op: str = "from_torch") -> Tensor:
    """Returns a sparse matrix as a strided one; any other tensor as it is. Raises Error for a matrix whose
    indices do not fit."""
    if not is_sparse_matrix(tensor):
        return tensor
    (row, col), values = elements_of(tensor, op)
    dense = values.new_zeros(tensor.shape)
    return dense.index_put_((row, col), values, accumulate=tensor.layout == torch.sparse_coo)
