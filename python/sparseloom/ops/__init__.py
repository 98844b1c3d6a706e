"""The operators as functions: products with and without gradients, plans and indices. The whole package
computes through this module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._arguments import named_arguments
from ..errors import Error, translated, unsupported_layout
from . import autograd, operators, products
from . import gates as _gates
from .autograd import activate as activate
from .autograd import require_residual as require_residual
from .index import MOVING as MOVING
from .index import UNKNOWN as UNKNOWN
from .index import Index as Index
from .index import choose_blocks as choose_blocks
from .index import make_index as make_index
from .index import move_blocks as move_blocks
from .index import remember as remember
from .index import set_topology as set_topology
from .index import trust as trust
from .index import update_topology as update_topology
from .operators import ACTIVATIONS as ACTIVATIONS
from .operators import PLAN_CHOOSES, tf32_of
from .operators import call as call
from .operators import tf32_allowed as tf32_allowed
from .operators import unknown_activation as unknown_activation
from .plans import DIRECTIONS as DIRECTIONS
from .plans import DTYPES as DTYPES
from .plans import OUT_DTYPES as OUT_DTYPES
from .plans import SCALED_DTYPES as SCALED_DTYPES
from .plans import copy_is_faster as copy_is_faster
from .plans import dtype_name as dtype_name
from .plans import get_num_threads as get_num_threads
from .plans import has_kernels_for as has_kernels_for
from .plans import info as info
from .plans import kernel_number as kernel_number
from .plans import ordinal as ordinal
from .plans import plan as plan
from .plans import set_num_threads as set_num_threads
from .registry import DenseFallback as DenseFallback
from .registry import Output, current
from .registry import Registry as Registry
from .registry import strict as strict
from .transforms import differentiated as differentiated
from .transforms import exporting, functorch_active, transformed

_tracing_state = torch._C._get_tracing_state  # looked up once: ops.linear calls it every time


def linear(
    x: Tensor,
    values: Tensor,
    index: Index,
    bias: Tensor | None = None,
    activation: str | None = None,
    strict: bool = False,
    kernel: str | None = None,
    residual: Tensor | None = None,
    main_grad_of: Tensor | None = None,
) -> Tensor:
    """Returns act(x W^T + bias) + residual, differentiable in x, values, bias and residual.

    x is [..., cols] with 1 to 4 dimensions, values [blocks, bm, bn], bias [rows] or None, residual [...,
    rows] or None; all have one dtype and, with the index, one device. The result is [..., rows]. The residual
    is added before the result is rounded, except in a training step with an activation on the CPU. On CUDA
    the work is queued on torch's current stream; float32 follows torch's TF32 switch. Kept for the gradient
    are x, values, and relu's output or the input of any other activation. ``kernel`` forces a candidate by
    name; ``strict`` forbids the dense and reference kernels. Raises Error when a shape, dtype, device or
    index does not fit, torch.OutOfMemoryError when a GPU is full.

    ``main_grad_of`` is the Parameter that values are, or were cast from, when their gradient is to be added
    to its ``main_grad`` (float32, contiguous, shape and device of values) instead of to ``grad``, which stays
    None. The gradient is added unrounded, in the product's own kernel. This does not work with create_graph,
    and torch.compile breaks its graph there.
    """
    number = PLAN_CHOOSES if kernel is None else kernel_number(kernel)
    try:
        # The index does not hold cols itself, and on a GPU the host does not read it.
        if x.shape[-1:] != (index.cols,):
            raise _width("linear", "x", x, index.cols)
        needed = torch.is_grad_enabled() and (
            x.requires_grad
            or values.requires_grad
            or (bias is not None and bias.requires_grad)
            or (residual is not None and residual.requires_grad)
        )
        if functorch_active() or forward_ad._current_level >= 0:
            weight = main_grad_of if needed and values.requires_grad else None
            part_options = activation, strict, number, index, weight
            return autograd.by_parts(x, values, bias, part_options, residual)
        # jit.trace records operators, but cannot record autograd Functions
        if needed and _tracing_state() is None:
            fused = activation if x.is_cuda or activation in autograd.CPU_FUSES else None
            added = residual is not None and (x.is_cuda or activation is None)
            # An exported graph has no backward pass.
            fuses = main_grad_of is not None and values.requires_grad and not exporting()
            weight = main_grad_of if fuses else None
            apply = autograd.eagerly
            if torch.compiler.is_compiling():
                x = autograd.in_rows(x)
                apply = autograd.Layer.apply if weight is None else autograd.between_graphs
            options = fused, strict, number, index, weight
            y = apply(x, values, bias, options, residual) if added else apply(x, values, bias, options)
            y = y[0] if isinstance(y, tuple) else y
            y = y if fused == activation else activate(y, activation)
            if added or residual is None:
                return y
            require_residual(residual, y)
            return y + residual
        # tf32_of is not called on the CPU: saves .12 us of 15
        code, tf32 = ACTIVATIONS[activation], x.is_cuda and tf32_of(x)
        operator = operators.linear_eagerly
        if torch.compiler.is_compiling():
            x, operator = autograd.in_rows(x), operators.linear
        return operator(
            x, values, index.packed, index.rows, bias, code, residual, number, strict, tf32, index.digest
        )
    except _REFUSED as error:
        operands = {"x": x, "values": values, "bias": bias, "residual": residual}
        raise _explained(error, "linear", index, activation, operands) from None


#: The exceptions that Python or torch raises for an operand of the wrong kind. The routes above check nothing
#: beforehand, because every call would pay for it.
_REFUSED = (RuntimeError, AttributeError, TypeError, KeyError)


_NEEDED = ("x", "dy", "values", "gates")


def _width(op: str, name: str, operand: Tensor, width: int) -> Error:
    """Returns the Error for an operand of another width than the index has."""
    return Error(
        op, f"{name} [..., {width}]", str(list(operand.shape)), "pass index and operands of one layer"
    )


def _explained(error: Exception, op: str, index: Any, activation: Any, operands: dict[str, Any]) -> Exception:
    """Returns our Error that says why a product was refused; ``error`` itself when none of the arguments is
    the reason."""
    for name, operand in operands.items():
        if not isinstance(operand, Tensor) and (operand is not None or name in _NEEDED):
            return Error(
                op, f"{name} to be a tensor", type(operand).__name__, "convert it with torch.as_tensor"
            )
        if operand is not None and (operand.layout != torch.strided or operand.is_nested):
            return unsupported_layout(
                op, name, "a nested tensor" if operand.is_nested else str(operand.layout)
            )
    if not isinstance(index, Index):
        return Error(
            op,
            "index to be an ops.Index",
            type(index).__name__,
            "pass layer.index, or what make_index returns",
        )
    for name, number in zip(index._fields[1:], index[1:], strict=True):
        if not isinstance(number, (int, torch.SymInt)):
            got, remedy = type(number).__name__, "pass layer.index, or what make_index returns"
            return Error(op, f"index.{name} to be an int", got, remedy)
    unknown = unknown_activation(op, activation, "apply any other one after the product")
    return unknown or (translated(error) if isinstance(error, RuntimeError) else error)


def apart(y: Tensor) -> Tensor:
    """Returns y. In compiled code nothing that follows moves into the product that made it: y is a view that
    Inductor makes at no cost and our pass does not look through."""
    return y.unsqueeze(0).squeeze(0) if torch.compiler.is_compiling() else y


def linear_dx(
    dy: Tensor, values: Tensor, index: Index, strict: bool = False, kernel: str | None = None
) -> Tensor:
    """Returns dY W: dy [..., rows] gives [..., cols]; differentiable in dy and values. Raises Error as linear
    does."""
    try:
        if dy.shape[-1:] != (index.rows,):
            raise _width("linear_dx", "dy", dy, index.rows)
        return products.product(
            products.DX, dy, values, strict, index, PLAN_CHOOSES if kernel is None else kernel_number(kernel)
        )
    except _REFUSED as error:
        raise _explained(error, "linear_dx", index, None, {"dy": dy, "values": values}) from None


def linear_dw(
    dy: Tensor,
    x: Tensor,
    index: Index,
    strict: bool = False,
    kernel: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Returns dY^T X at the stored blocks: dy [..., rows] and x [..., cols] give [blocks, bm, bn] with zero
    padding; differentiable in both.

    With ``out``, float32 [blocks, bm, bn], the unrounded sums are added to it (nothing to its padding) and it
    is returned. That is not differentiable: operands that need a gradient then raise Error. Raises Error as
    linear does.
    """
    try:
        for name, operand, width in (("dy", dy, index.rows), ("x", x, index.cols)):
            if operand.shape[-1:] != (width,):
                raise _width("linear_dw", name, operand, width)
    except _REFUSED as error:
        raise _explained(error, "linear_dw", index, None, {"dy": dy, "x": x}) from None
    if out is not None:
        name_of_operand = next(
            (name for name, t in (("dy", dy), ("x", x), ("out", out)) if differentiated(t)), ""
        )
        if name_of_operand:
            raise Error(
                "linear_dw",
                "operands without gradients beside out",
                f"{name_of_operand} that requires one",
                "use torch.no_grad()",
            )
        number = PLAN_CHOOSES if kernel is None else kernel_number(kernel)
        call("bsr_linear_dw_add", out, dy, x, index.packed, number, strict, tf32_of(x), index.digest)
        torch.autograd.graph.increment_version(out)
        return out
    try:
        return products.product(
            products.DW, dy, x, strict, index, PLAN_CHOOSES if kernel is None else kernel_number(kernel)
        )
    except _REFUSED as error:
        raise _explained(error, "linear_dw", index, None, {"dy": dy, "x": x}) from None


