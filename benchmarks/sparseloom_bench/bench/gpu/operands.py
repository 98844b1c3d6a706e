"""Makes the operands of a cell's calls on the GPU, in so many copies that none is still in the L2 when its
turn comes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sparseloom import ops
from sparseloom.nn.held.state import build_index, zero_padding_
from sparseloom.testing import Case, TileCheck, check_tiles, dense_product
from sparseloom.testing.cases import round_to_tf32
from sparseloom.testing.tolerance import TILE_TOKENS, TRUNCATION

from ..cells import DENSE_COPY, Cell
from . import fp8

if TYPE_CHECKING:
    from .semi24_operands import Semi24Operands

Call = Callable[[], Tensor]
#: Names of the dense contenders; the second sums fp8 products in shorter accumulators.
DENSE, DENSE_FAST = "torch", "torch_fast_accum"
#: Tokens in one tile whose rms error is compared; with blocks of 32 and more, a tile has thousands of errors.
RMS_TOKENS = 128


def sets_needed(bytes_of_one: int, l2_bytes: int) -> int:
    """Returns how many copies of a call's operands to make, at least two: enough that twice the L2 is touched
    between two uses of the same copy."""
    return 1 + max(1, math.ceil(2 * l2_bytes / max(1, bytes_of_one)))


#: torch's products of x, dy and weight as a user writes them, by direction.
PLAIN: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "forward": lambda x, dy, weight: F.linear(x, weight),
    "dx": lambda x, dy, weight: dy @ weight,
    "dw": lambda x, dy, weight: dy.t() @ x,
}


def copied(direction: str, weight: Tensor, dense_sets: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[Call]:
    """Returns torch's products with the scattered weight, one for each x or dy of the dense sets."""
    weights, product = [weight, *(weight.clone() for _ in dense_sets[1:])], PLAIN[direction]
    return [partial(product, x, dy, own) for (x, dy, _), own in zip(dense_sets, weights, strict=True)]


