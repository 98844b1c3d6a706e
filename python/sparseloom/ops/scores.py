"""Scores the blocks of a weight: on the CPU by the C++ operator, elsewhere by torch on the same device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from ..errors import Error

#: norm -> the order of torch's vector norm.
NORMS = {"l1": 1.0, "l2": 2.0, "max": float("inf")}
#: How many elements of dY^T X exist at once while its blocks are scored in float64: 32 MiB.
_STRIP = 1 << 22


def block_scores(weight: Tensor, block: tuple[int, int], norm: str) -> Tensor:
    """Returns the norm of each block of weight [rows, cols]: float32 [block rows, block columns] on the CPU.

    A weight on the CPU is summed in float64. Elsewhere it is not copied to the host, only the scores are, and
    it is summed in float32 (float64 stays): the scores of both differ by rounding, so that a choice between
    blocks may differ where their scores are that close. Raises Error for an unknown norm.
    """
    if norm not in NORMS:
        raise Error("block_scores", f"norm to be one of {', '.join(NORMS)}", repr(norm), "pass one of them")
    if block == (1, 1):  # single elements, which the operator does not know
        return weight.detach().abs().float().to("cpu")
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


def gradient_scores(
    pairs: Sequence[tuple[Tensor, Tensor]], rows: int, cols: int, block: tuple[int, int], norm: str
) -> Tensor:
    """Returns the norm of each block of the sum of dy^T x over pairs (dy [tokens, rows], x [tokens, cols]):
    float32 [block rows, block columns] on the CPU.

    The gradient of the whole weight is never stored. It is the norm of the sum that counts, not the sum of
    norms, so that micro-batches score as their batch would.
    """
    dys, xs = zip(*pairs, strict=True)
    if dys[0].dtype == torch.float64 or block == (1, 1):
        return _strips(pairs, rows, cols, block, norm)
    dy, x = (tensors[0] if len(pairs) == 1 else torch.cat(tensors) for tensors in (dys, xs))
    norms: Tensor = ops.call("block_gradient_norms", dy, x, *block, norm)
    return norms.to("cpu")


def _strips(
    pairs: Sequence[tuple[Tensor, Tensor]], rows: int, cols: int, block: tuple[int, int], norm: str
) -> Tensor:
    """Computes gradient_scores by torch's own product, some block rows at a time: for float64 and for single
    elements, which the operator does not support."""
    bm, bn = block
    scores = torch.empty(-(-rows // bm), -(-cols // bn), dtype=torch.float32, device="cpu")
    if not scores.numel():
        return scores
    height = max(1, _STRIP // max(1, bm * cols)) * bm
    for top in range(0, rows, height):
        products = [dy[:, top : top + height].t() @ x for dy, x in pairs]
        strip = torch.stack(products).sum(0)
        scores[top // bm : -(-min(top + height, rows) // bm)] = block_scores(strip, block, norm)
    return scores


def gradient_norms(pairs: Sequence[tuple[Tensor, Tensor]], block: tuple[int, int], norm: str) -> Tensor:
    """Returns what gradient_scores does, on the device of the pairs and without waiting for it."""
    dys, xs = zip(*pairs, strict=True)
    dy, x = (tensors[0] if len(pairs) == 1 else torch.cat(tensors) for tensors in (dys, xs))
    if dy.dtype == torch.float64:  # which the operator does not support; only checks use it
        return scores_on_device(dy.t() @ x, block, norm)
    norms: Tensor = ops.call("block_gradient_norms", dy, x, *block, norm)
    return norms