def gated_linear(
    x: Tensor,
    values: Tensor,
    index: Index,
    gates: Tensor,
    bias: Tensor | None = None,
    strict: bool = False,
) -> Tensor:
    """Returns x (gates * W)^T + bias with one factor for each stored block, differentiable once in x, values,
    gates and bias. A block whose gate is zero is left out of forward, dX and dW, whose time follows the
    blocks that are left, and the gradients of it and of its gate are zero. The gradient of any other gate is
    the sum of dY^T X * W over its block.

    gates is [blocks], in the order of values, of any floating dtype; the others are as in linear. Nothing is
    read on the host, so the work is queued on torch's current stream, and a CUDA graph may capture it. Raises
    Error when a shape, dtype, device or index does not fit.
    """
    if isinstance(index, Index) and index.digest == MOVING:
        remedy = "call fix_topology_() of its layer first"
        raise Error("gated_linear", "an index without free slots", "one with a capacity", remedy)
    try:
        if x.shape[-1:] != (index.cols,):
            remedy = "pass what the layer maps"
            raise Error("gated_linear", f"x [..., {index.cols}]", str(list(x.shape)), remedy)
        if transformed() or _tracing_state() is not None:
            open_gates = gates.to(values.dtype).where(gates != 0, 0.0)  # those at zero have no gradient
            return linear(x, values * open_gates[:, None, None], index, bias, strict=strict)
        y: Tensor = _gates.Gated.apply(x, values, gates.float(), bias, (index, strict))
        return y
    except _REFUSED as error:
        operands = {"x": x, "values": values, "gates": gates, "bias": bias}
        raise _explained(error, "gated_linear", index, None, operands) from None


