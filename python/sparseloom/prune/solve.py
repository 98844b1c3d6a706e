"""The linear algebra of one-shot pruning: the inverse of the Hessian, the sweep over the columns, swaps, and
the refit of what is kept. The error of a weight W' in place of W is tr((W' - W) H (W' - W)^T) with the
Hessian H, the mean of x x^T over the inputs x: the mean squared error of the outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import Error
from ..ops.operators import call

#: The 8-bit types that what is kept can be rounded to, by the operator's numbers.
GRIDS = {"int8": 1, "e4m3": 2}
#: Columns of one call of the sweep, as the operator takes them.
_COLUMNS = 128
_OP = "prune_"


@dataclass(frozen=True)
class Grid:
    """The 8-bit numbers of each row of a weight, as quantize_ finds them: ``tops`` float32 [rows] is the
    largest magnitude that is kept, which ``pins`` int32 [rows] says the column of."""

    kind: int  # 1: int8, 2: e4m3
    tops: Tensor
    pins: Tensor

    @classmethod
    def of(cls, values: Tensor, mask: Tensor, dtype: torch.dtype, kind: str) -> Grid:
        """Returns the grid of the kept values in a weight of a dtype, in which the largest is exact."""
        tops, pins = values.detach().float().abs().masked_fill(~mask, 0).max(1)
        return cls(GRIDS[kind], tops.to(dtype).float().contiguous(), pins.to(torch.int32))


def damped(hessian: Tensor, damping: float) -> Tensor:
    """Returns H + damping mean(diag H) I in float64; an input that is always 0 gets the mean diagonal of the
    others, so that the result scales as H does."""
    matrix = hessian.to(torch.float64, copy=True)
    diagonal = matrix.diagonal()
    dead = diagonal == 0
    diagonal += damping * diagonal.mean()
    diagonal[dead] = diagonal[~dead].mean() if bool((~dead).any()) else 1.0
    return matrix


def inverse_of(hessian: Tensor) -> Tensor:
    """Returns the inverse of a damped Hessian. Raises Error if it is not positive definite."""
    lower, info = torch.linalg.cholesky_ex(hessian)
    if int(info):
        remedy = "pass more data, or damping=0.1"
        raise Error(_OP, "a positive definite Hessian", f"one whose minor {int(info)} is not", remedy)
    return torch.cholesky_inverse(lower)


def swept(
    weight: Tensor,
    inverse: Tensor,
    mask: Tensor | None = None,
    *,
    n: int = 0,
    m: int = 0,
    choose: Callable[[Tensor, int, int], Tensor] | None = None,
    grid: Grid | None = None,
) -> tuple[Tensor, Tensor]:
    """Removes elements of weight [rows, cols] column by column, and corrects the columns that follow for each
    (SparseGPT, Frantar and Alistarh 2023, arXiv 2301.00774). ``inverse`` is that of the damped Hessian.

    What stays is the ``mask``, or ``n`` of each ``m``, or what ``choose(costs, begin, end)`` returns for the
    costs (w / U_jj)^2 [rows, end - begin] of some columns. What stays is rounded to the ``grid``, and the
    columns that follow are corrected for that too (GPTQ, Frantar et al. 2022, arXiv 2210.17323). Returns the
    weight, zero elsewhere, in float32, and the mask.
    """
    result = weight.detach().float().clone()
    factor = torch.linalg.cholesky(inverse, upper=True).float().contiguous()
    kept = torch.zeros(weight.shape, dtype=torch.bool, device=weight.device)
    cols = weight.shape[1]
    step = _COLUMNS // m * m if m else _COLUMNS
    for begin in range(0, cols, step):
        end = min(begin + step, cols)
        part, block = result[:, begin:end], factor[begin:end, begin:end]
        if mask is not None:
            chosen = mask[:, begin:end].contiguous()
        elif choose is not None:
            chosen = choose((part / block.diagonal()).square(), begin, end).contiguous()
        else:
            chosen = torch.zeros(part.shape, dtype=torch.bool, device=weight.device)
        errors = torch.empty(part.shape, dtype=torch.float32, device=weight.device)
        sizes = (n, m) if mask is None and choose is None else (0, 0)
        rounding = () if grid is None else (grid.kind, grid.tops, grid.pins - begin)
        call("column_sweep", part, block, chosen, errors, *sizes, *rounding)
        kept[:, begin:end] = chosen
        if end < cols:
            result[:, end:] -= errors @ factor[begin:end, end:]
    return result, kept


def swapped(
    weight: Tensor, values: Tensor, hessian: Tensor, mask: Tensor, m: int, most: int
) -> tuple[Tensor, Tensor, int]:
    """Improves a pruned weight by at most ``most`` swaps of a kept and a removed element a row, within groups
    of ``m`` (0: the whole row); the one that is kept then gets the value of the least error. Returns the
    values in float32, the mask, and the number of swaps. It computes on the CPU."""
    kept = mask.cpu().contiguous().clone()
    better = values.detach().float().masked_fill(~mask, 0).cpu().contiguous()
    fixed = weight.detach().float().cpu().contiguous(), hessian.float().cpu().contiguous()
    count = int(call("swap_pairs", fixed[0], better, fixed[1], kept, m, most))
    return better.to(mask.device), kept.to(mask.device), count


def refitted(weight: Tensor, values: Tensor, mask: Tensor, hessian: Tensor, steps: int) -> Tensor:
    """Moves the kept values towards those of the least error: ``steps`` of conjugate gradients for each row,
    preconditioned by the diagonal, from ``values``. No step raises the error. Returns float32 or float64."""
    dtype = torch.float64 if not weight.is_cuda else torch.float32
    target, gram, kept = weight.detach().to(dtype), hessian.to(dtype), mask.to(dtype)
    result = values.detach().to(dtype) * kept
    scale = 1 / gram.diagonal()
    residual = ((target - result) @ gram) * kept
    direction = residual * scale
    norms = (residual * direction).sum(1, keepdim=True)
    for _ in range(steps):
        product = (direction @ gram) * kept
        curvature = (direction * product).sum(1, keepdim=True)
        length = torch.where(curvature > 0, norms / curvature, 0.0)
        result += length * direction
        residual -= length * product
        scaled = residual * scale
        after = (residual * scaled).sum(1, keepdim=True)
        direction = scaled + torch.where(norms > 0, after / norms, 0.0) * direction
        norms = after
    return result


def whitened(weight: Tensor, inverse: Tensor, width: int) -> Tensor:
    """Returns a matrix whose sum of squares over a row of one block, ``width`` columns, is the error that
    removing them adds: w_C ([H^-1]_CC)^-1 w_C^T, if all others may be corrected (optimal brain surgeon)."""
    cols = weight.shape[1]
    short = -cols % width
    padded = F.pad(weight.detach().double(), (0, short))
    blocks = (cols + short) // width
    whole = F.pad(inverse, (0, short, 0, short))
    if short:
        whole.diagonal()[cols:] = 1
    at = torch.arange(blocks, device=weight.device)
    squares = whole.unflatten(1, (blocks, width)).unflatten(0, (blocks, width))[at, :, at]
    roots = torch.linalg.cholesky(torch.linalg.inv(squares))
    parts = padded.unflatten(1, (blocks, width)).transpose(0, 1) @ roots
    return parts.transpose(0, 1).flatten(1)[:, :cols].float()


def tile_errors(weight: Tensor, inverse: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Returns the errors that ``swept`` makes where a tile of ``side`` x ``side`` becomes 2:4, and where it
    goes, each float64 [tile rows, tile columns]: the columns that follow are corrected, and the others of the
    weight [rows, cols] are what they were.

    With U^T U = H^-1, U upper triangular, removing the columns C of a row costs |w_C (U_CC)^-1|^2, and one of
    them (w / U_jj)^2, of which 2:4 has the two smallest of each group.
    """
    rows, cols = weight.shape
    tall, wide = -rows % side, -cols % side
    factor = F.pad(torch.linalg.cholesky(inverse, upper=True), (0, wide, 0, wide))
    if wide:
        factor.diagonal()[cols:] = 1
    strips = F.pad(weight.detach().double(), (0, wide, 0, tall)).unflatten(1, (-1, side)).transpose(0, 1)
    at = torch.arange(len(strips), device=weight.device)
    corners = factor.unflatten(1, (-1, side)).unflatten(0, (-1, side))[at, :, at]
    of_rows = torch.linalg.solve_triangular(corners, strips, upper=True, left=False).square().sum(2)
    single = (strips / corners.diagonal(dim1=1, dim2=2)[:, None]).square().unflatten(2, (-1, 4))
    of_halves = single.topk(2, largest=False).values.sum((2, 3))
    absent, half = (each.unflatten(1, (-1, side)).sum(2).t() for each in (of_rows, of_halves))
    return half, absent.maximum(half)


def relative_error(weight: Tensor, values: Tensor, hessian: Tensor | None) -> float | None:
    """Returns the squared error of the outputs, divided by their own mean square; None without a Hessian."""
    if hessian is None:
        return None
    whole, change = weight.detach().to(hessian.dtype), (values - weight).to(hessian.dtype)
    size = float(((whole @ hessian) * whole).sum())
    return float(((change @ hessian) * change).sum()) / size if size > 0 else 0.0
