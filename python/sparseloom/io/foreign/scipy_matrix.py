"""Sparse matrices of SciPy among the entries of a state dict. scipy itself is not needed: a matrix is known
by its class, and its index is checked before anything of SciPy's follows it, since SciPy checks nothing."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from ...errors import Error
from ...pattern import Pattern
from .masks import LARGEST

_COMPRESSED = ("csr", "csc", "bsr")
_REMEDY = "rebuild it: call sum_duplicates(), or take it from its source again"
#: Sides of blocks that layers take, the largest first.
_SIDES = (128, 64, 32, 16, 8)


def is_matrix(value: object) -> bool:
    """Returns whether a value is one of SciPy's sparse matrices or arrays."""
    return type(value).__module__.startswith("scipy.sparse") and hasattr(value, "tocoo")


def weight_of(name: str, matrix: Any) -> tuple[Tensor, Pattern | None]:
    """Returns the dense weight, and for a BSR matrix the blocks that it stores. Entries of one place add up.

    SciPy's operations split blocks to at most 4 x 4 or to one column, so the blocks are those of the largest
    sides up to 128 that hold stored elements alone. Indices of 64 bits are compared with the shape, not cut.
    Raises Error, which names the entry, for an index outside of the shape.
    """
    try:
        return _weight_of(name, matrix)
    except (Error, MemoryError):
        raise
    except Exception as error:  # SciPy checks nothing, and raises anything
        _refuse(name, "parts that belong together", f"{type(error).__name__}: {error}")


def _weight_of(name: str, matrix: Any) -> tuple[Tensor, Pattern | None]:
    shape = tuple(int(size) for size in matrix.shape)
    if len(shape) != 2:
        raise Error("load", f"{name} to be a matrix", f"{len(shape)} dimensions", "flatten it first")
    if matrix.format in _COMPRESSED:
        row, col, data = _compressed(name, matrix, shape)
    else:
        row, col, data = _listed(name, matrix)
    if not row.shape == col.shape == data.shape == (len(row),):
        got = " and ".join(str(list(part.shape)) for part in (row, col, data))
        _refuse(name, "as many rows and columns as values", got)
    for places, size, side in ((row, shape[0], "row"), (col, shape[1], "column")):
        if bool((wrong := (places < 0) | (places >= size)).any()):
            at = int(wrong.argmax())
            _refuse(name, f"places inside {shape[0]} x {shape[1]}", f"{side} {places[at]} of entry {at}")
    if shape[0] * shape[1] > 1024 * len(row) + LARGEST:
        _refuse(name, "more elements than one in 1024", f"{len(row)} of {shape[0]} x {shape[1]}")
    values = _tensor(name, data)
    at_places = torch.from_numpy(row), torch.from_numpy(col)
    weight = torch.zeros(shape, dtype=values.dtype)
    weight.index_put_(at_places, values, accumulate=True)
    if matrix.format != "bsr":
        return weight, None
    stored = torch.zeros(shape, dtype=torch.bool)
    stored[at_places] = True
    return weight, _blocks_of(stored)


def _listed(name: str, matrix: Any) -> tuple[Any, Any, Any]:
    """Returns rows, columns and values of a matrix whose form is not compressed."""
    if matrix.format == "dia" and matrix.data.shape[:1] != matrix.offsets.shape:
        got = f"{list(matrix.data.shape)} and {list(matrix.offsets.shape)}"
        _refuse(name, "a row of data for each of its offsets", got)
    if matrix.format == "lil" and list(map(len, matrix.rows)) != list(map(len, matrix.data)):
        _refuse(name, "a value for each column in rows", "more or fewer")
    entries = matrix.tocoo()
    row, col = (np.asarray(places, dtype=np.int64) for places in (entries.row, entries.col))
    return row, col, entries.data


def _compressed(name: str, matrix: Any, shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    """The same of one whose form is. Not by SciPy's own code, which writes past its memory where an index
    does not fit."""
    lines, width = shape if matrix.format != "csc" else shape[::-1]
    data = np.asarray(matrix.data)
    if matrix.format == "bsr":
        if data.ndim != 3 or not all(data.shape[1:]):
            _refuse(name, "data of blocks", f"{list(data.shape)}")
        _, rows, cols = data.shape
        lines, width = -(-lines // rows), -(-width // cols)
    starts, places = (_index(name, part, getattr(matrix, part)) for part in ("indptr", "indices"))
    if len(starts) != lines + 1 or starts[0] != 0 or bool((np.diff(starts) < 0).any()):
        _refuse(name, f"indptr of {lines + 1} ascending entries from 0", f"{len(starts)} that are not so")
    count = int(starts[-1])
    if count > min(len(places), len(data)):
        _refuse(name, f"indptr to end within {len(places)} indices", f"{count}")
    places, data = places[:count], data[:count]
    if bool((wrong := (places < 0) | (places >= width)).any()):
        at = int(wrong.argmax())
        _refuse(name, f"indices below {width}", f"indices[{at}] = {places[at]}")
    line = np.repeat(np.arange(lines, dtype=np.int64), np.diff(starts))
    if matrix.format == "csc":
        return places, line, data
    if matrix.format == "csr":
        return line, places, data
    row = line[:, None, None] * rows + np.arange(rows)[:, None]
    col = places[:, None, None] * cols + np.arange(cols)
    inside = np.broadcast_to((row < shape[0]) & (col < shape[1]), data.shape)  # as SciPy cuts the last blocks
    return tuple(np.broadcast_to(each, data.shape)[inside] for each in (row, col, data))  # type: ignore[return-value]


def _index(name: str, part: str, given: Any) -> Any:
    """Returns a list of integers as int64."""
    index = np.asarray(given)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        _refuse(name, f"{part} of whole numbers in one line", f"{index.dtype} {list(index.shape)}")
    if index.dtype == np.uint64 and bool((index >> 63).any()):
        _refuse(name, f"{part} below 2^63", f"{index.max()}")
    return index.astype(np.int64)


def _refuse(name: str, expected: str, actual: str) -> NoReturn:
    raise Error("load", f"{name} with {expected}", actual, _REMEDY)


def _tensor(name: str, data: Any) -> Tensor:
    """Returns the values: integers and bools as float32, which hold no gradient."""
    if data.dtype.kind not in "fiub" or data.dtype.itemsize > 8:
        raise Error("load", f"{name} of real numbers of at most 64 bits", str(data.dtype), "convert it first")
    return torch.from_numpy(np.ascontiguousarray(data if data.dtype.kind == "f" else data.astype(np.float32)))


def _blocks_of(stored: Tensor) -> Pattern | None:
    """Returns the blocks of the largest sides that hold stored elements alone; None where there are none of 8
    x 8."""
    count, (rows, cols) = int(stored.sum()), stored.shape
    sides = sorted(((bm, bn) for bm in _SIDES for bn in _SIDES), key=lambda side: -side[0] * side[1])
    for bm, bn in sides:
        padded = torch.nn.functional.pad(stored, (0, -cols % bn, 0, -rows % bm))
        grid = padded.unflatten(1, (-1, bn)).unflatten(0, (-1, bm)).any(3).any(1)
        covered = grid.repeat_interleave(bm, 0).repeat_interleave(bn, 1)[:rows, :cols]
        if int(covered.sum()) == count:
            return Pattern(rows, cols, (bm, bn), grid)
    return None
