"""Every call into the C++ operators: error texts and the one route for gradients. Nobody else touches torch.ops.

The operators have no autograd kernel: registering one costs every eager call several microseconds, with or without gradients
(2.6 us against 6.0 without and 18.8 with, on two cores). They are called straight when nothing needs a gradient, and inside one
autograd.Function when something does. An operator called raw (torch.ops.sparseloom...) with inputs that need gradients reaches
torch's own fallback, which warns when a backward pass arrives there; below that warning is turned into an error.
"""

from __future__ import annotations

import json
import warnings
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo

from . import _library
from .errors import Error, translated

_library.load()
from . import _fakes as _fakes  # noqa: E402 - the operators must exist

warnings.filterwarnings("error", message=r"sparseloom::.*autograd kernel was not registered")

#: Activations a forward product can fuse, by name, with the operators' code for each. "gelu" is the erf form.
ACTIVATIONS: dict[str | None, int] = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
DIRECTIONS = ("forward", "dx", "dw")
DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}
#: 8-bit operands: forward only, with scales; see scaled_linear.
SCALED_DTYPES = {torch.int8: "int8", torch.float8_e4m3fn: "float8_e4m3fn"}
OUT_DTYPES = {torch.bfloat16: "bf16", torch.float32: "f32"}
PLAN_CHOOSES = -1
#: Version of an index that set_topology rewrites in place: its plans depend on shape and number of blocks alone.
DYNAMIC = -1

# Overloads are looked up once: the packet's own resolution costs about a microsecond a call.
_linear = torch.ops.sparseloom.linear.default
_linear_dx = torch.ops.sparseloom.linear_dx.default
_linear_dw = torch.ops.sparseloom.linear_dw.default
_linear_dw_add = torch.ops.sparseloom.linear_dw_add.default
_linear_train = torch.ops.sparseloom.linear_train.default
_linear_backward = torch.ops.sparseloom.linear_backward.default

_FORWARD, _DX, _DW = range(3)
_RELU = ACTIVATIONS["relu"]
# What training fuses on the CPU. Inductor's loops for the others take 4 us of a small layer's step, torch's operators, which ours
# would call, 60; outside of inductor both routes call the same.
_CPU_FUSES: tuple[str | None, ...] = (None, "relu")


class Index(NamedTuple):
    """Where the blocks of a [rows, cols] weight lie: int32 index tensors of both directions over one list of values."""

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
        crow, col, ccol, row, slot = (tensor.to(device) for tensor in (self.crow, self.col, self.ccol, self.row, self.slot))
        return self._replace(crow=crow, col=col, ccol=ccol, row=row, slot=slot)


