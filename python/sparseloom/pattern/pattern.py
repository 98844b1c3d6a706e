"""Pattern: the set of blocks that a weight stores. It holds bits only, no values and no dtype."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from .. import ops
from .._arguments import named_arguments, named_init
from .._checks import whole
from ..errors import Error

Block: TypeAlias = int | tuple[int, int]


def block_shape(op: str, block: Block) -> tuple[int, int]:
    """Returns (rows, columns) of a block that is an int or a pair. Raises Error for anything else, and for
    sides below 1, by which callers divide; C++ knows which sides a family has."""
    pair = tuple(block) if isinstance(block, (tuple, list)) else (block, block)
    try:
        bm, bn = (whole(op, "block", side, None) for side in pair)
    except (Error, ValueError):
        remedy = "pass block=32 or block=(32, 64)"
        raise Error(op, "block to be an int or a pair of ints", repr(block), remedy) from None
    if bm < 1 or bn < 1:
        raise Error(op, "sides of a block of 1 and more", repr(block), "pass block=32 or block=(32, 64)")
    return bm, bn


@dataclass(frozen=True)
class PatternStats:
    """Counts of a pattern. ``elements`` leaves out the padding of ragged edges; the row figures count blocks
    per block row."""

    blocks: int
    elements: int
    block_density: float
    element_density: float
    row_min: int
    row_max: int
    row_mean: float


@named_init
class Pattern:
    """The present blocks of a weight of shape [rows, cols] = [out features, in features] that is cut into
    blocks; immutable.

    The last block row and the last block column may be ragged. ``mask`` is bool [block rows, block columns].
    Raises Error for a negative size, a block side outside {8, 16, 32, 64, 128} or a mask of another shape.
    """

    __slots__ = ("_bits", "_block", "_cols", "_rows")
    _rows: int
    _cols: int
    _block: tuple[int, int]
    _bits: Tensor

    def __init__(self, rows: int, cols: int, block: Block, mask: Tensor) -> None:
        bm, bn = block_shape("pattern", block)
        rows, cols = whole("pattern", "rows", rows), whole("pattern", "cols", cols)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            got = f"a tensor of {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
            raise Error(
                "pattern", "mask to be a bool tensor", got, "compare scores with a threshold, or use .bool()"
            )
        mask = mask.detach().to("cpu", copy=True).contiguous()
        # C++ has the rules: this call checks block and shape against the mask. Not pattern_stats: torch 2.13
        # frees no string that an operator returns (findings/torch-stable-operators-leak-strings.sh).
        ops.call("mask_to_index", mask, rows, cols, bm, bn)
        for name, value in (("_rows", rows), ("_cols", cols), ("_block", (bm, bn)), ("_bits", mask)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise Error(
            "pattern",
            "an immutable Pattern",
            f"assignment to {name}",
            "make a new one, for example with | or -",
        )

    @property
    def rows(self) -> int:
        """Out features."""
        return self._rows

    @property
    def cols(self) -> int:
        """In features."""
        return self._cols

    @property
    def block(self) -> tuple[int, int]:
        """(out features, in features) of one block."""
        return self._block

    @property
    def mask(self) -> Tensor:
        """A copy of the bits: bool [block rows, block columns] on the CPU."""
        return self._bits.clone()

    @property
    def blocks(self) -> int:
        """The number of present blocks."""
        return int(self._bits.sum())

    @property
    def density(self) -> float:
        """The number of present blocks over that of all blocks of the grid; 0 for an empty grid."""
        return self.blocks / max(1, self._bits.numel())

    @property
    def _arguments(self) -> tuple[Tensor, int, int, int, int]:
        return (self._bits, self.rows, self.cols, *self.block)

    def stats(self) -> PatternStats:
        """Returns counts, densities, and blocks per block row."""
        return PatternStats(**json.loads(ops.call("pattern_stats", *self._arguments)))

    def index(self) -> tuple[Tensor, Tensor]:
        """Returns crow, int32 [block rows + 1], and col, int32 [blocks], ascending inside each block row."""
        crow, col = ops.call("mask_to_index", *self._arguments)
        return crow, col

    @classmethod
    @named_arguments
    def from_index(cls, crow: Tensor, col: Tensor, rows: int, cols: int, block: Block) -> Pattern:
        """Returns the pattern of a block row index (int32). Raises Error that names the first entry that is
        out of bounds, out of order or repeated."""
        shape = block_shape("pattern", block)
        rows, cols = whole("pattern", "rows", rows), whole("pattern", "cols", cols)
        ops.call("validate_index", crow, col, rows, cols, *shape)
        return cls(rows, cols, shape, ops.call("index_to_mask", crow, col, rows, cols, *shape))

    def transposed(self) -> Pattern:
        """Returns the pattern of the transposed weight."""
        return Pattern(self.cols, self.rows, (self.block[1], self.block[0]), self._bits.t())

    def _combine(self, other: object, mask: Any) -> Pattern:
        if not isinstance(other, Pattern):
            return NotImplemented
        own, others = (f"{p.rows} x {p.cols} in blocks of {p.block[0]} x {p.block[1]}" for p in (self, other))
        if own != others:
            raise Error(
                "pattern", f"two patterns of one shape, {own}", others, "combine patterns of the same weight"
            )
        return Pattern(self.rows, self.cols, self.block, mask(self._bits, other._bits))

    def __and__(self, other: Pattern) -> Pattern:
        return self._combine(other, torch.logical_and)

    def __or__(self, other: Pattern) -> Pattern:
        return self._combine(other, torch.logical_or)

    def __xor__(self, other: Pattern) -> Pattern:
        return self._combine(other, torch.logical_xor)

    def __sub__(self, other: Pattern) -> Pattern:
        return self._combine(other, lambda a, b: a & ~b)

    def __invert__(self) -> Pattern:
        return Pattern(self.rows, self.cols, self.block, ~self._bits)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pattern):
            return NotImplemented
        same_grid = (self.rows, self.cols, self.block) == (other.rows, other.cols, other.block)
        return same_grid and torch.equal(self._bits, other._bits)

    def __hash__(self) -> int:
        return hash((self.rows, self.cols, self.block, self._bits.numpy().tobytes()))

    def __copy__(self) -> Pattern:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Pattern:
        return self

    def __reduce__(self) -> tuple[Any, tuple[int, int, tuple[int, int], bytes]]:
        """Pickles the bits as bytes: torch sends tensors to other processes through shared memory, and the
        memory of a temporary tensor is freed before they read it."""
        return _from_bytes, (self.rows, self.cols, self.block, self._bits.numpy().tobytes())

    def ascii(self, max_side: int = 64) -> str:
        """Draws the pattern as text: '#' is a present block and '.' an absent one. A grid larger than
        ``max_side`` is averaged into cells, drawn as a blank or one of .:-=+*#%@, from empty to full."""
        return str(ops.call("pattern_ascii", *self._arguments, whole("pattern", "max_side", max_side)))

    def svg(self, pixels: int = 256) -> str:
        """Returns a self-contained picture, at most ``pixels`` on its longer side."""
        return str(ops.call("pattern_svg", *self._arguments, whole("pattern", "pixels", pixels)))

    def __repr__(self) -> str:
        bm, bn = self.block
        return (
            f"Pattern({self.rows} x {self.cols}, block {bm} x {bn}, "
            f"{self.blocks} blocks, density {self.density:.4g})"
        )

    def __str__(self) -> str:
        return f"{self!r}\n{self.ascii()}"

    def _repr_html_(self) -> str:
        return f"<figure>{self.svg()}<figcaption>{html.escape(repr(self))}</figcaption></figure>"


def _from_bytes(rows: int, cols: int, block: tuple[int, int], bits: bytes) -> Pattern:
    mask = (
        torch.frombuffer(bytearray(bits), dtype=torch.bool)
        if bits
        else torch.empty(0, dtype=torch.bool, device="cpu")
    )
    return Pattern(rows, cols, block, mask.reshape(-(-rows // block[0]), -(-cols // block[1])))


def require_sides(op: str, bm: int, bn: int) -> None:
    """Raises Error for sides that nothing can be divided by; C++ applies the full rule when the Pattern is
    made."""
    if bm < 1 or bn < 1:
        raise Error(
            op, "block sides of {8, 16, 32, 64, 128}", f"{bm} x {bn}", "pass block=32 or block=(32, 64)"
        )
