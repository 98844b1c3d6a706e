"""The case list of convolution layers: every option of BlockSparseConv and BlockSparseConvTranspose that no
row of bsr_conv has, and the comparison of a case with the equal dense layer, tile by tile."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import nn as sparse
from .. import ops
from .. import pattern as patterns
from .tolerance import TILE_TOKENS, TileCheck, check_tiles

#: The options act before and after the rows; conv_cases has the rows in every dtype.
DTYPES = {"cpu": (torch.float32, torch.bfloat16), "cuda": (torch.bfloat16,)}
KINDS: dict[str, tuple[Any, Any, Any]] = {
    "conv layer": (sparse.BlockSparseConv1d, sparse.BlockSparseConv2d, sparse.BlockSparseConv3d),
    "conv_transpose layer": (
        sparse.BlockSparseConvTranspose1d,
        sparse.BlockSparseConvTranspose2d,
        sparse.BlockSparseConvTranspose3d,
    ),
}
#: The constructor's arguments, by the name of the case.
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "conv layer": {
        "no bias": {"bias": False},
        "padding around one tap": {"kernel_size": 1, "padding": 1},
        "padding valid": {"padding": "valid"},
        "padding same": {"padding": "same", "dilation": 2},
        "padding same of an even kernel": {"padding": "same", "kernel_size": (4, 3)},
        "reflected": {"padding": 1, "padding_mode": "reflect"},
        "replicated": {"padding": 2, "padding_mode": "replicate", "stride": 2},
        "circular": {"padding": "same", "padding_mode": "circular"},
        "channels first": {"padding": 1},
        "one image without its axis": {"padding": 1},
        "no images": {"padding": 1},
        "activation": {"padding": 1, "activation": "relu"},
        "residual": {"padding": 1},
    },
    "conv_transpose layer": {
        "no bias": {"bias": False},
        "padding": {"padding": 1},
        "stride": {"stride": 2, "kernel_size": 2},
        "output padding": {"stride": 2, "padding": 1, "output_padding": 1},
        "output padding of a stride": {"stride": 3, "kernel_size": 4, "output_padding": 2},
        "output padding by dilation": {"dilation": 2, "padding": 2, "output_padding": 1},
        "channels first": {"padding": 1},
        "one image without its axis": {"padding": 1},
        "no images": {"padding": 1},
        "activation": {"padding": 1, "activation": "relu"},
        "residual": {"padding": 1},
    },
}
#: Cases of forward alone: where z is nearly zero, a rounding decides whether relu passes the gradient.
FORWARD = ("activation", "residual")
EXTENTS = (6, 5, 4)


@dataclass(frozen=True)
class ConvLayerCase:
    """One layer to check, of ragged channels and with an empty block row. ``name`` is a key of OPTIONS."""

    name: str
    op: str
    direction: str
    dtype: torch.dtype
    dimensions: int = 2
    block: tuple[int, int] = (16, 16)
    options: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    tf32: bool = False

    @property
    def activation(self) -> str | None:
        """Nothing is fused to the product."""
        return None

    def __str__(self) -> str:
        dtype = ops.DTYPES[self.dtype]
        return f"{self.op}{self.dimensions}d-{self.name}-{self.direction}-{dtype}-{self.device}"

    def layer(self) -> Any:
        """Returns the layer, on the CPU; the same in each call."""
        rows, cols, (bm, bn), generator = 3 * 16 - 4, 2 * 16 + 8, self.block, torch.Generator().manual_seed(2)
        mask = torch.rand(-(-rows // bm), -(-cols // bn), generator=generator) < 0.6
        mask[1:2], mask[0, 0], mask[-1, -1] = False, True, True
        pattern = patterns.from_mask(rows, cols, self.block, mask)
        options = {"kernel_size": 3} | self.options
        kind = KINDS[self.op][self.dimensions - 1]
        layer: nn.Module = kind(cols, rows, pattern=pattern, generator=generator, **options)
        return layer.to(self.dtype)


def conv_layer_cases(device: str = "cpu") -> Iterator[ConvLayerCase]:
    """Yields the cases of "cpu" or "cuda"."""
    for dtype in DTYPES[device]:
        for direction in ops.DIRECTIONS:
            for op, options in OPTIONS.items():
                for name, case_options in options.items():
                    if direction == "forward" or name not in FORWARD:
                        yield ConvLayerCase(name, op, direction, dtype, options=case_options, device=device)
            for dimensions in (1, 3):
                name, op = f"{dimensions} axes transposed", "conv_transpose layer"
                case_options = {"stride": 2, "output_padding": 1, "padding": 1}
                yield ConvLayerCase(
                    name, op, direction, dtype, dimensions, options=case_options, device=device
                )


def check_conv_layer(case: ConvLayerCase) -> TileCheck:
    """Calls the layer, forward and backward, and compares each tile with the equal dense layer by the rule of
    ``check_tiles``."""
    layer, generator = case.layer(), torch.Generator().manual_seed(0)
    dense_layer = copy.deepcopy(layer)
    dense_layer.activation = None
    twin: Any = dense_layer.to_dense()
    shape: tuple[int, ...] = (layer.in_channels, *EXTENTS[: case.dimensions])
    if case.name != "one image without its axis":
        shape = (0 if case.name == "no images" else 2, *shape)
    x = torch.randn(shape, generator=generator).to(case.dtype)
    if case.dimensions == 2 and x.dim() == 4 and case.name != "channels first":
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        sizes = twin(x).shape
    dy, residual = (torch.randn(sizes, generator=generator).to(case.dtype) for _ in range(2))
    addend = residual if case.name == "residual" else None

    def products(module: nn.Module, weight: Tensor, operands: list[Tensor | None], fused: bool) -> Tensor:
        x, dy, added = operands
        assert x is not None and dy is not None
        x = x.detach().requires_grad_()
        if module is layer:
            y = module(x) if added is None else module(x, residual=added)
        else:
            y = ops.activate(module(x), layer.activation if fused else None)
            y = y if added is None else y + added
        if case.direction == "forward":
            result: Tensor = y.detach()
        else:
            (result,) = torch.autograd.grad(y, [x if case.direction == "dx" else weight], dy)
        if case.direction != "dw":
            return result.movedim(-1 - case.dimensions, -1).reshape(-1, result.shape[-1 - case.dimensions])
        if module is not layer:
            result = layer.sparse_weights()["values"].packed(layer.of_channels(result).flatten(2))
        return result.flatten(0, 2)

    operands = [x, dy, addend]
    in_double = [None if operand is None else operand.double() for operand in operands]
    exact_twin, absolute = copy.deepcopy(twin).double(), copy.deepcopy(twin).double()
    with torch.no_grad():
        for parameter in absolute.parameters():
            parameter.abs_()
    dense = products(twin, twin.weight, operands, True)
    exact = products(exact_twin, exact_twin.weight, in_double, True)
    sizes_of = [None if operand is None else operand.abs() for operand in in_double]
    magnitude = products(absolute, absolute.weight, sizes_of, False)
    layer = layer.to(case.device)
    on_device = [None if operand is None else operand.to(case.device) for operand in operands]
    got = products(layer, layer.values, on_device, True).cpu()
    bm, bn = case.block
    tile = {"forward": (TILE_TOKENS, bm), "dx": (TILE_TOKENS, bn), "dw": (bm, bn)}[case.direction]
    return check_tiles(got, dense, exact, magnitude, tile)
