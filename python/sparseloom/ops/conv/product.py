"""Block-sparse convolutions as a function. On CUDA in 16 bits and TF32, and on the CPU, the plan of bsr_conv
chooses between its rows, of which `dense` is torch's convolution with a dense copy of the weight; everywhere
else torch's convolution runs, differentiable to any order.

W [rows, cols, *kernel] is given by ``values`` [blocks, taps, bm, bn] and an ops.Index over the channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import Error
from .. import operators
from ..autograd import activate, require_residual, require_residual_of
from ..index import Index
from ..operators import ACTIVATIONS, PLAN_CHOOSES, call
from ..plans import has_kernels_for
from ..transforms import transformed
from ..verbs import Weight, multiply
from . import fakes as fakes
from .plans import rounds_to_tf32

CONV_DX = operators.overload("bsr_conv_dx")
CONV_DW = operators.overload("bsr_conv_dw")
CONV = operators.overload("bsr_conv")

_TORCHS: Any = (F.conv1d, F.conv2d, F.conv3d)
_SIXTEEN_BITS = (torch.bfloat16, torch.float16)
#: The operators' arguments bias, activation and residual for a product without an epilogue.
NO_EPILOGUE = (None, ACTIVATIONS[None], None)


class Window(NamedTuple):
    """The window of a convolution; each field has a number for each spatial axis. ``padding`` is of zeros."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    def out(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Returns the extents of the result for those of x. Raises Error if the taps do not fit."""
        sizes = []
        for extent, kernel, stride, padding, dilation in zip(extents, *self, strict=True):
            free = extent + 2 * padding - dilation * (kernel - 1) - 1
            if free < 0 or extent < 1:
                expected = f"taps that reach over at most the padded extent of {extent + 2 * padding}"
                remedy = "pad x, or pass a smaller kernel or dilation"
                raise Error("conv", expected, str(dilation * (kernel - 1) + 1), remedy)
            sizes.append(free // stride + 1)
        return tuple(sizes)

    def least(self, written: Sequence[int]) -> tuple[int, ...]:
        """Returns the smallest extents of x whose result has the extents ``written``; they may be below 1
        where padding alone suffices."""
        return tuple(
            (extent - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
            for extent, kernel, stride, padding, dilation in zip(written, *self, strict=True)
        )


def conv(
    x: Tensor, values: Tensor, index: Index, bias: Tensor | None, window: Window, strict: bool = False,
    activation: str | None = None, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Returns act(conv(x, W) + bias) + residual [images, rows, *space] of x [images, cols, *space], bias
    [rows] and a residual of the result's shape and dtype.

    The plan of bsr_conv chooses the kernel for x in bf16 and fp16, in fp32 on the CPU, and in fp32 on a GPU
    where torch.backends.cudnn allows TF32 for convolutions; ``strict`` forbids its row `dense`. x in
    channels-last memory is not copied, and the result is channels-last. Such calls are differentiable once.
    Everywhere else (fp64, no images, torch.func) torch's convolution runs with a dense copy of W, and all
    calls are differentiable to any order. Rows fuse the epilogue; in a training step they fuse only a relu or
    a residual, not both: the gradient of every other activation reads the activation's input. Raises Error
    where ``strict`` forbids the dense copy, and if the taps or an operand do not fit.
    """
    out = window.out(x.shape[2:])
    if not is_planned(x):
        if strict:
            raise no_row("conv", x)
        return finished(torchs_forward(x, values, bias, index, window), activation, residual)
    if residual is not None:
        require_residual_of(residual, (x.shape[0], index.rows, *out), x.dtype, "conv")
    fused, addend = activation, residual
    watched = torch.is_grad_enabled() and any(
        operand is not None and operand.requires_grad for operand in (x, values, bias, residual)
    )
    if watched:
        fused = activation if activation == "relu" and residual is None else None
        addend = residual if activation is None else None
    pixels, addend_rows = x.movedim(1, -1), None if addend is None else addend.movedim(1, -1)
    if watched:
        weight = ConvWeight(index, window, pixels.shape[1:-1], strict, fused)
        y = multiply(pixels, values, bias, weight, *(() if addend_rows is None else (addend_rows,)))
    else:
        y = _forward(pixels, values, bias, index, window, strict, fused, addend_rows)
    y = y.movedim(-1, 1)
    return finished(y, None if fused == activation else activation, None if addend is residual else residual)


def finished(y: Tensor, activation: str | None, residual: Tensor | None) -> Tensor:
    """Returns act(y) + residual by torch's own operators. Raises Error if the residual does not fit."""
    y = activate(y, activation)
    if residual is None:
        return y
    require_residual(residual, y, "conv")
    return y + residual


def no_row(op: str, x: Tensor) -> Error:
    """Returns the Error for an x that no plan supports, if ``strict`` forbids torch's convolution."""
    expected = "x of bf16, fp16 or fp32 with images (fp32 on a GPU: where torch allows TF32)"
    return Error(op, expected, f"{x.dtype} on {x.device}", "leave strict off, or convert it")


def is_planned(x: Tensor) -> bool:
    """Returns whether a plan of bsr_conv chooses the kernel for x. No row supports empty operands."""
    if x.numel() == 0 or not have_rows(x.device, x.dtype):
        return False
    return x.is_cuda or not (transformed() or torch._C._get_tracing_state() is not None)


def have_rows(device: torch.device, dtype: torch.dtype) -> bool:
    """Returns whether rows of bsr_conv support that dtype on that device."""
    if device.type == "cuda":
        return (dtype in _SIXTEEN_BITS or rounds_to_tf32(dtype)) and _built_for_cuda()
    return device.type == "cpu" and dtype in (torch.float32, *_SIXTEEN_BITS)


def _built_for_cuda() -> bool:
    return has_kernels_for(torch.device("cuda"))


# As in operators: the answer is constant for a build, so Dynamo need not trace the function.
_built_for_cuda._dynamo_marked_constant = True  # type: ignore[attr-defined]


class ConvWeight(Weight):
    """The blocks of a convolution. x, dy and residual are [images, *space, channels]; ``extents``: the
    spatial extents of x; ``strict``: that of forward, since gradients may use any row; ``activation``: None
    or "relu"."""

    _op, _once = "conv", True

    def __init__(
        self, index: Index, window: Window, extents: Sequence[int], strict: bool, activation: str | None
    ) -> None:
        self.index, self.window, self.extents, self.strict = index, window, extents, strict
        self._activation = activation

    def linear(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: str | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        return _forward(x, values, bias, self.index, self.window, self.strict, activation, residual)

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        return _dx(dy, values, self.extents, self.index, self.window)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        return _dvalues(dy, x, self.index, self.window)


def _forward(
    x: Tensor, values: Tensor, bias: Tensor | None, index: Index, window: Window, strict: bool,
    activation: str | None = None, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    epilogue = bias, ACTIVATIONS[activation], residual
    options = call_options(x, index, strict)
    return operators.run(CONV, x, values, index.packed, index.rows, *window, *epilogue, *options)


def _dx(
    dy: Tensor, values: Tensor, extents: Sequence[int], index: Index, window: Window, strict: bool = False
) -> Tensor:
    extents_3d = (*(1,) * (3 - len(extents)), *extents)
    arguments = index.packed, index.cols, *extents_3d, *window, *NO_EPILOGUE, *call_options(dy, index, strict)
    return operators.run(CONV_DX, dy, values, *arguments)


def _dvalues(dy: Tensor, x: Tensor, index: Index, window: Window, strict: bool = False) -> Tensor:
    arguments = index.packed, index.blocks, index.bm, index.bn
    return operators.run(CONV_DW, dy, x, *arguments, *window, *call_options(x, index, strict))


def torchs_forward(x: Tensor, values: Tensor, bias: Tensor | None, index: Index, window: Window) -> Tensor:
    """Returns conv(x, W) + bias by torch's convolution with a dense copy of W."""
    return by_weight(x, dense(values, index, window.kernel), bias, window)


def by_weight(x: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
    """Returns torch's convolution of x [images, cols, *space] with a dense W [rows, cols, *kernel]."""
    with_plane, window_2d = _plane(x, window)
    if with_plane:
        x, weight = x.unsqueeze(-2), weight.unsqueeze(-2)
    if weight.requires_grad and dw_loses_digits(weight, window_2d.kernel):
        weight, window_2d = F.pad(weight, (1, 1, 1, 1)), in_seven_by_seven(window_2d)
    y: Tensor = _TORCHS[len(window_2d.kernel) - 1](x, weight, bias, *window_2d[1:])
    return y.squeeze(-2) if with_plane else y


def dw_loses_digits(operand: Tensor, kernel: tuple[int, ...]) -> bool:
    """Returns whether torch's dW has to be computed in_seven_by_seven. cuDNN 9.19 on an H200 computes fp32 dW
    of 5 x 5 taps by transforms if TF32 is forbidden: the error is 7.2e-3 of the largest entry at 96 and 192
    channels, 4.9e-3 at 128, in every memory format. For 7 x 7 taps it multiplies (error 3.8e-6), in 1.4 to
    3.3 times the time; one product for each tap is as exact, and takes ten times as long."""
    is_fp32 = operand.is_cuda and operand.dtype is torch.float32
    return is_fp32 and kernel == (5, 5) and not rounds_to_tf32(operand.dtype)


def in_seven_by_seven(window: Window) -> Window:
    """Returns the window extended from 5 x 5 to 7 x 7 taps, for a weight padded with zeros."""
    rim = [padding + step for padding, step in zip(window.padding, window.dilation, strict=True)]
    return window._replace(kernel=(7, 7), padding=tuple(rim))


def _plane(operand: Tensor, window: Window) -> tuple[bool, Window]:
    """Returns whether to insert an axis of extent 1 before a single spatial axis, and the window with it.
    With one axis torch copies channels-last operands: 300 us on an H100, where the product takes 64."""
    if len(window.kernel) > 1 or not operand.is_cuda:
        return False, window
    return True, Window(*((neutral, *numbers) for neutral, numbers in zip((1, 1, 0, 1), window, strict=True)))


def call_options(operand: Tensor, index: Index, strict: bool = False) -> tuple[int, bool, bool, int]:
    """Returns the operators' last arguments: the row (the plan chooses), ``strict``, whether it may round to
    TF32, and the pattern's digest."""
    return PLAN_CHOOSES, strict, operand.is_cuda and rounds_to_tf32(operand.dtype), index.digest


def dense(values: Tensor, index: Index, kernel: Sequence[int]) -> Tensor:
    """Returns W [rows, cols, *kernel], zero where there is no block; differentiable."""
    if _by_operators(values):
        return _scattered(values, index, kernel)
    block_rows, block_cols = _grid(index)
    grid = values.new_zeros(block_rows * block_cols, math.prod(kernel), index.bm, index.bn)
    grid = grid.index_copy(0, _cells(index, values.device), values)
    matrix = grid.unflatten(0, (block_rows, block_cols)).permute(0, 3, 1, 4, 2)
    matrix = matrix.reshape(block_rows * index.bm, block_cols * index.bn, -1)
    return matrix[: index.rows, : index.cols].unflatten(2, tuple(kernel))


def blocks_of(weight: Tensor, index: Index) -> Tensor:
    """Returns the values [blocks, taps, bm, bn] of W [rows, cols, *kernel]: undoes ``dense``."""
    if _by_operators(weight):
        return _gathered(weight, index)
    block_rows, block_cols = _grid(index)
    taps = weight.flatten(2)
    ragged = block_cols * index.bn - index.cols, block_rows * index.bm - index.rows
    if any(ragged):
        taps = F.pad(taps, (0, 0, 0, ragged[0], 0, ragged[1]))
    grid = taps.reshape(block_rows, index.bm, block_cols, index.bn, -1).permute(0, 2, 4, 1, 3)
    return grid[_places(index, weight.device)].contiguous()


def _by_operators(tensor: Tensor) -> bool:
    """Returns whether our operators, which have no derivative, pack and unpack W: on a GPU, where torch's
    passes take 20 us and its copy to channels-last memory more. On a CPU torch would choose other kernels for
    channels-last memory, which are slower for some dtypes."""
    watched = torch.is_grad_enabled() and tensor.requires_grad
    return tensor.is_cuda and not watched and not transformed()


def _scattered(values: Tensor, index: Index, kernel: Sequence[int]) -> Tensor:
    """Returns W as ``dense`` does, in channels-last memory."""
    packed = index.packed.to(values.device)
    matrix: Tensor = call("conv_unpack", values, packed, index.rows, index.cols)
    return matrix.unflatten(1, tuple(kernel)).movedim(-1, 1)


def _gathered(weight: Tensor, index: Index) -> Tensor:
    """Returns what ``blocks_of`` does; W in channels-last memory is not copied."""
    matrix, packed = weight.movedim(1, -1).flatten(1, -2), index.packed.to(weight.device)
    values: Tensor = call("conv_pack", matrix, packed, index.blocks, index.bm, index.bn)
    return values


def _grid(index: Index) -> tuple[int, int]:
    return -(-index.rows // index.bm), -(-index.cols // index.bn)


def _places(index: Index, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the block row and the block column of each block: [blocks] each."""
    crow, col = index.crow.to(device), index.col.to(device)
    order = torch.arange(index.blocks, dtype=torch.int32, device=device)
    return torch.searchsorted(crow[1:].contiguous(), order, right=True), col


def _cells(index: Index, device: torch.device) -> Tensor:
    """Returns the number of each block's cell in the grid, row by row: int64 [blocks]."""
    row, col = _places(index, device)
    return row * _grid(index)[1] + col
