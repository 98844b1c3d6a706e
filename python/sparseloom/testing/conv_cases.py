"""The case list of convolutions: every option x direction x dtype x device, and how a row is checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .. import pattern as patterns
from ..nn.held.state import build_index
from ..ops.conv import product
from ..ops.conv.product import Window
from ..ops.operators import row_of
from ..pattern import Pattern
from .cases import BLOCK_SIDES, round_to_tf32
from .tolerance import TILE_TOKENS, TRUNCATION, TileCheck, check_tiles

#: The dtypes of the rows on each device, and whether they round fp32 to TF32; other dtypes run torch's
#: convolution.
CONV_DTYPES = {
    "cpu": ((torch.float32, False), (torch.bfloat16, False), (torch.float16, False)),
    "cuda": ((torch.float32, True), (torch.bfloat16, False), (torch.float16, False)),
}
#: Blocks that are not square.
OBLONG: dict[str, tuple[tuple[int, int], ...]] = {"cpu": ((8, 64), (64, 16), (16, 128)), "cuda": ()}
CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


@dataclass(frozen=True)
class ConvCase:
    """One convolution to check; W is [n, k, *window.kernel]. ``name`` says why the case is in the list."""

    name: str
    direction: str
    dtype: torch.dtype
    block: tuple[int, int]
    images: int
    extents: tuple[int, ...]
    window: Window
    k: int  # channels of x
    n: int  # channels of y
    mask: str = "random"  # or "none", "full", or "empty": block row 1 and block column 1 store nothing
    bias: bool = False
    device: str = "cpu"
    op: str = "conv"
    activation: None = None
    tf32: bool = False

    def __str__(self) -> str:
        sizes = "x".join(map(str, (self.images, *self.extents)))
        suffix = "" if self.device == "cpu" else f"-{self.device}"
        dtype = "tf32" if self.tf32 else ops.DTYPES[self.dtype]
        name = f"{self.direction}-{dtype}-{self.block[0]}x{self.block[1]}"
        return f"{self.name}-{name}-{sizes}{suffix}"

    def make_pattern(self) -> Pattern:
        grid = -(-self.n // self.block[0]), -(-self.k // self.block[1])
        generator = torch.Generator().manual_seed(1)
        mask = torch.rand(grid, generator=generator) < {"none": 0.0, "full": 1.0}.get(self.mask, 0.5)
        if self.mask == "empty":
            mask[1:2], mask[:, 1:2], mask[-1, -1] = False, False, True
        return patterns.from_mask(self.n, self.k, self.block, mask)


def conv_cases(device: str = "cpu") -> Iterator[ConvCase]:
    """Yields the cases of "cpu" or "cuda"."""
    shapes: dict[str, tuple[tuple[int, ...], Window]] = {
        "conv1d": ((19,), Window((3,), (1,), (1,), (1,))),
        "conv2d": ((7, 9), Window((3, 3), (1, 1), (1, 1), (1, 1))),
        "conv3d": ((4, 5, 6), Window((3, 2, 3), (1, 1, 1), (1, 0, 1), (1, 1, 1))),
        "stride": ((9, 8), Window((3, 3), (2, 2), (1, 1), (1, 1))),
        "stride beyond the kernel": ((9, 11), Window((2, 2), (3, 3), (0, 0), (1, 1))),
        "dilation": ((9, 8), Window((3, 3), (1, 1), (2, 2), (2, 2))),
        "stride and dilation": ((13, 14), Window((4, 3), (2, 3), (2, 1), (3, 2))),
        "no padding": ((7, 9), Window((3, 3), (1, 1), (0, 0), (1, 1))),
        "one tap": ((7, 9), Window((1, 1), (2, 1), (0, 0), (1, 1))),
    }
    for dtype, tf32 in CONV_DTYPES[device]:
        for direction in ops.DIRECTIONS:
            options: dict[str, Any] = {"direction": direction, "dtype": dtype, "tf32": tf32, "device": device}
            for name, (extents, window) in shapes.items():
                bias = direction == "forward" and name != "no padding"
                yield ConvCase(
                    name,
                    block=(16, 16),
                    images=2,
                    extents=extents,
                    window=window,
                    k=40,
                    n=56,
                    bias=bias,
                    **options,
                )
            extents, window = shapes["conv2d"]
            for bm, bn in (*((side, side) for side in BLOCK_SIDES), *OBLONG[device]):
                k, n = 2 * bn + bn // 2 + 1, 2 * bm - 3
                small: dict[str, Any] = {"extents": (5, 4), "window": window, "images": 1, **options}
                yield ConvCase("ragged channels", block=(bm, bn), k=k, n=n, **small)
            for mask in ("none", "full", "empty"):
                yield ConvCase(
                    f"{mask} blocks" if mask != "empty" else "empty rows and columns",
                    block=(16, 16), images=2, extents=extents, window=window, k=64, n=48, mask=mask,
                    **options,
                )  # fmt: skip
            yield ConvCase(
                "one channel block", block=(32, 32), images=3, extents=extents, window=window, k=32, n=32,
                mask="full", **options,
            )  # fmt: skip


def check_conv(case: ConvCase, row: str = "") -> TileCheck:
    """Runs the case by a row (default: the plan's), and compares each tile with torch's convolution by the
    rule of ``check_tiles``. Raises Error where the row refuses it."""
    generator, window = torch.Generator().manual_seed(0), case.window
    pattern = case.make_pattern()
    index = build_index(pattern)

    def drawn(*shape: int) -> Tensor:
        normal = torch.randn(shape, generator=generator).to(case.dtype)
        return round_to_tf32(normal) if case.tf32 else normal

    x, dy = drawn(case.images, case.k, *case.extents), drawn(case.images, case.n, *window.out(case.extents))
    mask = product.dense(torch.ones(pattern.blocks, window.taps, *case.block), index, window.kernel)
    weight = drawn(case.n, case.k, *window.kernel) * mask.to(case.dtype)
    bias = drawn(case.n) if case.bias else None
    values = product.blocks_of(weight, index)

    def torchs(x: Tensor, dy: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if case.direction == "forward":
            return _rows_of(CONVOLUTIONS[len(case.extents) - 1](x, weight, bias, *window[1:]))
        free = [0] * len(case.extents), 1
        arguments = window.stride, window.padding, window.dilation, False, *free
        output_mask = [case.direction == "dx", case.direction == "dw", False]
        dx, dw, _ = torch.ops.aten.convolution_backward(dy, x, weight, None, *arguments, output_mask)
        return _rows_of(dx) if case.direction == "dx" else product.blocks_of(dw, index).flatten(0, 2)

    operands = x, dy, weight, bias
    in_double = [None if operand is None else operand.double() for operand in operands]
    sizes = [None if operand is None else operand.abs() for operand in in_double]
    exact, magnitude = torchs(*in_double), torchs(*sizes)  # type: ignore[arg-type]
    device = case.device
    lists, number = [list(operand) for operand in window], row_of(row)
    pixels, grad = (operand.movedim(1, -1).contiguous().to(device) for operand in (x, dy))
    packed, stored = index.to(device).packed, values.to(device)
    options = 0, None, number, False, case.tf32
    if case.direction == "forward":
        device_bias = None if bias is None else bias.to(device)
        got = ops.call("bsr_conv", pixels, stored, packed, case.n, *lists, device_bias, *options)
    elif case.direction == "dx":
        three = (*(1,) * (3 - len(case.extents)), *case.extents)
        got = ops.call("bsr_conv_dx", grad, stored, packed, case.k, *three, *lists, None, *options)
    else:
        sizes_of_blocks = pattern.blocks, *case.block
        got = ops.call(
            "bsr_conv_dw", grad, pixels, packed, *sizes_of_blocks, *lists, number, False, case.tf32
        )
    bm, bn = case.block
    tile = {"forward": (TILE_TOKENS, bm), "dx": (TILE_TOKENS, bn), "dw": (bm, bn)}[case.direction]
    flat = got.reshape(-1, got.shape[-1]).cpu()
    accumulation = TRUNCATION if case.tf32 else 2.0
    return check_tiles(flat, torchs(*operands), exact, magnitude, tile, accumulation)


def _rows_of(y: Tensor) -> Tensor:
    """Returns [images, channels, *space] as [pixels, channels]."""
    return y.movedim(1, -1).reshape(-1, y.shape[1])
