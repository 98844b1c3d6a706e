"""Connects layers to autograd: one autograd Function around the operators. __init__.py checks the arguments
and raises the errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo

from ..errors import Error, translated, unsupported_layout
from . import operators
from .operators import ACTIVATIONS, call, tf32_of
from .products import DW, DX, FORWARD, product
from .transforms import gradient_batched, transformed
from .verbs import column_sums

if TYPE_CHECKING:
    from . import Index

_RELU = ACTIVATIONS["relu"]
# The activations that training fuses into the product on the CPU. For the others, Inductor's own loops take 4
# us of a small layer's step, where torch's operators, which our fused route would call, take 60 us. Outside
# of Inductor both routes call the same operators.
CPU_FUSES: tuple[str | None, ...] = (None, "relu")


#: The arguments of a layer that are not its operands: activation, strict, kernel, index, and the Parameter
#: whose main_grad the gradient of values is added to (None: the gradient is returned). They are a plain tuple
#: because every call makes one, and a NamedTuple takes ten times as long to make.
LayerOptions: TypeAlias = "tuple[str | None, bool, int, Index, Tensor | None]"


class Layer(torch.autograd.Function):
    """Computes act(x W^T + bias) + residual as one dispatch in the forward pass and one in the backward pass,
    which gives dz = dy act'(z), dX, dW and the gradient of the bias.

    For relu the output is saved, which the next layer keeps anyway: that takes one product with a fused
    activation. For the other activations, and for relu with a residual, the pre-activation z is saved. z is
    then an output of the Function too, so that a second differentiation finds its way through it; nobody else
    sees it. Under torch.compile z is not an output: there is no second differentiation there, and AOTAutograd
    would add a matrix of zeros as the gradient of z.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        values: Tensor,
        bias: Tensor | None,
        options: LayerOptions,
        residual: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        # Every eager call pays for each look-up here.
        traced = torch.compiler.is_compiling()
        ctx.set_materialize_grads(False)
        activation, strict, kernel, (packed, _, rows, _, _, _, digest), _ = ctx.options = options
        need_x, need_values, *_ = ctx.needs_input_grad
        code, tf32 = ACTIVATIONS[activation], x.is_cuda and tf32_of(x)
        operands = x, values, packed, rows, bias, code, residual, kernel, strict, tf32, digest
        kept_x, kept_values = x if need_values else None, values if need_x else None
        if code <= _RELU and (residual is None or not code):
            y = (operators.linear if traced else operators.linear_eagerly)(*operands)
            ctx.save_for_backward(kept_x, kept_values, y if code else None)
            return y
        y, z = operators.linear_train(*operands)
        ctx.save_for_backward(kept_x, kept_values, z)
        return y if traced else (y, z)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dz_of_z: Tensor | None = None) -> tuple[Tensor | None, ...]:
        (x, values, saved), (activation, strict, _, index, weight) = ctx.saved_tensors, ctx.options
        need_x, need_values, need_bias, _, *need_residual = ctx.needs_input_grad
        dresidual = dy if need_residual and need_residual[0] else None
        # Either the gradient may be differentiated again, or a transform (torch.func, batched gradients,
        # forward mode) is active.
        differentiable = (torch.is_grad_enabled() or transformed()) and not torch.compiler.is_compiling()
        if activation and (differentiable or dz_of_z is not None):
            dz = None if dy is None else activation_gradient(dy, saved, activation)
            dy = dz_of_z if dz is None else dz if dz_of_z is None else dz + dz_of_z
            activation = saved = None
        if dy is None:
            return None, None, None, None, None
        dy = in_rows(dy)
        main_grad = None if weight is None else _main_grad(weight, ctx.next_functions[1][0], differentiable)
        needs = need_x, need_values, need_bias
        if differentiable:
            return *_by_products(dy, x, values, needs, strict, index), None, dresidual
        packed, blocks, _, cols, bm, bn, digest = index
        code, tf32 = ACTIVATIONS[activation], tf32_of(dy)
        x_of_dw = x if weight is None or main_grad is not None else None
        operands = dy, saved, x_of_dw, values, packed, cols, blocks, bm, bn, main_grad
        options = need_bias, code, strict, tf32, digest
        if weight is None:
            try:
                dx, dvalues, dbias = operators.linear_backward(*operands, *options)
            # The cause is a sparse dy, too little memory or a batched gradient; to ask beforehand whether the
            # gradient is batched would cost 1.4 us.
            except RuntimeError as error:
                if not gradient_batched(dy):
                    raise translated(error) from None
                dz = activation_gradient(dy, saved, activation) if activation else dy
                return *_by_products(dz, x, values, needs, strict, index), None, dresidual
        else:
            dx, empty, dbias = call("bsr_linear_backward", *operands, *options)
            dvalues = None if main_grad is None else _announce(weight, empty, index)
        return (
            dx if need_x else None,
            dvalues if need_values else None,
            dbias if need_bias else None,
            None,
            dresidual,
        )


