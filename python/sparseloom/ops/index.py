"""The index of a block-sparse weight: its lists in one tensor, and the operators that rewrite it in place.
``ops`` has the public names."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._arguments import named_arguments
from ..errors import Error
from .operators import call

#: The digest of an index whose pattern the host does not know, because set_topology rewrites it in place: its
#: plans depend on shape and number of blocks alone.
UNKNOWN = -1
#: The digest of an index with room for ``blocks``, of which the first crow[-1] are stored: update_topology
#: rewrites it in place, and the host does not even know their number.
MOVING = -2
#: Each list of a packed index begins at a multiple of this many elements: 64 bytes (packed_index.h).
SEGMENT = 16
_LISTS = ("crow", "col", "ccol", "row", "slot")


class Index(NamedTuple):
    """Says where the blocks of a [rows, cols] weight lie, by block rows and by block columns, over one list
    of values.

    The five lists lie in one tensor, ``packed``: an operator then takes one argument where it would take
    five, and a module moves, copies and shares one buffer.

    Every operator validates what an index holds before a kernel follows it, and names a bad entry. On the CPU
    it reads the whole index in each call. On a GPU it reads it once for each number of writes by torch's
    count (``_version``), and not while a graph captures: a write through ``.data``, or by a kernel of yours,
    is not seen there; nor is one by NumPy or ``.data`` into a CSR index of more than 4096 elements.
    """

    packed: Tensor  # int32: crow, col, ccol, row, slot, each from a multiple of 16 elements on
    blocks: int
    rows: int  # out features
    cols: int  # in features
    bm: int  # rows (out features) of one block
    bn: int  # columns (in features) of one block
    #: The facts of the pattern that plans use (how uneven its block rows and columns are, and whether it is a
    #: band) as a number, which equal layers with different blocks share; UNKNOWN if they are not known.
    digest: int

    def holding(self, packed: Tensor, blocks: int) -> Index:
        """Returns the index of another pattern of the weight. Raises Error, which names the first bad entry,
        unless ``packed`` holds one of so many blocks; on meta nothing is checked."""
        index = self._replace(packed=packed, blocks=blocks)
        if packed.is_meta:
            return index
        self.blocks_in(packed)
        crow, col = (part.to("cpu", torch.int32).contiguous() for part in (index.crow, index.col))
        made = make_index(crow, col, *index[2:4], (self.bm, self.bn))
        if packed.shape != made.packed.shape:
            got, remedy = f"{packed.numel()} elements", "take an undamaged copy"
            raise Error("index", f"{made.packed.numel()} elements for {blocks} blocks", got, remedy)
        for name, own, derived in zip(_LISTS, index.lists(), made.lists(), strict=True):
            if not torch.equal(own.cpu(), derived):
                raise Error("index", f"{name} that fits crow and col", "another", "take an undamaged copy")
        return index._replace(digest=made.digest)

    def blocks_in(self, packed: Tensor) -> int:
        """Returns how many blocks the packed index of another pattern of the weight has. Raises Error where
        that cannot be read."""
        least = -(-self.rows // self.bm) + 1
        if packed.dim() != 1 or packed.dtype != torch.int32 or packed.numel() < least:
            got = f"{list(packed.shape)} of {packed.dtype}"
            raise Error("index", f"at least {least} elements of torch.int32", got, "take an undamaged copy")
        return max(0, int(packed[least - 1]))

    def lists(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Returns crow, col, ccol, row and slot, as views of ``packed``."""
        block_rows, block_cols, blocks = -(-self.rows // self.bm), -(-self.cols // self.bn), self.blocks
        views, begin = [], 0
        for length in (block_rows + 1, blocks, block_cols + 1, blocks, blocks):
            views.append(self.packed[..., begin : begin + length])
            begin += -(-length // SEGMENT) * SEGMENT
        crow, col, ccol, row, slot = views
        return crow, col, ccol, row, slot

    @property
    def crow(self) -> Tensor:
        """[block rows + 1]: row r has the blocks crow[r] .. crow[r + 1] - 1."""
        return self.packed[: -(-self.rows // self.bm) + 1]

    @property
    def col(self) -> Tensor:
        """[blocks]: the block column of each block, ascending inside a block row."""
        return self.lists()[1]

    @property
    def ccol(self) -> Tensor:
        """[block columns + 1]: as crow, of block columns."""
        return self.lists()[2]

    @property
    def row(self) -> Tensor:
        """[blocks]: the block row of each block in column order, ascending inside a block column."""
        return self.lists()[3]

    @property
    def slot(self) -> Tensor:
        """[blocks]: the position in row order, as in the values, of each block in column order."""
        return self.lists()[4]

    def stored(self) -> tuple[Tensor, ...]:
        """Returns the lists without free slots, which an index of digest MOVING has; waits for its device."""
        crow, col, ccol, row, slot = self.lists()
        count = int(crow[-1]) if self.digest == MOVING else self.blocks
        return crow, col[:count], ccol, row[:count], slot[:count]

    def to(self, device: torch.device | str | int) -> Index:
        """Returns the same index with its tensor on ``device``."""
        packed = self.packed.to(device)
        remember(self, packed)
        return self._replace(packed=packed)


@named_arguments
def make_index(crow: Tensor, col: Tensor, rows: int, cols: int, block: int | tuple[int, int]) -> Index:
    """Validates crow and col (int32, contiguous, on the CPU) and packs them together with the index by block
    columns. Raises Error that names the first bad entry."""
    pair = block if isinstance(block, (tuple, list)) else (block, block)
    if len(pair) != 2:
        remedy = "pass block=32 or block=(32, 64)"
        raise Error("make_index", "block to be an int or a pair of ints", repr(block), remedy)
    bm, bn = pair
    for name, each in (("crow", crow), ("col", col)):
        if not isinstance(each, Tensor):
            raise Error(
                "make_index", f"{name} as an int32 tensor", type(each).__name__, "pass a pattern's index()"
            )
    digest = call("index_digest", crow, col, rows, cols, bm, bn)
    packed = call("pack_index", crow, col, rows, cols, bm, bn)
    return Index(packed, len(col), rows, cols, bm, bn, digest)


def remember(index: Index, there: Tensor) -> None:
    """Registers that the packed index ``there`` on CUDA holds the pattern of ``index``, which is on the CPU:
    products with it then multiply block rows that read the same inputs together.

    This is a hint, which changes no result. It does nothing if ``there`` is not on CUDA, and for an index
    that set_topology rewrites.
    """
    on_cpu = index.packed.device.type == "cpu"
    if on_cpu and there.is_cuda and type(there) is Tensor and index.digest >= 0:
        call("remember_index", index.packed, there, index.blocks, *index[2:6])


def trust(index: Index) -> None:
    """Marks an index on CUDA as just written by this library, so that the next product need not read it back
    and wait. Does nothing if it is not on CUDA, or for tensors without memory."""
    if index.packed.is_cuda and type(index.packed) is Tensor:
        call("trust_index", index.packed, index.blocks, *index[2:6])


@named_arguments
def set_topology(index: Index, mask: Tensor, moved: Tensor, requested: Tensor) -> None:
    """Rewrites an index in place for another mask of as many blocks, on the CPU or on CUDA. There the work is
    queued and can be captured in a graph.

    mask is bool or uint8 [block rows, block columns]. moved, int32 [blocks], receives the slot where each
    block lay before, -1 for a new one. requested, int32 [1], receives the number of blocks that the mask
    names. There are exactly as many blocks as before: if the mask names more, the first in row-major order
    are taken; if it names fewer, the first other cells are added. The digest of the index has to be UNKNOWN
    from then on. Raises Error when a shape or dtype does not fit.
    """
    call("set_topology", mask, index.packed, moved, requested)
    trust(index)


@named_arguments
def update_topology(index: Index, mask: Tensor, moved: Tensor, requested: Tensor, flags: Tensor) -> None:
    """Rewrites an index whose number of blocks may change, of digest MOVING, in place for a mask of at most
    as many blocks as its ``blocks`` slots. On CUDA the work is queued and can be captured in a graph.

    mask, moved and requested are as in set_topology; moved is -1 for a slot that becomes free, too, and -2
    for one that stays free. flags is int32 [1]: if the mask names more blocks than there are slots, its bit 1
    is set, moved says that every block stays, and nothing changes. Raises Error when a shape or dtype does
    not fit.
    """
    call("update_topology", mask, index.packed, moved, requested, flags)
    trust(index)


@named_arguments
def choose_blocks(
    index: Index, scores: Tensor, growth: Tensor | None, budget: Tensor, mask: Tensor, flags: Tensor
) -> None:
    """Writes the next topology to mask, bool [block rows, block columns]: of the stored blocks, those with
    the highest scores stay, and the other cells with the highest growth come. On CUDA the work is queued and
    can be captured in a graph.

    scores is float32 [slots], of which those of stored blocks are read; growth float32 [block rows, block
    columns], -inf where nothing may grow, None where nothing grows. budget is float64 [2]: how many blocks
    there shall be, and the share of those kept that is dropped and grown anew. Ties go to the lowest index.
    flags is int32 [1]: a NaN among the scores sets bit 2, growth that is not finite bit 4, and the mask is
    then that of the stored blocks. Raises Error when a shape or dtype does not fit.
    """
    call("choose_blocks", index.packed, scores, growth, budget, mask, flags)


@named_arguments
def move_blocks(values: Tensor, moved: Tensor) -> None:
    """Moves blocks in place after set_topology: values[slot] becomes what values[moved[slot]] was, or zero
    where moved is -1; it stays where moved is -2. values is [blocks, ...], or anything else with blocks as
    its first dimension, of any dtype and contiguous; on CUDA the work is queued. Raises Error when it does
    not fit."""
    call("move_blocks", values, moved)
