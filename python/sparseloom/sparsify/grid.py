"""Sums over the blocks of a weight, and expands one number per block to its elements."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def expanded(per_block: Tensor, block: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    """Returns [rows, cols] in which every element has the entry of its block [block rows, block columns].

    For blocks of one element it is ``per_block`` itself.
    """
    if block == (1, 1):
        return per_block
    padded = per_block.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return padded[: shape[0], : shape[1]]


def block_sums(matrix: Tensor, block: tuple[int, int]) -> Tensor:
    """Returns the sum over each block of a matrix [rows, cols], differentiable: [block rows, block columns].

    Ragged edges are padded with zeros. For blocks of one element it is ``matrix`` itself.
    """
    if block == (1, 1):
        return matrix
    (rows, cols), (bm, bn) = matrix.shape, block
    grid = -(-rows // bm), -(-cols // bn)
    if rows % bm or cols % bn:
        matrix = F.pad(matrix, (0, grid[1] * bn - cols, 0, grid[0] * bm - rows))
    return matrix.unflatten(1, (grid[1], bn)).unflatten(0, (grid[0], bm)).sum((1, 3))


def elements(shape: tuple[int, int], block: tuple[int, int]) -> Tensor:
    """Returns how many elements each block has: fewer at ragged edges.

    float32 [block rows, block columns].
    """
    sides = []
    for size, side in zip(shape, block, strict=True):
        count = torch.full((-(-size // side),), float(side), dtype=torch.float32, device="cpu")
        if size % side:
            count[-1] = size % side
        sides.append(count)
    return sides[0][:, None] * sides[1][None, :]
