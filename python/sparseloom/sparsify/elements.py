"""Sparsifiers that choose single elements: those of STen's table (Ivanov et al. 2023, arXiv 2304.07613).

A *fraction* is what is removed, as in STen: ``ScalarFraction(.9)`` removes 90 %. A *density* is what is kept,
here as everywhere else. Magnitudes are compared: the sign of an element never decides, NaN counts as Inf, and
of elements that compare equal the one with the lowest index stays.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import pattern as patterns
from .._numbers import share, whole
from .._scores import scores_on_device
from ..errors import Error
from ..pattern import Pattern
from .context import Context, Sparsifier


class ElementSparsifier(Sparsifier):
    """Chooses the elements of a tensor that stay; a class of yours writes ``select_mask``.

    Where blocks are asked for (``BlockSparse(select=ScalarThreshold(.1))``), the blocks stay that hold an
    element that stays; the density asked for is ignored, since the sparsifier decides it.
    """

    #: "streaming": each element alone decides. "blocking": the elements of one small block decide.
    #: "materialising": all elements decide, so that none is known to stay before the last one was read.
    kind: ClassVar[str] = "materialising"

    #: How often the tensor is read to choose and to take what stays.
    passes: ClassVar[int] = 2

    #: What it holds beside the tensor and the result; nnz counts what stays and b the elements of a block.
    memory: ClassVar[str] = "O(nnz)"

    @abstractmethod
    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Returns a bool tensor of the shape and on the device of ``dense``: True stays.

        ``dense`` is a strided tensor of any shape; ``generator`` is what random choices draw from, torch's
        default one where it is None. Raises Error for a tensor that is sparse, complex or no tensor.
        """

    def select(self, context: Context) -> Tensor:
        """Returns the mask of the context's weight; a sparsifier that looks at more overrides it."""
        return self.select_mask(context.weight, context.generator)

    def __call__(self, context: Context) -> Pattern:
        (rows, cols), (bm, bn) = context.shape, context.block
        any_of_block = scores_on_device(self.select(context).float(), (bm, bn), "max") > 0
        return patterns.from_mask(rows, cols, (bm, bn), any_of_block.cpu())


@dataclass(frozen=True)
class KeepAll(ElementSparsifier):
    """Keeps every element, zeros included."""

    kind, passes, memory = "streaming", 1, "O(1)"
    needs_values = False

    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.ones_like(_strided(self, dense), dtype=torch.bool)


@dataclass(frozen=True)
class RandomFraction(ElementSparsifier):
    """Removes each element with probability ``fraction``, alone and whatever its value, as dropout does.

    Raises Error for a fraction outside [0, 1].
    """

    fraction: float
    kind, passes, memory = "streaming", 1, "O(1)"
    needs_values = False

    def __post_init__(self) -> None:
        _require_fraction(self, self.fraction)

    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        dense, seed = _strided(self, dense), patterns.draw_seed(generator)
        if dense.is_meta:
            return torch.empty_like(dense, dtype=torch.bool)
        own = torch.Generator(dense.device).manual_seed(seed)
        drawn = torch.rand(dense.shape, generator=own, device=dense.device, dtype=torch.float64)
        return drawn >= self.fraction


@dataclass(frozen=True)
class ScalarThreshold(ElementSparsifier):
    """Keeps the elements with |x| > ``threshold``, and NaN: with 0 what is not zero, which behind a ReLU is
    what it let pass. Raises Error for a negative threshold or NaN."""

    threshold: float
    kind, passes, memory = "streaming", 1, "O(1)"

    def __post_init__(self) -> None:
        if not share(_name(self), self.threshold, "threshold") >= 0:
            remedy = "magnitudes are compared: pass 0 to keep what is not zero"
            raise Error(_name(self), "a threshold >= 0", repr(self.threshold), remedy)

    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return ~(_strided(self, dense).abs() <= self.threshold)


@dataclass(frozen=True)
class ScalarFraction(ElementSparsifier):
    """Removes the ``fraction`` of all elements that is smallest in magnitude: exactly round(fraction * n) of
    n elements, with halves rounded up. Raises Error for a fraction outside [0, 1]."""

    fraction: float
    kind, passes, memory = "materialising", 2, "O(nnz)"

    def __post_init__(self) -> None:
        _require_fraction(self, self.fraction)

    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return largest(_strided(self, dense), self.fraction)


@dataclass(frozen=True)
class BlockwiseFraction(ElementSparsifier):
    """Removes the ``fraction`` of all blocks whose sum of magnitudes is smallest: exactly round(fraction *
    n) of n blocks, with halves rounded up.

    ``block`` is (rows, columns) of a block, or one number for both, over the tensor as a matrix [first size,
    product of the others]; blocks at its edges may be smaller. Raises Error for a fraction outside [0, 1] or
    a side below 1.
    """

    fraction: float
    block: int | tuple[int, int]
    kind, passes, memory = "materialising", 2, "O(nnz)"

    def __post_init__(self) -> None:
        _require_fraction(self, self.fraction)
        for side in self._sides():
            whole(_name(self), "block", side, 1)

    def _sides(self) -> tuple[int, int]:
        return patterns.block_shape(_name(self), self.block)

    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        matrix = _as_matrix(_strided(self, dense))
        bm, bn = self._sides()
        stays = largest(scores_on_device(matrix, (bm, bn), "l1"), self.fraction)
        rows, cols = matrix.shape
        spread = stays.repeat_interleave(bm, 0)[:rows].repeat_interleave(bn, 1)[:, :cols]
        return spread.reshape(dense.shape)


