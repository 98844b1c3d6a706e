"""The product of MaskedLinear: y = x (W * factors)^T + bias, with a dense W and one factor for each block."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import ops
from ...ops.once import differentiable_once
from ...pattern import Pattern
from ...sparsify.grid import block_sums, expanded
from ..held import state


class Kept(NamedTuple):
    """The blocks that take part in a product: as a bool mask [block rows, block columns], as an index on the
    host, and as one where the weight is. Single elements (blocks of 1 x 1) have no index: their products are
    dense ones."""

    mask: Tensor
    block: tuple[int, int]
    host: ops.Index | None = None
    there: ops.Index | None = None

    @staticmethod
    def of(mask: Tensor, shape: tuple[int, int], block: tuple[int, int], device: torch.device) -> Kept:
        """Returns the blocks of a bool mask for a weight of that shape."""
        if block == (1, 1):
            return Kept(mask.to(device, copy=True), block)  # the owner writes the next mask in place
        pattern = Pattern(*shape, block, mask)
        # Masks change from step to step, so plans go by their number of blocks alone.
        host = state.build_index(pattern)._replace(digest=ops.UNKNOWN)
        return Kept(pattern.mask, block, host, host._replace(packed=host.packed.to(device)))

    def where(self) -> ops.Index:
        """Returns the index where the weight is, of blocks."""
        assert self.there is not None
        return self.there


class How(NamedTuple):
    """What is no operand: the kept blocks, and what the pruned part of W gets as its gradient: ``share`` of
    dY^T X, and ``decay`` times W. ``multiply`` is that of MaskedLinear."""

    kept: Kept
    share: float
    decay: float
    multiply: str = "auto"


def product(x: Tensor, weight: Tensor, gates: Tensor | None, bias: Tensor | None, how: How) -> Tensor:
    """Returns x (W * factors)^T + bias for x [..., in], W [out, in] and ``gates`` [block rows, block
    columns], whose zeros are the absent blocks; None stands for 1 in the kept ones.

    Forward and dX each multiply with the blocks where the plan expects that to be faster, and with W *
    factors otherwise. dW is computed at the kept blocks where nothing else needs it. Differentiable once in
    x, W, gates and bias; the gradient of a gate is the sum of dY^T X * W over its block.
    """
    y: Tensor = _Product.apply(x, weight, gates, bias, how)
    return y


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, gates: Tensor | None, bias: Tensor | None, how: How
    ) -> Tensor:
        ctx.how = how
        ctx.save_for_backward(x, weight, gates)
        if _sparse(how, "forward", x, bias is not None):
            return ops.linear(x, _values(weight, gates, how.kept), how.kept.where(), bias)
        return F.linear(x, factored(weight, gates, how.kept), bias)

    @staticmethod
    @differentiable_once("MaskedLinear")
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight, gates), (kept, share, *_) = ctx.saved_tensors, ctx.how
        need_x, need_weight, need_gates, need_bias, _ = ctx.needs_input_grad
        dx = dweight = dgates = None
        if need_x:
            sparse = _sparse(ctx.how, "dx", dy)
            if sparse:
                dx = ops.linear_dx(dy, _values(weight, gates, kept), kept.where())
            else:
                dx = dy @ factored(weight, gates, kept)
        if need_weight or need_gates:
            everywhere = need_gates or share != 0
            whole = _whole_gradient(dy, x) if everywhere or not _sparse(ctx.how, "dw", dy) else None
            if need_gates:
                assert whole is not None
                dgates = block_sums(whole * weight, kept.block).to(gates.dtype)
            if need_weight:
                dweight = _weight_gradient(dy, x, whole, weight, gates, ctx.how)
        dbias = dy.reshape(-1, dy.shape[-1]).sum(0) if need_bias else None
        return dx, dweight, dgates, dbias, None


def _whole_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return dy.reshape(-1, dy.shape[-1]).t() @ x.reshape(-1, x.shape[-1])


def _weight_gradient(
    dy: Tensor, x: Tensor, whole: Tensor | None, weight: Tensor, gates: Tensor | None, how: How
) -> Tensor:
    kept, share, decay, _ = how
    if whole is None:
        index = kept.where()
        inside = ops.call("unpack", ops.linear_dw(dy, x, index), index.crow, index.col, *weight.shape)
        if gates is not None:
            inside = inside * expanded(gates, kept.block, (weight.shape[0], weight.shape[1]))
    else:
        inside = factored(whole, gates, kept)
    if not share and not decay:
        return inside
    outside = ~_elements(kept, weight)
    if share and whole is not None:
        inside = inside + share * whole * outside
    return inside + decay * weight * outside if decay else inside


def _elements(kept: Kept, weight: Tensor) -> Tensor:
    return expanded(kept.mask.to(weight.device), kept.block, (weight.shape[0], weight.shape[1]))


def factored(weight: Tensor, gates: Tensor | None, kept: Kept) -> Tensor:
    """Returns weight * factors. Where a mask decides, what is kept stays bitwise, and what is pruned may hold
    anything, NaN included."""
    if gates is None:
        return weight.masked_fill(~_elements(kept, weight), 0)
    return weight * expanded(gates.to(weight.dtype), kept.block, (weight.shape[0], weight.shape[1]))


def _values(weight: Tensor, gates: Tensor | None, kept: Kept) -> Tensor:
    """Returns the kept blocks [blocks, bm, bn] of weight * factors."""
    index = kept.where()
    values: Tensor = ops.call("pack", weight.detach().contiguous(), index.crow, index.col, index.bm, index.bn)
    if gates is None:
        return values
    factors = gates.detach()[kept.mask.to(gates.device)].to(values.dtype)
    return values * factors[:, None, None]


def _sparse(how: How, direction: str, operand: Tensor, bias: bool = False) -> bool:
    """Returns whether the product multiplies with the blocks: because it was asked to, or because that is
    expected to be faster than with the dense W * factors."""
    host = how.kept.host
    if host is None:
        return False
    if how.multiply != "auto":
        return how.multiply == "blocks"
    tokens = operand.numel() // max(1, operand.shape[-1])
    shape = host.rows, host.cols, host.bm, host.bn
    tf32 = operand.is_cuda and torch.backends.cuda.matmul.fp32_precision
    return _faster(
        _Shape(host), shape, host.blocks, direction, operand.dtype, tokens, bias, operand.device, tf32
    )


class _Shape:
    """An index that the cache below does not tell from others: what it does tell apart is in its key."""

    def __init__(self, index: ops.Index) -> None:
        self.index = index

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shape)


@lru_cache(maxsize=1024)
def _faster(
    where: _Shape,
    shape: tuple[int, int, int, int],
    blocks: int,
    direction: str,
    dtype: torch.dtype,
    tokens: int,
    bias: bool,
    device: torch.device,
    tf32: object,
) -> bool:
    if not blocks or not tokens:
        return False
    plan = ops.plan(where.index, direction, dtype, tokens, bias, device=device)
    dense_us = plan["dense_copy_us"]
    return plan["kernel"] not in ("dense", "reference") and (
        dense_us is None or plan["predicted_us"] < dense_us
    )