_SCALED_LINEAR = operators.overload("bsr_scaled_linear")


def scaled_linear(
    x: Tensor,
    values: Tensor,
    index: Index,
    x_scale: Tensor | None,
    w_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype,
    activation: str | None = None,
    strict: bool = False,
    kernel: str | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """Returns act(x_scale w_scale (x W^T) + bias) of 8-bit operands, for inference: there are no gradients.

    x is [..., cols] and values [blocks, bm, bn], both int8 or both float8_e4m3fn. x_scale is float32, with
    one element or one for each token; w_scale is float32, with one element or one for each output feature
    [rows]; bias is [rows] of ``out_dtype``, or None. The result is [..., rows] of ``out_dtype``, bfloat16 or
    float32. int8 sums are exact in int32; y = act(fma(float(sum) * x_scale, w_scale, bias)) is computed in
    float32 and rounded once to ``out_dtype``, so every int8 kernel gives the same bits, except with an
    activation. Scales of zero, Inf and NaN multiply as any number does. On CPUs x may be float32, bfloat16 or
    float16 beside int8 values: the call rounds it as ``quantize_rows(x, int8, x_scale)`` does, x_scale None
    or of one element.

    ``use_fast_accum`` is as in torch._scaled_mm: float8_e4m3fn sums on CUDA may stay in the tensor cores,
    which keep about 14 bits of them; without it, no sum there is longer than 128 products. It has no effect
    on int8 or on other devices. ``kernel`` forces a candidate by name. ``strict`` forbids the dense kernel,
    which multiplies float8_e4m3fn on CUDA with torch._scaled_mm, and the reference kernel, which runs 8-bit
    operands only when it is named. Raises Error when a shape, dtype, device or index does not fit, when a
    gradient is asked for, and when no kernel multiplies the dtype on that device (float8_e4m3fn on CPUs).
    """
    name_of_operand = next(
        (
            name
            for name, t in (("x_scale", x_scale), ("w_scale", w_scale), ("bias", bias), ("x", x))
            if t is not None and differentiated(t)
        ),
        "",
    )
    if name_of_operand:
        remedy = "call it in torch.no_grad(), or train the float layer"
        raise Error(
            "scaled_linear", "operands without gradients", f"{name_of_operand} that requires one", remedy
        )
    if x.shape[-1:] != (index.cols,):
        raise _width("scaled_linear", "x", x, index.cols)
    number = PLAN_CHOOSES if kernel is None else kernel_number(kernel)
    operands = x, values, index.packed, x_scale, w_scale, index.rows, out_dtype
    options = bias, ACTIVATIONS[activation], number, strict, index.digest, use_fast_accum
    result: Tensor = operators.run(_SCALED_LINEAR, *operands, *options)
    return result


_QUANTIZE_ROWS = operators.overload("quantize_rows")
_ROUNDED = torch.float32, torch.bfloat16, torch.float16


def quantize_rows(x: Tensor, dtype: torch.dtype, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns x [..., n] in 8 bits and the factors that it was divided by: x ~ quantized * scale.

    ``dtype`` is int8, rounded to nearest even within -127 .. 127, or float8_e4m3fn, of at most 448. Without
    ``scale``, each row has its own factor, [..., 1] float32: its largest |x| over 127 or 448. A row that
    holds NaN or Inf gets that as its factor, and so does not pass for numbers. A row whose factor has no
    inverse in float32, of denormals alone, gives zeros beside it. With ``scale`` (float32, broadcast against
    x), values beyond the range are clipped. Raises Error for a scalar x.
    """
    if not x.dim():
        raise Error("quantize_rows", "x [..., n]", "a scalar", "pass x.reshape(1)")
    limit = 127.0 if dtype is torch.int8 else 448.0
    is_given = scale is not None
    one = scale is None or (scale.numel() == 1 and scale.dtype is torch.float32 and scale.is_cpu)
    if one and dtype is torch.int8 and x.is_cpu and x.dtype in _ROUNDED and x.dim() and not differentiated(x):
        # One pass over each row, where the operators below write six tensors: they took half of a sentence
        # encoder's time on a CPU.
        rounded, found = operators.run(_QUANTIZE_ROWS, x, scale)
        return rounded, found if scale is None else scale
    if scale is None:
        # torch.aminmax reads x once where this reads it twice, but takes five times as long on CPUs.
        largest = x.abs().amax(-1, keepdim=True) if x.shape[-1] else x.new_zeros((*x.shape[:-1], 1))
        scale = largest.float() / limit
    inverse = scale.reciprocal()
    # a scale of 0, or one too small to invert, gives 0
    inverse = torch.where(inverse.isfinite(), inverse, 0.0)
    quotient = x * inverse  # in float32, as inverse is
    if is_given:
        quotient.clamp_(-limit, limit)
    return (quotient.round_() if dtype is torch.int8 else quotient).to(dtype), scale


Class = TypeVar("Class", bound=type)


@named_arguments
def register(
    operator: Callable[..., Any], *, inputs: Sequence[type], outputs: Sequence[Output]
) -> Callable[[Class], Class]:
    """Makes a class the implementation of a torch function for tensors of these formats; a decorator, which
    returns the class.

    The class has static ``forward(ctx, *arguments)`` and ``backward(ctx, *gradients)``, as a
    torch.autograd.Function has, which it may be. ``inputs`` are the layouts of the tensors among the
    arguments, in their order: a SparseTensor comes as it is, ``layouts.Dense`` stands for torch's own
    tensors, and a layout takes what derives from it. ``outputs`` are (sparsifier's class, layout) of each
    result; one with another sparsifier than KeepAll serves ``sparsified_op``, and finds the sparsifiers in
    ``ctx.sparsifiers``. Methods (``a.mm(b)``, and ``a @ b`` of matrices) find what is registered for the
    function.

    It is added to the registry in use (``Registry``). Raises Error for anything but classes, and where
    another class is registered for the same formats.
    """
    return current().register(operator, inputs, outputs)