#: Layer.apply for calls that nothing traces and no transform surrounds. torch's own apply looks for both, and
#: for wrappers of transforms that are over, which the operators unwrap too: a fifth of an eager call's time.
eagerly = super(torch.autograd.Function, Layer).apply


@_disable_dynamo  # Dynamo could not trace any of it: see _products.Transformable
def by_parts(
    x: Tensor, values: Tensor, bias: Tensor | None, options: LayerOptions, residual: Tensor | None = None
) -> Tensor:
    """Computes what Layer computes, from parts that support torch.func, batched gradients and forward mode.
    Raises Error where the gradient of values would have to be added to their main_grad: a transform wants the
    gradient as a result."""
    activation, strict, kernel, index, weight = options
    if weight is not None:
        expected, remedy = (
            "a layer whose gradients are results",
            "leave out fuse_wgrad_accumulation (main_grad_of)",
        )
        raise Error("linear", expected, "main_grad under torch.func, vmap or forward mode", remedy)
    y = activate(product(FORWARD, x, values, strict, index, kernel, bias), activation)
    if residual is None:
        return y
    require_residual(residual, y)
    return y + residual


def require_residual(residual: Tensor, y: Tensor, op: str = "linear") -> None:
    """Raises Error unless the residual has y's layout, shape and dtype, as the operators want it: torch's own
    addition would broadcast or promote it."""
    require_residual_of(residual, y.shape, y.dtype, op)


def require_residual_of(residual: Tensor, shape: Sequence[int], dtype: torch.dtype, op: str) -> None:
    """Does what require_residual does, for a y that is not computed yet."""
    if residual.layout != torch.strided:
        raise unsupported_layout(op, "residual", str(residual.layout))
    if tuple(residual.shape) != tuple(shape):
        raise Error(
            op,
            f"a residual of y's shape {list(shape)}",
            str(list(residual.shape)),
            "expand it to that shape",
        )
    if residual.dtype != dtype:
        raise Error(op, f"a residual of y's {dtype}", str(residual.dtype), "convert it with .to(y.dtype)")


