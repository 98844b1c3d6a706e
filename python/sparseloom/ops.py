"""The operators as functions: products with and without gradients, plans, indices. All of the package
computes through here."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _autograd, _operators, _products
from ._autograd import activate as activate
from ._autograd import require_residual as require_residual
from ._operators import ACTIVATIONS as ACTIVATIONS
from ._operators import PLAN_CHOOSES, tf32_of
from ._operators import call as call
from ._operators import tf32_allowed as tf32_allowed
from ._plans import DIRECTIONS as DIRECTIONS
from ._plans import DTYPES as DTYPES
from ._plans import OUT_DTYPES as OUT_DTYPES
from ._plans import SCALED_DTYPES as SCALED_DTYPES
from ._plans import dtype_name as dtype_name
from ._plans import has_kernels_for as has_kernels_for
from ._plans import info as info
from ._plans import kernel_number as kernel_number
from ._plans import ordinal as ordinal
from ._plans import plan as plan
from ._products import differentiated as differentiated
from ._products import functorch_active
from .errors import Error, translated, unsupported_layout

_tracing_state = torch._C._get_tracing_state  # by a name of its own: ops.linear asks in every call

#: Version of an index that set_topology rewrites in place: its plans depend on shape and number of blocks
#: alone.
DYNAMIC = -1


class Index(NamedTuple):
    """Where the blocks of a [rows, cols] weight lie: int32 index tensors of both directions over one list of
    values."""

    crow: Tensor  # [block rows + 1]: blocks of row r are crow[r] .. crow[r + 1] - 1
    col: Tensor  # [blocks], ascending inside a row
    ccol: Tensor  # [block columns + 1]
    row: Tensor  # [blocks], ascending inside a column
    slot: Tensor  # [blocks]: position in the row order
    rows: int  # out features
    cols: int  # in features
    bm: int
    bn: int
    version: int  # content hash, or DYNAMIC: the key of cached plans

    def to(self, device: torch.device | str | int) -> Index:
        """The same with its tensors on a device."""
        crow, col, ccol, row, slot = (
            tensor.to(device) for tensor in (self.crow, self.col, self.ccol, self.row, self.slot)
        )
        return self._replace(crow=crow, col=col, ccol=ccol, row=row, slot=slot)


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
    """act(x W^T + bias) + residual, differentiable in x, values, bias and residual.

    x [..., cols] of 1 to 4 dimensions, values [blocks, bm, bn], bias [rows] or None, residual [..., rows] or
    None, all of one dtype and, with the index, on one device. The residual is added before the result is
    rounded, but where a training step on the CPU has an activation. Returns [..., rows]. On CUDA the work is
    queued on torch's current stream; float32 follows torch's TF32 switch. Kept for the gradient: x, values,
    and relu's output or the other activations' input. ``kernel`` forces a candidate by name; ``strict``
    forbids the dense and reference ones. Raises Error when a shape, dtype, device or index does not fit,
    torch.OutOfMemoryError when a GPU is full.

    ``main_grad_of``: the Parameter that values are, or were cast from, when their gradient is to be added to
    its ``main_grad`` (float32, contiguous, shape and device of values) instead of to ``grad``, which stays
    None: unrounded, in the product's own kernel. Not with create_graph; torch.compile breaks its graph there.
    """
    number = PLAN_CHOOSES if kernel is None else kernel_number(kernel)
    try:
        needed = torch.is_grad_enabled() and (
            x.requires_grad
            or values.requires_grad
            or (bias is not None and bias.requires_grad)
            or (residual is not None and residual.requires_grad)
        )
        if functorch_active() or forward_ad._current_level >= 0:
            weight = main_grad_of if needed and values.requires_grad else None
            how = _autograd.LayerHow(activation, strict, number, index, weight)
            return _autograd.by_parts(x, values, bias, how, residual)
        # jit.trace records operators, and is at a loss with autograd Functions
        if needed and _tracing_state() is None:
            fused = activation if x.is_cuda or activation in _autograd.CPU_FUSES else None
            added = residual is not None and (x.is_cuda or activation is None)
            # An exported graph has no backward pass.
            fuses = main_grad_of is not None and values.requires_grad and not torch.compiler.is_exporting()
            weight = main_grad_of if fuses else None
            breaks = weight is not None and torch.compiler.is_compiling()
            apply = _autograd.between_graphs if breaks else _autograd.Layer.apply
            how = _autograd.LayerHow(fused, strict, number, index, weight)
            y = apply(x, values, bias, how, residual) if added else apply(x, values, bias, how)
            y = y[0] if isinstance(y, tuple) else y
            y = y if fused == activation else activate(y, activation)
            if added or residual is None:
                return y
            require_residual(residual, y)
            return y + residual
        code, tf32 = ACTIVATIONS[activation], x.is_cuda and tf32_of(x)  # no call on the CPU: .12 us of 15
        crow, col, rows, version = index.crow, index.col, index.rows, index.version
        x = _autograd.in_rows(x)
        return _operators.linear(
            x, values, crow, col, bias, rows, code, version, strict, tf32, number, residual
        )
    except _REFUSED as error:
        operands = {"x": x, "values": values, "bias": bias, "residual": residual}
        raise _explained(error, "linear", index, activation, operands) from None


#: What an operand of another kind makes Python or torch raise: the routes above ask nothing beforehand, which
#: every call would pay.
_REFUSED = (RuntimeError, AttributeError, TypeError, KeyError)


def _explained(error: Exception, op: str, index: Any, activation: Any, operands: dict[str, Any]) -> Exception:
    """Our Error for what a product was refused for; ``error`` itself when that is none of its arguments."""
    for name, operand in operands.items():
        if operand is not None and not isinstance(operand, Tensor):
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
    if activation not in tuple(ACTIVATIONS):
        names = ", ".join(repr(name) for name in ACTIVATIONS)
        return Error(
            op, f"activation to be one of {names}", repr(activation), "apply any other one after the product"
        )
    return translated(error) if isinstance(error, RuntimeError) else error


def linear_dx(
    dy: Tensor, values: Tensor, index: Index, strict: bool = False, kernel: str | None = None
) -> Tensor:
    """dY W: dy [..., rows] -> [..., cols]; differentiable in dy and values. Raises Error as linear does."""
    try:
        return _products.product(
            _products.DX, dy, values, strict, index, PLAN_CHOOSES if kernel is None else kernel_number(kernel)
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
    """dY^T X at the stored blocks: dy [..., rows], x [..., cols] -> [blocks, bm, bn], padding zero;
    differentiable in both.

    ``out``, float32 [blocks, bm, bn], is added to and returned: unrounded sums, nothing to padding. That is
    not differentiable.
    """
    if out is not None:
        asked = next((name for name, t in (("dy", dy), ("x", x), ("out", out)) if differentiated(t)), "")
        if asked:
            raise Error(
                "linear_dw",
                "operands without gradients beside out",
                f"{asked} that requires one",
                "use torch.no_grad()",
            )
        arguments = (
            index.version,
            strict,
            tf32_of(x),
            PLAN_CHOOSES if kernel is None else kernel_number(kernel),
        )
        call("linear_dw_add", out, dy, x, index.crow, index.col, *arguments)
        torch.autograd.graph.increment_version(out)
        return out
    try:
        return _products.product(
            _products.DW, dy, x, strict, index, PLAN_CHOOSES if kernel is None else kernel_number(kernel)
        )
    except _REFUSED as error:
        raise _explained(error, "linear_dw", index, None, {"dy": dy, "x": x}) from None


def scaled_linear(
    x: Tensor,
    values: Tensor,
    index: Index,
    x_scale: Tensor,
    w_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype,
    activation: str | None = None,
    strict: bool = False,
    kernel: str | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """act(x_scale w_scale (x W^T) + bias) of 8-bit operands, for inference: no gradients.

    x [..., cols] and values [blocks, bm, bn], both int8 or both float8_e4m3fn; x_scale float32, one element
    or one for each token; w_scale float32, one element or one for each output feature [rows]; bias [rows] of
    ``out_dtype`` or None. Returns [..., rows] of ``out_dtype``, bfloat16 or float32. int8 sums are exact in
    int32; y = act(fma(float(sum) * x_scale, w_scale, bias)) in float32, rounded once to ``out_dtype``, so
    that every int8 kernel gives the same bits but for activations. Scales of zero, Inf and NaN multiply as
    any number does.

    ``use_fast_accum``, as torch._scaled_mm has it: float8_e4m3fn sums on CUDA may stay in the tensor cores,
    which keep some 14 bits of them; without it no sum of theirs is longer than 128 products. It says nothing
    of int8 and of other devices. ``kernel`` forces a candidate by name; ``strict`` forbids the dense one,
    which multiplies float8_e4m3fn on CUDA by torch._scaled_mm, and the reference one, which runs 8-bit
    operands only when it is named. Raises Error when a shape, dtype, device or index does not fit, when a
    gradient is asked for, and when no kernel multiplies the dtype on that device (float8_e4m3fn on CPUs).
    """
    asked = next(
        (
            name
            for name, t in (("x_scale", x_scale), ("w_scale", w_scale), ("bias", bias), ("x", x))
            if t is not None and differentiated(t)
        ),
        "",
    )
    if asked:
        remedy = "call it in torch.no_grad(), or train the float layer"
        raise Error("scaled_linear", "operands without gradients", f"{asked} that requires one", remedy)
    number = PLAN_CHOOSES if kernel is None else kernel_number(kernel)
    arguments = (
        index.rows,
        out_dtype,
        ACTIVATIONS[activation],
        index.version,
        strict,
        number,
        use_fast_accum,
    )
    result: Tensor = call(
        "scaled_linear", x, values, index.crow, index.col, x_scale, w_scale, bias, *arguments
    )
    return result


def quantize_rows(x: Tensor, dtype: torch.dtype, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x [..., n] as 8 bits and the factors that it was divided by: x ~ quantized * scale.

    ``dtype``: int8, to -127 .. 127 by rounding to nearest even, or float8_e4m3fn, to at most 448. Without
    ``scale`` each row has its own, [..., 1] float32, its largest |x| over 127 or 448; a row that holds NaN or
    Inf gets that as its factor and so does not pass for a number. With ``scale`` (float32, broadcast against
    x) what lies beyond is cut off.
    """
    most = 127.0 if dtype is torch.int8 else 448.0
    given = scale is not None
    if scale is None:
        # torch.aminmax reads x once where this does twice, and takes five times as long on CPUs.
        largest = x.abs().amax(-1, keepdim=True) if x.shape[-1] else x.new_zeros((*x.shape[:-1], 1))
        scale = largest.float() / most
    inverse = scale.reciprocal()
    inverse = torch.where(inverse.isfinite(), inverse, 0.0)  # of 0 and of what rounds to it
    quotient = x * inverse  # in float32: inverse is
    if given:
        quotient.clamp_(-most, most)
    return (quotient.round_() if dtype is torch.int8 else quotient).to(dtype), scale


