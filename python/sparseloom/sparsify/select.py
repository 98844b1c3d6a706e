"""The sparsifiers that have names, and Select, the second part of a method."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import pattern as patterns
from .._arguments import named_init
from .._checks import whole
from ..errors import Error
from ..ops import semi24
from ..pattern import Pattern
from .context import Context, Sparsifier


@named_init
@dataclass(frozen=True)
class Magnitude(Sparsifier):
    """Keeps the blocks with the largest norm: "l1" (the sum of |w|), "l2" or "max". Blocks of equal norm are
    taken in the order of their index."""

    norm: str = "l1"

    def __call__(self, context: Context) -> Pattern:
        options = self.norm, context.scope, context.head
        return patterns.from_dense(context.weight, context.block, context.share, *options)


@named_init
@dataclass(frozen=True)
class Random(Sparsifier):
    """Keeps the same share of blocks in every block row, whatever their values."""

    needs_values = False

    def __call__(self, context: Context) -> Pattern:
        return patterns.balanced(*context.shape, context.block, context.share, context.generator)


@named_init
@dataclass(frozen=True)
class StoredBlocks(Sparsifier):
    """Keeps every block that has an element other than zero: the blocks of a weight that is pruned
    already."""

    decides = True

    def __call__(self, context: Context) -> Pattern:
        if context.density is not None:
            got, remedy = f"density={context.density}", 'leave density out, or choose by select="magnitude"'
            raise Error("select", 'no density with select="stored", which keeps what is there', got, remedy)
        return patterns.from_nonzero(context.weight, context.block)


NAMED: dict[str, Sparsifier] = {
    "magnitude": Magnitude("l1"),
    "l2": Magnitude("l2"),
    "max": Magnitude("max"),
    "stored": StoredBlocks(),
    "random": Random(),
}


def sparsifier_of(op: str, select: object, names: Iterable[str] = NAMED, more: str = "") -> Sparsifier:
    """Returns the sparsifier that ``select`` is or names. Raises Error for anything else."""
    names = tuple(names)
    if isinstance(select, Sparsifier):
        return select
    if not isinstance(select, str) or select not in names:
        listed = ", ".join(repr(name) for name in names)
        raise Error(
            op,
            f"select to be one of {listed}{more} or a Sparsifier",
            repr(select),
            'pass select="magnitude"',
        )
    return NAMED[select]


class Select(ABC):
    """The second part of a method: chooses blocks within a budget, from the scores of all its weights."""

    #: Whether budgets are densities. Otherwise the scores decide how much is kept, and no density is given.
    takes_density: ClassVar[bool] = True

    @property
    def leaves_host_out(self) -> bool:
        """Whether ``there`` can choose."""
        return False

    def there(self, scores: Tensor, budget: Tensor) -> Tensor:
        """Returns the mask for the scores of one layer on their device, without waiting for it; ``budget`` is
        float64 [] on that device. A NaN among the scores is not noticed."""
        raise NotImplementedError

    @abstractmethod
    def __call__(self, scores: Sequence[Tensor], budgets: Sequence[float]) -> list[Tensor]:
        """Returns a bool mask for each of the ``scores`` [block rows, block columns]. A weight's budget comes
        from the schedule: a density for TopK, a threshold for Threshold."""

    def take(self, scores: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """Returns the masks of ``counts`` blocks with the highest scores; -inf stands for a block that may
        not be taken. Methods that regrow ask for counts."""
        return [top(layer, count) for layer, count in zip(scores, counts, strict=True)]


@named_init
@dataclass(frozen=True)
class TopK(Select):
    """Keeps exactly round(density * blocks) blocks; ties go to the lowest index.

    ``scope`` says within what blocks compete: "layer", "row" (every block row keeps the same share), or
    "global", where all weights of the method share one budget. Their blocks should be of one shape then.
    """

    scope: str = "layer"

    def __post_init__(self) -> None:
        if self.scope != "global":
            patterns.require_scope("select.TopK", self.scope)

    def __call__(self, scores: Sequence[Tensor], budgets: Sequence[float]) -> list[Tensor]:
        counts = [
            math.floor(share * layer.numel() + 0.5) for layer, share in zip(scores, budgets, strict=True)
        ]
        return self.take(scores, counts)

    @property
    def leaves_host_out(self) -> bool:
        return self.scope == "layer"

    def there(self, scores: Tensor, budget: Tensor) -> Tensor:
        return _top_there(scores, (budget * scores.numel() + 0.5).floor())

    def take(self, scores: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        if self.scope != "global":
            return [top(layer, count, self.scope) for layer, count in zip(scores, counts, strict=True)]
        for layer in scores:
            require_numbers(layer)
        flat = torch.cat([layer.flatten() for layer in scores])
        parts = top(flat[None], sum(counts)).flatten().split([layer.numel() for layer in scores])
        return [part.view_as(layer) for part, layer in zip(parts, scores, strict=True)]


@named_init
@dataclass(frozen=True)
class NM(Select):
    """Keeps the round(density * m) best of every ``m`` consecutive ones of a row, as n:m masks do; ties go to
    the lowest index. A last group of fewer than m keeps at most as many.

    With single elements (``InLayout(method=...)``) they are those of n:m weights; with blocks whole blocks
    are n:m. It takes no counts, so that nothing regrows. Raises Error for m < 1.
    """

    m: int = 4

    def __post_init__(self) -> None:
        whole("select.NM", "m", self.m, 1)

    def __call__(self, scores: Sequence[Tensor], budgets: Sequence[float]) -> list[Tensor]:
        for layer in scores:
            if layer.is_cpu:
                require_numbers(layer)
        return [
            self._mask(layer, math.floor(share * self.m + 0.5))
            for layer, share in zip(scores, budgets, strict=True)
        ]

    @property
    def leaves_host_out(self) -> bool:
        return True

    def there(self, scores: Tensor, budget: Tensor) -> Tensor:
        return self._mask(scores, (budget * self.m + 0.5).floor())

    def _mask(self, scores: Tensor, n: int | Tensor) -> Tensor:
        cols = scores.shape[1]
        # -inf ranks last, also among equal scores, so that the padding is never chosen
        padded = torch.nn.functional.pad(scores, (0, -cols % self.m), value=-math.inf)
        return (_ranks(padded.unflatten(1, (-1, self.m))) < n).flatten(1)[:, :cols]

    def take(self, scores: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """Raises Error: n of each m is no count."""
        raise Error("select.NM", "a density", "counts, which Regrow asks for", "use select.TopK() to regrow")


@named_init
@dataclass(frozen=True)
class Semi24(Select):
    """Keeps two of every four consecutive ones of a row, for 2:4 weights; where the budget is 1, everything.

    ``prune`` is "magnitude", or "transposable_greedy" or "transposable_exact", which leave at most two of
    four in the columns as well, so that W^T is 2:4 for dX. With ``scores.Norm`` the layer chooses on its
    device, by |w|. It takes no counts, so that nothing regrows. Raises Error for another ``prune``.
    """

    prune: str = "transposable_greedy"

    def __post_init__(self) -> None:
        if self.prune not in semi24.METHODS:
            semi24.require_method("select.Semi24", repr(self.prune) if self.prune is None else self.prune)

    def __call__(self, scores: Sequence[Tensor], budgets: Sequence[float]) -> list[Tensor]:
        for layer in scores:
            require_numbers(layer)
        return [
            torch.ones(layer.shape, dtype=torch.bool, device=layer.device)
            if budget >= 1
            else semi24.mask(layer, self.prune)
            for layer, budget in zip(scores, budgets, strict=True)
        ]

    def take(self, scores: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """Raises Error: two of four is no count."""
        raise Error("select.Semi24", "a density", "counts, which Regrow asks for", "use select.TopK()")


@named_init
@dataclass(frozen=True)
class Threshold(Select):
    """Keeps the blocks whose score exceeds the budget, which is a threshold here; at least ``least`` of them,
    the best ones, so that a weight cannot vanish by accident."""

    takes_density: ClassVar[bool] = False
    least: float = 0.005

    def __call__(self, scores: Sequence[Tensor], budgets: Sequence[float]) -> list[Tensor]:
        masks = []
        for layer, threshold in zip(scores, budgets, strict=True):
            require_numbers(layer)
            masks.append((layer > threshold) | top(layer, math.ceil(self.least * layer.numel())))
        return masks


def top(scores: Tensor, count: int, scope: str = "layer") -> Tensor:
    """Returns the mask of the ``count`` highest scores that are not -inf, or of as many as there are. Scores
    of one layer on a GPU stay there, and the host waits for nothing; a NaN among them is not noticed."""
    if not scores.is_cpu:
        if scope == "layer":
            return _top_there(scores, count)
        return _top_here(scores.cpu(), count, scope).to(scores.device)
    return _top_here(scores, count, scope)


def _top_here(scores: Tensor, count: int, scope: str) -> Tensor:
    require_numbers(scores)
    allowed = scores > -math.inf
    rows, cols = scores.shape
    # The operator only counts blocks, so their shape does not matter.
    mask = patterns.top_k(rows * 8, cols * 8, 8, scores, min(count, scores.numel()), scope).mask & allowed
    needed = min(count, int(allowed.sum()))
    if (short := needed - int(mask.sum())) > 0:  # a row had fewer candidates than its share
        remaining = scores.masked_fill(mask, -math.inf)
        mask |= patterns.top_k(rows * 8, cols * 8, 8, remaining, short).mask
    return mask


def _top_there(scores: Tensor, count: int | Tensor) -> Tensor:
    return (_ranks(scores.flatten()).view_as(scores) < count) & (scores > -math.inf)


def _ranks(scores: Tensor) -> Tensor:
    """Returns the rank of each score along the last dimension, 0 for the highest; ties by lowest index."""
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter(-1, order, places)


def require_numbers(scores: Tensor) -> None:
    """Raises Error for scores of which one is NaN."""
    if bool(scores.isnan().any()):
        row, col = scores.isnan().nonzero()[0].tolist()
        remedy = "look for a NaN in the weight or its gradient"
        raise Error("select", "scores without NaN", f"NaN at block row {row}, block column {col}", remedy)
