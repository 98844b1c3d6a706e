"""The three products (forward, dX and dW), each differentiable to any order, in forward and reverse mode and
under vmap. All transforms are built from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo

from ..errors import Error
from . import operators
from .index import MOVING, SEGMENT, UNKNOWN, Index
from .operators import PLAN_CHOOSES, tf32_of
from .transforms import transformed
from .verbs import Product, Weight, column_sums

FORWARD, DX, DW = range(3)


class ProductOptions(NamedTuple):
    """The arguments of a product that are not its operands. They are one argument because autograd pays for
    each one on the way in and out."""

    direction: int
    strict: bool
    kernel: int
    block_index: Index


class _Blocks(Weight):
    """The weight of a ProductOptions. The products are those of the trilinear form <dY, X W^T>: each is the
    derivative of the form by one argument. forward maps (X, W) to Y, dx maps (dY, W) to dX, and dw maps
    (dY, X) to dW. So the derivatives of each are the other two, for every order of differentiation and in
    both modes."""

    def __init__(self, options: ProductOptions) -> None:
        self.options = options

    def linear(self, a: Tensor, b: Tensor, bias: Tensor | None, *fused: Any) -> Tensor:
        return _straight(a, b, bias, self.options)

    def _gradients(
        self, node: Any, grad: Tensor, a: Any, b: Any, needs: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        direction, strict, _, index = self.options
        need_a, need_b, need_bias, *_ = needs
        da = db = None
        if direction == FORWARD:  # a = x, b = values
            da = product(DX, grad, b, strict, index) if need_a else None
            db = product(DW, grad, a, strict, index) if need_b else None
        elif direction == DX:  # a = dy, b = values, grad like x
            da = product(FORWARD, grad, b, strict, index) if need_a else None
            db = product(DW, a, grad, strict, index) if need_b else None
        else:  # a = dy, b = x, grad like values
            da = product(FORWARD, b, grad, strict, index) if need_a else None
            db = product(DX, a, grad, strict, index) if need_b else None
        return da, db, column_sums(grad) if need_bias else None


class Transformable(Product):
    """A Product of blocks that also supports forward mode and torch.func. It is a class of its own because
    Dynamo traces no Function that has a jvp."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, bias: Tensor | None, options: ProductOptions) -> Tensor:  # type: ignore[override]
        return _straight(a, b, bias, options)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, ProductOptions], output: Tensor
    ) -> None:
        a, b, _, options = inputs
        ctx.weight, ctx.options = _Blocks(options), options
        need_a, need_b, *_ = ctx.needs_input_grad
        ctx.save_for_backward(a if need_b else None, b if need_a else None)
        ctx.save_for_forward(a, b)  # read as soon as there is an output, then released

    @staticmethod
    def jvp(ctx: Any, da: Tensor | None, db: Tensor | None, dbias: Tensor | None, _: Any) -> Tensor | None:
        (a, b), (direction, strict, kernel, index) = ctx.saved_tensors, ctx.options
        parts = [] if da is None else [product(direction, da, b, strict, index, kernel)]
        parts += [] if db is None else [product(direction, a, db, strict, index, kernel)]
        parts += [] if dbias is None else [dbias.expand(*a.shape[:-1], -1)]
        return sum(parts[1:], parts[0]) if parts else None

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], a: Tensor, b: Tensor, bias: Tensor | None, options: ProductOptions
    ) -> tuple[Tensor, int | None]:
        """Computes the whole batch as one product: one with more tokens where the weight is shared, otherwise
        one whose weights lie along the diagonal of a large weight."""
        (of_a, of_b, of_bias, of_options), count = dims, info.batch_size
        direction, strict, kernel, index = options
        if index.digest == MOVING and (direction == DW or of_b is not None):
            remedy = "call fix_topology_() first, or sum the gradients of the batch"
            raise Error("vmap", "weights without free slots", "a layer with a capacity", remedy)
        shared = bias if of_bias is None else None
        if direction == DW or of_b is not None or of_options.block_index.packed is not None:
            y = _over_diagonal(
                _in_front(a, of_a, count), _in_front(b, of_b, count), options, of_options.block_index, count
            )
            y, out = y if shared is None else y + shared, 0
        elif of_a is None:  # the bias alone is mapped
            y, out = product(direction, a, b, strict, index, kernel), None
        else:
            a = a.movedim(of_a, 0)
            y, out = (
                product(direction, a.flatten(0, -2), b, strict, index, kernel, shared).unflatten(
                    0, a.shape[:-1]
                ),
                0,
            )
        if shared is not bias:
            assert bias is not None
            y, out = (
                y + bias.movedim(of_bias, 0).reshape(count, *(1,) * (y.dim() - (out is not None) - 1), -1),
                0,
            )
        return y, out


