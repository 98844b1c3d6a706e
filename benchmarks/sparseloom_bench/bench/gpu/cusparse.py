"""Calls cuSPARSE's Blocked-ELL product, the strongest peer at small blocks, in the library that torch itself
has loaded."""

from __future__ import annotations

import ctypes
import glob
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .operands import Call, Operands

# These values come from cusparse.h and library_types.h.
INDEX_32I, INDEX_BASE_ZERO = 2, 0
ORDER_COL = 1
NON_TRANSPOSE = 0
BLOCKED_ELL_ALG1 = 13
R_32F = 0
VALUE_TYPES = {torch.float32: R_32F, torch.float16: 2, torch.bfloat16: 14}

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_PROTOTYPES: dict[str, Sequence[Any]] = {
    "cusparseCreate": (_POINTER,),
    "cusparseSetStream": (_POINTER, _POINTER),
    # descriptor*, rows, cols, block, columns stored in each row, column indices, values, three enumerations
    "cusparseCreateBlockedEll": (_POINTER, _LONG, _LONG, _LONG, _LONG, _POINTER, _POINTER, _INT, _INT, _INT),
    # descriptor*, rows, cols, leading dimension, values, value type, order
    "cusparseCreateDnMat": (_POINTER, _LONG, _LONG, _LONG, _POINTER, _INT, _INT),
    # handle, two operations, alpha, A, B, beta, C, compute type, algorithm, size* or buffer
    "cusparseSpMM_bufferSize": (_POINTER, _INT, _INT, *(_POINTER,) * 5, _INT, _INT, _POINTER),
    "cusparseSpMM": (_POINTER, _INT, _INT, *(_POINTER,) * 5, _INT, _INT, _POINTER),
    "cusparseDestroySpMat": (_POINTER,),
    "cusparseDestroyDnMat": (_POINTER,),
}


def find_library(maps: str = "/proc/self/maps") -> str:
    """Returns the path of the cuSPARSE in this process, else of the one installed beside torch.

    Raises OSError when there is none.
    """
    try:
        lines = Path(maps).read_text().splitlines()
    except OSError:
        lines = []
    loaded = [line.split()[-1] for line in lines if "/libcusparse.so" in line]
    beside = sorted(
        glob.glob(str(Path(torch.__file__).resolve().parents[1] / "nvidia" / "*" / "lib" / "libcusparse.so*"))
    )
    found = [*loaded, *beside]
    if not found:
        raise OSError("no libcusparse.so in this process or beside torch")
    return found[0]


class Library:
    """Holds cuSPARSE's functions with their argument types, and one handle."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        for name, arguments in _PROTOTYPES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = list(arguments), _INT
        self._library.cusparseGetErrorString.argtypes = [_INT]
        self._library.cusparseGetErrorString.restype = ctypes.c_char_p
        self.handle = _POINTER()
        self.call("cusparseCreate", ctypes.byref(self.handle))

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function. Raises RuntimeError with cuSPARSE's own message when it fails."""
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise RuntimeError(
                f"{name}: {self._library.cusparseGetErrorString(status).decode(errors='replace')}"
            )


@cache
def library() -> Library:
    return Library(find_library())


def padded_ell(values: Tensor, crow: Tensor, col: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the blocks in the Blocked-ELL format.

    Takes blocks [blocks, b, b]; returns a row-major matrix [rows, width * b] and int32 column indices [block
    rows, width]. Every block row is as long as the longest one: where it has no block, it has zeros and the
    format's own mark -1.
    """
    _, bm, bn = values.shape
    counts = crow.diff().long()
    row = torch.arange(len(counts), device=values.device).repeat_interleave(counts)
    place = torch.arange(len(col), device=values.device) - crow.long()[row]
    width = int(counts.max()) if len(counts) else 0
    columns = col.new_full((len(counts), width), -1)
    columns[row, place] = col
    grid = values.new_zeros(len(counts), width, bm, bn)
    grid[row, place] = values
    return grid.transpose(1, 2).reshape(-1, width * bn).contiguous(), columns


class BlockedEll:
    """Runs the product for one set of operands: y^T [n, m] = W [n, k] x^T [k, m].

    This is y = x W^T without copies: x and y in row-major order are x^T and y^T in column-major order.
    """

    def __init__(self, x: Tensor, values: Tensor, crow: Tensor, col: Tensor, rows: int, cols: int) -> None:
        m, side = x.shape[0], values.shape[1]
        self._lib, kind = library(), VALUE_TYPES[x.dtype]
        self._x, (self._values, self._col) = x, padded_ell(values, crow, col)
        self.y = x.new_empty(m, rows)
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)
        self._weight, self._input, self._output = _POINTER(), _POINTER(), _POINTER()
        self._lib.call(
            "cusparseCreateBlockedEll",
            *(
                ctypes.byref(self._weight),
                rows,
                cols,
                side,
                self._values.shape[1],
                self._col.data_ptr(),
                self._values.data_ptr(),
            ),
            *(INDEX_32I, INDEX_BASE_ZERO, kind),
        )
        for descriptor, matrix in ((self._input, x), (self._output, self.y)):
            width = matrix.shape[1]
            self._lib.call(
                "cusparseCreateDnMat",
                ctypes.byref(descriptor),
                width,
                m,
                width,
                matrix.data_ptr(),
                kind,
                ORDER_COL,
            )
        size = ctypes.c_size_t()
        self._lib.call("cusparseSpMM_bufferSize", *self._arguments(), ctypes.byref(size))
        self._buffer = torch.empty(max(1, size.value), dtype=torch.uint8, device=x.device)

    def _arguments(self) -> tuple[Any, ...]:
        scaled = (ctypes.byref(self._one), self._weight, self._input, ctypes.byref(self._zero), self._output)
        return (self._lib.handle, NON_TRANSPOSE, NON_TRANSPOSE, *scaled, R_32F, BLOCKED_ELL_ALG1)

    def __call__(self) -> Tensor:
        self._lib.call("cusparseSetStream", self._lib.handle, torch.cuda.current_stream().cuda_stream)
        self._lib.call("cusparseSpMM", *self._arguments(), self._buffer.data_ptr())
        return self.y

    def __del__(self) -> None:
        for name, descriptor in (("SpMat", self._weight), ("DnMat", self._input), ("DnMat", self._output)):
            if descriptor.value:
                self._lib.call(f"cusparseDestroy{name}", descriptor)


def blocked_ell_calls(operands: Operands) -> list[Call]:
    """Returns one call for each set of operands. Raises ValueError that says why the format cannot hold the
    cell."""
    cell = operands.cell
    if cell.block[0] != cell.block[1]:
        raise ValueError("Blocked-ELL has square blocks only")
    if cell.n % cell.block[0] or cell.k % cell.block[1]:
        raise ValueError("Blocked-ELL has no ragged blocks")
    return [
        BlockedEll(copy.x, copy.values, copy.index.crow, copy.index.col, cell.n, cell.k)
        for copy in operands.copies
    ]
