"""Checks results against the tolerance rule, which applies to each output tile.

The rule: error <= 2 x that of torch's dense op of the same dtype, plus a norm x eps floor. Errors are against
fp64 on the same rounded operands. They are compared per tile because the typical bug of a sparse kernel is
one lost or doubled block, which a norm over the whole result hides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..pattern import Pattern
from .cases import Case, Inputs, dense_product, exact_product, sparse_product

#: Tokens in one tile of y and dx; the tile's other side is the block's.
TILE_TOKENS = 16
#: The accumulation factor for TF32. Tensor cores truncate where a fused multiply-add rounds, so that the
#: errors of a sum lean one way and grow with its number of steps instead of with the root of that number. It
#: shows only where the result keeps all bits of the accumulator: TF32 operands, fp32 result.
TRUNCATION = 8.0


@dataclass(frozen=True)
class TileCheck:
    """The outcome over all tiles. A tile's error is that of its worst element, over the largest exact element
    of the result."""

    ok: bool
    worst_tile_error: float
    dense_tile_error: float
    excess: float  # the largest error / allowed error over the tiles; ok means <= 1
    tile: tuple[int, int]  # the tile with that excess

    def __str__(self) -> str:
        verdict = "within" if self.ok else "beyond"
        return (
            f"{verdict} tolerance: tile {self.tile} at {self.excess:.3g} of the allowed error; worst tile "
            f"{self.worst_tile_error:.3g}, dense {self.dense_tile_error:.3g} of the largest element"
        )


def tile_maxima(values: Tensor, tile: tuple[int, int]) -> Tensor:
    """Returns the largest |element| of each tile of a matrix; the last tiles may be ragged. NaN counts as
    infinite."""
    values = values.abs().nan_to_num(nan=torch.inf)
    pad = (0, -values.shape[1] % tile[1], 0, -values.shape[0] % tile[0])
    padded = F.pad(values, pad)
    grid = padded.reshape(padded.shape[0] // tile[0], tile[0], padded.shape[1] // tile[1], tile[1])
    return grid.amax((1, 3))


def check_tiles(
    actual: Tensor,
    dense: Tensor,
    exact: Tensor,
    magnitude: Tensor,
    tile: tuple[int, int],
    accumulation: float = 2.0,
) -> TileCheck:
    """Compares matrices of one shape tile by tile.

    Args:
        actual, dense: the result under test and torch's dense one, both of the dtype under test.
        exact: the fp64 result of the same rounded operands.
        magnitude: the fp64 product of the operands' absolute values, to which rounding errors are in
            proportion.
        tile: rows and columns of one tile.
        accumulation: roundings of the summed magnitudes that the floor allows.

    The floor is one rounding of the result in its dtype and two of the summed magnitudes in the accumulator's
    (fp32, or fp64 for fp64). A tile of dense may happen to be exact; and a kernel that adds 1300 products in
    one register errs 6 times as much as dense's partial sums do (measured, fp32), still 10^4 times less than
    one lost block. In fp64 dense is the oracle itself, whose own rounding counts as well: there the floor is
    twice as high.
    """
    if exact.numel() == 0:
        return TileCheck(actual.shape == exact.shape, 0.0, 0.0, 0.0, (0, 0))
    kind = actual.dtype
    accumulator = torch.float64 if kind == torch.float64 else torch.float32
    error = tile_maxima(actual.double() - exact, tile)
    dense_error = tile_maxima(dense.double() - exact, tile)
    summing = accumulation * torch.finfo(accumulator).eps
    floor = torch.finfo(kind).eps * tile_maxima(exact, tile) + summing * tile_maxima(magnitude, tile)
    floor *= 2 if kind == torch.float64 else 1
    ratio = error / (2 * dense_error + floor).clamp(min=torch.finfo(torch.float64).tiny)
    at = int(ratio.argmax())
    norm = max(float(exact.abs().max()), torch.finfo(torch.float64).tiny)
    excess = float(ratio.max())
    tile_index = (at // ratio.shape[1], at % ratio.shape[1])
    return TileCheck(
        excess <= 1, float(error.max()) / norm, float(dense_error.max()) / norm, excess, tile_index
    )


def check_product(case: Case, inputs: Inputs, actual: Tensor) -> TileCheck:
    """Checks one result of the case; the padding of dvalues must be exactly zero."""
    weight = inputs.weight()
    exact = exact_product(case, inputs)
    dense = dense_product(case, inputs.x, inputs.dy, weight, inputs.bias)
    absolute = Case(case.name, case.direction, torch.float64, case.block, case.m, case.k, case.n)
    x, dy, w = (operand.double().abs() for operand in (inputs.x, inputs.dy, weight))
    magnitude = dense_product(absolute, x, dy, w, None if inputs.bias is None else inputs.bias.double().abs())
    if case.activation == "relu2":  # of slope 2 z, z the root of its output; the others' is at most 1.2
        magnitude *= (2 * exact.sqrt()).clamp(min=1)
    accumulation = TRUNCATION if case.tf32 else 2.0
    if case.direction != "dw":
        side = case.block[0] if case.direction == "forward" else case.block[1]
        return check_tiles(actual, dense, exact, magnitude, (TILE_TOKENS, side), accumulation)
    bm, bn = case.block
    references = (packed(matrix, inputs.pattern) for matrix in (dense, exact, magnitude))
    stacked = [blocks.reshape(-1, bn) for blocks in (actual, *references)]
    deviation = check_tiles(stacked[0], stacked[1], stacked[2], stacked[3], (bm, bn), accumulation)
    inside = packed(torch.ones(case.n, case.k, dtype=torch.float32, device=actual.device), inputs.pattern)
    if bool((actual[inside == 0] != 0).any()):
        return TileCheck(False, torch.inf, deviation.dense_tile_error, torch.inf, deviation.tile)
    return deviation


def packed(matrix: Tensor, pattern: Pattern) -> Tensor:
    """Returns the blocks of a matrix that the pattern stores, [blocks, bm, bn], with zero padding.

    It uses only torch's own indexing, on any device.
    """
    (bm, bn), (block_rows, block_cols) = pattern.block, pattern.mask.shape
    padded = F.pad(matrix, (0, block_cols * bn - pattern.cols, 0, block_rows * bm - pattern.rows))
    grid = padded.view(block_rows, bm, block_cols, bn).transpose(1, 2)
    return grid[pattern.mask.to(matrix.device)]


def require_product(case: Case, inputs: Inputs, kernel: str | None = None) -> TileCheck:
    """Runs the case by one kernel and checks it.

    Raises AssertionError that names case, kernel and tile when the result is beyond tolerance.
    """
    deviation = check_product(case, inputs, sparse_product(case, inputs, kernel))
    if not deviation.ok:
        raise AssertionError(f"{case} by {kernel or 'the plan'}: {deviation}")
    return deviation
