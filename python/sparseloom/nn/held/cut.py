"""Cut: describes the whole weight in a layer that holds one part of it under tensor parallelism.

A weight is cut across its block rows (dimension 0) or its block columns (dimension 1), at borders between
blocks. Each rank's layer is then an ordinary layer of fewer features, with the blocks of its part in the
order of the whole weight. Its ``values`` are a DTensor, sharded by rank. Each rank has as many slots as the
largest part has blocks; the unused slots at its end are zero. State dicts and files use the order of the
whole weight, so they do not depend on the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import ops
from ...errors import Error
from ...pattern import Pattern
from .. import arguments
from .sharded import local

if TYPE_CHECKING:
    from ..linear import BlockSparseLinear


@dataclass(frozen=True, eq=False)
class Cut:
    """A cut weight, and the part of it that this rank's layer holds.

    Args:
        pattern: which blocks of the whole weight exist.
        dim: 0 for a cut across block rows (out features), 1 across block columns (in features).
        borders: the feature at which each part begins, then the end: parts + 1 numbers.
        part: the number of this rank's part.
    """

    pattern: Pattern
    dim: int
    borders: tuple[int, ...]
    part: int

    @property
    def parts(self) -> int:
        """The number of parts."""
        return len(self.borders) - 1

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The stored blocks of each part."""
        return tuple(torch.bincount(self._part_of_blocks, minlength=self.parts).tolist())

    @property
    def places(self) -> int:
        """The slots that ``values`` has for each part."""
        return max(self.counts)

    @property
    def imbalance(self) -> float:
        """The excess of the largest part's block count over the mean, as a fraction of the mean."""
        mean = self.pattern.blocks / self.parts
        return self.places / mean - 1 if mean else 0.0

    @property
    def widths(self) -> tuple[int, ...]:
        """The features of each part."""
        return tuple(end - begin for begin, end in pairwise(self.borders))

    @property
    def own_pattern(self) -> Pattern:
        """The pattern of this rank's part."""
        begin, end = self.borders[self.part], self.borders[self.part + 1]
        side = self.pattern.block[self.dim]
        lines = slice(begin // side, -(-end // side))
        mask, rows, cols = self.pattern.mask, self.pattern.rows, self.pattern.cols
        if self.dim == 0:
            return Pattern(end - begin, cols, self.pattern.block, mask[lines])
        return Pattern(rows, end - begin, self.pattern.block, mask[:, lines])

    def own_of(self, weight: Tensor) -> Tensor:
        """Returns this rank's part of a whole weight [out features, in features], as a view."""
        features = slice(self.borders[self.part], self.borders[self.part + 1])
        return weight[features] if self.dim == 0 else weight[:, features]

    @cached_property
    def place_of_blocks(self) -> Tensor:
        """int64 [blocks]: the slot, counted over all ranks, of each block of the whole weight."""
        return self._in_parts(self._part_of_blocks, self.places)

    @cached_property
    def place_of_features(self) -> Tensor:
        """int64 [features along the cut]: the slot of each feature's bias; a part has max(widths) slots."""
        features = torch.arange(self.borders[-1], device="cpu")
        return self._in_parts(self._part_of(features), max(self.widths))

    @cached_property
    def _part_of_blocks(self) -> Tensor:
        crow, col = self.pattern.index()
        rows = torch.arange(len(crow) - 1, device="cpu").repeat_interleave(crow.diff().long())
        return self._part_of((rows if self.dim == 0 else col.long()) * self.pattern.block[self.dim])

    def _part_of(self, features: Tensor) -> Tensor:
        inner = torch.tensor(self.borders[1:-1], dtype=torch.int64, device="cpu")
        return torch.bucketize(features, inner, right=True)

    def _in_parts(self, part: Tensor, room: int) -> Tensor:
        """Returns the slot of each item, which come in the order of the whole weight, from its part."""
        order = part.argsort(stable=True)
        first = torch.bincount(part, minlength=self.parts).cumsum(0).roll(1)
        first[0] = 0
        ordered, places = part[order], torch.empty_like(part)
        places[order] = ordered * room + torch.arange(len(part), device="cpu") - first[ordered]
        return places

    def in_parts(self, whole: Tensor, places: Tensor, room: int) -> Tensor:
        """Scatters rows, given in the order of the whole weight, to their slots; other slots are zero."""
        padded = whole.new_zeros((self.parts * room, *whole.shape[1:]))
        if not whole.is_meta:
            padded[places.to(whole.device)] = whole
        return padded


def require_borders(op: str, pattern: Pattern, dim: int, borders: Sequence[int], parts: int) -> None:
    """Raises Error unless ``borders`` cut that dimension of a weight into so many parts, between blocks."""
    features, side = (pattern.rows, pattern.cols)[dim], pattern.block[dim]
    rising = all(begin < end for begin, end in pairwise(borders))
    between = all(border % side == 0 for border in borders[1:-1])
    if len(borders) != parts + 1 or borders[0] != 0 or borders[-1] != features or not (rising and between):
        expected = f"{parts + 1} rising borders from 0 to {features}, those between at multiples of {side}"
        raise Error(op, expected, str(list(borders)), "take them from sparseloom.distributed.borders")


def held(layer: Any, tensor: Tensor) -> Tensor:
    """Returns the stored blocks of a tensor of the values' shape, such as a moment, without the unused slots
    of a cut layer."""
    return tensor if layer._cut is None else local(tensor)[: layer._blocks]


def product(layer: BlockSparseLinear, x: Tensor, residual: Tensor | None) -> Tensor:
    """Returns this rank's part of the layer's product. For a cut across block rows these are its outputs; for
    a cut across block columns a partial sum, without bias and activation, which follow the all-reduce."""
    cut, whole_bias, activation = layer._cut, layer.bias, layer.activation
    assert cut is not None
    if residual is not None or layer.fuse_wgrad_accumulation:
        got = "a residual" if residual is not None else "fuse_wgrad_accumulation=True"
        expected, remedy = "a plain product of a layer that is cut between ranks", "add outside of the layer"
        raise Error("linear", expected, got, remedy)
    if cut.dim == 1:
        whole_bias = activation = None
    values = held(layer, layer.values)
    bias = None if whole_bias is None else local(whole_bias)[: layer.out_features]
    x, values, bias, _ = arguments.prologue(x, values, bias)
    if x.dim() == 0 or x.shape[-1] != layer.in_features or x.dtype != values.dtype:
        expected = f"x [..., {layer.in_features}] of {values.dtype}, this rank's part"
        raise Error("linear", expected, f"{list(x.shape)} of {x.dtype}", "see the input_layouts of its style")
    shape = x.shape
    if len(shape) > 4:
        x = x.flatten(0, -2)
    y = ops.linear(x, values, layer.index, bias, activation, layer.strict)
    return y if len(shape) <= 4 else y.reshape(*shape[:-1], y.shape[-1])
