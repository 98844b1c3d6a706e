"""Target: what a recipe of sparsify_ stores of a weight, and that recipe with the elements fixed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from .. import pattern as patterns
from ..errors import Error
from ..patch import BlockSparse, InLayout, Semi24
from ..patch.forms import Site
from ..patch.heads import head_of
from ..patch.recipe import Recipe, Rule
from ..pattern import Block, Head, Pattern
from ..sparsify import Sparsifier
from ..sparsify.elements import SameFormat

if TYPE_CHECKING:
    from ..sparsify import Method

_OP = "prune_"
#: Forms of which it is known what their weights multiply.
_OBSERVED = (
    "LinearForm", "Conv1DForm", "Conv1x1Form", "ConvForm", "ConvTransposeForm", "AttentionForm",
    "RecurrentForm",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """The structure of what is kept. ``kind`` is "blocks", "n:m" (``n`` of each ``m`` inputs), "tiles" (of
    side ``block``, each dense, 2:4 or absent; the density is of bytes) or "elements"; ``fixed`` is a choice
    that the recipe brings: a Pattern, or a bool mask."""

    kind: str
    recipe: Recipe
    density: float | None = None
    block: Block = 32
    n: int = 0
    m: int = 0
    fixed: Pattern | Tensor | None = None
    sparsifier: Sparsifier | None = None  # the recipe's own choice, in place of the method's
    scope: str = "layer"
    head: Head | None = None

    def head_of(self, site: Site) -> Head | None:
        """Returns the size of a head for scope "head", as BlockSparse finds it."""
        return None if self.scope != "head" else self.head or head_of(site)

    @property
    def needs_mask(self) -> bool:
        """Whether the recipe has to be told which elements are kept: a 2:4 weight shows its own zeros."""
        return self.kind != "blocks" and not isinstance(self.recipe, Semi24)

    def pattern_of(self, mask: Tensor) -> Pattern:
        """Returns the pattern of the blocks of a mask of whole blocks, bool [out features, in features]."""
        return patterns.from_nonzero(mask.float(), self.block)

    def untouched(self) -> Recipe:
        """Returns the recipe for a weight whose elements sparsify_ is to choose, by magnitude."""
        return Semi24("magnitude") if isinstance(self.recipe, Semi24) else self.recipe

    def taps_first(self, site: Site) -> bool:
        """Returns whether groups of ``m`` are inputs of one tap, as a 2:4 convolution wants them."""
        return self.kind == "n:m" and site.value.dim() == 3

    def recipe_with(self, chosen: Pattern | Tensor | None) -> Recipe:
        """Returns the recipe that stores these blocks, or these elements in the shape of a site's value."""
        if isinstance(self.recipe, BlockSparse):
            assert isinstance(chosen, Pattern)
            return replace(self.recipe, density=None, select=chosen, scope="layer", seed=None, head=None)
        if isinstance(self.recipe, Semi24):
            return Semi24()  # the weight is 2:4 by now
        assert isinstance(self.recipe, InLayout) and isinstance(chosen, Tensor)
        layout, method = self.recipe.layout, self.recipe.method
        sizes: dict[str, Any] = {"n": self.n, "m": self.m} if layout.name == "nm" else {}
        if self.kind == "tiles":
            sizes = {"side": self.block}
        if method is None:
            return InLayout(layout, mask=chosen, **sizes)
        sizes |= {} if self.kind == "n:m" else {"density": self.density}
        return InLayout(layout, method=method, start=SameFormat(chosen), **sizes)


def target_of(regex: str, recipe: object) -> Target:
    """Returns the structure that a recipe asks for. Raises Error for one that one-shot pruning cannot
    choose."""
    if isinstance(recipe, BlockSparse):
        _require_fixed(regex, recipe.method, recipe.aim)
        if isinstance(recipe.select, Pattern):
            return Target("blocks", recipe, recipe.aim, recipe.select.block, fixed=recipe.select)
        own = None if recipe.select == "magnitude" else recipe.sparsifier
        sizes = recipe.density, recipe.shape
        return Target("blocks", recipe, *sizes, sparsifier=own, scope=recipe.scope, head=recipe.head)
    if isinstance(recipe, Semi24) and recipe.method is not None:
        recipe = InLayout("semi24", method=recipe.method)
    if isinstance(recipe, Semi24):
        if recipe.prune not in (None, "magnitude"):
            remedy = "pass Semi24(); sparsify_ makes transposable masks"
            raise Error(_OP, f"Semi24() for {regex!r}", repr(recipe), remedy)
        return Target("n:m", recipe, 0.5, n=2, m=4)
    if not isinstance(recipe, InLayout):
        remedy = "pass BlockSparse(block=32, density=0.5), Semi24(), or InLayout('csr', density=0.5)"
        raise Error(_OP, f"a BlockSparse, Semi24 or InLayout for {regex!r}", repr(recipe), remedy)
    _require_fixed(regex, recipe.method, recipe.density)
    options, name = recipe.options, recipe.layout.name
    fixed = options.get("mask")
    if name == "semi24":
        return Target("n:m", recipe, 0.5, n=2, m=4)
    if name == "nm" and {"n", "m"} <= options.keys():
        n, m = options["n"], options["m"]
        return Target("n:m", recipe, n / m, n=n, m=m, fixed=fixed)
    if name == "tiles" and recipe.method is None:
        return Target("tiles", recipe, options.get("density", 0.6), options.get("side", 64), fixed=fixed)
    density = recipe.density if recipe.method is not None else options.get("density")
    if name in ("csr", "coo", "bitmap") and (fixed is not None or density is not None):
        return Target("elements", recipe, density, fixed=fixed)
    remedy = "pass InLayout('csr', density=0.5) or InLayout('nm', n=2, m=4)"
    raise Error(_OP, f"elements that a method can choose for {regex!r}", repr(recipe), remedy)


def _require_fixed(regex: str, method: Method | None, density: float | None) -> None:
    if method is not None and (density is None or not method.schedule.is_fixed(density)):
        remedy = "pass a method whose schedule is fixed, or sparsify_ with it instead"
        raise Error(_OP, f"a method for {regex!r} that starts at its density", repr(method), remedy)


@dataclass(frozen=True)
class Pending(Rule):
    """Chooses the layers of a target, whose elements are chosen later."""

    layer: ClassVar[str] = "sparse layer"

    target: Target
    observes: bool  # whether the choice needs the layer's inputs
    in_place: bool = False

    def refusal(self, site: Site) -> str:
        if reason := self.target.recipe.refusal(site):
            return reason
        if site.holder[1] == "original":
            return "torch.ao.pruning masks its weight: call its squash_mask first"
        if self.observes and not observed(site):
            return f'the inputs of a {site.kind} are not observed: prune it by method="magnitude"'
        return ""


def observed(site: Site) -> bool:
    """Returns whether it is known what a weight multiplies."""
    return type(site.form).__name__ in _OBSERVED