def product(
    direction: int,
    a: Tensor,
    b: Tensor,
    strict: bool,
    index: Index,
    kernel: int = PLAN_CHOOSES,
    bias: Tensor | None = None,
) -> Tensor:
    """Computes one product: with a plain operator call, or with a Function where an operand needs a gradient
    or a transform is active."""
    options = ProductOptions(direction, strict, kernel, index)
    if transformed():
        return _transformable(a, b, bias, options)
    if torch.is_grad_enabled() and (
        a.requires_grad or b.requires_grad or (bias is not None and bias.requires_grad)
    ):
        y: Tensor = Product.apply(a, b, bias, _Blocks(options))
        return y
    return _straight(a, b, bias, options)


# Compiled code runs this eagerly. The decorator is torch's own lazy form of torch.compiler.disable, which
# itself would import all of Dynamo.
@_disable_dynamo
def _transformable(a: Tensor, b: Tensor, bias: Tensor | None, options: ProductOptions) -> Tensor:
    y: Tensor = Transformable.apply(a, b, bias, options)
    return y


def _straight(a: Tensor, b: Tensor, bias: Tensor | None, options: ProductOptions) -> Tensor:
    direction, strict, kernel, (packed, blocks, rows, cols, bm, bn, digest) = options
    if direction == FORWARD:
        return operators.linear(a, b, packed, rows, bias, 0, None, kernel, strict, tf32_of(a), digest)
    if direction == DX:
        return operators.linear_dx(a, b, packed, cols, kernel, strict, tf32_of(a), digest)
    return operators.linear_dw(a, b, packed, blocks, bm, bn, kernel, strict, tf32_of(a), digest)


def _in_front(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    """Returns [count, ...] with the mapped dimension in front; a tensor without one is repeated."""
    return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _over_diagonal(a: Tensor, b: Tensor, options: ProductOptions, dims: Index, count: int) -> Tensor:
    """Computes ``count`` products, with operands [count, ...], as one: the weights follow each other along
    the diagonal of a large weight, and each has its own range of the features. ``dims`` says whether the
    index is mapped. Returns [count, ...]."""
    direction, strict, kernel, index = options
    diagonal = _diagonal_index(index, dims, count)
    rows, cols = diagonal.rows // count, diagonal.cols // count
    if direction == DW:
        return product(
            DW, _side_by_side(a, rows), _side_by_side(b, cols), strict, diagonal, kernel
        ).unflatten(0, (count, -1))
    inside, features = (cols, index.rows) if direction == FORWARD else (rows, index.cols)
    y = product(direction, _side_by_side(a, inside), b.flatten(0, 1), strict, diagonal, kernel)
    return y.unflatten(-1, (count, -1))[..., :features].movedim(-2, 0)


def _side_by_side(matrix: Tensor, width: int) -> Tensor:
    """Returns [count, ..., features] as [..., count * width], with zeros where ``width`` is larger than
    features."""
    return F.pad(matrix, (0, width - matrix.shape[-1])).movedim(0, -2).flatten(-2)


def _diagonal_index(index: Index, dims: Index, count: int) -> Index:
    """Returns the index of ``count`` weights along a diagonal, whose values follow each other. Each weight
    starts at a whole block, so the sizes include the padding of ragged edges, which is zero in the operands
    too."""
    mapped: Any = dims.packed  # a dimension or None here
    many = index._replace(packed=_in_front(index.packed, mapped, count))
    crow, col, ccol, row, slot = many.lists()  # each [count, its length]
    blocks, block_rows, block_cols = index.blocks, crow.shape[1] - 1, ccol.shape[1] - 1
    place = torch.arange(count, dtype=torch.int32, device=col.device)[:, None]
    end = place.new_full((1,), count * blocks)
    crow, ccol = (torch.cat([(starts[:, :-1] + place * blocks).flatten(), end]) for starts in (crow, ccol))
    col, row, slot = (
        (of + place * step).flatten() for of, step in ((col, block_cols), (row, block_rows), (slot, blocks))
    )
    lists = [F.pad(entries, (0, -len(entries) % SEGMENT)) for entries in (crow, col, ccol, row)]
    sizes = {"rows": count * block_rows * index.bm, "cols": count * block_cols * index.bn}
    return index._replace(packed=torch.cat([*lists, slot]), blocks=count * blocks, digest=UNKNOWN, **sizes)
