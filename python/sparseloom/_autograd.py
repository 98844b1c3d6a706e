"""The one route for gradients: autograd Functions around the operators. ops.py checks the arguments and words the errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo

from . import _operators
from ._operators import ACTIVATIONS, PLAN_CHOOSES, call, tf32_of
from .errors import Error

if TYPE_CHECKING:
    from .ops import Index

FORWARD, DX, DW = range(3)
_RELU = ACTIVATIONS["relu"]
# What training fuses on the CPU. Inductor's loops for the others take 4 us of a small layer's step, torch's operators, which ours
# would call, 60; outside of inductor both routes call the same.
CPU_FUSES: tuple[str | None, ...] = (None, "relu")


class _How(NamedTuple):
    """What a product is beside its operands: one argument, since each costs autograd's way in and out."""

    direction: int
    strict: bool
    kernel: int
    where: Index


class _Product(torch.autograd.Function):
    """The three products of one trilinear form <dY, X W^T>: each is its derivative by one argument.

    forward (X, W) -> Y, dx (dY, W) -> dX and dw (dY, X) -> dW. So the derivatives of each are the other two, and the same
    Function serves every order of differentiation. Saves only the operand that the other one's gradient needs.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, bias: Tensor | None, how: _How) -> Tensor:
        ctx.how = how
        need_a, need_b, *_ = ctx.needs_input_grad
        ctx.save_for_backward(a if need_b else None, b if need_a else None)
        return _straight(a, b, bias, how)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (a, b), (direction, strict, _, index) = ctx.saved_tensors, ctx.how
        need_a, need_b, need_bias, _ = ctx.needs_input_grad
        da = db = dbias = None
        if direction == FORWARD:  # a = x, b = values
            da = product(DX, grad, b, strict, index) if need_a else None
            db = product(DW, grad, a, strict, index) if need_b else None
            dbias = (grad.flatten(0, -2).sum(0) if grad.dim() > 1 else grad) if need_bias else None
        elif direction == DX:  # a = dy, b = values, grad like x
            da = product(FORWARD, grad, b, strict, index) if need_a else None
            db = product(DW, a, grad, strict, index) if need_b else None
        else:  # a = dy, b = x, grad like values
            da = product(FORWARD, b, grad, strict, index) if need_a else None
            db = product(DX, a, grad, strict, index) if need_b else None
        return da, db, dbias, None


class LayerHow(NamedTuple):
    """What a layer is beside its operands."""

    activation: str | None
    strict: bool
    kernel: int
    where: Index
    weight: Tensor | None  # whose main_grad the values' gradient is added to


class Layer(torch.autograd.Function):
    """act(x W^T + bias) + residual in one dispatch forward and one backward: dz = dy act'(z), dX, dW and the bias's gradient.

    Relu saves its output, which the next layer keeps anyway: one product with the activation fused. The other activations, and relu
    under a residual, save the pre-activation z. z is an output too, so that a second differentiation finds its way through it;
    nobody else sees it. Not when compiled: there is no second one there, and AOTAutograd would add a matrix of zeros for z's
    gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, how: LayerHow, residual: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        activation, strict, kernel, index, _ = ctx.how = how
        ctx.set_materialize_grads(False)
        need_x, need_values, *_ = ctx.needs_input_grad
        x = in_rows(x)
        code, tf32, z = ACTIVATIONS[activation], tf32_of(x), None
        keeps_y = code <= _RELU and (residual is None or not code)
        operator = _operators.linear if keeps_y else _operators.linear_train
        y = operator(x, values, index.crow, index.col, bias, index.rows, code, index.version, strict, tf32, kernel, residual)
        if not keeps_y:
            y, z = y
        ctx.save_for_backward(x if need_values else None, values if need_x else None, y if keeps_y and code else z)
        return y if z is None or torch.compiler.is_compiling() else (y, z)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, more_dz: Tensor | None = None) -> tuple[Tensor | None, ...]:
        (x, values, saved), (activation, strict, _, index, weight) = ctx.saved_tensors, ctx.how
        need_x, need_values, need_bias, _, *need_residual = ctx.needs_input_grad
        dresidual = dy if need_residual and need_residual[0] else None
        again = torch.is_grad_enabled() and not torch.compiler.is_compiling()  # the gradient may be differentiated
        if activation and (again or more_dz is not None):
            dz = None if dy is None else _activation_gradient(dy, saved, activation)
            dy = more_dz if dz is None else dz if more_dz is None else dz + more_dz
            activation = saved = None
        if dy is None:
            return None, None, None, None, None
        dy = in_rows(dy)
        main_grad = None if weight is None else _main_grad(weight, ctx.next_functions[1][0], again)
        if again:
            dx = product(DX, dy, values, strict, index) if need_x else None
            dvalues = product(DW, dy, x, strict, index) if need_values else None
            dbias = (dy.flatten(0, -2).sum(0) if dy.dim() > 1 else dy) if need_bias else None
            return dx, dvalues, dbias, None, dresidual
        crow, col, ccol, row, slot, _, cols, bm, bn, version = index
        code, tf32 = ACTIVATIONS[activation], tf32_of(dy)
        wanted = x if weight is None or main_grad is not None else None
        operands = (dy, saved, wanted, values, crow, col, ccol, row, slot, cols, bm, bn, code, version, strict, tf32, need_bias)
        if weight is None:
            dx, dvalues, dbias = _operators.linear_backward(*operands)
        else:
            dx, empty, dbias = call("linear_backward", *operands, main_grad)
            dvalues = None if main_grad is None else _announce(weight, empty, index)
        return dx if need_x else None, dvalues if need_values else None, dbias if need_bias else None, None, dresidual