def tf32_allowed() -> bool:
    """Whether torch's own switches let float32 products on CUDA round their operands to TF32. A compiled graph keeps what it found;
    torch guards the switch and compiles again when it changes."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


# What torch.compiler.assume_constant_result sets; the decorator itself imports all of dynamo, a second of everybody's import.
tf32_allowed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _tf32(x: Tensor) -> bool:
    return x.dtype is torch.float32 and x.is_cuda and tf32_allowed()


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
        if direction == _FORWARD:  # a = x, b = values
            da = _product(_DX, grad, b, strict, index) if need_a else None
            db = _product(_DW, grad, a, strict, index) if need_b else None
            dbias = (grad.flatten(0, -2).sum(0) if grad.dim() > 1 else grad) if need_bias else None
        elif direction == _DX:  # a = dy, b = values, grad like x
            da = _product(_FORWARD, grad, b, strict, index) if need_a else None
            db = _product(_DW, a, grad, strict, index) if need_b else None
        else:  # a = dy, b = x, grad like values
            da = _product(_FORWARD, b, grad, strict, index) if need_a else None
            db = _product(_DX, a, grad, strict, index) if need_b else None
        return da, db, dbias, None


class _LayerHow(NamedTuple):
    """What a layer is beside its operands."""

    activation: str | None
    strict: bool
    kernel: int
    where: Index
    weight: Tensor | None  # whose main_grad the values' gradient is added to


class _Layer(torch.autograd.Function):
    """act(x W^T + bias) + residual in one dispatch forward and one backward: dz = dy act'(z), dX, dW and the bias's gradient.

    Relu saves its output, which the next layer keeps anyway: one product with the activation fused. The other activations, and relu
    under a residual, save the pre-activation z. z is an output too, so that a second differentiation finds its way through it;
    nobody else sees it. Not when compiled: there is no second one there, and AOTAutograd would add a matrix of zeros for z's
    gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, how: _LayerHow, residual: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        activation, strict, kernel, index, _ = ctx.how = how
        ctx.set_materialize_grads(False)
        need_x, need_values, *_ = ctx.needs_input_grad
        code, tf32, z = ACTIVATIONS[activation], _tf32(x), None
        keeps_y = code <= _RELU and (residual is None or not code)
        product = _linear if keeps_y else _linear_train
        y = product(x, values, index.crow, index.col, bias, index.rows, code, index.version, strict, tf32, kernel, residual)
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
        main_grad = None if weight is None else _main_grad(weight, ctx.next_functions[1][0], again)
        if again:
            dx = _product(_DX, dy, values, strict, index) if need_x else None
            dvalues = _product(_DW, dy, x, strict, index) if need_values else None
            dbias = (dy.flatten(0, -2).sum(0) if dy.dim() > 1 else dy) if need_bias else None
            return dx, dvalues, dbias, None, dresidual
        crow, col, ccol, row, slot, _, cols, bm, bn, version = index
        code, tf32 = ACTIVATIONS[activation], _tf32(dy)
        wanted = x if weight is None or main_grad is not None else None
        operands = (dy, saved, wanted, values, crow, col, ccol, row, slot, cols, bm, bn, code, version, strict, tf32, need_bias)
        if weight is None:
            dx, dvalues, dbias = _linear_backward(*operands)
        else:
            dx, empty, dbias = call("linear_backward", *operands, main_grad)
            dvalues = None if main_grad is None else _announce(weight, empty, index)
        return dx if need_x else None, dvalues if need_values else None, dbias if need_bias else None, None, dresidual


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
def _between_graphs(*operands: Any) -> Any:
    return _Layer.apply(*operands)


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
    if direction == _FORWARD:
        return _linear(a, b, crow, col, bias, rows, 0, version, strict, _tf32(a), kernel)
    if direction == _DX:
        return _linear_dx(a, b, crow, col, ccol, row, slot, cols, version, strict, _tf32(a), kernel)
    return _linear_dw(a, b, crow, col, bm, bn, version, strict, _tf32(a), kernel)