def make_index(crow: Tensor, col: Tensor, rows: int, cols: int, block: tuple[int, int]) -> Index:
    """Validates crow and col (int32, contiguous, CPU) and adds the other direction. Raises Error naming the
    first bad entry."""
    version = call("validate_index", crow, col, rows, cols, *block)
    ccol, row, slot = call("transpose_index", crow, col, rows, cols, *block)
    return Index(crow, col, ccol, row, slot, rows, cols, block[0], block[1], version)


def set_topology(index: Index, mask: Tensor, moved: Tensor, requested: Tensor) -> None:
    """Rewrites the tensors of an index in place for another mask, on the CPU or, queued and capturable in a
    graph, on CUDA.

    mask bool or uint8 [block rows, block columns]; moved int32 [blocks] becomes each block's slot before, -1
    for a new one; requested int32 [1] the number of blocks that the mask names. There are exactly as many
    blocks as before: of more named ones the first in row-major order, fewer are filled up with the first
    other cells. The index has to be of version DYNAMIC from then on. Raises Error when a shape or dtype does
    not fit.
    """
    call("set_topology", mask, *index[:5], moved, requested)


def move_blocks(values: Tensor, moved: Tensor) -> None:
    """values[slot] <- values[moved[slot]], zero where moved is -1, in place: values [blocks, ...] and what
    else has blocks as its first dimension, after set_topology. Any dtype, contiguous; on CUDA queued. Raises
    Error when it does not fit."""
    call("move_blocks", values, moved)