def in_rows(matrix: Tensor) -> Tensor:
    """Compiled, a matrix whose features lie apart (a key's gradient, an image's patches) is put in rows here: inductor has the loop
    that makes it write it so, and one copy serves forward and dW. The operators would copy it by torch's own kernel, each time: 21
    us for 4096 x 768 on an H200, where a product takes 9."""
    apart = torch.compiler.is_compiling() and matrix.dim() > 1 and matrix.stride(-1) != 1
    return matrix.contiguous() if apart else matrix


def _main_grad(weight: Tensor, node: Any, again: bool) -> Tensor | None:
    """Looked up in the backward pass: frameworks put other buffers in its place between steps. None where that pass leaves out
    ``node``, which the values' gradient would go to: autograd.grad of x alone."""
    if again:
        expected, remedy = "a backward pass with create_graph=False", "leave out fuse_wgrad_accumulation (main_grad_of)"
        raise Error("linear", expected + ": a sum into main_grad has no derivative", "create_graph=True", remedy)
    try:
        if not torch._C._will_engine_execute_node(node):
            return None
    except RuntimeError:  # asked of a Parameter that autograd.grad was given
        expected, remedy = "backward(), which leaves the gradient of values in their main_grad", "read values.main_grad"
        raise Error("linear", expected, "autograd.grad of values", remedy) from None
    main_grad = getattr(weight, "main_grad", None)
    if not isinstance(main_grad, Tensor) or main_grad.device != weight.device:
        remedy = "values.main_grad = torch.zeros(values.shape, dtype=torch.float32, device=values.device) makes one"
        got = f"one on {main_grad.device}" if isinstance(main_grad, Tensor) else "none" if main_grad is None else repr(main_grad)
        raise Error("linear", f"a tensor on {weight.device} in values.main_grad, which the gradient is added to", got, remedy)
    torch.autograd.graph.increment_version(main_grad)
    return main_grad


def _announce(weight: Tensor, empty: Tensor, index: Index) -> Tensor | None:
    """The values' gradient once main_grad has it: none; or one of any content for hooks that wait for it, and know by
    grad_added_to_main_grad not to look inside (Megatron-LM's protocol)."""
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return empty.new_empty((index.col.shape[0], index.bm, index.bn))


# Dynamo would trace the backward pass together with the forward one, and main_grad as it is then: so the product runs between two
# graphs. By torch's own lazy form of torch.compiler.disable: that one at import would import all of dynamo.
@_disable_dynamo
def between_graphs(*operands: Any) -> Any:
    return Layer.apply(*operands)


def _activation_gradient(dy: Tensor, saved: Tensor, activation: str) -> Tensor:
    """dy act', by torch's operators, which are differentiable. ``saved``: relu's output, the others' pre-activation."""
    aten = torch.ops.aten
    if activation == "relu":
        return aten.threshold_backward(dy, saved, 0)
    if activation == "silu":
        share = torch.sigmoid(saved)  # aten's silu_backward has no derivative
        return dy * share * (1 + saved * (1 - share))
    return aten.gelu_backward(dy, saved, approximate="tanh" if activation == "gelu_tanh" else "none")


def _straight(a: Tensor, b: Tensor, bias: Tensor | None, how: _How) -> Tensor:
    direction, strict, kernel, (crow, col, ccol, row, slot, rows, cols, bm, bn, version) = how
    if direction == FORWARD:
        return _operators.linear(a, b, crow, col, bias, rows, 0, version, strict, tf32_of(a), kernel)
    if direction == DX:
        return _operators.linear_dx(a, b, crow, col, ccol, row, slot, cols, version, strict, tf32_of(a), kernel)
    return _operators.linear_dw(a, b, crow, col, bm, bn, version, strict, tf32_of(a), kernel)


def product(direction: int, a: Tensor, b: Tensor, strict: bool, index: Index, kernel: int = PLAN_CHOOSES) -> Tensor:
    """One product by the straight way, or by the differentiable one when either operand needs a gradient."""
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return _Product.apply(a, b, None, _How(direction, strict, kernel, index))
    return _straight(a, b, None, _How(direction, strict, kernel, index))


def activate(y: Tensor, activation: str | None) -> Tensor:
    """torch's own activation, for the differentiable route and for dense twins. ``activation``: a key of ACTIVATIONS."""
    if activation is None:
        return y
    if activation == "relu":
        return F.relu(y)
    if activation == "silu":
        return F.silu(y)
    return F.gelu(y, approximate="tanh" if activation == "gelu_tanh" else "none")
