"""BlockSparseConv1d, BlockSparseConv2d and BlockSparseConv3d: convolutions that are sparse in blocks of
channels and dense in their taps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import _conv, ops
from .. import pattern as patterns
from .._conv import Window
from .._empty_rows import warn_of_empty_rows
from .._numbers import whole
from ..errors import Error
from ..pattern import Block, Pattern, block_shape
from ..sparsify import Context, Sparsifier, sparsifier_of
from . import arguments, state
from .convert import SELECTS
from .indexed import IndexedModule
from .linear import uniform_
from .sparse_weight import SparseWeight, described
from .weight import BlockSparseWeight

Self = TypeVar("Self", bound="BlockSparseConv")
Numbers = int | Sequence[int]

_MODES = ("zeros", "reflect", "replicate", "circular")
_LIMIT = 1 << 16  # what src/ops/conv.cpp takes of each


class ConvWeight(SparseWeight):
    """The weight of a convolution: each block has values for every tap."""

    def unpacked(self, like_values: Tensor) -> Tensor:
        """Returns a tensor of the values' shape in the places of the values: [out, in, taps]."""
        return _conv.dense(like_values.detach(), self.index, like_values.shape[1:2])

    def packed(self, like_dense: Tensor) -> Tensor:
        """Returns the stored elements of a tensor [out, in, taps] in the shape of the values."""
        return _conv.blocks_of(like_dense.detach(), self.index)

    def stored_as(self) -> dict[str, Any]:
        return {**super().stored_as(), "kernel": list(self.owner.kernel_size)}

    def require_readable(self, tensors: Any, prefix: str, computed: Tensor | None) -> None:
        stored = self.owner.stored_shape
        state.read_entries(self.whole_shape, self.block, computed, tensors, prefix, stored)