def scatter(values: Tensor, row: Tensor, col: Tensor, rows: int, cols: int) -> Tensor:
    """Returns the dense matrix [rows, cols], built by torch's own indexing and not by the kernels under test.

    values is [blocks, bm, bn]; row and col are int64 [blocks] and give the place of each block.
    """
    _, bm, bn = values.shape
    kind = values.dtype
    if kind.itemsize == 1:  # torch indexes bytes, but not every 8-bit float
        values = values.view(torch.uint8)
    grid = values.new_zeros(-(-rows // bm), -(-cols // bn), bm, bn)
    grid[row, col] = values
    return (
        grid.transpose(1, 2)
        .reshape(grid.shape[0] * bm, grid.shape[1] * bn)[:rows, :cols]
        .contiguous()
        .view(kind)
    )


def gather(matrix: Tensor, row: Tensor, col: Tensor, block: tuple[int, int]) -> Tensor:
    """Returns the blocks [blocks, bm, bn] of a dense matrix; what lies outside the matrix is zero."""
    bm, bn = block
    padded = F.pad(matrix, (0, -matrix.shape[1] % bn, 0, -matrix.shape[0] % bm))
    grid = padded.reshape(padded.shape[0] // bm, bm, padded.shape[1] // bn, bn).transpose(1, 2)
    return grid[row, col]


@dataclass(frozen=True)
class Copy:
    """One set of our operands: x [m, k], dy [m, n]; a tensor is empty when the direction does not read it."""

    x: Tensor
    dy: Tensor
    values: Tensor
    index: ops.Index


class Operands:
    """Holds a cell's random operands, those of its dense counterpart, and the calls that take turns over
    copies of either."""

    def __init__(self, cell: Cell, device: torch.device, l2_bytes: int, seed: int = 0) -> None:
        self.cell, self.case = cell, cell.case(device.type)
        pattern = self.case.make_pattern(seed)
        self.elements = pattern.stats().elements
        self.host_index = build_index(pattern)
        index = self.host_index.to(device)
        counts = self.host_index.crow.diff().long()
        self.block_row = torch.arange(len(counts)).repeat_interleave(counts).to(device)
        self.block_col = index.col.long()

        generator = torch.Generator(device).manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            normal = torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(
                self.case.dtype
            )
            # Products of TF32 numbers are exact, so that a check sees the errors of the sums alone.
            return round_to_tf32(normal) if cell.tf32 else normal

        values = draw(pattern.blocks, *cell.block)
        zero_padding_(values, pattern)
        none = values.new_empty(0)
        x = none if cell.direction == "dx" else draw(cell.m, cell.k)
        dy = none if cell.direction == "forward" else draw(cell.m, cell.n)
        first = Copy(x, dy, values, index)
        self.weight = scatter(values, self.block_row, self.block_col, cell.n, cell.k)

        self._fp8, self.fast_accum = cell.dtype.startswith("fp8"), cell.dtype == "fp8"
        self._scales = fp8.scales(device)
        size = self.case.dtype.itemsize
        # For dw: it writes as many bytes as values has, which forward and dx read.
        ours = (x.nbytes + dy.nbytes) + values.nbytes
        written = fp8.OUT.itemsize if self._fp8 else size
        out = {"forward": cell.m * cell.n * written, "dx": cell.m * cell.k * size, "dw": 0}[cell.direction]
        copies = sets_needed(ours + out, l2_bytes) - 1
        self.copies = [first] + [
            Copy(x.clone(), dy.clone(), values.clone(), self.host_index.to(device)) for _ in range(copies)
        ]
        # Like the dense layer that ours replaces, this weight has no zeros. Zeros would flatter dense: cuBLAS
        # took 311 us on the scattered weight of density .05 and 345 us on random data (H200, 8192 x 4096 x
        # 4096), because zeros toggle fewer bits and the clock stays higher.
        full = none if cell.direction == "dw" else draw(cell.n, cell.k)
        others = sets_needed(x.nbytes + dy.nbytes + cell.n * cell.k * size + out, l2_bytes) - 1
        #: x, dy and weight of the dense product, one for each copy.
        self.dense_sets = [(x, dy, full)] + [(x.clone(), dy.clone(), full.clone()) for _ in range(others)]

    def plan(self) -> dict[str, Any]:
        """Returns the plan for the cell on the current CUDA device, under torch's switches as they stand."""
        how = {"out_dtype": fp8.OUT, "use_fast_accum": self.fast_accum}
        what = self.cell.direction, self.case.dtype, self.cell.m
        return ops.plan(self.host_index, *what, device="cuda", **how)  # type: ignore[arg-type]

    def calls(self, kernel: str) -> list[Call]:
        """Returns our calls by that kernel, one for each copy. "dense_copy" is torch's product with the
        scattered weight, which a layer may keep."""
        if kernel == DENSE_COPY:
            return copied(self.cell.direction, self.weight, self.dense_sets)

        def one(copy: Copy) -> Tensor:
            if self._fp8:
                return fp8.sparse(copy.x, copy.values, copy.index, self._scales, kernel, self.fast_accum)
            if self.cell.direction == "forward":
                return ops.linear(copy.x, copy.values, copy.index, kernel=kernel)
            if self.cell.direction == "dx":
                return ops.linear_dx(copy.dy, copy.values, copy.index, kernel=kernel)
            return ops.linear_dw(copy.dy, copy.x, copy.index, kernel=kernel)

        return [lambda copy=copy: one(copy) for copy in self.copies]  # type: ignore[misc]

    def dense_calls(self) -> dict[str, list[Call]]:
        """Returns the calls of torch's dense product by contender, one for each copy.

        They multiply the same x or dy by a weight that has no zeros (dw: they compute the whole dW). fp8 has
        two contenders, without and with fast accumulation, of which the faster is the one to beat
        (fp8_promoted: only the first).
        """

        def turns(product: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Call]:
            return [lambda own=own: product(*own) for own in self.dense_sets]  # type: ignore[misc]

        if not self.fast_accum:
            return {DENSE: turns(self.dense)}
        return {
            DENSE: turns(self.dense),
            DENSE_FAST: turns(lambda x, _, w: fp8.dense(x, w, self._scales, fast=True)),
        }

    def dense(self, x: Tensor, dy: Tensor, weight: Tensor) -> Tensor:
        """Computes torch's product in the dtype under test, of the operands of a call; fp8 runs without fast
        accumulation."""
        return (
            fp8.dense(x, weight, self._scales) if self._fp8 else dense_product(self.case, x, dy, weight, None)
        )

    @property
    def scale(self) -> float:
        """The factor on the product of the stored numbers."""
        return fp8.X_SCALE * fp8.W_SCALE if self._fp8 else 1.0


class Reference:
    """Holds the cell's exact result in fp64 and torch's dense one in the dtype under test, and compares
    results with them by tiles."""

    def __init__(self, operands: Operands | Semi24Operands) -> None:
        self._operands, case, first = operands, operands.case, operands.copies[0]
        x, dy, weight = (part.double() for part in (first.x, first.dy, operands.weight))
        self._dense = self._tiled(operands.dense(first.x, first.dy, operands.weight))
        exact = Case(case.name, case.direction, torch.float64, case.block, case.m, case.k, case.n)
        self._exact = self._tiled(dense_product(exact, x, dy, weight, None) * operands.scale)
        self._magnitude = self._tiled(
            dense_product(exact, x.abs(), dy.abs(), weight.abs(), None) * operands.scale
        )

    def _tiled(self, matrix: Tensor) -> Tensor:
        """Returns the stored blocks one under another for dw, else the matrix itself."""
        if not isinstance(self._operands, Operands) or self._operands.cell.direction != "dw":
            return matrix
        blocks = gather(matrix, self._operands.block_row, self._operands.block_col, self._operands.cell.block)
        return blocks.reshape(-1, self._operands.cell.block[1])

    def check(self, actual: Tensor) -> TileCheck:
        """Checks each output tile by the tolerance of sparseloom.testing; a NaN counts as infinitely
        wrong."""
        direction, (bm, bn) = self._operands.cell.direction, self._operands.case.block
        tile = (bm, bn) if direction == "dw" else (TILE_TOKENS, bm if direction == "forward" else bn)
        shaped = actual.reshape(-1, bn) if direction == "dw" else actual
        accumulation = TRUNCATION if self._operands.cell.tf32 else 2.0
        return check_tiles(shaped, self._dense, self._exact, self._magnitude, tile, accumulation)

    def accuracy(self, actual: Tensor) -> dict[str, float]:
        """Returns the errors of a forward result over those of torch's dense one, on the same matrix.

        The entries are the rms ratio in the median and in the worst tile of RMS_TOKENS tokens by one block
        row, the ratio of the largest errors anywhere, and the elements of a tile.
        """
        side = self._operands.cell.block[0]
        rms, dense_rms = (
            _rms(each.double() - self._exact, (RMS_TOKENS, side)) for each in (actual, self._dense)
        )
        smallest = torch.finfo(torch.float64).tiny
        ratios = rms / dense_rms.clamp(min=smallest)
        largest, dense_largest = (
            float((each.double() - self._exact).abs().max()) for each in (actual, self._dense)
        )
        return {
            "median_tile_rms": round(float(ratios.median()), 4),
            "worst_tile_rms": round(float(ratios.max()), 4),
            "largest": round(largest / max(dense_largest, smallest), 4),
            "tile_elements": RMS_TOKENS * side,
        }


def _rms(errors: Tensor, tile: tuple[int, int]) -> Tensor:
    """Returns the rms of each whole tile of a matrix; a matrix smaller than one tile counts as one."""
    height, width = min(tile[0], errors.shape[0]), min(tile[1], errors.shape[1])
    whole = errors[: errors.shape[0] // height * height, : errors.shape[1] // width * width]
    grid = whole.reshape(whole.shape[0] // height, height, whole.shape[1] // width, width)
    return grid.square().mean((1, 3)).sqrt()
