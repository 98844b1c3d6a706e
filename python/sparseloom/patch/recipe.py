"""Recipe: the base class of what sparsify_ takes for a regex, such as BlockSparse(...) and Semi24(...)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

if TYPE_CHECKING:
    from ..sparsify import Method
    from .forms import Site


class Rule(ABC):
    """Says which of the layers that a regex matches can change."""

    #: The class to make one layer with, for error texts.
    layer: ClassVar[str]
    #: Whether weights change in the layers that there are, and no layer is made.
    in_place: bool = False

    @abstractmethod
    def refusal(self, site: Site) -> str:
        """Returns why a weight of that size stays dense; "" when it can change. Raises Error where leaving it
        dense would hide a mistake."""


class Recipe(Rule):
    """Says what a chosen layer becomes. All its methods are called before anything in the model changes."""

    @abstractmethod
    def chosen(self, site: Site, generator: torch.Generator | None) -> Chosen:
        """Returns the part of a weight that is stored."""

    def trained(self) -> tuple[Method, float | None] | None:
        """Returns the method that changes the weight in training, and its target density; None if the stored
        elements stay the same."""
        return None

    def generator(self) -> torch.Generator | None:
        """Returns the generator that the layers of one sparsify_ call draw from; None stands for torch's
        default one."""
        return None


class Chosen(ABC):
    """The part of one weight that will be stored, while the weight is still dense."""

    def no_copy(self, site: Site) -> str:
        """Returns why the layer can keep no dense copy of its weight; "" when it can."""
        return ""

    @abstractmethod
    def made(self, site: Site, strict: bool, dense_copy: bool | Literal["auto"]) -> Any:
        """Returns the layer, without bias, with the stored part of the weight. ``strict`` and ``dense_copy``
        are those of sparsify_."""