@dataclass(frozen=True)
class PerBlockNM(ElementSparsifier):
    """Keeps the ``n`` elements that are largest in magnitude of every ``m`` consecutive ones of a row (n:m).

    Rows are those of the tensor as a matrix [first size, product of the others], for a linear weight [out
    features, in features]. Of a last group with less than m elements it keeps at most n. Raises Error unless
    1 <= n <= m.
    """

    n: int
    m: int
    kind, passes, memory = "blocking", 2, "O(b)"

    def __post_init__(self) -> None:
        if whole(_name(self), "n", self.n, 1) > whole(_name(self), "m", self.m, 1):
            got = f"n={self.n} and m={self.m}"
            raise Error(_name(self), "1 <= n <= m", got, "PerBlockNM(2, 4) keeps two of four")

    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        matrix = _as_matrix(_strided(self, dense))
        rows, cols = matrix.shape
        groups = -(-cols // self.m)
        # -1 lies below every magnitude, so that what lies beyond the edge never takes a place.
        padded = torch.nn.functional.pad(magnitudes(matrix), (0, groups * self.m - cols), value=-1.0)
        order = padded.reshape(rows, groups, self.m).argsort(dim=-1, descending=True, stable=True)
        stays = torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order[..., : self.n], True)
        return stays.flatten(1)[:, :cols].reshape(dense.shape)


@dataclass(frozen=True, eq=False)
class SameFormat(ElementSparsifier):
    """Keeps what was kept before: re-applies a mask after an optimizer wrote into the dense tensor.

    ``mask`` is the bool tensor of what stays. Without one, it stands for the elements that the layout of the
    tensor that is sparsified again stores, which that layout's implementation knows; ``select_mask`` then
    raises Error.
    """

    mask: Tensor | None = None
    kind, passes, memory = "streaming", 1, "O(1)"
    needs_values = False

    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        dense = _strided(self, dense)
        if self.mask is None:
            remedy = "pass SameFormat(mask), or sparsify a tensor that has a layout already"
            raise Error(_name(self), "the mask of what was kept before", "none", remedy)
        if self.mask.dtype != torch.bool or self.mask.shape != dense.shape:
            got = f"{self.mask.dtype} {list(self.mask.shape)}"
            raise Error(_name(self), f"a bool mask {list(dense.shape)}", got, "pass the tensor's own mask")
        return self.mask.to(dense.device)


class Learned(ElementSparsifier):
    """The base of sparsifiers that learn what stays (movement pruning, l0 gates, supermasks).

    A class of yours writes ``scores`` and keeps what it learns where it likes, as a Parameter of its own.
    The ``fraction`` of all elements with the lowest scores is removed: exactly round(fraction * n) of n, with
    halves rounded up. Raises Error for a fraction outside [0, 1].
    """

    kind, passes, memory = "materialising", 2, "O(nnz)"

    def __init__(self, fraction: float) -> None:
        _require_fraction(self, fraction)
        self.fraction = fraction

    @abstractmethod
    def scores(self, context: Context) -> Tensor:
        """Returns a number for each element of ``context.weight``, in its shape: the highest stay."""

    def select(self, context: Context) -> Tensor:
        scores = self.scores(context)
        if scores.shape != context.weight.shape:
            expected = f"scores {list(context.weight.shape)}, one for each element"
            raise Error(_name(self), expected, str(list(scores.shape)), "return them in the weight's shape")
        return highest(scores.detach().to(context.weight.device), self.fraction)

    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.select(Context(_strided(self, dense), generator=generator))


def magnitudes(dense: Tensor) -> Tensor:
    """Returns |x| in a dtype that compares exactly, with Inf in the place of NaN."""
    return (
        dense.detach()
        .abs()
        .to(torch.promote_types(dense.dtype, torch.float32))
        .nan_to_num(math.inf, math.inf)
    )


def largest(dense: Tensor, fraction: float) -> Tensor:
    """Returns the mask that removes the fraction of all elements that is smallest in magnitude."""
    return highest(magnitudes(dense), fraction)


def highest(scores: Tensor, fraction: float) -> Tensor:
    """Returns the mask that removes that fraction of all scores, the lowest; ties go to the lowest index."""
    kept = scores.numel() - math.floor(fraction * scores.numel() + 0.5)
    order = scores.flatten().argsort(dim=0, descending=True, stable=True)
    mask = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
    return mask.index_fill_(0, order[:kept], True).reshape(scores.shape)


def _name(sparsifier: ElementSparsifier) -> str:
    return type(sparsifier).__name__


def _strided(sparsifier: ElementSparsifier, dense: Tensor) -> Tensor:
    is_tensor = isinstance(dense, Tensor)
    if not is_tensor or dense.layout != torch.strided or dense.is_nested or dense.is_complex():
        got = f"{dense.layout} {dense.dtype}" if is_tensor else type(dense).__name__
        raise Error(_name(sparsifier), "a strided tensor of real numbers", got, "convert it with .to_dense()")
    return dense.detach()


def _as_matrix(dense: Tensor) -> Tensor:
    """Returns the tensor as [first size, product of the others]; of one dimension as a single row."""
    return dense.flatten(1) if dense.dim() > 1 else dense.reshape(1, -1)


def _require_fraction(sparsifier: ElementSparsifier, fraction: object) -> None:
    if not 0 <= share(_name(sparsifier), fraction, "fraction") <= 1:
        remedy = "a fraction is what is removed: 0.9 keeps a tenth"
        raise Error(_name(sparsifier), "a fraction in [0, 1]", repr(fraction), remedy)
