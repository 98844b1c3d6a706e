"""BlockSparseConvTranspose1d, BlockSparseConvTranspose2d and BlockSparseConvTranspose3d: transposed
convolutions that are sparse in blocks of channels and dense in their taps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ... import ops
from ...errors import Error
from ...ops.conv import product
from ...ops.conv.product import Window
from ...ops.conv.transpose import by_weight, conv_transpose, extents_of, turned, turned_sizes
from ...pattern import Block, Pattern
from .. import arguments
from ..held import state
from ..held.edges import Edges, Side
from .base import ConvModule, Numbers


class BlockSparseConvTranspose(ConvModule):
    """The base class of BlockSparseConvTranspose1d, 2d and 3d: y = activation(conv_transpose(x, W) + bias) +
    residual, where W exists only in the channel blocks of a pattern [out channels, in channels], and there in
    every tap.

    nn.ConvTranspose2d stores its weight as [in, out, *kernel]; ``weight``, ``to_dense`` and dense entries
    have that shape. The pattern, the blocks and ``values`` [blocks, taps, bm, bn] have the outputs first, as
    in every other layer here.

    Args:
        in_channels, out_channels: at least 1; edges need not divide by the block.
        kernel_size, stride, padding, output_padding, bias, dilation, device, dtype: as in nn.ConvTranspose2d.
        groups: 1; others are block-diagonal already.
        padding_mode: "zeros".
        density, block, pattern, activation, edge_bias, dense_copy, seed: as in BlockSparseConv2d.

    The choice of kernels, ``strict`` and the fixed set of blocks are as in BlockSparseConv2d. All errors are
    ``sparseloom.Error``.
    """

    options = ("kernel_size", "stride", "padding", "output_padding", "dilation", "padding_mode")
    _turned: ops.Index | None = None
    _turned_of: Tensor | None = None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: Numbers = 0,
        output_padding: Numbers = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Numbers = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        density: float | None = None,
        block: Block = 32,
        pattern: Pattern | None = None,
        activation: str | None = None,
        edge_bias: bool = False,
        dense_copy: bool | Literal["auto"] = False,
        seed: torch.Generator | int | None = None,
    ) -> None:
        super().__init__()
        settings = kernel_size, stride, padding, output_padding, dilation, padding_mode
        window = dict(zip(self.options, settings, strict=True))
        like = arguments.like_of(type(self).__name__, device, dtype)
        channels = in_channels, out_channels
        self._build(
            channels, window, groups, bias, like, density, block, pattern, activation, edge_bias, seed
        )
        self.dense_copy = dense_copy

    def _set_window(self, **options: Any) -> None:
        op = type(self).__name__
        self.kernel_size = self._numbers("kernel_size", options["kernel_size"], 1)
        self.stride = self._numbers("stride", options["stride"], 1)
        self.padding = self._numbers("padding", options["padding"], 0)
        self.output_padding = self._numbers("output_padding", options["output_padding"], 0)
        self.dilation = self._numbers("dilation", options["dilation"], 1)
        self.padding_mode = options["padding_mode"]
        if self.padding_mode != "zeros":
            remedy = "pass padding_mode='zeros'; nn.ConvTranspose2d has no other either"
            raise Error(op, "padding_mode of zeros", repr(self.padding_mode), remedy)
        self._window = Window(self.kernel_size, self.stride, self.padding, self.dilation)
        self._require_less("output_padding", self.output_padding)

    def _require_less(self, name: str, added: tuple[int, ...]) -> None:
        """Raises Error unless fewer outputs are added than a stride or dilation has, as torch requires."""
        limits = tuple(max(pair) for pair in zip(self.stride, self.dilation, strict=True))
        if any(not 0 <= count < limit for count, limit in zip(added, limits, strict=True)):
            expected = f"{name} that leaves fewer than {limits} outputs after the last"
            remedy = "pass less than the larger of stride and dilation"
            raise Error(type(self).__name__, expected, str(added), remedy)

    def _edges(self) -> Edges:
        window = self.kernel_size, self.stride, self.padding, self.output_padding, self.dilation
        return Edges([Side.of_transposed(*axis) for axis in zip(*window, strict=True)], self.out_features)

    def _fans(self) -> Tensor:
        """Returns the fan of nn.ConvTranspose2d, the outputs of an input channel over all taps; here the
        number of stored outputs, averaged over the inputs."""
        stored = state.fan_in(self.pattern)
        rows = torch.full_like(stored, float(self.block[0]))
        rows[-1] -= float(rows.sum()) - self.out_features
        outputs = float((stored * rows).sum()) / self.in_features
        return torch.where(stored > 0, outputs * self.stored_shape[0], 0.0)

    @staticmethod
    def of_channels(weight: Tensor) -> Tensor:
        return weight.transpose(0, 1)

    @property
    def dense_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The shape of the dense weight, [in, out, *kernel]."""
        return self.in_features, self.out_features, *self.kernel_size

    def forward(
        self, x: Tensor, output_size: Sequence[int] | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """Maps x [images, in channels, *space], or [in channels, *space], to the transposed convolution's
        result. Autocast casts as it does for nn.ConvTranspose2d.

        ``output_size``, the extents of the result (or its whole shape), takes the place of
        ``output_padding``. ``residual``, of the result's shape and dtype, is added after the activation.
        Raises Error when one of them does not fit.
        """
        options = {} if output_size is None else {"output_size": output_size}
        return self._call(x, residual, **options)

    def _row_problem(self, direction: str, extents: tuple[int, ...]) -> tuple[str, tuple[int, ...], Any]:
        row = {"forward": "dx", "dx": "forward", "dw": "dw"}[direction]
        return row, extents_of(extents, self._window, self.output_padding), turned_sizes(self.index)

    def _product(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: str | None,
        residual: Tensor | None, **options: Any,
    ) -> Tensor:  # fmt: skip
        added = self.output_padding
        if (output_size := options.get("output_size")) is not None:
            added = self._padding_for(tuple(x.shape[2:]), output_size)
        if (weight := self._kept(x, values)) is not None:
            extents_of(tuple(x.shape[2:]), self._window, added)
            y = by_weight(x, weight, bias, self._window, added)
            return product.finished(y, activation, residual)
        operands = x, values, self.index, bias, self._window, added, self.strict, self._turned_index
        return conv_transpose(*operands, activation, residual)

    def _padding_for(self, extents: tuple[int, ...], output_size: Sequence[int]) -> tuple[int, ...]:
        """Returns the output_padding that gives a result of that size."""
        extents_of_result = tuple(output_size)[-self.dimensions :]
        if len(extents_of_result) != self.dimensions:
            expected = f"output_size of {self.dimensions} numbers"
            raise Error(
                "conv_transpose", expected, str(extents_of_result), "pass one number for each axis of space"
            )
        smallest = extents_of(
            extents, self._window._replace(padding=(0,) * self.dimensions), (0,) * len(extents_of_result)
        )
        smallest = tuple(size - 2 * padding for size, padding in zip(smallest, self.padding, strict=True))
        added = tuple(size - each for size, each in zip(extents_of_result, smallest, strict=True))
        self._require_less(f"output_size from {smallest} on", added)
        return added

    def _turned_index(self) -> ops.Index:
        """Returns ``turned(self.index)``, cached while the index is the same object. A captured or compiled
        graph caches nothing: its tensor has no content before the graph runs."""
        index = self.index
        if self._turned is not None and self._turned_of is index.packed:
            return self._turned
        transposed = turned(index)
        recorded = torch.compiler.is_compiling() or (
            index.packed.is_cuda and torch.cuda.is_current_stream_capturing()
        )
        if not recorded and type(transposed.packed) is Tensor:
            self._turned, self._turned_of = transposed, index.packed
        return transposed

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the kept index, so that a copy makes its own."""
        return {**super().__getstate__(), "_turned": None, "_turned_of": None}


class BlockSparseConvTranspose1d(BlockSparseConvTranspose):
    """An nn.ConvTranspose1d that is sparse in blocks of channels: see BlockSparseConvTranspose."""

    dimensions = 1
    dense_class = nn.ConvTranspose1d


class BlockSparseConvTranspose2d(BlockSparseConvTranspose):
    """An nn.ConvTranspose2d that is sparse in blocks of channels: see BlockSparseConvTranspose."""

    dimensions = 2
    dense_class = nn.ConvTranspose2d


class BlockSparseConvTranspose3d(BlockSparseConvTranspose):
    """An nn.ConvTranspose3d that is sparse in blocks of channels: see BlockSparseConvTranspose."""

    dimensions = 3
    dense_class = nn.ConvTranspose3d


#: Dense class -> the block-sparse class that replaces it.
TRANSPOSED: dict[type[nn.Module], type[BlockSparseConvTranspose]] = {
    cls.dense_class: cls
    for cls in (BlockSparseConvTranspose1d, BlockSparseConvTranspose2d, BlockSparseConvTranspose3d)
}
