"""Plans (which kernel would run, and why), the kernels' numbers, and the names by which the operators know
dtypes and devices. Public as sparseloom.ops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from .._arguments import named_arguments
from .._checks import whole
from ..errors import Error
from .operators import ACTIVATIONS, PLAN_CHOOSES, call, row_number, tf32_allowed, unknown_activation

if TYPE_CHECKING:
    from . import Index

DIRECTIONS = ("forward", "dx", "dw")
DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}
#: The dtypes of 8-bit operands: forward only, with scales; see scaled_linear.
SCALED_DTYPES = {torch.int8: "int8", torch.float8_e4m3fn: "float8_e4m3fn"}
#: A plan's bias, activation and residual for a product without an epilogue.
NO_EPILOGUE = (False, 0, False)
OUT_DTYPES = {torch.bfloat16: "bf16", torch.float32: "f32"}


@named_arguments
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
    residual: bool = False,
    accumulate: bool = False,
    use_fast_accum: bool = False,
    aligned: bool = True,
) -> dict[str, Any]:
    """Returns the plan for m tokens (rows of x) as a dict: kernel, predicted_us, workspace_bytes, candidates
    (each with kernel, refusal and predicted_us), dense_copy_us and text. ``dense_copy_us`` is the predicted
    time of torch's product with a dense copy of the weight that is there already, None where the candidate
    dense is refused.

    ``direction`` is "forward", "dx" or "dw". The index is on the CPU; ``device`` is where the product would
    run. ``out_dtype`` is the result's dtype for int8 and float8_e4m3fn operands. ``residual`` plans a linear
    with a residual (forward, no 8-bit operands). ``accumulate`` plans a linear_dw with ``out``, or a backward
    pass into main_grad (dw, not float64). ``use_fast_accum`` is that of scaled_linear. ``aligned=False``
    plans operands on CUDA whose base, or the distance between whose rows, is no multiple of 16 bytes. Raises
    Error when no call has these arguments, and when no candidate can run; that Error lists every refusal.
    """
    if direction not in DIRECTIONS:
        raise Error("plan", f"a direction of {', '.join(DIRECTIONS)}", repr(direction), "choose one of them")
    m = whole("plan", "m", m)
    if not (hasattr(index, "packed") and hasattr(index, "digest")):
        remedy = "pass layer.index, or what make_index returns"
        raise Error("plan", "index to be an ops.Index", type(index).__name__, remedy)
    if unknown := unknown_activation("plan", activation, "choose one of them"):
        raise unknown
    return asked(
        "bsr_linear",
        (index.rows, index.cols, index.bm, index.bn, index.blocks),
        direction,
        planned_dtype(dtype, out_dtype),
        m,
        ordinal(device),
        (bias, ACTIVATIONS[activation], residual),
        PLAN_CHOOSES if kernel is None else kernel_number(kernel),
        strict,
        dtype is torch.float32 and tf32_allowed(),
        index.digest,
        use_fast_accum,
        accumulate,
        aligned,
        index.packed,
    )


def asked(
    family: str, sizes: Sequence[int], direction: str, dtype: str, m: int, device: int,
    epilogue: tuple[bool, int, bool] = NO_EPILOGUE, row: int = PLAN_CHOOSES, *options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Returns the answer of the operator plan, whose arguments these are (bindings/torch/library.cpp). Raises
    Error when no call has them, and when no candidate can run; that Error lists every refusal."""
    return dict(
        json.loads(call("plan", family, sizes, direction, dtype, m, device, *epilogue, row, *options))
    )


def copy_is_faster(plan: dict[str, Any]) -> bool:
    """Returns whether the plan expects a product with a dense copy to be faster than its own choice, which
    may be the dense candidate, which scatters the weight first."""
    us = plan["dense_copy_us"]
    return us is not None and us < plan["predicted_us"]


def planned_dtype(dtype: torch.dtype, out_dtype: torch.dtype) -> str:
    """Returns the name of the dtype in plans; 8-bit names include the dtype of the result."""
    if dtype not in SCALED_DTYPES:
        return dtype_name("plan", dtype)
    if out_dtype not in OUT_DTYPES:
        raise Error("plan", "out_dtype bfloat16 or float32", str(out_dtype), "pass one of them")
    return f"{SCALED_DTYPES[dtype]} to {OUT_DTYPES[out_dtype]}"


@named_arguments
@cache
def info() -> dict[str, Any]:
    """Returns what the C++ core reports about the machine and the build: digest, compiler, ISA, the kernels
    compiled in, and why a part is missing."""
    return dict(json.loads(call("info")))


def get_num_threads() -> int:
    """Returns the number of threads of a call on the CPU: torch's, or the most that set_num_threads allows if
    that is less."""
    number: int = call("num_threads")
    return number


@named_arguments
def set_num_threads(most: int | None) -> None:
    """Caps the threads that sparse products on the CPU use, in the whole process and from the next call on;
    None: torch's number (torch.set_num_threads), which is the most in any case. Results are bitwise the same
    for any number where the plan is; torch's own products keep torch's number. Raises Error unless ``most``
    is None or at least 1."""
    number = 0 if most is None else whole("set_num_threads", "most", most, 1)
    call("set_num_threads", min(number, 2**31 - 1))


@cache
def kernel_number(name: str) -> int:
    """Returns the row of a kernel in the registry. Raises Error for a name that is not compiled in."""
    names = info()["kernels"]
    if name not in names:  # a kernel from outside may have come since
        info.__wrapped__.cache_clear()  # type: ignore[attr-defined]
        names = info()["kernels"]
    if name not in names:
        raise Error(
            "kernel",
            f"one of {', '.join(names)}",
            repr(name),
            "`sparseloom info` lists the kernels of this build",
        )
    return row_number(name)


def dtype_name(op: str, dtype: torch.dtype) -> str:
    """Returns "f32", "f16", "bf16" or "f64". Raises Error for any other dtype."""
    if dtype not in DTYPES:
        raise Error(
            op, "dtype float32, float16, bfloat16 or float64", str(dtype), "convert with .to(torch.float32)"
        )
    return DTYPES[dtype]


def has_kernels_for(device: torch.device) -> bool:
    """Returns whether this build computes on tensors of that device. Meta tensors count: they only carry
    shapes."""
    return device.type in ("cpu", "meta") or (device.type == "cuda" and bool(info()["cuda"]["compiled"]))


def ordinal(device: torch.device | str | int) -> int:
    """Returns the device as the operators count it: -1 for the CPU, else the CUDA ordinal (of the current
    device when ``device`` names none). Raises Error for what torch does not know as a device."""
    try:
        device = torch.device(device)
    except RuntimeError:
        raise Error(
            "device", "a device such as cpu, cuda or cuda:1", repr(device), "pass one of them"
        ) from None
    if device.type != "cuda":
        return -1
    if device.index is not None:
        return device.index
    return torch.cuda.current_device() if torch.cuda.is_available() else 0
