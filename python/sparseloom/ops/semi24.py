"""The operators of 2:4 weights as functions: pack, unpack, prune, and the product with its gradients.

W [rows, cols] holds at most two nonzeros in each group of four consecutive elements of a row. ``values``
[rows, 2 * groups] are two elements of each group, in the order of their columns; ``positions`` uint8 [rows,
ceil(groups / 2)] name their places with 4 bits a group, the group of the lower number in the low half: two
bits for the first element and two above them for the second. groups = ceil(cols / 4).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import Error
from . import flops, operators
from .autograd import activate, require_residual
from .fakes import fake
from .operators import PLAN_CHOOSES, activation_code, call, row_of, run
from .plans import asked, dtype_name, ordinal, planned_dtype
from .transforms import differentiated, transformed
from .verbs import Weight, multiply

#: What ``prune`` may be called: which two elements of a group stay.
METHODS = ("magnitude", "transposable_greedy", "transposable_exact")
#: The dtypes that a GPU prunes and packs.
_COMPRESSED = (torch.float32, torch.float16, torch.bfloat16)

_LINEAR = operators.overload("semi24_linear")
_DX = operators.overload("semi24_dx")
_SCALED_LINEAR = operators.overload("semi24_scaled_linear")


def require_method(op: str, prune: object, more: str = "") -> None:
    """Raises Error unless ``prune`` is a way to choose the elements that stay, or None."""
    if prune is not None and prune not in METHODS:
        names = ", ".join(map(repr, METHODS))
        raise Error(op, f"prune=None or one of {names}{more}", repr(prune), "pass one of them")


def pack(dense: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (values, positions) of a weight [rows, cols]. Raises Error that names the first group with more
    than two nonzeros."""
    dense = dense.detach()
    if dense.is_cuda and dense.dtype in _COMPRESSED:
        # Pruning by magnitude keeps all of at most two nonzeros. Where it lost one, the host finds the group.
        values, positions = compress(dense, "magnitude")[:2]
        if bool(values.count_nonzero() == dense.count_nonzero()):
            return values, positions
    values, positions = _on_host("semi24_pack", dense)
    return values, positions


def unpack(values: Tensor, positions: Tensor, cols: int) -> Tensor:
    """Returns W [rows, cols]: the values in their places and zero elsewhere."""
    dense: Tensor = call("semi24_unpack", values, positions, cols)
    return dense


def mask(weight: Tensor, prune: str) -> Tensor:
    """Returns which elements of a weight [rows, cols] stay, as bool: in each group of four of a row the two
    of the largest magnitude, or two that leave at most two in each group of a column as well
    (transposable)."""
    if weight.is_cuda and weight.dtype in _COMPRESSED:
        bits = compress(weight, prune)[2]
        places = torch.arange(8, device=bits.device, dtype=torch.uint8)
        return (bits.unsqueeze(-1) >> places & 1).bool().flatten(1)[:, : weight.shape[1]]
    require_method("prune", prune)
    (kept,) = _on_host("semi24_prune", weight.detach(), prune)
    return kept


