"""ConvModule: the base class of convolutions and transposed convolutions with block-sparse channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from ... import ops
from ... import pattern as patterns
from ..._checks import whole
from ...errors import Error
from ...ops.conv import plans, product
from ...ops.devices import require_one_device
from ...pattern import Block, Pattern
from ...pattern.empty_rows import warn_of_empty_rows
from ...sparsify import Sparsifier
from .. import arguments
from ..held import dense_copy as copies
from ..held import state
from ..held.edges import Edges
from ..held.indexed import IndexedModule
from ..held.parametrized import require_own_values, values_are_computed
from ..held.pruned_entries import accept_pruned
from ..held.sparse_weight import SparseWeight, described
from ..held.weight import BlockSparseWeight
from ..linear import uniform_
from . import convert as conv_convert
from .weight import ConvWeight

Self = TypeVar("Self", bound="ConvModule")
Numbers = int | Sequence[int]

_LIMIT = 1 << 16  # the limit of each option in src/ops/conv.cpp


class ConvModule(IndexedModule):
    """A convolution or transposed convolution whose weight [out, in, *kernel] exists only in the channel
    blocks of a pattern, and there in every tap.

    Parameters: ``values`` [blocks, taps, bm, bn], with zero padding at ragged edges; ``bias``
    [out_channels]; ``edges``, a module with ``gain`` and ``bias``, or None. The index, ``crow`` and ``col``,
    is that of BlockSparseLinear. A subclass defines the product and its dense class.
    """

    #: The number of spatial axes.
    dimensions: ClassVar[int]
    #: The class of torch that the layer replaces.
    dense_class: ClassVar[type[nn.Module]]
    #: The window's attributes and constructor arguments, named as in ``dense_class``.
    options: ClassVar[tuple[str, ...]]
    activation: str | None
    strict = False
    fuse: bool = True
    bias: nn.Parameter | None
    edges: Edges | None
    kernel_size: tuple[int, ...]

    def _build(
        self, channels: tuple[int, int], window: dict[str, Any], groups: int, bias: bool, like: Tensor,
        density: float | None, block: Block, pattern: Pattern | None, activation: str | None, edge_bias: bool,
        seed: torch.Generator | int | None,
    ) -> None:  # fmt: skip
        """Makes a layer of (in, out) channels, with ``window``, the options that ``_set_window`` takes, and
        with the device and dtype of ``like``."""
        op, (in_channels, out_channels) = type(self).__name__, channels
        if groups != 1:
            raise Error(op, "groups of 1", repr(groups), "groups are block-diagonal: pass such a pattern")
        whole(op, "in_channels", in_channels, 1), whole(op, "out_channels", out_channels, 1)
        checked = arguments.checked(in_channels, out_channels, density, pattern, activation, like, op)
        in_channels, out_channels, density = checked
        generator = arguments.generator_of(op, seed)
        if pattern is None:
            assert density is not None
            pattern = patterns.balanced(out_channels, in_channels, block, density, generator)
            if density > 0:
                warn_of_empty_rows(pattern, f"{op}({in_channels}, {out_channels}, density={density})")
        arguments.require_shape(pattern, out_channels, in_channels, op)
        self.in_features, self.out_features, self.block = in_channels, out_channels, pattern.block
        self.activation = activation
        self._set_window(**window)
        self._digest = 0  # _set_index sets it
        self._index: ops.Index | None = None
        self._writes = 0
        self._set_index(pattern, like.device)
        shape = (pattern.blocks, *self.stored_shape)
        self.values = nn.Parameter(torch.empty(shape, device=like.device, dtype=like.dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(out_channels, device=like.device, dtype=like.dtype))
        else:
            self.register_parameter("bias", None)
        self.edges = None
        self.reset_parameters(generator)
        if edge_bias:
            self.add_edges_()

    def _set_window(self, **options: Any) -> None:
        """Checks and stores the options, which are named as those of the dense class."""
        raise NotImplementedError

    def _edges(self) -> Edges:
        """Returns a new gain and bias for this layer's borders. Raises Error if no tap lies outside of x."""
        raise NotImplementedError

    def add_edges_(self: Self) -> Self:
        """Adds ``edges``, a gain and bias at the borders that change nothing at first; returns the layer.
        Optimizers that were made before do not know them. Raises Error if no tap lies outside of x."""
        self.edges = self._edges().to(self.values)
        return self

    def _fans(self) -> Tensor:
        """Returns the fan of each block row for the initial distribution, float32; 0 without blocks."""
        raise NotImplementedError

    def _numbers(self, name: str, setting: Any, minimum: int) -> tuple[int, ...]:
        """Returns a number for each axis. Raises Error for others than integers from ``least`` to 2^16."""
        op, several = type(self).__name__, isinstance(setting, (tuple, list))
        numbers = tuple(whole(op, name, number, minimum) for number in (setting if several else [setting]))
        numbers = numbers * self.dimensions if len(numbers) == 1 else numbers
        if len(numbers) != self.dimensions or any(number >= _LIMIT for number in numbers):
            expected = f"{name} as an int, or {self.dimensions} of them, below {_LIMIT}"
            raise Error(op, expected, repr(setting), "pass one number for each axis of space")
        return numbers

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
        return math.prod(self.kernel_size), *self.block

    @property
    def dense_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The shape of the dense weight, [out, in, *kernel]."""
        return self.out_features, self.in_features, *self.kernel_size

    @property
    def weight(self) -> BlockSparseWeight:
        """As BlockSparseLinear.weight, with the shape of the convolution's weight."""
        return BlockSparseWeight.of(self, self.dense_shape)  # type: ignore[arg-type]

    def reset_parameters(self, seed: torch.Generator | int | None = None) -> None:
        """Draws the dense class's initial distribution for the true fan: uniform within 1 / sqrt(fan) of the
        output channel. The bias of a block row without blocks is zero. ``edges`` change nothing at first.
        Raises Error where ``values`` are computed (by a parametrization, norm or pruning)."""
        require_own_values("reset_parameters", self)
        generator = arguments.generator_of("reset_parameters", seed)
        if self.values.is_meta:
            return
        with torch.no_grad(), copies.own_writes(self):
            fans = self._fans()
            bound = torch.where(fans > 0, fans.clamp(min=1).rsqrt(), 0.0)
            per_block = bound.repeat_interleave(self.crow.diff().cpu().long())[:, None, None, None]
            uniform_(self.values, generator).mul_(per_block.to(self.values))
            state.zero_padding_(self.values, self.pattern)
            if self.bias is not None:
                per_output = bound.repeat_interleave(self.block[0])[: self.out_features]
                uniform_(self.bias, generator).mul_(per_output.to(self.bias))
            if self.edges is not None:
                self.edges.reset_parameters()  # no effect, until trained

    def _call(self, x: Tensor, residual: Tensor | None, **options: Any) -> Tensor:
        """Computes the product, with ``options`` for ``_product``, then edges, activation and residual."""
        if (
            x.__class__ is not Tensor
            and (node := arguments.recorded_by_fx(self, x, residual=residual, **options)) is not None
        ):
            return node  # type: ignore[no-any-return]
        parameters = self._parameters  # nn.Module's own __getattr__ takes as long as a check of all operands
        values: Any
        bias: Tensor | None
        try:
            values, bias = parameters["values"], parameters["bias"]
        except KeyError:  # one of them is computed: parametrized, weight-normed or pruned
            values, bias = self.values, self.bias
        x, values, bias, residual = arguments.prologue(x, values, bias, residual)
        if unbatched := x.dim() == self.dimensions + 1:
            x, residual = x.unsqueeze(0), None if residual is None else residual.unsqueeze(0)
        self._require_fit(x, values)
        if bias is not None and bias.device != x.device:  # not every product checks it
            require_one_device("conv", {"x": x, "bias": bias})
        if self.edges is None:
            y = self._product(x, values, bias, self.activation, residual, **options)
        else:
            y = self.edges(self._product(x, values, bias, None, None, **options), x.shape[2:])
            y = product.finished(y, self.activation, residual)
        y = y.squeeze(0) if unbatched else y
        return y if self.fuse else ops.apart(y)

    def _product(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: str | None,
        residual: Tensor | None, **options: Any,
    ) -> Tensor:  # fmt: skip
        """Returns act(product + bias) + residual; x, values and bias have one dtype and device."""
        raise NotImplementedError

    def _kept(self, x: Tensor, values: Tensor) -> Tensor | None:
        """Returns the dense copy of the weight, [out, in, *kernel], if the call with x multiplies with it
        (``dense_copy``), else None."""
        if not self._dense_copy:
            return None
        copy = copies.serving("conv", self, x, values)
        if copy is None or (self._dense_copy == "auto" and not self._copy_is_faster(x)):
            return None
        return copy.weight(self, values)

    def _copy_is_faster(self, x: Tensor) -> bool:
        if x.numel() == 0 or not product.have_rows(x.device, x.dtype):
            return True  # torch's convolution runs in any case
        row, extents, sizes = self._row_problem("forward", tuple(x.shape[2:]))
        return plans.copy_is_faster(x, row, extents, self._window, sizes)

    def _unpacked(self, values: Tensor) -> Tensor:
        return product.dense(values, self.index, self.kernel_size)

    def plan(
        self,
        x_shape: Sequence[int] = (),
        direction: str = "forward",
        dtype: torch.dtype | None = None,
        *,
        shape: Sequence[int] | None = None,
        **unknown: Any,
    ) -> dict[str, Any]:
        """Returns what a call runs for x of the shape [images, in channels, *space], and why. ``kernel`` is
        the kernel's name; "dense" is torch's convolution with a dense weight made in the call.
        ``predicted_us`` is its time, and ``dense_copy_us`` that convolution's time where the layer keeps the
        dense weight; both are None where nothing predicts them. ``text`` says it all. ``dense_copy``, of
        forward and dx, is as in BlockSparseLinear.plan: dX reads the copy where forward did.

        ``direction`` is forward, dx or dw. ``dtype`` is the layer's own by default; its device is asked (on
        meta: the CPU). ``shape`` is another name of x_shape. Raises Error for another direction, and where
        x_shape or the taps do not fit.
        """
        x_shape = x_shape if shape is None else shape
        if unknown or not isinstance(x_shape, Sequence):
            got = f"{', '.join(unknown)}=" if unknown else repr(x_shape)
            remedy = f"pass layer.plan([1, {self.in_features}{', 32' * self.dimensions}]), for example"
            raise Error("plan", "x_shape [images, in channels, *space], of a convolution", got, remedy)
        if direction not in ops.DIRECTIONS:
            raise Error("plan", "a direction of forward, dx, dw", repr(direction), "choose one of them")
        images, _, *extents = self._require_shape(tuple(x_shape))
        dtype = dtype or self.values.dtype
        device = torch.device("cpu") if self.values.is_meta else self.values.device
        ordinal = (device.index or 0) if device.type == "cuda" else -1
        if not images or not product.have_rows(device, dtype):
            text = f"no rows for {images} images of {dtype} on {device.type}: torch's convolution runs"
            return self._with_copy({**plans.UNPLANNED, "text": text}, direction, dtype, True)
        # forward's plan decides on the copy, which dX then reads, too
        forward = self._planned("forward", dtype, images, extents, ordinal)
        wanted = (
            forward if direction == "forward" else self._planned(direction, dtype, images, extents, ordinal)
        )
        faster = forward["predicted_us"] is None or ops.copy_is_faster(forward)
        return self._with_copy(wanted, direction, dtype, faster)

    def _planned(
        self, direction: str, dtype: torch.dtype, images: int, extents: Sequence[int], device: int
    ) -> dict[str, Any]:
        """Returns the plan of a direction, and UNPLANNED with its text where no row can run."""
        row, of, sizes = self._row_problem(direction, tuple(extents))
        strict = self.strict and direction == "forward"
        try:
            return plans.plan(row, dtype, images, of, self._window, sizes, device, strict)
        except Error as refused:
            return {**plans.UNPLANNED, "text": str(refused)}

    def _with_copy(
        self, plan: dict[str, Any], direction: str, dtype: torch.dtype, faster: bool
    ) -> dict[str, Any]:
        return plan if direction == "dw" else copies.explained(self, plan, dtype, direction, faster)

    def _row_problem(self, direction: str, extents: tuple[int, ...]) -> tuple[str, tuple[int, ...], Any]:
        """Returns the problem of a kernel row for ``direction`` and an x of these extents: the row's
        direction, the extents of the image that its window moves over, and its sizes."""
        raise NotImplementedError

    def _require_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) != self.dimensions + 2 or shape[1] != self.in_features:
            space = ("length", "height, width", "depth, height, width")[self.dimensions - 1]
            expected = f"x [images, {self.in_features}, {space}]"
            raise Error("conv", expected, str(list(shape)), "the second axis is in_channels")
        return shape

    def _require_fit(self, x: Tensor, values: Tensor) -> None:
        self._require_shape(tuple(x.shape))
        if x.dtype != values.dtype or x.device != values.device:
            expected, got = f"x of {values.dtype} on {values.device}", f"{x.dtype} on {x.device}"
            raise Error("conv", expected, got, "convert one of them with .to(), or use autocast")

    @classmethod
    def holding(cls: type[Self], module: Any, weight: Tensor, pattern: Pattern) -> Self:
        """Returns a layer without bias, with the options of a module of ``dense_class``, that holds the
        pattern's blocks of a weight [out, in, taps]. A weight on meta gives a layer on meta."""
        layer = cls(
            module.in_channels, module.out_channels, groups=module.groups, bias=False, device="meta",
            dtype=weight.dtype, pattern=pattern, **{name: getattr(module, name) for name in cls.options},
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
        select: str | Sparsifier | Pattern = "magnitude",
        scope: str = "layer",
        activation: str | None = None,
    ) -> Self:
        """Returns a layer with the blocks of ``pattern``, or the ``density`` of blocks with the largest
        ``select``, of a module of ``dense_class`` (copied). Blocks are ranked by the sums of |w| over the
        taps; the rest is as in BlockSparseLinear.from_dense."""
        return conv_convert.from_dense(cls, dense, pattern, density, block, select, scope, activation)

    def to_dense(self) -> nn.Module:
        """Returns the module of ``dense_class`` with the same values in their places and zero elsewhere
        (copied); with an activation, a Sequential of both. Raises Error for a layer with ``edges``."""
        return conv_convert.to_dense(self)

    @staticmethod
    def of_channels(weight: Tensor) -> Tensor:
        """Turns the dense class's weight to [out, in, *kernel], and such a tensor back (a view)."""
        return weight

    def sparse_weights(self) -> dict[str, SparseWeight]:
        """Returns the layer's one weight, under the name of its Parameter."""
        return {"values": ConvWeight(self)}

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns the data that rebuild the layer without its values; see SparseModule."""
        settings: dict[str, Any] = {} if self.edges is None else {"edge_bias": True}
        settings |= {"dense_copy": self.dense_copy} if self.dense_copy else {}
        return {"values": described(self.pattern, self.activation, **settings)}

    def _refuse_to_move(self, *arguments: Any, **named: Any) -> Any:
        """Raises Error: the blocks of a convolution cannot change."""
        remedy = "densify_, and sparsify_ with another pattern"
        raise Error(type(self).__name__, "blocks that stay", "a change of the topology", remedy)

    set_topology_ = reserve_ = drop_and_grow_ = _refuse_to_move

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Packs an entry ``weight`` of a dense convolution by the layer's pattern first."""
        accept_pruned(state_dict, prefix)
        weight = state_dict.get(prefix + "weight")
        blocks = prefix + "crow" in state_dict  # save_pretrained calls them weight, too
        packs = not blocks and not values_are_computed(self)
        if packs and isinstance(weight, Tensor) and tuple(weight.shape) == self.dense_shape:
            del state_dict[prefix + "weight"]
            index = self._index_of(self.pattern).to(weight.device)
            entries = {
                "values": product.blocks_of(self.of_channels(weight.detach()), index),
                "crow": index.crow,
                "col": index.col,
            }
            state_dict.update({prefix + name: entry for name, entry in entries.items()})
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        parts = [f"{self.in_features}, {self.out_features}"]
        for name in self.options:
            option = getattr(self, name)
            if name != "padding_mode" or option != "zeros":
                parts.append(f"{name}={option!r}")
        parts.append(f"block={self.block[0]}x{self.block[1]}, density={self.density:.4g}")
        parts += [f"activation={self.activation}"] if self.activation else []
        parts += [f"dense_copy={self.dense_copy}"] if self.dense_copy else []
        return ", ".join(parts)
