"""Block-sparse convolutions as a function. The rows of bsr_conv run where the plan expects them to be faster
(on CUDA in 16 bits and TF32, and on the CPU); everywhere else torch's convolution with the dense weight runs.

W [rows, cols, *kernel] is given by ``values`` [blocks, taps, bm, bn] and an ops.Index over the channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import grad

from ...errors import Error
from .. import operators
from ..autograd import activate, require_residual, require_residual_of
from ..index import Index
from ..operators import ACTIVATIONS, PLAN_CHOOSES, call
from ..plans import has_kernels_for
from ..transforms import transformed
from ..verbs import Weight, multiply
from . import fakes as fakes
from .plans import rounds_to_tf32, rows_are_faster

CONV_DX = operators.overload("bsr_conv_dx")
CONV_DW = operators.overload("bsr_conv_dw")
CONV = operators.overload("bsr_conv")

_TORCHS: Any = (F.conv1d, F.conv2d, F.conv3d)
_INPUTS: Any = (grad.conv1d_input, grad.conv2d_input, grad.conv3d_input)
_TRANSPOSED: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_WEIGHTS: Any = (grad.conv1d_weight, grad.conv2d_weight, grad.conv3d_weight)
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

    The rows of bsr_conv take x in bf16 and fp16, in fp32 on the CPU, and in fp32 on a GPU where
    torch.backends.cudnn allows TF32 for convolutions. They run where the plan expects them to be faster. x in
    channels-last memory is not copied, and the result is channels-last. Everywhere else (fp64, no images,
    torch.func) torch's convolution runs with a dense copy of W. Calls that rows run, and on a GPU calls that
    they could run, are differentiable once; all others to any order. Rows fuse the epilogue; in a training
    step they fuse only a relu or a residual, not both: the gradient of every other activation reads the
    activation's input. Raises Error where ``strict`` forbids the dense copy, and if the taps or an operand do
    not fit.
    """
    out = window.out(x.shape[2:])
    by_row = by_rows("forward", x, tuple(x.shape[2:]), index, window, strict)
    if strict and not by_row:
        raise no_row("conv", x)
    watched = torch.is_grad_enabled() and any(
        operand is not None and operand.requires_grad for operand in (x, values, bias, residual)
    )
    by_function = watched and (by_row or _chooses_each(x))
    if not by_function and not by_row:
        return finished(torchs_forward(x, values, bias, index, window), activation, residual)
    if residual is not None:
        require_residual_of(residual, (x.shape[0], index.rows, *out), x.dtype, "conv")
    fused, addend = activation, residual
    if by_function:
        fused = activation if activation == "relu" and residual is None else None
        addend = residual if activation is None else None
    pixels, addend_rows = x.movedim(1, -1), None if addend is None else addend.movedim(1, -1)
    if by_function:
        weight = ConvWeight(index, window, pixels.shape[1:-1], by_row, fused)
        y = multiply(pixels, values, bias, weight, *(() if addend_rows is None else (addend_rows,)))
    else:
        y = _forward(pixels, values, bias, index, window, fused, addend_rows)
    y = y.movedim(-1, 1)
    return finished(y, None if fused == activation else activation, None if addend is residual else residual)


def finished(y: Tensor, activation: str | None, residual: Tensor | None) -> Tensor:
    """Returns act(y) + residual by torch's own operators. Raises Error if the residual does not fit."""
    y = activate(y, activation)
    if residual is None:
        return y
    require_residual(residual, y, "conv")
    return y + residual


def _chooses_each(x: Tensor) -> bool:
    """Returns whether dX and dW are chosen separately although torch's convolution computes forward: on a
    GPU, where autograd's backward pass through the making of W takes longer than making W anew. A compiled
    graph uses torch's passes, which it fuses."""
    if torch.compiler.is_compiling() or not x.is_cuda:
        return False
    return x.numel() > 0 and have_rows(x.device, x.dtype) and not transformed()


def no_row(op: str, x: Tensor) -> Error:
    """Returns the Error for an x that no row supports, if ``strict`` forbids torch's convolution."""
    expected = "x of bf16, fp16 or fp32 with images (fp32 on a GPU: where torch allows TF32)"
    return Error(op, expected, f"{x.dtype} on {x.device}", "leave strict off, or convert it")


