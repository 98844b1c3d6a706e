"""BlockSparseConv1d, BlockSparseConv2d and BlockSparseConv3d: convolutions that are sparse in blocks of
channels and dense in their taps."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import Error
from ...ops.conv import product
from ...ops.conv.product import Window
from ...pattern import Block, Pattern
from .. import arguments
from ..held import state
from ..held.edges import Edges, Side
from .base import ConvModule, Numbers

_MODES = ("zeros", "reflect", "replicate", "circular")


class BlockSparseConv(ConvModule):
    """The base class of BlockSparseConv1d, BlockSparseConv2d and BlockSparseConv3d: y = activation(conv(x, W)
    + bias) + residual, where W [out, in, *kernel] exists only in the channel blocks of a pattern, and there
    in every tap.

    Parameters: ``values`` [blocks, taps, bm, bn], with zero padding at ragged edges; ``bias``
    [out_channels]. The index, ``crow`` and ``col``, is that of BlockSparseLinear.

    Args:
        in_channels, out_channels: at least 1; edges need not divide by the block.
        kernel_size, stride, padding, dilation, bias, padding_mode, device, dtype: as in nn.Conv2d; padding
            may be "same" or "valid".
        groups: 1; others are block-diagonal already.
        density, block, pattern, seed: as in BlockSparseLinear; features are channels.
        activation: None or a name in ``sparseloom.ops.ACTIVATIONS``, applied after the product.
        edge_bias: whether outputs whose taps lie outside of x get a gain and a bias of their own, for each
            set of such taps: see nn.held.edges. It needs padding_mode "zeros".
        dense_copy: whether calls in which the values need no gradient multiply with a dense copy of the
            weight that the layer keeps: False (default), True or "auto", which uses it where the plan for
            the call expects it to be faster. See BlockSparseLinear.dense_copy.

    In bf16 and fp16, in fp32 on the CPU, and in fp32 on a GPU where torch allows TF32 for convolutions, the
    sparse kernels run where the plan expects them to be faster. They read x in channels-last memory without a
    copy, and copy x of any other layout; the result is channels-last. Everywhere else torch's convolution
    runs with a dense copy of W, which each call makes unless the layer keeps one (``dense_copy``); ``strict =
    True`` forbids both in forward. The set of blocks is fixed: ``set_topology_``, ``reserve_`` and
    ``drop_and_grow_`` raise Error. All errors are ``sparseloom.Error``.
    """

    options = ("kernel_size", "stride", "padding", "dilation", "padding_mode")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: Numbers | str = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        bias: bool = True,
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
        window = dict(zip(self.options, (kernel_size, stride, padding, dilation, padding_mode), strict=True))
        like = arguments.like_of(type(self).__name__, device, dtype)
        channels = in_channels, out_channels
        self._build(
            channels, window, groups, bias, like, density, block, pattern, activation, edge_bias, seed
        )
        self.dense_copy = dense_copy

    def _set_window(self, **options: Any) -> None:
        op, padding, mode = type(self).__name__, options["padding"], options["padding_mode"]
        self.kernel_size = self._numbers("kernel_size", options["kernel_size"], 1)
        self.stride = self._numbers("stride", options["stride"], 1)
        self.dilation = self._numbers("dilation", options["dilation"], 1)
        if mode not in _MODES:
            raise Error(op, f"padding_mode of {', '.join(_MODES)}", repr(mode), "choose one of them")
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise Error(op, "padding of numbers, 'same' or 'valid'", repr(padding), "choose one of them")
            if padding == "same" and any(step != 1 for step in self.stride):
                raise Error(
                    op, "a stride of 1 with padding='same'", str(self.stride), "pass the padding as numbers"
                )
            reach = [step * (size - 1) for step, size in zip(self.dilation, self.kernel_size, strict=True)]
            sides = [(width // 2, width - width // 2) if padding == "same" else (0, 0) for width in reach]
            self.padding: Any = padding
        else:
            self.padding = self._numbers("padding", padding, 0)
            sides = [(width, width) for width in self.padding]
        self.padding_mode, self._sides = mode, sides
        # the kernels add equal zero padding on both sides themselves; any other padding is added by F.pad
        in_kernel = mode == "zeros" and all(before == after for before, after in sides)
        padding_of_kernel = tuple(before if in_kernel else 0 for before, _ in sides)
        self._window = Window(self.kernel_size, self.stride, padding_of_kernel, self.dilation)
        self._pad = [] if in_kernel else [side for pair in reversed(sides) for side in pair]

    def _edges(self) -> Edges:
        if self.padding_mode != "zeros":
            remedy = "other modes fill the border with x: leave edge_bias off"
            raise Error(type(self).__name__, "padding of zeros with edge_bias", self.padding_mode, remedy)
        axes = zip(self.kernel_size, self.stride, self._sides, self.dilation, strict=True)
        return Edges([Side.of_conv(*axis) for axis in axes], self.out_features)

    def _fans(self) -> Tensor:
        """Returns the number of stored inputs of an output channel, over all taps."""
        return state.fan_in(self.pattern) * self.stored_shape[0]

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Maps x [images, in channels, *space], or [in channels, *space], to the convolution's result.
        Autocast casts as it does for nn.Conv2d.

        ``residual``, of the result's shape and dtype, is added after the activation. Raises Error when x or
        ``residual`` does not fit.
        """
        return self._call(x, residual)

    def _row_problem(self, direction: str, extents: tuple[int, ...]) -> tuple[str, tuple[int, ...], Any]:
        added = self._pad[::-1]  # pairs, of the first axis first
        padded = tuple(size + sum(added[2 * i : 2 * i + 2]) for i, size in enumerate(extents))
        self._window.out(padded)
        return direction, padded, self.index

    def _product(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: str | None,
        residual: Tensor | None, **options: Any,
    ) -> Tensor:  # fmt: skip
        weight = self._kept(x, values)
        if self._pad:
            x = F.pad(x, self._pad, "constant" if self.padding_mode == "zeros" else self.padding_mode)
        if weight is not None:
            return product.finished(product.by_weight(x, weight, bias, self._window), activation, residual)
        return product.conv(x, values, self.index, bias, self._window, self.strict, activation, residual)


class BlockSparseConv1d(BlockSparseConv):
    """An nn.Conv1d that is sparse in blocks of channels: see BlockSparseConv."""

    dimensions = 1
    dense_class = nn.Conv1d


class BlockSparseConv2d(BlockSparseConv):
    """An nn.Conv2d that is sparse in blocks of channels: see BlockSparseConv."""

    dimensions = 2
    dense_class = nn.Conv2d


class BlockSparseConv3d(BlockSparseConv):
    """An nn.Conv3d that is sparse in blocks of channels: see BlockSparseConv."""

    dimensions = 3
    dense_class = nn.Conv3d


#: Dense class -> the block-sparse class that replaces it.
BLOCK_SPARSE: dict[type[nn.Module], type[BlockSparseConv]] = {
    cls.dense_class: cls for cls in (BlockSparseConv1d, BlockSparseConv2d, BlockSparseConv3d)
}
