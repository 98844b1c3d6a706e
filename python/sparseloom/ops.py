"""Every call into the C++ operators: fake kernels, error texts and the one route for gradients. Nobody else touches torch.ops.

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

from . import _library
from .errors import Error, translated

_library.load()
warnings.filterwarnings("error", message=r"sparseloom::.*autograd kernel was not registered")

#: Activations a forward product can fuse, by name, with the operators' code for each. "gelu" is the erf form.
ACTIVATIONS: dict[str | None, int] = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
DIRECTIONS = ("forward", "dx", "dw")
DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}
PLAN_CHOOSES = -1

# Overloads are looked up once: the packet's own resolution costs about a microsecond a call.
_linear = torch.ops.sparseloom.linear.default
_linear_dx = torch.ops.sparseloom.linear_dx.default
_linear_dw = torch.ops.sparseloom.linear_dw.default

_FORWARD, _DX, _DW = range(3)


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
    version: int  # content hash: the key of cached plans

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
) -> Tensor:
    """act(x W^T + bias), differentiable in x, values and bias.

    x [..., cols] of 1 to 4 dimensions, values [blocks, bm, bn], bias [rows] or None, all of one dtype and, with the index, on one
    device. Returns [..., rows]. On CUDA the work is queued on torch's current stream; float32 follows torch's TF32 switch.
    The activation is fused when nothing needs a gradient. ``kernel`` forces a candidate by name; ``strict`` forbids the dense
    and reference ones. Raises Error when a shape, dtype, device or index does not fit, torch.OutOfMemoryError when a GPU is full.
    """
    number = PLAN_CHOOSES if kernel is None else kernel_number(kernel)
    try:
        if torch.is_grad_enabled() and (x.requires_grad or values.requires_grad or (bias is not None and bias.requires_grad)):
            return activate(_Product.apply(x, values, bias, _How(_FORWARD, strict, number, index)), activation)
        code, tf32 = ACTIVATIONS[activation], _tf32(x)
        return _linear(x, values, index.crow, index.col, bias, index.rows, code, index.version, strict, tf32, number)
    except RuntimeError as error:
        raise translated(error) from None


def linear_dx(dy: Tensor, values: Tensor, index: Index, strict: bool = False, kernel: str | None = None) -> Tensor:
    """dY W: dy [..., rows] -> [..., cols]; differentiable in dy and values. Raises Error as linear does."""
    try:
        return _product(_DX, dy, values, strict, index, PLAN_CHOOSES if kernel is None else kernel_number(kernel))
    except RuntimeError as error:
        raise translated(error) from None


def linear_dw(dy: Tensor, x: Tensor, index: Index, strict: bool = False, kernel: str | None = None) -> Tensor:
    """dY^T X at the stored blocks: dy [..., rows], x [..., cols] -> [blocks, bm, bn], padding zero; differentiable in both."""
    try:
        return _product(_DW, dy, x, strict, index, PLAN_CHOOSES if kernel is None else kernel_number(kernel))
    except RuntimeError as error:
        raise translated(error) from None


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
) -> dict[str, Any]:
    """The plan for m tokens: kernel, predicted_us, workspace_bytes, candidates (each kernel, refusal, predicted_us), text.

    ``direction`` is "forward", "dx" or "dw"; the index is one on the CPU, ``device`` is where the product would run. Raises Error
    when no candidate can run, with every refusal.
    """
    if direction not in DIRECTIONS:
        raise Error("plan", f"a direction of {', '.join(DIRECTIONS)}", repr(direction), "choose one of them")
    text = call(
        "plan",
        *(index.crow, index.col, index.rows, index.cols, index.bm, index.bn, direction, dtype_name("plan", dtype), m),
        *(bias, ACTIVATIONS[activation], index.version, strict, dtype is torch.float32 and tf32_allowed(), ordinal(device)),
        PLAN_CHOOSES if kernel is None else kernel_number(kernel),
    )
    return dict(json.loads(text))


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


# Fake kernels: shapes and dtypes only, for torch.compile, export and meta tensors.


@torch.library.register_fake("sparseloom::linear")
def _linear_fake(
    x: Tensor, values: Tensor, crow: Tensor, col: Tensor, bias: Tensor | None, out_features: int, *rest: Any
) -> Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


@torch.library.register_fake("sparseloom::linear_dx")
def _linear_dx_fake(
    dy: Tensor, values: Tensor, crow: Tensor, col: Tensor, ccol: Tensor, row: Tensor, slot: Tensor, in_features: int, *rest: Any
) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], in_features))


@torch.library.register_fake("sparseloom::linear_dw")
def _linear_dw_fake(dy: Tensor, x: Tensor, crow: Tensor, col: Tensor, block_rows: int, block_cols: int, *rest: Any) -> Tensor:
    return dy.new_empty((col.shape[0], block_rows, block_cols))


@torch.library.register_fake("sparseloom::pack")
def _pack_fake(dense: Tensor, crow: Tensor, col: Tensor, block_rows: int, block_cols: int) -> Tensor:
    return dense.new_empty((col.shape[0], block_rows, block_cols))


@torch.library.register_fake("sparseloom::unpack")
def _unpack_fake(values: Tensor, crow: Tensor, col: Tensor, rows: int, cols: int) -> Tensor:
    return values.new_empty((rows, cols))
