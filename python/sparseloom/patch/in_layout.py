"""InLayout: the recipe for layers whose weight lies in a layout of sparseloom.layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from .. import layouts
from .._arguments import named_init
from ..errors import Error
from ..layouts import Layout
from ..nn import SparseLinear
from ..nn.masked.conv24 import by_taps, of_taps
from ..ops.scores import block_scores
from ..sparsify import ElementSparsifier
from ..sparsify.gradients import Soft
from ..sparsify.select import NM, Semi24
from .masters import Master, refusal_of_master
from .recipe import Chosen, Recipe

if TYPE_CHECKING:
    from ..sparsify import Method
    from .forms import Site


@named_init
class InLayout(Recipe):
    """Says that a layer becomes an nn.SparseLinear: its weight is what the layout stores of it.

    Args:
        layout: the name of a registered layout, or its class; "csr", "coo" and "bitmap" store single
            elements, "nm" and "nmg" n of each m, "tiles" tiles that are dense, 2:4 or absent.
        method: a ``sparsify.Method`` with a dense master, or the name of one, which chooses single elements
            in training: of the layer it makes an nn.MaskedLinear, and ``pack_`` stores what is kept in the
            layout. Its density is ``density``, or n / m, for which the method has select.NM(m); "semi24" is
            2:4, and has no dW.
        start: the ``sparsify.ElementSparsifier`` that says what is kept at first, where the method's density
            is fixed; None for the largest magnitudes.
        options: what the layout's ``from_dense`` asks for. For "csr", "coo" and "bitmap": nothing stores
            the elements that are not zero, ``density=0.1`` the tenth of the largest magnitude, and ``mask``,
            bool of the weight's shape, what it names. For "nm" ``n`` and ``m``, for "nmg" ``g`` beside them.
            Where "nm" and "tiles" store an element that their ``mask`` excludes, it begins as zero.

    nn.Linear becomes one, and transformers' Conv1D, whose weight is stored as [in, out]: its options,
    such as ``mask``, are of [out features, in features]; methods take nn.Linear alone. Raises Error for a
    layout that is not registered, and for a method that cannot choose what it stores.
    """

    layer: ClassVar[str] = "SparseLinear"
    #: Whether ``from_dense`` makes the layout, which then needs all its options.
    _asks_options: ClassVar[bool] = True

    def __init__(
        self,
        layout: str | type[Layout] = "csr",
        method: Method | str | None = None,
        start: ElementSparsifier | None = None,
        **options: Any,
    ) -> None:
        if method is not None:
            from ..sparsify import Method, methods  # most programs train by none

            if not isinstance(method, (str, Method)):
                remedy = "pass what the layout asks for by name: InLayout('csr', density=0.1)"
                raise Error("InLayout", "method to be a Method", repr(method), remedy)
            method = methods.by_name("InLayout", method)
        self.layout = _layout_class(layout)
        whole = self._asks_options and method is None
        layouts.require_options("InLayout", self.layout, options, whole)
        self.options, self.method, self.start = options, method, start
        self.density: float | None = None
        if method is not None:
            self.density = self._target(method)

    def _target(self, method: Method) -> float | None:
        """Returns the density that the method aims at. Raises Error for one that cannot choose what the
        layout stores."""
        op, known_options = "InLayout", set[str]()
        n_of_m = (2, 4) if self.layout.name == "semi24" else None
        if not method.gradient.dense_master:
            got, remedy = type(method.gradient).__name__, "pass gradient=gradients.Masked()"
            raise Error(op, "a method that trains a dense weight", got, remedy)
        if self.layout.name == "nmg":
            got, remedy = "nmg", 'no method shares its patterns among rows: pass "nm" and select.NM'
            raise Error(op, "a layout whose elements a method can choose", got, remedy)
        if self.layout.name == "nm":
            n_of_m, known_options = (self.options.get("n", 2), self.options.get("m", 4)), {"n", "m"}
            if not all(type(number) is int for number in n_of_m) or not 0 < n_of_m[0] < n_of_m[1]:
                got, remedy = f"n={n_of_m[0]!r}, m={n_of_m[1]!r}", "pass n=2, m=4, for example"
                raise Error(op, "whole numbers 0 < n < m", got, remedy)
        elif n_of_m is None:
            known_options = {"density"}
        if extra := self.options.keys() - known_options:
            got, expected = ", ".join(sorted(extra)), ", ".join(sorted(known_options)) or "no option"
            raise Error(op, f"{expected} beside a method", got, "the method chooses what is stored")
        if n_of_m is not None:
            on_device = self.layout.name == "semi24" and isinstance(method.select, Semi24)
            if method.select != NM(n_of_m[1]) and not on_device:
                expected = f"select=select.NM({n_of_m[1]}), since {self.layout.name} stores n of each m"
                raise Error(op, expected, repr(method.select), "see docs/methods.md")
            density: float | None = n_of_m[0] / n_of_m[1]
            self.options = {"n": n_of_m[0], "m": n_of_m[1]} if known_options else {}
        else:
            density, self.options = self.options.get("density"), {}
        soft = self.layout.name == "semi24" and method.select == Semi24("magnitude")
        if isinstance(method.gradient, Soft) and not soft:
            expected = 'select.Semi24("magnitude") beside gradients.Soft(), in the layout semi24'
            raise Error(op, expected, repr(method.select), 'see methods.semi24("s_ste")')
        method.require_target(density)
        return density

    def __repr__(self) -> str:
        if self.method is not None:
            return f"InLayout({self.layout.name!r}, method={self.method!r}, density={self.density})"
        arguments = [repr(self.layout.name), *(f"{name}={value!r}" for name, value in self.options.items())]
        return f"InLayout({', '.join(arguments)})"

    def trained(self) -> tuple[Method, float | None] | None:
        return None if self.method is None else (self.method, self.density)

    def refusal(self, site: Site) -> str:
        if self.method is not None:
            in_training = self.layout.name == "semi24" and not self.method.gradient.gated
            if (reason := refusal_of_master(site, in_training)) or in_training:
                return reason or self._without_values(site)
        if not site.form.in_any_layout:
            return f"a {site.kind} has no layer for the layout {self.layout.name}"
        return self._without_values(site)

    def _without_values(self, site: Site) -> str:
        if site.parameter.is_meta:
            remedy = "give the model its values first"
            raise Error("sparsify_", f"values of {site.name} to store", "a weight on the meta device", remedy)
        return ""

    def chosen(self, site: Site, generator: torch.Generator | None) -> Chosen:
        weight = site.value
        if self.method is not None:
            return self._master(self.method, weight, generator)
        try:
            layout = self.layout.from_dense(weight, **self.options)
        except (Error, TypeError) as error:
            remedy = "pass what the layout's from_dense asks for, by name"
            raise Error(
                "sparsify_", f"{site.name}.weight in layout {self.layout.name}", str(error), remedy
            ) from error
        return Stored(layout, layout.pack(layouts.masked(layout, weight, self.options)))

    def _master(self, method: Method, weight: Tensor, generator: torch.Generator | None) -> Master:
        start: Tensor | None = None
        fixed = self.density is not None and method.schedule.is_fixed(self.density)
        by_layer = isinstance(method.select, Semi24) and self.start is None  # it prunes on its device
        if fixed and not by_layer and not method.gradient.gated:  # whose gate chooses at once
            if self.start is not None:
                start = self.start.select_mask(weight, generator)
            else:
                budgets, inputs = [method.schedule.budget(0, self.density or 0.0)], weight.shape[1]
                by_group = by_taps(weight) if weight.dim() == 3 else weight
                (start,) = method.select([block_scores(by_group, (1, 1), "l1")], budgets)
                start = of_taps(start, inputs) if weight.dim() == 3 else start
        return Master(method, (1, 1), start, self.layout, self.options)


@dataclass(frozen=True)
class Stored(Recipe, Chosen):
    """An index and its values: those of a weight, or those of a file that is read afterwards."""

    layer: ClassVar[str] = "SparseLinear"

    layout: Layout
    values: Tensor

    def refusal(self, site: Site) -> str:
        return "" if site.form.in_any_layout else f"a {site.kind} has no layer for {self.layout.name}"

    def chosen(self, site: Site, generator: torch.Generator | None) -> Stored:
        return self

    def no_copy(self, site: Site) -> str:
        return f"a layer in layout {self.layout.name} keeps none"

    def made(
        self, site: Site, strict: bool = False, dense_copy: bool | Literal["auto"] = False
    ) -> SparseLinear:
        parameter = site.parameter
        layer = _kind(site).holding(self.layout, self.values.to(parameter.device, parameter.dtype))
        layer.values.requires_grad_(parameter.requires_grad)
        layer.strict = strict
        return layer


@dataclass(frozen=True)
class Anywhere(Chosen):
    """A placeholder in a layout with ``anywhere``, a class method that makes an index from these options; the
    file that is read afterwards brings the stored elements."""

    layout: Any
    options: dict[str, Any]

    def made(
        self, site: Site, strict: bool = False, dense_copy: bool | Literal["auto"] = False
    ) -> SparseLinear:
        parameter = site.parameter
        layout: Layout = self.layout.anywhere(*site.shape, device=parameter.device, **self.options)
        layer = _kind(site).holding(layout, layout.pack(parameter.detach().new_zeros(site.shape)))
        layer.strict = strict
        return layer


def _layout_class(layout: Any) -> type[Layout]:
    """Returns the class of a layout. Raises Error for anything but a registered name or a class."""
    if isinstance(layout, str):
        return layouts.get(layout)
    if not (isinstance(layout, type) and issubclass(layout, Layout)):
        raise Error(
            "InLayout",
            "a layout's name or its class",
            repr(layout),
            'pass "csr", "coo", "bitmap", "nm" or "nmg"',
        )
    return layout


def _kind(site: Site) -> type[SparseLinear]:
    return site.form.in_any_layout or SparseLinear
