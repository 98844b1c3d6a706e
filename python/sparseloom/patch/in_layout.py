"""InLayout: puts a chosen layer's weight into a layout of sparseloom.layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from .. import layouts
from ..errors import Error
from ..layouts import Layout
from ..nn import SparseLinear
from .recipe import Chosen, Recipe

if TYPE_CHECKING:
    from .forms import Site


class InLayout(Recipe):
    """Says that a layer becomes an nn.SparseLinear: its weight is what the layout stores of it.

    Args:
        layout: the name of a registered layout, or its class; "csr" and "coo" store single elements,
            "nm" and "nmg" n of each m.
        options: what the layout's ``from_dense`` asks for. For "csr" and "coo": nothing stores the elements
            that are not zero, ``density=0.1`` the tenth of the largest magnitude, and ``mask``, bool of the
            weight's shape, what it names. For "nm" ``n`` and ``m``, for "nmg" ``g`` beside them.

    nn.Linear becomes one, and transformers' Conv1D, whose weight is stored as [in, out]: its options,
    such as ``mask``, are of [out features, in features]. Raises Error for a layout that is not registered.
    """

    layer: ClassVar[str] = "SparseLinear"

    def __init__(self, layout: str | type[Layout] = "csr", **options: Any) -> None:
        self.layout = layouts.get(layout) if isinstance(layout, str) else layout
        self.options = options

    def __repr__(self) -> str:
        told = [repr(self.layout.name), *(f"{name}={value!r}" for name, value in self.options.items())]
        return f"InLayout({', '.join(told)})"

    def refusal(self, site: Site) -> str:
        if not site.form.in_any_layout:
            return f"a {site.kind} has no layer for the layout {self.layout.name}"
        if site.parameter.is_meta:
            remedy = "give the model its values first"
            raise Error("sparsify_", f"values of {site.name} to store", "a weight on the meta device", remedy)
        return ""

    def chosen(self, site: Site, generator: torch.Generator | None) -> Stored:
        weight = site.value
        try:
            layout = self.layout.from_dense(weight, **self.options)
        except (Error, TypeError) as error:
            remedy = "pass what the layout's from_dense asks for, by name"
            raise Error(
                "sparsify_", f"{site.name}.weight in layout {self.layout.name}", str(error), remedy
            ) from error
        return Stored(layout, layout.pack(weight))


@dataclass(frozen=True)
class Stored(Recipe, Chosen):
    """An index and its values: of a weight, or those of a file that is read afterwards."""

    layer: ClassVar[str] = "SparseLinear"

    layout: Layout
    values: Tensor

    def refusal(self, site: Site) -> str:
        return "" if site.form.in_any_layout else f"a {site.kind} has no layer for {self.layout.name}"

    def chosen(self, site: Site, generator: torch.Generator | None) -> Stored:
        return self

    def made(
        self, site: Site, strict: bool = False, dense_copy: bool | Literal["auto"] = False
    ) -> SparseLinear:
        parameter = site.parameter
        layer = _kind(site).holding(self.layout, self.values.to(parameter.device, parameter.dtype))
        layer.values.requires_grad_(parameter.requires_grad)
        return layer


@dataclass(frozen=True)
class Anywhere(Chosen):
    """A layer of a layout that has ``anywhere``, a class method which makes an index of these options; what
    is read afterwards says which elements are stored."""

    layout: Any
    options: dict[str, Any]

    def made(
        self, site: Site, strict: bool = False, dense_copy: bool | Literal["auto"] = False
    ) -> SparseLinear:
        parameter = site.parameter
        layout: Layout = self.layout.anywhere(*site.shape, device=parameter.device, **self.options)
        return _kind(site).holding(layout, layout.pack(parameter.detach().new_zeros(site.shape)))


def _kind(site: Site) -> type[SparseLinear]:
    return site.form.in_any_layout or SparseLinear
