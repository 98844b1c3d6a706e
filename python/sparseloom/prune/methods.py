"""Chooses what is kept of one weight, and its values: by magnitude, Wanda, SparseGPT or a sparsifier."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import pattern as patterns
from .._checks import require_bool, share, whole
from ..errors import Error
from ..layouts import Tiles
from ..layouts.tiles import DENSE, HALF, half_share, kinds_of_costs
from ..nn.masked.conv24 import by_taps, of_taps
from ..patch.forms import Site
from ..pattern import Pattern, block_shape
from ..sparsify import Context, ElementSparsifier, Sparsifier
from ..sparsify.elements import PerBlockNM, highest
from . import solve
from .statistics import Statistics
from .targets import Target

_OP = "prune_"
NAMES = ("magnitude", "wanda", "sparsegpt")
#: Tokens without which a norm says nothing.
_LEAST_TOKENS = 64
#: Steps of the least squares for blocks, whose rows all keep the same inputs.
_BLOCK_STEPS = 64


@dataclass(frozen=True)
class Method:
    """How elements are chosen and what happens to the others; the arguments are those of ``prune_``."""

    name: str | Sparsifier
    damping: float = 0.01
    swaps: int = 0
    refit: int = 0
    quantize: str | None = None
    compensate_bias: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, Sparsifier) and self.name not in NAMES:
            listed = ", ".join(map(repr, NAMES))
            remedy = 'pass method="sparsegpt"'
            raise Error(_OP, f"method to be one of {listed} or a Sparsifier", repr(self.name), remedy)
        if not 0 < share(_OP, self.damping, "damping") < math.inf:
            remedy = "it is a share of the Hessian's mean diagonal: 0.01"
            raise Error(_OP, "damping > 0", repr(self.damping), remedy)
        whole(_OP, "swaps", self.swaps)
        whole(_OP, "refit", self.refit)
        require_bool(_OP, "compensate_bias", self.compensate_bias)
        if self.quantize not in (None, *solve.GRIDS):
            got, remedy = repr(self.quantize), "leave it out for float weights"
            raise Error(_OP, f"quantize to be one of {', '.join(map(repr, solve.GRIDS))}", got, remedy)

    @property
    def needs_hessian(self) -> bool:
        """Whether the mean of x x^T decides."""
        own = isinstance(self.name, Sparsifier)
        return own or self.solves

    @property
    def solves(self) -> bool:
        """Whether the Hessian is solved with."""
        return self.name == "sparsegpt" or self.swaps > 0 or self.refit > 0 or self.quantize is not None

    @property
    def needs_data(self) -> bool:
        """Whether the layers' inputs decide."""
        return self.needs_hessian or self.name == "wanda" or self.compensate_bias

    def least_tokens(self, cols: int) -> int:
        """Returns how many tokens a layer with that many inputs has to see: where the inverse of the Hessian
        decides, as many as give it full rank."""
        return cols if self.solves else _LEAST_TOKENS if self.needs_data else 0


@dataclass(frozen=True)
class Outcome:
    """What is kept of a weight: the pattern or bool mask, and the weight [out, in] with zeros elsewhere."""

    chosen: Pattern | Tensor
    mask: Tensor
    values: Tensor
    swaps: int = 0


