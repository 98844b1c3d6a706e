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


class KeptBlocks(NamedTuple):
    """The blocks that take part in a product: a bool mask [block rows, block columns], an index on the host,
    and an index on the weight's device. Single elements (blocks of 1 x 1) have no index: their products are
    dense."""

    mask: Tensor
    block: tuple[int, int]
    host: ops.Index | None = None
    placed: ops.Index | None = None

    @staticmethod
    def of(mask: Tensor, shape: tuple[int, int], block: tuple[int, int], device: torch.device) -> KeptBlocks:
        """Returns the blocks of a bool mask for a weight of that shape."""
        if block == (1, 1):
            return KeptBlocks(mask.to(device, copy=True), block)  # the owner writes the next mask in place
        pattern = Pattern(*shape, block, mask)
        # Masks change from step to step, so plans depend only on their number of blocks.
        host = state.build_index(pattern)._replace(digest=ops.UNKNOWN)
        return KeptBlocks(pattern.mask, block, host, host._replace(packed=host.packed.to(device)))

    def where(self) -> ops.Index:
        """Returns the index on the weight's device. Not for single elements."""
        assert self.placed is not None
        return self.placed


class ProductOptions(NamedTuple):
    """The arguments of a product that are not tensors to differentiate: the kept blocks, and the gradient of
    the pruned part of W, ``share`` times dY^T X plus ``decay`` times W. ``multiply`` is MaskedLinear's."""

    blocks: KeptBlocks
    share: float
    decay: float
    multiply: str = "auto"


def product(
    x: Tensor, weight: Tensor, gates: Tensor | None, bias: Tensor | None, options: ProductOptions
) -> Tensor:
    """Returns x (W * factors)^T + bias for x [..., in], W [out, in] and ``gates`` [block rows, block
    columns], whose zeros are the absent blocks; None stands for 1 in the kept ones.

    Forward and dX each multiply with the blocks where the plan expects that to be faster, and with W *
    factors otherwise. dW is computed at the kept blocks where nothing else needs it. Differentiable once in
    x, W, gates and bias; the gradient of a gate is the sum of dY^T X * W over its block. W and gates may have
    another dtype than x and bias, as under autocast: only what is multiplied with is cast.
    """
    y: Tensor = _Product.apply(x, weight, gates, bias, options)
    return y


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        gates: Tensor | None,
        bias: Tensor | None,
        options: ProductOptions,
    ) -> Tensor:
        ctx.options = options
        values = None
        if _sparse(options, "forward", x, bias is not None):
            values = _values(weight, gates, options.blocks, x.dtype)
            y = ops.linear(x, values, options.blocks.where(), bias)
        else:
            y = F.linear(x, factored(weight.to(x.dtype), gates, options.blocks), bias)
        again = values is not None and ctx.needs_input_grad[0] and _sparse(options, "dx", y)
        ctx.save_for_backward(x, weight, gates, values if again else None)
        return y

    @staticmethod
    @differentiable_once("MaskedLinear")
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight, gates, values), (blocks, share, *_) = ctx.saved_tensors, ctx.options
        need_x, need_weight, need_gates, need_bias, _ = ctx.needs_input_grad
        dx = dweight = dgates = None
        if need_x:
            if values is not None or _sparse(ctx.options, "dx", dy):
                values = _values(weight, gates, blocks, dy.dtype) if values is None else values
                dx = ops.linear_dx(dy, values, blocks.where())
            else:
                dx = dy @ factored(weight.to(dy.dtype), gates, blocks)
        if need_weight or need_gates:
            everywhere = need_gates or share != 0
            full_gradient = (
                _full_gradient(dy, x) if everywhere or not _sparse(ctx.options, "dw", dy) else None
            )
            if need_gates:
                assert full_gradient is not None
                dgates = block_sums(full_gradient * weight, blocks.block).to(gates.dtype)
            if need_weight:
                dweight = _weight_gradient(dy, x, full_gradient, weight, gates, ctx.options)
        dbias = dy.reshape(-1, dy.shape[-1]).sum(0) if need_bias else None
        return dx, dweight, dgates, dbias, None


def _full_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return dy.reshape(-1, dy.shape[-1]).t() @ x.reshape(-1, x.shape[-1])


def _weight_gradient(
    dy: Tensor,
    x: Tensor,
    full_gradient: Tensor | None,
    weight: Tensor,
    gates: Tensor | None,
    options: ProductOptions,
) -> Tensor:
    blocks, share, decay, _ = options
    if full_gradient is None:
        index = blocks.where()
        inside = ops.call("unpack", ops.linear_dw(dy, x, index), index.crow, index.col, *weight.shape)
        if gates is not None:
            inside = inside * expanded(gates, blocks.block, (weight.shape[0], weight.shape[1]))
    else:
        inside = factored(full_gradient, gates, blocks)
    if not share and not decay:
        return inside
    outside = ~_elements(blocks, weight)
    if share and full_gradient is not None:
        inside = inside + share * full_gradient * outside
    return inside + decay * weight * outside if decay else inside


def _elements(blocks: KeptBlocks, weight: Tensor) -> Tensor:
    return expanded(blocks.mask.to(weight.device), blocks.block, (weight.shape[0], weight.shape[1]))


def factored(weight: Tensor, gates: Tensor | None, blocks: KeptBlocks) -> Tensor:
    """Returns weight * factors. With a mask, kept elements stay bitwise the same, and pruned elements may
    hold anything, NaN included."""
    if gates is None:
        return weight.masked_fill(~_elements(blocks, weight), 0)
    return weight * expanded(gates.to(weight.dtype), blocks.block, (weight.shape[0], weight.shape[1]))


def _values(weight: Tensor, gates: Tensor | None, blocks: KeptBlocks, dtype: torch.dtype) -> Tensor:
    """Returns the kept blocks [blocks, bm, bn] of weight * factors in a dtype. They are cast last: the pruned
    part of W is not read."""
    index = blocks.where()
    values: Tensor = ops.call("pack", weight.detach().contiguous(), index.crow, index.col, index.bm, index.bn)
    if gates is not None:
        factors = gates.detach()[blocks.mask.to(gates.device)].to(values.dtype)
        values = values * factors[:, None, None]
    return values.to(dtype)


def _sparse(options: ProductOptions, direction: str, operand: Tensor, bias: bool = False) -> bool:
    """Returns whether the product multiplies with the blocks: because ``multiply`` says so, or because the
    plan expects that to be faster than the dense W * factors."""
    host = options.blocks.host
    if host is None:
        return False
    if options.multiply != "auto":
        return options.multiply == "blocks"
    tokens = operand.numel() // max(1, operand.shape[-1])
    shape = host.rows, host.cols, host.bm, host.bn
    tf32 = operand.is_cuda and torch.backends.cuda.matmul.fp32_precision
    return _faster(
        _Shape(host), shape, host.blocks, direction, operand.dtype, tokens, bias, operand.device, tf32
    )


class _Shape:
    """Wraps an index so that the cache below ignores it: all that its answers depend on is in its key."""

    def __init__(self, index: ops.Index) -> None:
        self.index = index

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shape)


@lru_cache(maxsize=1024)
def _faster(
    index_of: _Shape,
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
    plan = ops.plan(index_of.index, direction, dtype, tokens, bias, device=device)
    dense_us = plan["dense_copy_us"]
    return plan["kernel"] not in ("dense", "reference") and (
        dense_us is None or plan["predicted_us"] < dense_us
    )
