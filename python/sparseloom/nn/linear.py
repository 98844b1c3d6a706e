"""BlockSparseLinear: an nn.Linear whose weight is a list of dense blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from .. import ops
from .. import pattern as patterns
from ..errors import Error
from ..pattern import Block, Head, Pattern
from ..pattern.empty_rows import warn_of_empty_rows
from ..sparsify import Sparsifier
from ..timing import candidates
from . import arguments
from .held import convert, cut, from_torch, state
from .held import dense_copy as copies
from .held.answers import tokens_of
from .held.indexed import IndexedModule
from .held.parametrized import require_own_values
from .held.sparse_weight import SparseWeight, described
from .held.weight import BlockSparseWeight, assigned


class BlockSparseLinear(IndexedModule):
    """Computes y = activation(x W^T + bias), where W [out_features, in_features] exists only in the blocks of
    a pattern.

    Parameters: ``values`` [blocks, bm, bn], row-major in each block, with zero padding at ragged edges;
    ``bias`` [out_features]. ``crow`` int32 [block rows + 1] and ``col`` int32 [blocks] say where the blocks
    lie, and are saved with the parameters. They are views of the buffer ``packed_index``, which also holds
    the index by block columns and is not saved.

    Args:
        in_features, out_features: any number >= 0; edges need not divide by the block.
        bias: whether to add a learned bias.
        density: share of blocks kept, in [0, 1]; the pattern is then exactly balanced over block rows.
        block: int or (out features, in features) of one block, each of {8, 16, 32, 64, 128}.
        pattern: which blocks exist, instead of density (its block counts, not ``block``).
        activation: None or a name in ``sparseloom.ops.ACTIVATIONS``, such as "relu" or "gelu" (erf); fused
            into the product, except that a training step on the CPU fuses only "relu".
        device, dtype: as in nn.Linear; dtype float32, float16, bfloat16 or float64.
        seed: an int, or a CPU torch.Generator, for the pattern and the initial values; torch's default
            generators otherwise.
        fuse_wgrad_accumulation: adds the gradient of ``values`` to ``values.main_grad``, a float32 tensor
            that the training framework provides (the protocol of Megatron-LM and Transformer Engine), in the
            product's own kernel and unrounded. ``values.grad`` stays None.
        dense_copy: whether calls, and backward passes of frozen values, may multiply with a dense copy of the
            weight: see the attribute.
        capacity: share of blocks to make room for, at least the density: see ``reserve_``.

    ``strict = True`` forbids the dense and reference kernels: a call that no sparse kernel can run then
    raises an Error that names them. (float64 has no other kernels.) ``fuse = False`` keeps torch.compile from
    moving what follows the layer into its product. All errors are ``sparseloom.Error``.
    """

    #: Why a layer of this class has no 8-bit one; "" where it has.
    _no_eight_bits: ClassVar[str] = ""

    in_features: int
    out_features: int
    block: tuple[int, int]
    activation: str | None
    strict: bool
    fuse_wgrad_accumulation: bool
    fuse: bool = True
    values: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        density: float | None = None,
        block: Block = 32,
        pattern: Pattern | None = None,
        activation: str | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        seed: torch.Generator | int | None = None,
        fuse_wgrad_accumulation: bool = False,
        dense_copy: bool | Literal["auto"] = False,
        capacity: float | None = None,
    ) -> None:
        super().__init__()
        like = arguments.like_of(type(self).__name__, device, dtype)
        checked = arguments.checked(in_features, out_features, density, pattern, activation, like)
        in_features, out_features, density = checked
        generator = arguments.generator_of("BlockSparseLinear", seed)
        if pattern is None:
            assert density is not None
            pattern = patterns.balanced(out_features, in_features, block, density, generator)
            if density > 0:  # density 0 asks for no blocks
                warn_of_empty_rows(
                    pattern, f"BlockSparseLinear({in_features}, {out_features}, density={density})"
                )
        arguments.require_shape(pattern, out_features, in_features)
        self.in_features, self.out_features, self.block = in_features, out_features, pattern.block
        self.activation, self.strict = activation, False
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self._digest = 0  # _set_index sets it
        self._index: ops.Index | None = None
        self._writes = 0
        self._set_index(pattern, like.device)
        shape = (pattern.blocks, *pattern.block)
        self.values = nn.Parameter(torch.empty(shape, device=like.device, dtype=like.dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, device=like.device, dtype=like.dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters(generator)
        if capacity is not None:
            self.reserve_(capacity)
        self.dense_copy = dense_copy

    def reset_parameters(self, seed: torch.Generator | int | None = None) -> None:
        """Draws nn.Linear's initial distribution for the true fan-in: uniform within 1 / sqrt(stored inputs
        of the output feature).

        A block row without blocks has no fan-in: its bias is zero. Raises Error for a layer that is cut
        between ranks, which knows the fan-in of its part alone, and where ``values`` are computed (by a
        parametrization, norm or pruning).
        """
        require_own_values("reset_parameters", self)
        generator = arguments.generator_of("reset_parameters", seed)
        if self._cut is not None:
            got, remedy = "a part of one", "draw before parallelize_module, or load"
            raise Error("reset_parameters", "a whole layer", got, remedy)
        if self.values.is_meta:
            return
        with torch.no_grad(), copies.own_writes(self):
            fan_in = state.fan_in(self.pattern)  # per block row
            bound = torch.where(fan_in > 0, fan_in.clamp(min=1).rsqrt(), 0.0)
            per_block = bound.repeat_interleave(self.crow.diff().cpu().long())[:, None, None]
            stored = self.values[: len(per_block)]  # all of them, unless the layer has a capacity
            uniform_(stored, generator).mul_(per_block.to(stored))
            state.zero_padding_(stored, self.pattern)
            self.values[len(per_block) :].zero_()
            if self.bias is not None:
                per_output = bound.repeat_interleave(self.block[0])[: self.out_features]
                uniform_(self.bias, generator).mul_(per_output.to(self.bias))

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Maps x [..., in_features], of one or more dimensions, to [..., out_features]. Autocast casts as it
        does for nn.Linear.

        ``residual`` [..., out_features], of the result's dtype, is added after the activation by the product
        itself; ``layer(x) + residual`` would read and write all outputs once more. Raises Error when x or
        ``residual`` does not fit.
        """
        # Every call pays for each look-up here: nn.Module's own __getattr__ takes as long as the operator's
        # argument checks.
        if (
            x.__class__ is not Tensor
            and (node := arguments.recorded_by_fx(self, x, residual=residual)) is not None
        ):
            return node  # type: ignore[no-any-return]
        if self._cut is not None:
            return cut.product(self, x, residual)
        siblings = self._siblings
        if siblings is not None and residual is None and (y := siblings.product(self, x)) is not None:
            return y
        parameters = self._parameters
        values: Tensor
        bias: Tensor | None
        try:
            values, bias = parameters["values"], parameters["bias"]  # type: ignore[assignment]
        except KeyError:  # one of them is computed: parametrized, weight-normed or pruned
            values, bias = self.values, self.bias
        weight = values if self.fuse_wgrad_accumulation else None  # the Parameter, before autocast copies it
        kind = "cuda" if x.is_cuda else "cpu" if x.is_cpu else x.device.type
        if kind != "meta" and torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
            dtype = torch.get_autocast_dtype(kind)
            x, values, bias = x.to(dtype), values.to(dtype), None if bias is None else bias.to(dtype)
            residual = None if residual is None else residual.to(dtype)
        try:
            shape = x.shape
        except RuntimeError:
            arguments.require_tensor(x)
            raise
        if not shape or shape[-1] != self.in_features or x.dtype != values.dtype or x.device != values.device:
            arguments.refuse(self, x, values)
        if self._dense_copy and (y := copies.product(self, x, values, bias, residual)) is not None:
            return y
        if len(shape) > 4:
            x = x.flatten(0, -2)
            residual = None if residual is None else residual.flatten(0, -2)
        y = ops.linear(x, values, self.index, bias, self.activation, self.strict, None, residual, weight)
        y = y if self.fuse else ops.apart(y)
        return y if len(shape) <= 4 else y.reshape(*shape[:-1], y.shape[-1])

    def _require_copyable(self, setting: bool | Literal["auto"]) -> None:
        if setting and self._cut is not None:
            raise Error(
                "dense_copy", "a whole layer", "a part of one", "multiply with the blocks between ranks"
            )

    @property
    def weight(self) -> BlockSparseWeight:
        """A stand-in for code that asks a dense layer's weight for dtype, device or shape, or initialises it,
        which acts on ``values``. It is not a Parameter, holds no dense tensor and refuses arithmetic: call
        the layer, or copy with ``to_dense().weight``."""
        return BlockSparseWeight.of(self, self.dense_shape)

    @weight.setter
    def weight(self, value: Any) -> None:
        raise assigned(self)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Does what nn.Module's does, but raises Error for ``weight``: a Parameter assigned to it, to tie it
        for example, would be part of no product."""
        if name == "weight":
            raise assigned(self)
        super().register_parameter(name, param)

    def plan(
        self,
        tokens: int | None = None,
        direction: str = "forward",
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
        measure: bool = False,
        residual: bool = False,
        accumulate: bool | None = None,
        *,
        shape: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Returns what would run for ``tokens`` rows of x, or x of that ``shape``, how long it should take,
        and why: see ``ops.plan``. ``direction`` is forward, dx or dw. ``dtype`` and ``device`` are the
        layer's own by default (on meta: the CPU). ``residual`` says that forward is called with one;
        ``accumulate`` says that dw is added to main_grad, by default where ``fuse_wgrad_accumulation`` is
        set. ``measure`` runs the candidates on the layer's device, for about a second, and adds their times
        to the predicted ones: as ``measured_us``, and in the text. ``dense_copy`` of a plan of forward or dx
        is a dict of what the attribute means for it: bytes, predicted_us, used, reason. Raises Error when no
        call has these arguments, or to measure on another device than the layer's."""
        tokens = tokens_of(tokens, shape, self.in_features)
        forward = direction == "forward"
        own_device = "cpu" if self.values.is_meta else self.values.device
        if measure and device is not None and ops.ordinal(device) != ops.ordinal(self.values.device):
            raise Error(
                "plan",
                f"the layer's own device, {self.values.device}, to measure on",
                str(device),
                "move the layer there",
            )
        if accumulate is None:
            accumulate = direction == "dw" and self.fuse_wgrad_accumulation
        plan = ops.plan(
            self._cpu_index(),
            direction,
            dtype or self.values.dtype,
            tokens,
            forward and self.bias is not None,
            self.activation if forward else None,
            self.strict,
            device=own_device if device is None else device,
            residual=residual,
            accumulate=accumulate,
        )
        if direction != "dw":
            plan = copies.explained(self, plan, dtype or self.values.dtype, direction)
        if not measure:
            return plan
        return candidates.measure(
            plan, self, tokens, direction, dtype or self.values.dtype, residual, accumulate
        )

    @classmethod
    def from_dense(
        cls,
        dense: nn.Linear | Tensor,
        pattern: Pattern | None = None,
        *,
        density: float | None = None,
        block: Block = 32,
        select: str | Sparsifier | Pattern = "magnitude",
        scope: str = "layer",
        head: Head | None = None,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> BlockSparseLinear:
        """Returns a layer with the blocks of ``pattern``, or the ``density`` of blocks with the largest
        ``select``, or all that are not zero; the values keep their places (copied).

        Args:
            dense: an nn.Linear, or a weight [out_features, in_features] (then ``bias`` [out_features] may
                come with it).
            select: "magnitude" (sum of |w| over the block), "l2", "max", "stored" (every block that is not
                all zero; no density), a ``sparsify.Sparsifier``, or a Pattern, as ``pattern`` is.
            scope: "layer" compares all blocks; "row" keeps the same share in every block row, whatever its
                scale; "head" in every head of an attention, of which ``head`` is (out features, in features)
                of one: see ``pattern.top_k``.

        Warns where most block rows get no block.
        """
        return convert.from_dense(cls, dense, pattern, density, block, select, scope, head, bias, activation)

    def to_dense(self) -> nn.Module:
        """Returns an nn.Linear with the same values in their places and zero elsewhere (copied); with an
        activation, a Sequential of both."""
        return convert.to_dense(self)

    def sparse_weights(self) -> dict[str, SparseWeight]:
        """Returns the layer's one weight, under the name of its Parameter."""
        return {"values": SparseWeight(self)}

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns the data that rebuild the layer without its values; see SparseModule."""
        settings = {"dense_copy": self.dense_copy} if self.dense_copy else {}
        return {"values": described(self.pattern, self.activation, **settings)}

    @classmethod
    def from_torch_bsr(
        cls,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: str | None = None,
        reblock: Block | None = None,
    ) -> BlockSparseLinear:
        """Returns a layer that shares the values of a torch.sparse_bsr tensor [out_features, in_features]
        without a copy; the indices are copied. Blocks in another order, those of sparse_bsc and values that
        are not contiguous are copied, too.

        ``reblock`` stores the blocks of that size that hold an element other than zero, of a tensor in any of
        torch's sparse layouts: for blocks that no kernel has, such as 4 x 4. The log says at level INFO how
        many elements they store. A Parameter's ``requires_grad`` becomes that of the values; those of any
        other tensor train. Raises Error for blocks that no kernel has.
        """
        return from_torch.from_torch_bsr(cls, weight, bias, activation, reblock)

    def to_torch_bsr(self) -> Tensor:
        """Returns the weight as a torch.sparse_bsr tensor that shares values, crow and col with this layer.
        Raises Error for sizes that the block does not divide."""
        return from_torch.to_torch_bsr(self)

    def extra_repr(self) -> str:
        parts = [
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        ]
        parts.append(
            f"block={self.block[0]}x{self.block[1]}, "
            + (
                f"blocks={self._pattern.blocks}, density={self.density:.4g}"
                if self.capacity is None
                else f"capacity={self.capacity}"
            )
        )
        if self._cut is not None:
            imbalance = f"the fullest has {self._cut.imbalance:.1%} more blocks than the mean"
            parts.append(f"part {self._cut.part} of {self._cut.parts} ({imbalance})")
        parts += [f"activation={self.activation}"] if self.activation else []
        parts += ["strict=True"] if self.strict else []
        parts += ["fuse_wgrad_accumulation=True"] if self.fuse_wgrad_accumulation else []
        parts += [f"dense_copy={self.dense_copy}"] if self.dense_copy else []
        return ", ".join(parts)


def uniform_(tensor: Tensor, generator: torch.Generator | None) -> Tensor:
    """Fills the tensor uniformly in [-1, 1), in place. A generator draws on its own device, so that a seed
    gives the same layer on every device."""
    if generator is None or generator.device == tensor.device:
        return tensor.uniform_(-1, 1, generator=generator)
    return tensor.copy_(
        torch.empty_like(tensor, device=generator.device).uniform_(-1, 1, generator=generator)
    )
