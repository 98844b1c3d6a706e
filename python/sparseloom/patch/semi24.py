"""Semi24: the recipe for 2:4 layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from ..errors import Error
from ..layouts.semi24 import Semi24Layout, packed
from ..nn.semi24.semi_structured import from_torch, is_torchs
from ..ops import semi24
from .recipe import Chosen, Recipe

if TYPE_CHECKING:
    from ..nn import Semi24Linear
    from .forms import Site


@dataclass(frozen=True)
class Semi24(Recipe):
    """Says that a layer's weight becomes 2:4: at most two nonzeros in each group of four consecutive inputs.

    Args:
        prune: None takes weights that are 2:4 already, such as those of a model that torch.ao.pruning or
            another pruner has masked, and raises Error for any other. "magnitude" keeps the two largest |w|
            of each group; "transposable_greedy" and "transposable_exact" keep what leaves W^T 2:4 as well.

    The layers do not train (see nn.Semi24Linear). Raises Error for another ``prune``.
    """

    layer: ClassVar[str] = "Semi24Linear"

    prune: str | None = None

    def __post_init__(self) -> None:
        semi24.require_method("Semi24", self.prune)

    def refusal(self, site: Site) -> str:
        if site.form.layers.semi24 is None:
            return f"a {site.kind} has no 2:4 layer"
        if site.parameter.is_meta:
            remedy = "give the model its values first"
            raise Error("sparsify_", f"values of {site.name} to pack", "a weight on the meta device", remedy)
        return ""

    def chosen(self, site: Site, generator: torch.Generator | None) -> TwoOfFour:
        try:
            if is_torchs(weight := site.value):
                return TwoOfFour(*from_torch(weight))
            return TwoOfFour(*packed(weight, self.prune))
        except Error as error:
            remedy = 'prune the weight first, or by name: Semi24(prune="magnitude")'
            raise Error("sparsify_", f"{site.name}.weight: {error.expected}", error.actual, remedy) from error


@dataclass(frozen=True)
class TwoOfFour(Chosen):
    """The layout and the values of a packed weight."""

    layout: Semi24Layout
    values: Tensor

    def made(
        self, site: Site, strict: bool = False, dense_copy: bool | Literal["auto"] = False
    ) -> Semi24Linear:
        assert site.form.layers.semi24 is not None  # refused
        layer = site.form.layers.semi24.holding(self.layout, self.values)
        layer.strict, layer.dense_copy = strict, dense_copy
        return layer


@dataclass(frozen=True)
class ReadLater(Recipe, Chosen):
    """Makes a 2:4 layer whose elements and places are read from a file afterwards."""

    layer: ClassVar[str] = "Semi24Linear"

    def refusal(self, site: Site) -> str:
        return "" if site.form.layers.semi24 is not None else f"a {site.kind} has no 2:4 layer"

    def chosen(self, site: Site, generator: torch.Generator | None) -> ReadLater:
        return self

    def made(
        self, site: Site, strict: bool = False, dense_copy: bool | Literal["auto"] = False
    ) -> Semi24Linear:
        weight = site.parameter
        layout = Semi24Layout.anywhere(*site.shape, weight.device)
        assert site.form.layers.semi24 is not None  # refused
        layer = site.form.layers.semi24.holding(layout, weight.new_zeros(layout.values_shape))
        layer.strict, layer.dense_copy = strict, dense_copy
        return layer
