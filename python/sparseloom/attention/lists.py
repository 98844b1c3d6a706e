"""Lists of blocks from maps: for each block of queries the blocks of keys that it meets, in ascending order.

A map has a code for each pair of blocks: 0 absent, 1 whole, 2 partial (documents decide inside it).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import Error
from ..ops.attention import lists_of_map

#: An entry of a partial block: Lists::kPartial in block_attention.h.
PARTIAL = 1 << 30
#: Blocks that kernels have.
SIDES = (64, 128)


def of_map(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns counts [batch, heads, q blocks] and indices [.., capacity] of a map [.., q blocks, kv blocks],
    without reading it on the host if it is on a GPU; the capacity is then all blocks of keys, and otherwise
    the longest list."""
    codes = codes[(None,) * (4 - codes.dim())]
    counts, indices = lists_of_map(
        codes if codes.dtype in (torch.bool, torch.uint8) else codes.to(torch.uint8)
    )
    if codes.device.type == "cpu" and not torch.compiler.is_compiling():
        longest = max(1, int(counts.max()) if counts.numel() else 0)
        indices = indices[..., :longest].contiguous()
    return counts, indices


def to_map(counts: Tensor, indices: Tensor, blocks: int) -> Tensor:
    """Returns the map, uint8 [.., q blocks, blocks], of lists."""
    places = torch.arange(indices.shape[-1], device=indices.device)
    listed = places < counts[..., None]
    codes = torch.where(indices >= PARTIAL, 2, 1).to(torch.uint8)
    # What lies beyond a list goes to a column of its own, which is cut off.
    number = torch.where(listed, indices & (PARTIAL - 1), blocks).long()
    grid = torch.zeros((*counts.shape, blocks + 1), dtype=torch.uint8, device=indices.device)
    return grid.scatter(-1, number, codes)[..., :blocks].contiguous()


def cut(codes: Tensor, block: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """Returns a map with blocks that kernels have, cutting larger ones. Raises Error for others."""
    sides = []
    for axis, side in zip((-2, -1), block, strict=True):
        fitting = next((each for each in reversed(SIDES) if side % each == 0), None)
        if fitting is None or not 1 <= side < 2**31:
            remedy = "merge small blocks: a block is kept if any of its parts is"
            raise Error("attention", "blocks of 64 or 128 tokens or a multiple", str(side), remedy)
        if side != fitting:
            codes = codes.repeat_interleave(side // fitting, axis)
        sides.append(fitting)
    return codes, (sides[0], sides[1])


def side_of(name: str, tokens: int, blocks: int) -> int:
    """Returns the side that cuts so many tokens into so many blocks. Raises Error if there is none."""
    multiples = (128, 64, *range(256, 1025, 128))
    side = next((side for side in multiples if -(-tokens // side) == blocks), None)
    if side is None:
        expected = f"a map with {-(-tokens // 128)} or {-(-tokens // 64)} blocks for {tokens} {name}"
        raise Error("attention", expected, str(blocks), "pass block= with AttentionPattern.from_map")
    return side