def _product(direction: int, a: Tensor, b: Tensor, strict: bool, index: Index, kernel: int = PLAN_CHOOSES) -> Tensor:
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

    x [..., cols] of 1 to 4 dimensions, values [blocks, bm, bn], bias [rows] or None, residual [..., rows] or None, all of one dtype
    and, with the index, on one device. The residual is added before the result is rounded, but where a training step on the CPU has
    an activation. Returns [..., rows]. On CUDA the work is queued on torch's current stream; float32 follows torch's TF32 switch.
    Kept for the gradient: x, values, and relu's output or the other activations' input. ``kernel`` forces a candidate by name;
    ``strict`` forbids the dense and reference ones. Raises Error when a shape, dtype, device or index does not fit,
    torch.OutOfMemoryError when a GPU is full.

    ``main_grad_of``: the Parameter that values are, or were cast from, when their gradient is to be added to its ``main_grad``
    (float32, contiguous, shape and device of values) instead of to ``grad``, which stays None: unrounded, in the product's own
    kernel. Not with create_graph; torch.compile breaks its graph there.
    """
    number = PLAN_CHOOSES if kernel is None else kernel_number(kernel)
    try:
        if torch.is_grad_enabled() and (
            x.requires_grad
            or values.requires_grad
            or (bias is not None and bias.requires_grad)
            or (residual is not None and residual.requires_grad)
        ):
            fused = activation if x.is_cuda or activation in _CPU_FUSES else None
            added = residual is not None and (x.is_cuda or activation is None)
            # An exported graph has no backward pass.
            fuses = main_grad_of is not None and values.requires_grad and not torch.compiler.is_exporting()
            weight = main_grad_of if fuses else None
            apply = _between_graphs if weight is not None and torch.compiler.is_compiling() else _Layer.apply
            how = _LayerHow(fused, strict, number, index, weight)
            y = apply(x, values, bias, how, residual) if added else apply(x, values, bias, how)
            y = y[0] if isinstance(y, tuple) else y
            y = y if fused == activation else activate(y, activation)
            return y if added or residual is None else y + residual
        code, tf32 = ACTIVATIONS[activation], _tf32(x)
        return _linear(x, values, index.crow, index.col, bias, index.rows, code, index.version, strict, tf32, number, residual)
    except RuntimeError as error:
        raise translated(error) from None


def linear_dx(dy: Tensor, values: Tensor, index: Index, strict: bool = False, kernel: str | None = None) -> Tensor:
    """dY W: dy [..., rows] -> [..., cols]; differentiable in dy and values. Raises Error as linear does."""
    try:
        return _product(_DX, dy, values, strict, index, PLAN_CHOOSES if kernel is None else kernel_number(kernel))
    except RuntimeError as error:
        raise translated(error) from None


def linear_dw(
    dy: Tensor, x: Tensor, index: Index, strict: bool = False, kernel: str | None = None, out: Tensor | None = None
) -> Tensor:
    """dY^T X at the stored blocks: dy [..., rows], x [..., cols] -> [blocks, bm, bn], padding zero; differentiable in both.

    ``out``, float32 [blocks, bm, bn], is added to and returned: unrounded sums, nothing to padding. That is not differentiable.
    """
    if out is not None:
        asked = next((name for name, t in (("dy", dy), ("x", x), ("out", out)) if _differentiable(t)), "")
        if asked:
            raise Error("linear_dw", "operands without gradients beside out", f"{asked} that requires one", "use torch.no_grad()")
        arguments = (index.version, strict, _tf32(x), PLAN_CHOOSES if kernel is None else kernel_number(kernel))
        call("linear_dw_add", out, dy, x, index.crow, index.col, *arguments)
        torch.autograd.graph.increment_version(out)
        return out
    try:
        return _product(_DW, dy, x, strict, index, PLAN_CHOOSES if kernel is None else kernel_number(kernel))
    except RuntimeError as error:
        raise translated(error) from None


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
) -> Tensor:
    """act(x_scale w_scale (x W^T) + bias) of 8-bit operands, for inference: no gradients.

    x [..., cols] and values [blocks, bm, bn], both int8 or both float8_e4m3fn; x_scale float32, one element or one for each token;
    w_scale float32, one element or one for each output feature [rows]; bias [rows] of ``out_dtype`` or None. Returns [..., rows] of
    ``out_dtype``, bfloat16 or float32. int8 sums are exact in int32; y = act(fma(float(sum) * x_scale, w_scale, bias)) in float32,
    rounded once to ``out_dtype``, so that every int8 kernel gives the same bits but for activations. Scales of zero, Inf and NaN
    multiply as any number does.

    ``kernel`` forces a candidate by name, ``strict`` forbids the reference one, which runs 8-bit operands only when it is named.
    Raises Error when a shape, dtype, device or index does not fit, when a gradient is asked for, and when no kernel multiplies the
    dtype on that device (float8_e4m3fn on CPUs).
    """
    asked = next(
        (name for name, t in (("x_scale", x_scale), ("w_scale", w_scale), ("bias", bias), ("x", x)) if _differentiable(t)), ""
    )
    if asked:
        remedy = "call it in torch.no_grad(), or train the float layer"
        raise Error("scaled_linear", "operands without gradients", f"{asked} that requires one", remedy)
    number = PLAN_CHOOSES if kernel is None else kernel_number(kernel)
    arguments = (index.rows, out_dtype, ACTIVATIONS[activation], index.version, strict, number)
    result: Tensor = call("scaled_linear", x, values, index.crow, index.col, x_scale, w_scale, bias, *arguments)
    return result


def _differentiable(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad and torch.is_grad_enabled()


def quantize_rows(x: Tensor, dtype: torch.dtype, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x [..., n] as 8 bits and the factors that it was divided by: x ~ quantized * scale.

    ``dtype``: int8, to -127 .. 127 by rounding to nearest even, or float8_e4m3fn, to at most 448. Without ``scale`` each row has
    its own, [..., 1] float32, its largest |x| over 127 or 448; a row that holds NaN or Inf gets that as its factor and so does not
    pass for a number. With ``scale`` (float32, broadcast against x) what lies beyond is cut off.
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


def call(name: str, *arguments: Any) -> Any:
    """An operator that is not differentiated, by name: patterns, indices, packing, plans. Raises Error for what C++ refuses."""
    try:
        return getattr(torch.ops.sparseloom, name).default(*arguments)
    except RuntimeError as error:
        raise translated(error) from None


def make_index(crow: Tensor, col: Tensor, rows: int, cols: int, block: tuple[int, int]) -> Index:
    """Validates crow and col (int32, contiguous, CPU) and adds the other direction. Raises Error naming the first bad entry."""
    version = call("validate_index", crow, col, rows, cols, *block)
    ccol, row, slot = call("transpose_index", crow, col, rows, cols, *block)
    return Index(crow, col, ccol, row, slot, rows, cols, block[0], block[1], version)


def set_topology(index: Index, mask: Tensor, moved: Tensor, requested: Tensor) -> None:
    """Rewrites the tensors of an index in place for another mask, on the CPU or, queued and capturable in a graph, on CUDA.

    mask bool or uint8 [block rows, block columns]; moved int32 [blocks] becomes each block's slot before, -1 for a new one;
    requested int32 [1] the number of blocks that the mask names. There are exactly as many blocks as before: of more named ones the
    first in row-major order, fewer are filled up with the first other cells. The index has to be of version DYNAMIC from then on.
    Raises Error when a shape or dtype does not fit.
    """
    call("set_topology", mask, *index[:5], moved, requested)


def move_blocks(values: Tensor, moved: Tensor) -> None:
    """values[slot] <- values[moved[slot]], zero where moved is -1, in place: values [blocks, ...] and what else has blocks as its
    first dimension, after set_topology. Any dtype, contiguous; on CUDA queued. Raises Error when it does not fit."""
    call("move_blocks", values, moved)


def plan(
    index: Index,
    direction: str,
    dtype: torch.dtype,
    m: int,
    bias: bool = False,
    activation: str | None = None,
    strict: bool = False,
    kernel: str | None = None,
    device: torch.device | str | int = "cpu",
    out_dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:
    """The plan for m tokens: kernel, predicted_us, workspace_bytes, candidates (each kernel, refusal, predicted_us), text.

    ``direction`` is "forward", "dx" or "dw"; the index is one on the CPU, ``device`` is where the product would run; ``out_dtype``
    is what int8 and float8_e4m3fn operands give. Raises Error when no candidate can run, with every refusal.
    """
    if direction not in DIRECTIONS:
        raise Error("plan", f"a direction of {', '.join(DIRECTIONS)}", repr(direction), "choose one of them")
    text = call(
        "plan",
        *(index.crow, index.col, index.rows, index.cols, index.bm, index.bn, direction, _planned_dtype(dtype, out_dtype), m),
        *(bias, ACTIVATIONS[activation], index.version, strict, dtype is torch.float32 and tf32_allowed(), ordinal(device)),
        PLAN_CHOOSES if kernel is None else kernel_number(kernel),
    )
    return dict(json.loads(text))


def _planned_dtype(dtype: torch.dtype, out_dtype: torch.dtype) -> str:
    if dtype not in SCALED_DTYPES:
        return dtype_name("plan", dtype)
    if out_dtype not in OUT_DTYPES:
        raise Error("plan", "out_dtype bfloat16 or float32", str(out_dtype), "pass one of them")
    return f"{SCALED_DTYPES[dtype]} to {OUT_DTYPES[out_dtype]}"


@cache
def info() -> dict[str, Any]:
    """Machine and build as the C++ core reports them: version, compiler, ISA, kernels compiled in, why a part is missing."""
    return dict(json.loads(call("info")))


@cache
def kernel_number(name: str) -> int:
    """Row of a kernel in the registry. Raises Error on a name that is not compiled in."""
    names = info()["kernels"]
    if name not in names:
        raise Error("kernel", f"one of {', '.join(names)}", repr(name), "`sparseloom info` lists the kernels of this build")
    return int(names.index(name))


def dtype_name(op: str, dtype: torch.dtype) -> str:
    """ "f32", "f16", "bf16" or "f64". Raises Error on any other dtype."""
    if dtype not in DTYPES:
        raise Error(op, "dtype float32, float16, bfloat16 or float64", str(dtype), "convert with .to(torch.float32)")
    return DTYPES[dtype]


def has_kernels_for(device: torch.device) -> bool:
    """Whether this build computes on tensors of that device; meta tensors only carry shapes."""
    return device.type in ("cpu", "meta") or (device.type == "cuda" and bool(info()["cuda"]["compiled"]))


def ordinal(device: torch.device | str | int) -> int:
    """A device as the operators count: -1 the CPU, else the CUDA ordinal (the current one when ``device`` names none)."""
    try:
        device = torch.device(device)
    except RuntimeError:
        raise Error("device", "a device such as cpu, cuda or cuda:1", repr(device), "pass one of them") from None
    if device.type != "cuda":
        return -1
    if device.index is not None:
        return device.index
    return torch.cuda.current_device() if torch.cuda.is_available() else 0
