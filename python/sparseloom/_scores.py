"""Scores the blocks of a weight: on the host by the C++ operator, elsewhere by torch, on its device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import ops
from .errors import Error

#: norm -> the order of torch's vector norm.
NORMS = {"l1": 1.0, "l2": 2.0, "max": float("inf")}


def block_scores(weight: Tensor, block: tuple[int, int], norm: str) -> Tensor:
    """Returns the norm of each block of weight [rows, cols]: float32 [block rows, block columns] on the CPU.

    A weight on the CPU is summed in float64. Elsewhere it is not copied to the host, only the scores are, and
    it is summed in float32 (float64 stays): the scores of both differ by rounding, so that a choice between
    blocks may differ where their scores are that close. Raises Error for an unknown norm.
    """
    if norm not in NORMS:
        raise Error("block_scores", f"norm to be one of {', '.join(NORMS)}", repr(norm), "pass one of them")
    if weight.device.type == "cpu":
        scores: Tensor = ops.call("block_scores", weight.detach().contiguous(), *block, norm)
        return scores
    return scores_on_device(weight.detach(), block, norm).to("cpu")


def scores_on_device(weight: Tensor, block: tuple[int, int], norm: str) -> Tensor:
    """Returns the scores on the weight's device, by torch."""
    (rows, cols), (bm, bn) = weight.shape, block
    grid = -(-rows // bm), -(-cols // bn)
    if not grid[0] * grid[1]:
        return weight.new_zeros(grid, dtype=torch.float32)
    if rows % bm or cols % bn:
        weight = F.pad(weight, (0, grid[1] * bn - cols, 0, grid[0] * bm - rows))
    blocks = weight.unflatten(1, (grid[1], bn)).unflatten(0, (grid[0], bm))
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    return torch.linalg.vector_norm(blocks, NORMS[norm], (1, 3), dtype=dtype).float()
