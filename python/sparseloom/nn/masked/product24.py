"""The product of Semi24Training: a dense weight under a 2:4 mask, packed in each call.

Two steps, so that every layer kind has the same gradient rule: ``pruned`` makes W * mask (or the softened
weight) of the dense master, and says what gradient the master gets; ``product`` multiplies with it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...ops import semi24
from ...ops.once import once
from ...ops.verbs import Map, mapped

_OP = "Semi24Training"

#: What is known of a mask: nothing, at most two of four in each row, and in each column as well.
ANY, ROWS, TRANSPOSABLE = 0, 1, 2

#: The fewest tokens with which packing in each call pays on a GPU in 16 bits. Dense products of 700 TFLOP/s
#: and 2:4 ones 1.45 times as fast gain 1.8 fs an element and token in Y and dX together; mask, prune and pack
#: take some 4 ps an element (docs/semi24.md has both rates).
FEWEST_TOKENS = 2560


def kind_of(mask: Tensor) -> int:
    """Returns what a bool mask [rows, cols] is: ANY, ROWS or TRANSPOSABLE. The host reads it."""
    if not bool((_counts(mask) <= 2).all()):
        return ANY
    return TRANSPOSABLE if bool((_counts(mask.t()) <= 2).all()) else ROWS


def _counts(mask: Tensor) -> Tensor:
    return _groups(mask.to(torch.uint8)).sum(-1)


def _groups(like_weight: Tensor) -> Tensor:
    """Returns [..., cols] as [..., groups, 4], with zeros behind the last column."""
    return F.pad(like_weight, (0, -like_weight.shape[-1] % 4)).unflatten(-1, (-1, 4))


def softened(weight: Tensor, mask: Tensor) -> Tensor:
    """Returns the kept elements of W [..., cols], each nearer to zero by the largest pruned magnitude of its
    group (S-STE): the weight is then a continuous function of the master, also where the mask changes."""
    size = weight.abs()
    least = _groups(size.masked_fill(mask, 0)).amax(-1, keepdim=True)
    least = least.expand(*least.shape[:-1], 4).flatten(-2)[..., : weight.shape[-1]]
    return ((size - least).clamp(min=0) * weight.sign()).masked_fill(~mask, 0)


def scale_of(weight: Tensor, mask: Tensor) -> Tensor:
    """Returns the factor [] by which the softened weight is nearest to W in the least squares."""
    weight = weight.detach().float()
    soft = softened(weight, mask)
    squares = soft.square().sum()
    return torch.where(squares > 0, (weight * soft).sum() / squares, torch.ones_like(squares))


class _Pruning(Map):
    """Maps the master to the weight that is multiplied with; its gradient is the master's."""

    def __init__(self, share: float, decay: float) -> None:
        self.share, self.decay = share, decay

    def run(self, ctx: Any, weight: Tensor, mask: Tensor, scale: Tensor | None) -> Tensor:  # type: ignore[override]
        # Where all of G passes, a refresh may write the mask before the backward pass.
        masked = self.share != 1 or self.decay
        ctx.save_for_backward(mask if masked else None, weight if self.decay else None)
        if scale is None:
            return weight.masked_fill(~mask, 0)
        return softened(weight, mask) * scale.to(weight.dtype)

    def gradients(self, ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        result: tuple[Tensor | None, ...] = once(_OP, self._gradients, ctx, gradient)
        return result

    def _gradients(self, ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        mask, weight = ctx.saved_tensors
        if self.share != 1:
            gradient = torch.where(mask, gradient, self.share * gradient if self.share else 0)
        if self.decay:
            gradient = gradient + self.decay * weight.masked_fill(mask, 0)
        return gradient, None, None


def pruned(weight: Tensor, mask: Tensor, share: float, decay: float, scale: Tensor | None) -> Tensor:
    """Returns W * mask, or with a ``scale`` [] the softened weight times it; pruned elements may hold
    anything, NaN included. Differentiable once: kept elements of W get the gradient, pruned ones ``share`` of
    it plus ``decay`` times themselves."""
    effective: Tensor = mapped(weight, _Pruning(share, decay), mask, scale)
    return effective


class _Packed(Map):
    """Maps x, W and a bias to x W^T + bias by 2:4 kernels."""

    def __init__(self, transposable: bool) -> None:
        self.transposable = transposable

    def run(self, ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        # All that is not zero is kept: a row has two of four, and where both sides have, greedy takes all.
        prune = "transposable_greedy" if self.transposable else "magnitude"
        values, positions, _, turned, turned_positions = semi24.compress(weight, prune, self.transposable)
        ctx.rows = weight.shape[0]
        kept_x = x if ctx.needs_input_grad[2] else None
        # W^T of another mask is not 2:4: to pack it would lose elements, so that dX multiplies with W itself.
        ctx.save_for_backward(kept_x, *((turned, turned_positions) if self.transposable else (weight, None)))
        metadata = semi24.order(positions, weight.shape[1])
        return semi24.linear(x, values, positions, weight.shape[1], bias, metadata=metadata)

    def gradients(self, ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        result: tuple[Tensor | None, ...] = once(_OP, self._gradients, ctx, dy)
        return result

    def _gradients(self, ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, positions = ctx.saved_tensors
        need_x, _, need_weight, need_bias = ctx.needs_input_grad
        dx = dweight = None
        if need_x and self.transposable:
            metadata = semi24.order(positions, ctx.rows)
            dx = semi24.linear(dy.contiguous(), weight, positions, ctx.rows, metadata=metadata)
        elif need_x:
            dx = dy @ weight
        if need_weight:
            dweight = dy.t() @ x
        return dx, dweight, dy.sum(0) if need_bias else None


def product(x: Tensor, weight: Tensor, bias: Tensor | None, transposable: bool) -> Tensor:
    """Returns x W^T + bias of x [tokens, cols] by 2:4 kernels, for a dense W [rows, cols] that holds at most
    two nonzeros in each four of a row, and with ``transposable`` of a column too. Differentiable once; the
    gradient of W is dY^T X, everywhere. No element is checked, and the host waits for nothing."""
    y: Tensor = mapped(x, _Packed(transposable), weight, bias)
    return y


def pays(x: Tensor, tokens: int, rows: int, cols: int) -> bool:
    """Returns whether 2:4 kernels are expected to be faster than W * mask [rows, cols] in a dense product.
    Rows of other sizes than multiples of 16 bytes are none that TMA reads."""
    aligned = rows % 8 == 0 and cols % 8 == 0
    return x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and aligned and tokens >= FEWEST_TOKENS
