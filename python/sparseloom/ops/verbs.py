"""Product: every x W^T of the package with its gradients, computed by three methods of the weight; Mapped:
every copy from one format of a tensor to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from .once import once
from .transforms import functorch_active


class Weight:
    """The weight of a Product. A subclass defines its three products; the operands are its ``values`` and
    matrices with one row per token, or channels-last images for a convolution.

    The gradients of one product are the other two. If these are differentiable themselves, so is the
    gradient; else ``_once`` is True, and ``_op`` names the weight in the Error for a second derivative.
    """

    _op: str = "linear"
    _once: ClassVar[bool] = False
    #: Further tensors that a backward pass reads: a write to them since the forward pass is an error.
    _watched: Sequence[Tensor] = ()
    #: "relu" if ``linear`` fuses it, in products without a residual: its gradient reads the result. The
    #: gradient of any other activation reads the activation's input, which a fused product does not return.
    _activation: str | None = None

    def linear(self, x: Tensor, values: Tensor, bias: Tensor | None, *fused: Any) -> Tensor:
        """Returns x W^T + bias. ``fused``: an activation and a residual, for weights whose products support
        them."""
        raise NotImplementedError

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        """Returns dY W."""
        raise NotImplementedError

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        """Returns dY^T X in the shape of ``values``."""
        raise NotImplementedError

    def _forward(self, x: Tensor, values: Any, bias: Tensor | None, *fused: Any) -> Tensor:
        """Computes ``linear`` without autograd; Product computes the gradients."""
        return self.linear(x, values, bias, *fused)

    def _gradients(
        self, node: Any, dy: Tensor, x: Tensor | None, values: Tensor | None, needs: Sequence[bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Returns dX, dW and the gradient of the bias, each if ``needs`` says so, for the backward pass of
        ``node``. A weight with one operator for all three overrides it."""
        need_x, need_values, need_bias = needs[:3]
        dx = self.dx(dy, values) if need_x else None  # type: ignore[arg-type]
        dvalues = self.dw(dy, x) if need_values else None  # type: ignore[arg-type]
        return dx, dvalues, column_sums(dy) if need_bias else None


class OfDx(Weight):
    """The product dY W of a weight as a function of dY, which is called x here."""

    def __init__(self, weight: Weight) -> None:
        self.weight = weight

    def linear(self, x: Tensor, values: Tensor, bias: Tensor | None, *fused: Any) -> Tensor:
        return self.weight.dx(x, values)

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        return self.weight.linear(dy, values, None)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        return self.weight.dw(x, dy)


class OfDw(Weight):
    """The product dY^T X at the stored elements of a weight, as a function of dY, which is called x here, and
    of X, which is called ``values``."""

    def __init__(self, weight: Weight) -> None:
        self.weight = weight

    def linear(self, x: Tensor, values: Tensor, bias: Tensor | None, *fused: Any) -> Tensor:
        return self.weight.dw(x, values)

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        return self.weight.linear(values, dy, None)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        return self.weight.dx(x, dy)


class Product(torch.autograd.Function):
    """x W^T + bias + residual. It has no setup_context, because torch would then bind the arguments anew in
    each call, for 50 us; so no transform of torch.func may reach it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, weight: Weight,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        ctx.weight = weight
        need_x, need_values, *_ = ctx.needs_input_grad
        # Each is kept only where the other's gradient needs it: frozen values cost no copy of x.
        saved = x if need_values else None, values if need_x else None, *weight._watched
        if weight._activation is not None:
            y = weight._forward(x, values, bias, weight._activation)
            ctx.save_for_backward(*saved, y)
            return y
        ctx.save_for_backward(*saved)
        if residual is None:
            return weight._forward(x, values, bias)
        return weight._forward(x, values, bias, None, residual)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        weight = ctx.weight
        if weight._once:
            return once(weight._op, _gradients, ctx, dy)
        return _gradients(ctx, dy)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, values, *saved = ctx.saved_tensors
    needs, weight = ctx.needs_input_grad, ctx.weight
    if weight._activation is not None:
        dy = torch.ops.aten.threshold_backward(dy, saved[-1], 0)
    gradients = weight._gradients(ctx, dy, x, values, needs)
    return (*gradients, None) if len(needs) == 4 else (*gradients, None, dy if needs[4] else None)


#: Product.apply for calls that nothing traces and no transform surrounds; see autograd.eagerly.
_eagerly = super(torch.autograd.Function, Product).apply


def multiply(
    x: Tensor, values: Tensor | None, bias: Tensor | None, weight: Weight, *residual: Tensor
) -> Tensor:
    """Returns Product.apply of these arguments, by the fastest call."""
    run = Product.apply if torch.compiler.is_compiling() or functorch_active() else _eagerly
    y: Tensor = run(x, values, bias, weight, *residual)
    return y


def column_sums(grad: Tensor) -> Tensor:
    """Returns the gradient of the bias, differentiably. It avoids flatten, which the vmap behind
    is_grads_batched does not know."""
    return grad.sum(tuple(range(grad.dim() - 1))) if grad.dim() > 1 else grad


class Map:
    """A linear map of one tensor, and its transpose: a copy to another format and the copy back. A subclass
    that is neither, or takes several tensors, defines ``run`` and ``gradients`` instead."""

    def there(self, tensor: Tensor) -> Any:
        raise NotImplementedError

    def back(self, gradient: Tensor) -> Any:
        raise NotImplementedError

    def run(self, ctx: Any, tensor: Tensor, *others: Any) -> Any:
        """Returns the results; ``ctx`` is that of torch's Functions."""
        return self.there(tensor)

    def gradients(self, ctx: Any, *gradients: Any) -> Sequence[Any]:
        """Returns the gradient of each tensor."""
        return (self.back(*gradients),)


class Mapped(torch.autograd.Function):
    """Applies a map to tensors; a linear map's gradient is mapped by its transpose."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, applied: Map, *others: Tensor | None) -> Any:
        ctx.applied = applied
        return applied.run(ctx, tensor, *others)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        first, *others = ctx.applied.gradients(ctx, *gradients)
        return first, None, *others


_mapped_eagerly = super(torch.autograd.Function, Mapped).apply


def mapped(tensor: Tensor, applied: Map, *others: Tensor | None) -> Any:
    """Returns Mapped.apply of these arguments, by the fastest call."""
    run = Mapped.apply if torch.compiler.is_compiling() or functorch_active() else _mapped_eagerly
    return run(tensor, applied, *others)
