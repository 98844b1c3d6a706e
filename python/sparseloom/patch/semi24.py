"""Semi24: the recipe for 2:4 layers."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from .._arguments import named_init
from ..errors import Error
from ..layouts.semi24 import Semi24Layout, packed
from ..nn.semi24.semi_structured import from_torch, is_torchs
from ..ops import semi24
from .in_layout import InLayout
from .recipe import Chosen, Recipe

if TYPE_CHECKING:
    from ..nn import Semi24Linear
    from ..sparsify import Method
    from .forms import Site


@named_init
@dataclass(frozen=True)
class Semi24(Recipe):
    """Says that a layer's weight becomes 2:4: at most two nonzeros in each group of four consecutive inputs.

    Args:
        prune: None takes weights that are 2:4 already, such as those of a model that torch.ao.pruning or
            another pruner has masked, and raises Error for any other. "magnitude" keeps the two largest |w|
            of each group; "transposable_greedy" and "transposable_exact" keep what leaves W^T 2:4 as well.
        select: the same, by the name that BlockSparse has for it; "stored" is None.
        density: 0.5, which 2:4 has.
        method: a ``sparsify.Method``, or "semi24", that chooses in training: the recipe is then
            InLayout("semi24", method=...), whose layers train.

    Without a method the layers do not train (see nn.Semi24Linear). Raises Error for another ``prune``.
    """

    layer: ClassVar[str] = "Semi24Linear"

    prune: str | None = None
    select: InitVar[str | None] = None
    density: float = 0.5
    method: Any = None  # a Method once it is made

    def __post_init__(self, select: str | None) -> None:
        if select is not None:
            if self.prune is not None:
                got = f"prune={self.prune!r} and select={select!r}"
                raise Error("Semi24", "prune or select, which are the same", got, "leave one of them out")
            object.__setattr__(self, "prune", None if select == "stored" else select)
        if self.density != 0.5:
            remedy = 'InLayout("nm", n=1, m=4) stores less, BlockSparse(density=..) any share'
            raise Error("Semi24", "density of 0.5, which 2:4 has", repr(self.density), remedy)
        semi24.require_method("Semi24", self.prune)
        if self.method is not None:
            object.__setattr__(self, "method", self._in_layout().method)

    def _in_layout(self) -> InLayout:
        """Returns the recipe that trains: a method brings its own way to choose."""
        if self.prune is not None:
            remedy = "the method chooses: methods.semi24(prune=..)"
            raise Error("Semi24", "prune or method", "both", remedy)
        return InLayout("semi24", method=self.method)

    def trained(self) -> tuple[Method, float | None] | None:
        return None if self.method is None else self._in_layout().trained()

    def refusal(self, site: Site) -> str:
        if self.method is not None:
            return self._in_layout().refusal(site)
        if site.form.layers.semi24 is None:
            return f"a {site.kind} has no 2:4 layer"
        if site.parameter.is_meta:
            remedy = "give the model its values first"
            raise Error("sparsify_", f"values of {site.name} to pack", "a weight on the meta device", remedy)
        return ""

    def chosen(self, site: Site, generator: torch.Generator | None) -> Chosen:
        if self.method is not None:
            return self._in_layout().chosen(site, generator)
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