class BlockSparseConv(IndexedModule):
    """What BlockSparseConv1d, BlockSparseConv2d and BlockSparseConv3d share: y = conv(x, W) + bias, where W
    [out, in, *kernel] exists only in the channel blocks of a pattern, and there in every tap.

    Parameters: ``values`` [blocks, taps, bm, bn], with zero padding at ragged edges; ``bias``
    [out_channels]. The index, ``crow`` and ``col``, is that of BlockSparseLinear.

    Args:
        in_channels, out_channels: at least 1; edges need not divide by the block.
        kernel_size, stride, padding, dilation, bias, padding_mode, device, dtype: as in nn.Conv2d; padding
            may be "same" or "valid".
        groups: 1; others are block-diagonal already.
        density, block, pattern, generator: as in BlockSparseLinear; features are channels.

    On a GPU in bf16 and fp16 the kernels read x in channels-last memory without a copy, and copy it from any
    other; the result lies in channels-last memory. Everywhere else torch's convolution runs with a dense
    copy of W, which each call makes; ``strict = True`` forbids that. The set of blocks stays:
    ``set_topology_``, ``reserve_`` and ``drop_and_grow_`` raise Error. All errors are ``sparseloom.Error``.
    """

    #: Axes of space.
    dimensions: ClassVar[int]
    activation = None
    strict = False
    bias: nn.Parameter | None

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
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        op, where = type(self).__name__, torch.empty(0, device=device, dtype=dtype)
        if groups != 1:
            raise Error(op, "groups of 1", repr(groups), "groups are block-diagonal: pass such a pattern")
        whole(op, "in_channels", in_channels, 1), whole(op, "out_channels", out_channels, 1)
        checked = arguments.checked(in_channels, out_channels, density, pattern, None, where)
        in_channels, out_channels, density = checked
        if pattern is None:
            assert density is not None
            pattern = patterns.balanced(out_channels, in_channels, block, density, generator)
            if density > 0:
                warn_of_empty_rows(pattern, f"{op}({in_channels}, {out_channels}, density={density})")
        arguments.require_shape(pattern, out_channels, in_channels)
        self.in_features, self.out_features, self.block = in_channels, out_channels, pattern.block
        self.kernel_size = self._numbers("kernel_size", kernel_size, 1)
        self.stride = self._numbers("stride", stride, 1)
        self.dilation = self._numbers("dilation", dilation, 1)
        self._set_padding(padding, padding_mode)
        self._digest = 0  # _set_index sets it
        self._index: ops.Index | None = None
        self._writes = 0
        self._set_index(pattern, where.device)
        shape = (pattern.blocks, *self.stored_shape)
        self.values = nn.Parameter(torch.empty(shape, device=where.device, dtype=where.dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(out_channels, device=where.device, dtype=where.dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters(generator)

    def _numbers(self, name: str, given: Any, least: int) -> tuple[int, ...]:
        """Returns a number for each axis. Raises Error for others than integers from ``least`` to 2^16."""
        op, several = type(self).__name__, isinstance(given, (tuple, list))
        numbers = tuple(whole(op, name, each, least) for each in (given if several else [given]))
        numbers = numbers * self.dimensions if len(numbers) == 1 else numbers
        if len(numbers) != self.dimensions or any(each >= _LIMIT for each in numbers):
            expected = f"{name} as an int, or {self.dimensions} of them, below {_LIMIT}"
            raise Error(op, expected, repr(given), "pass one number for each axis of space")
        return numbers

    def _set_padding(self, padding: Any, mode: str) -> None:
        op = type(self).__name__
        if mode not in _MODES:
            raise Error(op, f"padding_mode of {', '.join(_MODES)}", repr(mode), "choose one of them")
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise Error(op, "padding of numbers, 'same' or 'valid'", repr(padding), "choose one of them")
            if padding == "same" and any(step != 1 for step in self.stride):
                raise Error(op, "a stride of 1 with padding='same'", str(self.stride), "pass numbers")
            reach = [step * (size - 1) for step, size in zip(self.dilation, self.kernel_size, strict=True)]
            sides = [(each // 2, each - each // 2) if padding == "same" else (0, 0) for each in reach]
            self.padding: Any = padding
        else:
            self.padding = self._numbers("padding", padding, 0)
            sides = [(each, each) for each in self.padding]
        self.padding_mode = mode
        # zeros of equal sides are the kernels' own; others are added before
        inside = mode == "zeros" and all(before == after for before, after in sides)
        own = tuple(before if inside else 0 for before, _ in sides)
        self._window = Window(self.kernel_size, self.stride, own, self.dilation)
        self._pad = [] if inside else [side for pair in reversed(sides) for side in pair]

    @property
    def in_channels(self) -> int:
        """in_features, as nn.Conv2d calls it."""
        return self.in_features

    @property
    def out_channels(self) -> int:
        """out_features, as nn.Conv2d calls it."""
        return self.out_features

    @property
    def groups(self) -> int:
        """1, as nn.Conv2d calls it."""
        return 1

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the values of one block: [taps, bm, bn]."""
        taps = 1
        for size in self.kernel_size:
            taps *= size
        return taps, *self.block

    @property
    def dense_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The shape of the dense weight, [out, in, *kernel]."""
        return self.out_features, self.in_features, *self.kernel_size

    @property
    def weight(self) -> BlockSparseWeight:
        """As BlockSparseLinear.weight, with the shape of the convolution's weight."""
        return BlockSparseWeight.of(self, self.dense_shape)  # type: ignore[arg-type]

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws nn.Conv2d's initial distribution for the true fan-in: uniform within 1 / sqrt(stored inputs
        of the output channel, over all taps). The bias of a block row without blocks is zero."""
        if self.values.is_meta:
            return
        with torch.no_grad():
            fan_in = state.fan_in(self.pattern) * self.stored_shape[0]  # per block row
            bound = torch.where(fan_in > 0, fan_in.clamp(min=1).rsqrt(), 0.0)
            per_block = bound.repeat_interleave(self.crow.diff().cpu().long())[:, None, None, None]
            uniform_(self.values, generator).mul_(per_block.to(self.values))
            state.zero_padding_(self.values, self.pattern)
            if self.bias is not None:
                per_output = bound.repeat_interleave(self.block[0])[: self.out_features]
                uniform_(self.bias, generator).mul_(per_output.to(self.bias))

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [images, in channels, *space], or [in channels, *space], to the convolution's result.
        Autocast casts as it does for nn.Conv2d. Raises Error when x does not fit."""
        if (node := arguments.recorded_by_fx(self, x)) is not None:
            return node  # type: ignore[no-any-return]
        values: Tensor = self.values
        bias: Tensor | None = self.bias
        kind = x.device.type
        if kind != "meta" and torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
            dtype = torch.get_autocast_dtype(kind)
            x, values, bias = x.to(dtype), values.to(dtype), None if bias is None else bias.to(dtype)
        if x.dim() == self.dimensions + 1:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        self._require_fit(x, values)
        if self._pad:
            x = F.pad(x, self._pad, "constant" if self.padding_mode == "zeros" else self.padding_mode)
        return _conv.conv(x, values, self.index, bias, self._window, self.strict)

    def _require_fit(self, x: Tensor, values: Tensor) -> None:
        if x.dim() != self.dimensions + 2 or x.shape[1] != self.in_features:
            space = ", ".join(["length", "height, width", "depth, height, width"][self.dimensions - 1 :][:1])
            expected = f"x [images, {self.in_features}, {space}]"
            raise Error("conv", expected, str(list(x.shape)), "the second axis is in_channels")
        if x.dtype != values.dtype or x.device != values.device:
            expected, got = f"x of {values.dtype} on {values.device}", f"{x.dtype} on {x.device}"
            raise Error("conv", expected, got, "convert one of them with .to(), or use autocast")

    @classmethod
    def holding(cls: type[Self], module: Any, weight: Tensor, pattern: Pattern) -> Self:
        """Returns a layer without bias, with the options of an nn.Conv1d, 2d or 3d, that holds the pattern's
        blocks of a weight [out, in, taps]. A weight on meta gives a layer on meta."""
        layer = cls(
            module.in_channels, module.out_channels, module.kernel_size, module.stride, module.padding,
            module.dilation, module.groups, False, module.padding_mode, "meta", weight.dtype, pattern=pattern,
        )  # fmt: skip
        if not weight.is_meta:
            layer._set_index(pattern, weight.device)
            layer.values = nn.Parameter(layer.sparse_weights()["values"].packed(weight))
        return layer.train(module.training)

    @classmethod
    def from_dense(
        cls: type[Self],
        dense: Any,
        pattern: Pattern | None = None,
        *,
        density: float | None = None,
        block: Block = 32,
        select: str | Sparsifier = "magnitude",
        scope: str = "layer",
    ) -> Self:
        """Returns a layer with the blocks of ``pattern``, or the ``density`` of blocks with the largest
        ``select``, of an nn.Conv1d, 2d or 3d (copied). Blocks are ranked by the sums of |w| over the taps;
        the rest is as in BlockSparseLinear.from_dense."""
        if type(dense).__name__ != f"Conv{cls.dimensions}d" or not isinstance(dense, nn.Module):
            remedy = "pass the layer that this class stands for"
            raise Error("from_dense", f"an nn.Conv{cls.dimensions}d", type(dense).__name__, remedy)
        if (density is None) == (pattern is None):
            got = "neither" if density is None else "both"
            raise Error("from_dense", "one of density and pattern", got, "pass density=0.25, or pattern=")
        source: Any = dense
        weight: Tensor = source.weight.detach().flatten(2)
        if pattern is None:
            request = Context(weight.abs().sum(2), block_shape("from_dense", block), density, scope)
            pattern = sparsifier_of("from_dense", select, SELECTS)(request)
        layer = cls.holding(source, weight, pattern)
        layer.values.requires_grad_(source.weight.requires_grad)
        if source.bias is not None:
            layer.bias = nn.Parameter(source.bias.detach().clone(), source.bias.requires_grad)
        return layer

    def to_dense(self) -> nn.Module:
        """Returns the nn.Conv1d, 2d or 3d with the same values in their places and zero elsewhere
        (copied)."""
        cls: Any = next(dense for dense, sparse in BLOCK_SPARSE.items() if isinstance(self, sparse))
        dense: nn.Module = cls(
            self.in_features, self.out_features, self.kernel_size, self.stride, self.padding, self.dilation,
            bias=self.bias is not None, padding_mode=self.padding_mode, device="meta",
        )  # fmt: skip
        weight = _conv.dense(self.values.detach(), self.index, self.kernel_size)
        dense.weight = nn.Parameter(weight.contiguous(), self.values.requires_grad)
        if self.bias is not None:
            dense.bias = nn.Parameter(self.bias.detach().clone(), self.bias.requires_grad)
        return dense.train(self.training)

    def sparse_weights(self) -> dict[str, SparseWeight]:
        """Returns the layer's one weight, under the name of its Parameter."""
        return {"values": ConvWeight(self)}

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns what builds the layer again without its values; see SparseModule."""
        return {"values": described(self.pattern, None)}

    def _refuse_to_move(self, *arguments: Any, **named: Any) -> Any:
        """Raises Error: the blocks of a convolution stay."""
        remedy = "densify_, and sparsify_ with another pattern"
        raise Error(type(self).__name__, "blocks that stay", "a change of the topology", remedy)

    set_topology_ = reserve_ = drop_and_grow_ = _refuse_to_move

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Packs an entry ``weight`` of a dense convolution by the layer's pattern first."""
        weight = state_dict.get(prefix + "weight")
        comes_dense = isinstance(weight, Tensor) and prefix + "crow" not in state_dict
        if comes_dense and tuple(weight.shape) == self.dense_shape:
            del state_dict[prefix + "weight"]
            index = self._index_of(self.pattern).to(weight.device)
            entries = {
                "values": _conv.blocks_of(weight.detach(), index),
                "crow": index.crow,
                "col": index.col,
            }
            state_dict.update({prefix + name: entry for name, entry in entries.items()})
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        told = f"{self.in_features}, {self.out_features}, kernel_size={self.kernel_size}"
        told += f", stride={self.stride}, padding={self.padding!r}, dilation={self.dilation}"
        told += "" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode!r}"
        return f"{told}, block={self.block[0]}x{self.block[1]}, density={self.density:.4g}"


class BlockSparseConv1d(BlockSparseConv):
    """An nn.Conv1d that is sparse in blocks of channels: see BlockSparseConv."""

    dimensions = 1


class BlockSparseConv2d(BlockSparseConv):
    """An nn.Conv2d that is sparse in blocks of channels: see BlockSparseConv."""

    dimensions = 2


class BlockSparseConv3d(BlockSparseConv):
    """An nn.Conv3d that is sparse in blocks of channels: see BlockSparseConv."""

    dimensions = 3


#: The dense classes, and what takes their place.
BLOCK_SPARSE: dict[type[nn.Module], type[BlockSparseConv]] = {
    nn.Conv1d: BlockSparseConv1d,
    nn.Conv2d: BlockSparseConv2d,
    nn.Conv3d: BlockSparseConv3d,
}