class Solver:
    """The damped Hessian and its inverse, for as long as the weights that are asked for share one."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self._of: Tensor | None = None
        self._damped: Tensor | None = None
        self._inverse: Tensor | None = None

    def damped(self, hessian: Tensor) -> Tensor:
        """Returns the damped Hessian in float64."""
        if self._of is not hessian or self._damped is None:
            self._of, self._inverse = hessian, None
            self._damped = solve.damped(hessian, self._method.damping)
        return self._damped

    def inverse(self, hessian: Tensor) -> Tensor:
        """Returns its inverse. Raises Error if it is not positive definite."""
        matrix = self.damped(hessian)
        if self._inverse is None:
            self._inverse = solve.inverse_of(matrix)
        return self._inverse


def pruned(
    method: Method, site: Site, target: Target, known: Statistics, density: float | None, solver: Solver
) -> Outcome:
    """Returns what the method keeps of the site's weight. ``density`` is the budget of targets that have
    one. Raises Error for a choice that does not fit the target."""
    if not target.taps_first(site):
        return _pruned(method, site, target, known, density, solver)
    if isinstance(method.name, Sparsifier):
        remedy = 'pass method="sparsegpt"'
        raise Error(_OP, f"a named method for {site.name}, a 2:4 convolution", repr(method.name), remedy)
    inputs = site.shape[1]
    found = _pruned(method, site, target, _by_taps(known, inputs), density, Solver(method))
    mask, values = (of_taps(each, inputs).flatten(1) for each in (found.mask, found.values))
    return Outcome(mask, mask, values, found.swaps)


def _by_taps(known: Statistics, inputs: int) -> Statistics:
    """Returns statistics with the taps before the inputs, and zeros where by_taps pads."""

    def ordered(x: Tensor | None) -> Tensor | None:
        return None if x is None else by_taps(x.unflatten(-1, (inputs, -1)))

    hessian = ordered(known.hessian)
    if hessian is not None:
        hessian = by_taps(hessian.t().unflatten(-1, (inputs, -1))).t().contiguous()
    weight = by_taps(known.weight.unflatten(-1, (inputs, -1)))
    return Statistics(weight, known.tokens, ordered(known.squares), hessian, ordered(known.means))


def _pruned(
    method: Method, site: Site, target: Target, known: Statistics, density: float | None, solver: Solver
) -> Outcome:
    weight, hessian = known.weight.detach(), known.hessian
    inverse = matrix = None
    if hessian is not None and method.solves:
        matrix = solver.damped(hessian)
        inverse = solver.inverse(hessian) if method.name == "sparsegpt" else None
        weight = weight.masked_fill(hessian.diagonal() == 0, 0)  # what only ever meets zeros
    values: Tensor = weight
    if inverse is not None and target.kind != "blocks" and _chooses(method, target):
        values, mask = _swept(weight, inverse, target, density)
        chosen: Pattern | Tensor = mask
    else:
        chosen = _chosen(method, site, target, known, weight, inverse, density)
        mask = elements_of(chosen, weight.shape[1] // site.shape[1]).to(weight.device)
        if inverse is not None and target.kind != "blocks":
            values, _ = solve.swept(weight, inverse, mask)
    count = 0
    if method.swaps and target.kind in ("n:m", "elements") and target.fixed is None:
        assert matrix is not None
        values, mask, count = solve.swapped(weight, values, matrix, mask, target.m, method.swaps)
        chosen = mask
    steps = method.refit or (_BLOCK_STEPS if inverse is not None and target.kind == "blocks" else 0)
    if steps and matrix is not None:
        values = solve.refitted(weight, values, mask, matrix, steps)
    if method.quantize is not None and hessian is not None:
        values = values.masked_fill(~mask, 0)
        grid = solve.Grid.of(values, mask, weight.dtype, method.quantize)
        values, _ = solve.swept(values, solver.inverse(hessian), mask, grid=grid)
    return Outcome(chosen, mask, values.to(weight.dtype).masked_fill(~mask, 0), count)


def elements_of(chosen: Pattern | Tensor, taps: int = 1) -> Tensor:
    """Returns which elements of the weight are kept, bool [out features, in features x taps]."""
    if isinstance(chosen, Tensor):
        return chosen
    bm, bn = chosen.block
    whole = chosen.mask.repeat_interleave(bm, 0).repeat_interleave(bn * taps, 1)
    return whole[: chosen.rows, : chosen.cols * taps]


def _chooses(method: Method, target: Target) -> bool:
    return target.fixed is None and target.sparsifier is None and not isinstance(method.name, Sparsifier)


def _swept(weight: Tensor, inverse: Tensor, target: Target, density: float | None) -> tuple[Tensor, Tensor]:
    if target.kind == "n:m":
        if target.m <= 32:
            return solve.swept(weight, inverse, n=target.n, m=target.m)
        costs = (weight.double().square() / inverse.diagonal()).float()
        return solve.swept(weight, inverse, PerBlockNM(target.n, target.m).select_mask(costs))
    if target.kind == "tiles":
        return _swept_tiles(weight, inverse, target, density or 0.0)
    rows, taken, share = len(weight), 0, density or 0.0

    def choose(costs: Tensor, begin: int, end: int) -> Tensor:
        nonlocal taken
        count = math.floor(share * rows * end + 0.5) - taken  # of all columns so far, less those taken
        taken += count
        return highest(costs, 1 - count / costs.numel())

    return solve.swept(weight, inverse, choose=choose)


def _swept_tiles(weight: Tensor, inverse: Tensor, target: Target, density: float) -> tuple[Tensor, Tensor]:
    """Chooses the kinds of the tiles by the error of each, and the elements of 2:4 tiles as the sweep comes
    to them."""
    side = target.block
    assert isinstance(side, int)
    kinds = kinds_of_costs(*solve.tile_errors(weight, inverse, side), density, half_share(weight.dtype))
    kinds = kinds.repeat_interleave(side, 0).repeat_interleave(side, 1)[: len(weight), : weight.shape[1]]

    def choose(costs: Tensor, begin: int, end: int) -> Tensor:
        here = kinds[:, begin:end]
        return (here == DENSE) | ((here == HALF) & PerBlockNM(2, 4).select_mask(costs))

    return solve.swept(weight, inverse, choose=choose)


def _chosen(
    method: Method,
    site: Site,
    target: Target,
    known: Statistics,
    weight: Tensor,
    inverse: Tensor | None,
    density: float | None,
) -> Pattern | Tensor:
    if target.fixed is not None:
        return target.fixed
    own = target.sparsifier or (method.name if isinstance(method.name, Sparsifier) else None)
    if own is not None:
        return _by_sparsifier(own, site, target, known, density)
    if target.kind == "blocks":
        return _blocks(method, site, target, known, weight, inverse, density or 0.0)
    scores = weight.abs().float()
    if method.name == "wanda":
        assert known.squares is not None
        scores = scores * known.squares.sqrt().float()
    if target.kind == "tiles":
        assert isinstance(target.block, int)
        return Tiles.from_dense(weight, density or 0.0, target.block, scores.square()).mask()
    if target.kind == "n:m":
        return PerBlockNM(target.n, target.m).select_mask(scores)
    if method.name == "wanda":  # elements of one output compete (Sun et al. 2023, arXiv 2306.11695)
        count = math.floor((density or 0.0) * scores.shape[1] + 0.5)
        if count == 0:
            return torch.zeros_like(scores, dtype=torch.bool)
        return PerBlockNM(count, scores.shape[1]).select_mask(scores)
    return highest(scores, 1 - (density or 0.0))


def _blocks(
    method: Method,
    site: Site,
    target: Target,
    known: Statistics,
    weight: Tensor,
    inverse: Tensor | None,
    density: float,
) -> Pattern:
    sides, inputs = block_shape(_OP, target.block), site.shape[1]
    options = target.scope, target.head_of(site)
    taps = weight.shape[1] // inputs
    if method.name == "sparsegpt":
        assert inverse is not None
        whitened = _over_taps(solve.whitened(weight, inverse, sides[1] * taps), inputs)
        return patterns.from_dense(whitened, sides, density, "l2", *options)
    if method.name == "wanda":
        assert known.squares is not None
        scores = _over_taps(weight.float() * known.squares.sqrt().float(), inputs)
        return patterns.from_dense(scores, sides, density, "l2", *options)
    ranked = site.form.ranked(weight.view(site.value.shape))
    return patterns.from_dense(ranked, sides, density, "l1", *options)


def _over_taps(scores: Tensor, inputs: int) -> Tensor:
    """Returns [out features, in features]: the root of the sum of squares over a convolution's taps."""
    return scores if scores.shape[1] == inputs else scores.unflatten(1, (inputs, -1)).norm(dim=2)


def _by_sparsifier(
    own: Sparsifier, site: Site, target: Target, known: Statistics, density: float | None
) -> Pattern | Tensor:
    sides = block_shape(_OP, target.block) if target.kind == "blocks" else (1, 1)
    gradient = site.parameter.grad
    if known.weight.shape[1] != site.shape[1]:  # what a sparsifier sees of a convolution, as in sparsify_
        context = Context(site.form.ranked(site.value), sides, density, target.scope)
        return own(context)
    context = Context(
        known.weight,
        sides,
        density,
        target.scope,
        gradient=None if gradient is None else site.matrix(gradient),
        input_statistics=known.squares,
        hessian=known.hessian,
        head=target.head_of(site),
    )
    if target.kind == "blocks":
        return own(context)
    if not isinstance(own, ElementSparsifier):
        remedy = "derive it from ElementSparsifier"
        raise Error(_OP, f"a sparsifier of single elements for {site.name}", type(own).__name__, remedy)
    mask = own.select(context)
    if mask.dtype != torch.bool or mask.shape != known.weight.shape:
        got = f"{mask.dtype} {list(mask.shape)}"
        raise Error(_OP, f"a bool mask {list(known.weight.shape)} for {site.name}", got, "return such a mask")
    return mask