def compress(
    weight: Tensor, prune: str, transposed: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Prunes and packs a weight [rows, cols] in one pass. Returns values, positions, mask, values of W^T and
    positions of W^T; the last two are empty unless asked for.

    ``mask`` is uint8 [rows, ceil(cols / 8)] with a bit for each element that stays, that of the lowest column
    lowest. On a GPU it is one kernel. Raises Error where W^T is asked for and ``prune`` is not transposable.
    """
    require_method("prune", prune)
    weight = weight.detach()
    if weight.dtype == torch.float64:  # the GPU's kernel takes the dtypes that layers compute in
        return _on_host("semi24_compress", weight, prune, transposed)  # type: ignore[return-value]
    return call("semi24_compress", weight, prune, transposed)  # type: ignore[no-any-return]


def _on_host(name: str, *arguments: Any) -> tuple[Tensor, ...]:
    """Calls an operator that has no kernel for CUDA, or not for this dtype: its operands are copied to the
    host there, and its results back. Layers are packed when they are made or loaded, and in no call."""
    device = arguments[0].device
    if device.type == "cuda":
        arguments = tuple(each.cpu() if isinstance(each, Tensor) else each for each in arguments)
    results = call(name, *arguments)
    results = results if isinstance(results, tuple) else (results,)
    return tuple(each.to(device) for each in results)


def order(positions: Tensor, cols: int, eight_bit: bool = False) -> Tensor | None:
    """Returns the positions in the order in which the tensor cores of their GPU take them, beside values of 8
    bits or of more; on the CPU None. It is made once for a weight on a GPU and never saved, since the
    positions say the same."""
    if not positions.is_cuda:
        return None
    metadata: Tensor = call("semi24_order", positions, cols, eight_bit)
    return metadata


def linear(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    cols: int,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    kernel: str = "",
    metadata: Tensor | None = None,
    strict: bool = False,
) -> Tensor:
    """Returns act(x W^T + bias) + residual as [..., rows], differentiable in x, bias and residual.

    x is [..., cols], bias [rows] or None, residual [..., rows] or None; all have the dtype of values and,
    with the positions, one device. ``kernel`` forces a candidate by name. ``metadata`` is what ``order`` made
    of the positions; without it, a call on a GPU makes it anew. ``strict`` forbids the dense and reference
    kernels, of the gradients too. Raises Error when an operand does not fit,
    and where a gradient of the values is asked for.
    """
    if differentiated(values):
        raise not_trainable("linear")
    weight = Semi24Weight(positions, cols, row_of(kernel), metadata, strict)
    followed = (
        differentiated(x)
        or (bias is not None and differentiated(bias))
        or (residual is not None and differentiated(residual))
    )
    if not followed or torch._C._get_tracing_state() is not None:  # torch.jit.trace records no Functions
        return weight.linear(x, values, bias, activation, residual)
    if transformed():  # by the dense weight, of whose product torch has every derivative
        if strict:
            got, remedy = "the dense weight, whose product has every derivative", "leave strict out"
            raise Error("linear", "sparse kernels (strict) under torch.func", got, remedy)
        by_dense = activate(functional.linear(x, unpack(values, positions, cols), bias), activation)
        return by_dense if residual is None else by_dense + residual
    # The gradient needs the activation's input, which a fused product does not leave behind.
    fused = activation is None
    addend = (residual,) if fused and residual is not None else ()
    y = multiply(x, values, bias, weight, *addend)
    if fused:
        return y
    y = activate(y, activation)
    if residual is None:
        return y
    require_residual(residual, y)
    return y + residual


def scaled_linear(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    cols: int,
    x_scale: Tensor,
    w_scale: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype,
    activation: str | None = None,
    strict: bool = False,
    kernel: str = "",
    use_fast_accum: bool = False,
    metadata: Tensor | None = None,
) -> Tensor:
    """Returns act(x_scale w_scale (x W^T) + bias) of 8-bit operands as [..., rows] of ``out_dtype``; scales,
    exactness and errors are those of ops.scaled_linear. There are no gradients. ``metadata`` is as in
    ``linear``, of 8 bits."""
    named = {"x": x, "x_scale": x_scale, "w_scale": w_scale, "bias": bias}
    asked = next((name for name, each in named.items() if each is not None and differentiated(each)), "")
    if asked:
        remedy = "call it in torch.no_grad(), or train the float layer"
        raise Error("scaled_linear", "operands without gradients", f"{asked} that requires one", remedy)
    operands = x, values, positions, cols, metadata, x_scale, w_scale, out_dtype
    how = bias, activation_code("scaled_linear", activation), row_of(kernel), strict, use_fast_accum
    y: Tensor = run(_SCALED_LINEAR, *operands, *how)
    return y


def dx(
    dy: Tensor, values: Tensor, positions: Tensor, cols: int, kernel: str = "", strict: bool = False
) -> Tensor:
    """Returns dY W as [..., cols] of dy [..., rows], differentiable in dy."""
    weight = Semi24Weight(positions, cols, strict=strict)
    if not differentiated(dy):  # as in every ordinary backward pass
        return _dx(dy, values, weight, row_of(kernel))
    return multiply(dy, values, None, _Again(row_of(kernel), weight))


def plan(
    direction: str,
    dtype: torch.dtype,
    m: int,
    shape: tuple[int, int],
    bias: bool,
    activation: str | None,
    residual: bool,
    device: torch.device | str | int,
    kernel: str = "",
    strict: bool = False,
) -> dict[str, Any]:
    """Returns the plan of a product of m tokens with a weight of that shape; see ops.plan for its keys."""
    if direction not in ("forward", "dx"):
        remedy = "choose one of them: 2:4 values do not train"
        raise Error("plan", "a direction of forward, dx", repr(direction), remedy)
    what = shape, direction, dtype_name("plan", dtype), m, ordinal(device)
    return asked(
        "semi24_linear", *what, (bias, activation_code("plan", activation), residual), row_of(kernel), strict
    )


def scaled_plan(
    dtype: torch.dtype,
    m: int,
    shape: tuple[int, int],
    bias: bool,
    activation: str | None,
    out_dtype: torch.dtype,
    device: torch.device | str | int,
    strict: bool = False,
    kernel: str = "",
    use_fast_accum: bool = False,
) -> dict[str, Any]:
    """Returns the plan of ``scaled_linear`` for m tokens and a weight of that shape; see ops.plan."""
    what = shape, "forward", planned_dtype(dtype, out_dtype), m, ordinal(device)
    epilogue = bias, activation_code("plan", activation), False
    return asked("semi24_linear", *what, epilogue, row_of(kernel), strict, False, -1, use_fast_accum)


def not_trainable(op: str) -> Error:
    """Returns the Error for a gradient of packed values."""
    remedy = (
        "call layer.values.requires_grad_(False) and train adapters (LoRA), biases and other layers; "
        "to train the weight, train it dense and masked, then pack it"
    )
    return Error(op, "2:4 values without a gradient: they are packed for inference", "one asked for", remedy)


class Semi24Weight(Weight):
    """Where the values of a 2:4 weight lie, to Product; see ``linear`` for the names."""

    def __init__(
        self, positions: Tensor, cols: int, row: int = PLAN_CHOOSES, metadata: Tensor | None = None,
        strict: bool = False,
    ) -> None:  # fmt: skip
        self.positions, self.cols, self.row = positions, cols, row
        self.metadata, self.strict = metadata, strict
        self._watched = (positions,)

    def linear(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: str | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        y: Tensor = run(
            _LINEAR, x, values, self.positions, self.cols, self.metadata, bias,
            activation_code("linear", activation), residual, self.row, self.strict,
        )  # fmt: skip
        return y

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        return dx(dy, values, self.positions, self.cols, "", self.strict)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        raise not_trainable("linear_dw")


class _Again(Weight):
    """dY W for frozen values; its derivative by dY is the product with W^T again."""

    def __init__(self, row: int, weight: Semi24Weight) -> None:
        self.row, self.weight = row, weight
        self._watched = weight._watched

    def linear(self, x: Tensor, values: Tensor, bias: Tensor | None, *fused: Any) -> Tensor:
        return _dx(x, values, self.weight, self.row)

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        weight = self.weight
        return linear(dy, values, weight.positions, weight.cols, strict=weight.strict)


def _dx(dy: Tensor, values: Tensor, weight: Semi24Weight, row: int) -> Tensor:
    gradient: Tensor = run(_DX, dy, values, weight.positions, weight.cols, row, weight.strict)
    return gradient


@fake("semi24_linear", flops.of_values)
def _semi24_linear_fake(x: Tensor, values: Tensor, *rest: Any, **named: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], values.shape[0]))


@fake("semi24_scaled_linear", flops.of_values)
def _semi24_scaled_linear_fake(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    cols: int,
    metadata: Tensor | None,
    x_scale: Tensor,
    w_scale: Tensor,
    out_dtype: torch.dtype,
    *rest: Any,
    **named: Any,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], values.shape[0]), dtype=out_dtype)


@fake("semi24_order")
def _semi24_order_fake(positions: Tensor, cols: int, eight_bit: bool = False) -> Tensor:
    width = 2 if eight_bit else 1
    tiles = -(-positions.shape[0] // 64) * -(-cols // (128 * width))
    return positions.new_empty(tiles * 1024 * width)


@fake("semi24_dx", flops.of_values)
def _semi24_dx_fake(
    dy: Tensor, values: Tensor, positions: Tensor, cols: int, *rest: Any, **named: Any
) -> Tensor:
    return dy.new_empty((*dy.shape[:-1], cols))


@fake("semi24_pack")
def _semi24_pack_fake(dense: Tensor) -> tuple[Tensor, Tensor]:
    rows, groups = dense.shape[0], -(-dense.shape[1] // 4)
    return dense.new_empty((rows, 2 * groups)), dense.new_empty((rows, -(-groups // 2)), dtype=torch.uint8)


@fake("semi24_unpack")
def _semi24_unpack_fake(values: Tensor, positions: Tensor, cols: int) -> Tensor:
    return values.new_empty((values.shape[0], cols))


@fake("semi24_prune")
def _semi24_prune_fake(w: Tensor, method: str) -> Tensor:
    return w.new_empty(w.shape, dtype=torch.bool)


@fake("semi24_compress")
def _semi24_compress_fake(w: Tensor, method: str, transposed: bool = False) -> tuple[Tensor, ...]:
    packed = _semi24_pack_fake(w)
    mask = w.new_empty((w.shape[0], -(-w.shape[1] // 8)), dtype=torch.uint8)
    turned = w.new_empty((w.shape[1], w.shape[0]) if transposed else (0, 0))
    return *packed, mask, *_semi24_pack_fake(turned)