def by_rows(
    direction: str, x: Tensor, extents: Sequence[int], index: Index, window: Window, strict: bool
) -> bool:
    """Returns whether a row of bsr_conv runs the product of ``direction`` on the operand x, where W maps from
    an image of ``extents``. No row supports empty operands."""
    if x.numel() == 0 or not have_rows(x.device, x.dtype):
        return False
    if not x.is_cuda and (transformed() or torch._C._get_tracing_state() is not None):
        return False
    return strict or rows_are_faster(direction, x, extents, window, index)


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
    spatial extents of x; ``by_row``: whether a row computes forward; ``activation``: None or "relu"."""

    _op, _once = "conv", True

    def __init__(
        self, index: Index, window: Window, extents: Sequence[int], by_row: bool, activation: str | None
    ) -> None:
        self.index, self.window, self.extents, self.by_row = index, window, extents, by_row
        self._activation = activation

    def linear(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: str | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        if self.by_row:
            return _forward(x, values, bias, self.index, self.window, activation, residual)
        y = torchs_forward(x.movedim(-1, 1), values, bias, self.index, self.window).movedim(1, -1)
        y = activate(y, activation)
        return y if residual is None else y + residual

    def dx(self, dy: Tensor, values: Tensor) -> Tensor:
        return _dx(dy, values, self.extents, self.index, self.window)

    def dw(self, dy: Tensor, x: Tensor) -> Tensor:
        return _dvalues(dy, x, self.index, self.window)


def _forward(
    x: Tensor, values: Tensor, bias: Tensor | None, index: Index, window: Window,
    activation: str | None = None, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    epilogue = bias, ACTIVATIONS[activation], residual
    return operators.run(CONV, x, values, index.packed, index.rows, *window, *epilogue, *_any_row(x, index))


def _dx(dy: Tensor, values: Tensor, extents: Sequence[int], index: Index, window: Window) -> Tensor:
    if rows_are_faster("dx", dy, extents, window, index):
        extents_3d = (*(1,) * (3 - len(extents)), *extents)
        arguments = index.packed, index.cols, *extents_3d, *window, *NO_EPILOGUE, *_any_row(dy, index)
        return operators.run(CONV_DX, dy, values, *arguments)
    return torchs_dx(dy, values, extents, index, window)


def _dvalues(dy: Tensor, x: Tensor, index: Index, window: Window) -> Tensor:
    if rows_are_faster("dw", x, x.shape[1:-1], window, index):
        arguments = index.packed, index.blocks, index.bm, index.bn
        return operators.run(CONV_DW, dy, x, *arguments, *window, *_any_row(x, index))
    return torchs_dvalues(dy, x, index, window)


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


def torchs_dx(dy: Tensor, values: Tensor, extents: Sequence[int], index: Index, window: Window) -> Tensor:
    """Returns dx [images, *extents, cols] of dy [images, *space, rows], by torch with a dense copy of W."""
    with_plane, window_2d = _plane(dy, window)
    weight = dense(values, index, window_2d.kernel)
    extents = (*((1,) if with_plane else ()), *extents)
    pixels = (dy.unsqueeze(1) if with_plane else dy).movedim(-1, 1)
    dx = (_dx_of_cuda if dy.is_cuda else _dx_of_cpu)(pixels, weight, extents, window_2d).movedim(1, -1)
    return dx.squeeze(1) if with_plane else dx


def _dx_of_cuda(dy: Tensor, weight: Tensor, extents: tuple[int, ...], window: Window) -> Tensor:
    """Returns dx [images, cols, *extents] by a transposed convolution. In torch.nn.grad's call, which passes
    one expanded element in place of x, torch copies dy to another layout twice: 195 us on an H200 for dX of
    31 x 3200 tokens from 128 to 512 channels, where the product takes 42."""
    _, stride, padding, dilation = window
    smallest = window.least(dy.shape[2:])
    output_padding = [extent - least for extent, least in zip(extents, smallest, strict=True)]
    dx: Tensor = _TRANSPOSED[len(extents) - 1](dy, weight, None, stride, padding, output_padding, 1, dilation)
    return dx


def _dx_of_cpu(dy: Tensor, weight: Tensor, extents: tuple[int, ...], window: Window) -> Tensor:
    """Returns the same by torch.nn.grad: on a CPU with AVX2 only, the transposed convolution is less accurate
    in bf16, by six units in the last place for sums of 2304 products."""
    dx: Tensor = _INPUTS[len(extents) - 1]((dy.shape[0], weight.shape[1], *extents), weight, dy, *window[1:])
    return dx


def torchs_dvalues(dy: Tensor, x: Tensor, index: Index, window: Window) -> Tensor:
    """Returns dvalues [blocks, taps, bm, bn] of dy and x [images, *space, channels], cut from torch's dW."""
    with_plane, window_2d = _plane(x, window)
    if with_plane:
        x, dy = x.unsqueeze(1), dy.unsqueeze(1)
    weight_gradient, sizes = _WEIGHTS[len(window_2d.kernel) - 1], (index.rows, index.cols, *window_2d.kernel)
    x, dy = x.movedim(-1, 1), dy.movedim(-1, 1)
    if dw_loses_digits(x, window_2d.kernel):
        wider = weight_gradient(x, (index.rows, index.cols, 7, 7), dy, *in_seven_by_seven(window_2d)[1:])
        return blocks_of(wider[..., 1:6, 1:6].contiguous(), index)
    return blocks_of(weight_gradient(x, sizes, dy, *window_2d[1:]), index)


def _plane(operand: Tensor, window: Window) -> tuple[bool, Window]:
    """Returns whether to insert an axis of extent 1 before a single spatial axis, and the window with it.
    With one axis torch copies channels-last operands: 300 us on an H100, where the product takes 64."""
    if len(window.kernel) > 1 or not operand.is_cuda:
        return False, window
    return True, Window(*((neutral, *numbers) for neutral, numbers in zip((1, 1, 0, 1), window, strict=True)))


def _any_row(operand: Tensor, index: Index) -> tuple[int, bool, int]:
    """Returns the operators' last arguments: the row (the plan chooses), whether it may round to TF32, and
    the pattern's digest."""
    return PLAN_CHOOSES, operand.is_cuda and rounds_to_tf32(operand.dtype), index.digest


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