def _by_products(
    dz: Tensor, x: Tensor, values: Tensor, needs: tuple[bool, bool, bool], strict: bool, index: Index
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Computes what linear_backward computes, from parts that can be differentiated, transformed and
    batched."""
    need_x, need_values, need_bias = needs
    dx = product(DX, dz, values, strict, index) if need_x else None
    dvalues = product(DW, dz, x, strict, index) if need_values else None
    return dx, dvalues, column_sums(dz) if need_bias else None


def in_rows(matrix: Tensor) -> Tensor:
    """Returns the matrix; under torch.compile, makes it contiguous if its features are not (a key's gradient,
    an image's patches). Inductor then has the loop that produces the matrix write it contiguously, and one
    copy serves both the forward product and dW. The operators would copy it with torch's own kernel each
    time: 21 us for 4096 x 768 on an H200, where a product takes 9 us."""
    strided_features = torch.compiler.is_compiling() and matrix.dim() > 1 and matrix.stride(-1) != 1
    return matrix.contiguous() if strided_features else matrix


def _main_grad(weight: Tensor, node: Any, differentiable: bool) -> Tensor | None:
    """Returns the weight's main_grad, looked up in the backward pass because frameworks replace that buffer
    between steps. Returns None where this backward pass does not run ``node``, which the gradient of values
    would go to: autograd.grad of x alone. Raises Error for create_graph=True, for autograd.grad of values,
    and without a main_grad on the weight's device."""
    if differentiable:
        expected, remedy = (
            "a backward pass with create_graph=False",
            "leave out fuse_wgrad_accumulation (main_grad_of)",
        )
        raise Error(
            "linear", expected + ": a sum into main_grad has no derivative", "create_graph=True", remedy
        )
    try:
        if not torch._C._will_engine_execute_node(node):
            return None
    except RuntimeError:  # torch raises it for a Parameter that autograd.grad was given
        expected, remedy = (
            "backward(), which leaves the gradient of values in their main_grad",
            "read values.main_grad",
        )
        raise Error("linear", expected, "autograd.grad of values", remedy) from None
    main_grad = getattr(weight, "main_grad", None)
    if not isinstance(main_grad, Tensor) or main_grad.device != weight.device:
        remedy = (
            "values.main_grad = torch.zeros(values.shape, "
            "dtype=torch.float32, device=values.device) makes one"
        )
        got = (
            f"one on {main_grad.device}"
            if isinstance(main_grad, Tensor)
            else "none"
            if main_grad is None
            else repr(main_grad)
        )
        raise Error(
            "linear",
            f"a tensor on {weight.device} in values.main_grad, which the gradient is added to",
            got,
            remedy,
        )
    torch.autograd.graph.increment_version(main_grad)
    return main_grad


def _announce(weight: Tensor, empty: Tensor, index: Index) -> Tensor | None:
    """Returns the gradient of values for autograd after main_grad has received it: None, or, for hooks that
    wait for a gradient, a tensor of arbitrary content, which grad_added_to_main_grad tells them not to read
    (Megatron-LM's protocol)."""
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return empty.new_empty((index.blocks, index.bm, index.bn))


# Dynamo would trace the backward pass together with the forward pass, and would capture main_grad as it is at
# that time, so the product runs between two graphs. The decorator is torch's own lazy form of
# torch.compiler.disable, which itself would import all of Dynamo when this module is imported.
@_disable_dynamo
def between_graphs(*operands: Any) -> Any:
    return Layer.apply(*operands)


def activation_gradient(dy: Tensor, saved: Tensor, activation: str) -> Tensor:
    """Returns dy act'(z), computed by torch's operators, which are differentiable. ``saved`` is the
    pre-activation z; for relu it may be the output instead."""
    return _BY_TORCH[activation].gradient(dy, saved)


def activate(y: Tensor, activation: str | None) -> Tensor:
    """Applies torch's own activation, for the differentiable route and for dense twins. ``activation`` is a
    key of ACTIVATIONS."""
    return y if activation is None else _BY_TORCH[activation].value(y)


class _ByTorch(NamedTuple):
    """An activation by torch's operators: its value at z, and its gradient of dy and ``saved``."""

    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]


def _silu_gradient(dy: Tensor, z: Tensor) -> Tensor:
    share = torch.sigmoid(z)  # aten's silu_backward has no derivative
    return dy * share * (1 + z * (1 - share))


#: Every activation of ACTIVATIONS but None.
_BY_TORCH = {
    "relu": _ByTorch(F.relu, lambda dy, y: torch.ops.aten.threshold_backward(dy, y, 0)),
    "gelu": _ByTorch(F.gelu, lambda dy, z: torch.ops.aten.gelu_backward(dy, z)),
    "gelu_tanh": _ByTorch(
        lambda z: F.gelu(z, approximate="tanh"),
        lambda dy, z: torch.ops.aten.gelu_backward(dy, z, approximate="tanh"),
    ),
    "silu": _ByTorch(F.silu, _silu_gradient),
    "relu2": _ByTorch(lambda z: F.relu(z).square(), lambda dy, z: dy * (2 * F.relu(z))),
}
