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

from .. import ops
from .. import pattern as patterns
from .._arguments import named_init
from .._checks import share, whole
from ..errors import Error
from ..ops.scores import scores_on_device
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

    #: What it holds beside tensor and result; nnz counts what stays, b the elements of a block, n all.
    memory: ClassVar[str] = "O(nnz)"

    #: Whether everything stays, so that there is nothing to choose.
    keeps_all: ClassVar[bool] = False

    @abstractmethod
    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Returns a bool tensor of the shape and on the device of ``dense``: True stays.

        ``dense`` is a strided tensor of any shape; ``generator`` is what random choices draw from, torch's
        default one where it is None. Raises Error for a tensor that is sparse, complex or no tensor.
        """

    def sparsified(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Returns ``dense`` with zero where nothing stays; without a gradient."""
        mask = self.select_mask(dense, generator)
        return dense.detach().masked_fill(~mask, 0)

    def select(self, context: Context) -> Tensor:
        """Returns the mask of the context's weight; a sparsifier that looks at more overrides it."""
        return self.select_mask(context.weight, context.generator)

    def __call__(self, context: Context) -> Pattern:
        (rows, cols), (bm, bn) = context.shape, context.block
        any_of_block = scores_on_device(self.select(context).float(), (bm, bn), "max") > 0
        return patterns.from_mask(rows, cols, (bm, bn), any_of_block.cpu())


class _Selection(ElementSparsifier):
    """A sparsifier of include/sparseloom/sparsifiers.h: C++ on the CPU, kernels on a GPU."""

    def _spec(self) -> tuple[str, float, int, int]:
        """The selection's name, its amount, and two whole numbers."""
        raise NotImplementedError

    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        matrix = _as_matrix(_strided(self, dense))
        return self._chosen("sparsifier_mask", matrix, generator).reshape(dense.shape)

    def sparsified(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        if _strided(self, dense).dtype not in _DTYPES:
            return super().sparsified(dense, generator)
        return self._chosen("sparsifier_values", _as_matrix(dense.detach()), generator).reshape(dense.shape)

    def _chosen(self, op: str, matrix: Tensor, generator: torch.Generator | None) -> Tensor:
        # Whole numbers below 2^53, and every 8-bit float, are exact in float64.
        exact = matrix if matrix.dtype in _DTYPES else matrix.double()
        result: Tensor = ops.call(op, exact, *self._spec(), self._seed(generator))
        return result

    def _seed(self, generator: torch.Generator | None) -> int:
        return 0


_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@named_init
@dataclass(frozen=True)
class KeepAll(_Selection):
    """Keeps every element, zeros included."""

    kind, passes, memory = "streaming", 1, "O(1)"
    needs_values = False
    keeps_all = True

    def _spec(self) -> tuple[str, float, int, int]:
        return "keep_all", 0.0, 1, 1


@named_init
@dataclass(frozen=True)
class RandomFraction(_Selection):
    """Removes each element with probability ``fraction``, alone and whatever its value, as dropout does.

    A seeded generator gives the same mask on every machine and device. Raises Error for a fraction outside
    [0, 1].
    """

    fraction: float
    kind, passes, memory = "streaming", 1, "O(1)"
    needs_values = False

    def __post_init__(self) -> None:
        _require_fraction(self, self.fraction)

    def _spec(self) -> tuple[str, float, int, int]:
        return "random_fraction", float(self.fraction), 1, 1

    def _seed(self, generator: torch.Generator | None) -> int:
        return patterns.draw_seed(generator)


@named_init
@dataclass(frozen=True)
class ScalarThreshold(_Selection):
    """Keeps the elements with |x| > ``threshold``, rounded to the tensor's dtype: with 0 it keeps what is not
    zero, such as what a ReLU let pass. Raises Error for a negative threshold or NaN."""

    threshold: float
    kind, passes, memory = "streaming", 1, "O(1)"

    def __post_init__(self) -> None:
        if not share(_name(self), self.threshold, "threshold") >= 0:
            remedy = "magnitudes are compared: pass 0 to keep what is not zero"
            raise Error(_name(self), "a threshold >= 0", repr(self.threshold), remedy)

    def _spec(self) -> tuple[str, float, int, int]:
        return "scalar_threshold", float(self.threshold), 1, 1


@named_init
@dataclass(frozen=True)
class ScalarFraction(_Selection):
    """Removes the ``fraction`` of all elements that is smallest in magnitude: exactly round(fraction * n) of
    n elements, with halves rounded up. Raises Error for a fraction outside [0, 1]."""

    fraction: float
    kind, passes, memory = "materialising", 2, "O(nnz)"

    def __post_init__(self) -> None:
        _require_fraction(self, self.fraction)

    def _spec(self) -> tuple[str, float, int, int]:
        return "scalar_fraction", float(self.fraction), 1, 1


@named_init
@dataclass(frozen=True)
class BlockwiseFraction(_Selection):
    """Removes the ``fraction`` of all blocks whose sum of magnitudes is smallest: exactly round(fraction *
    n) of n blocks, with halves rounded up.

    ``block`` is (rows, columns) of a block, or one number for both, over the tensor as a matrix [first size,
    product of the others]; blocks at its edges may be smaller. Sums are in float64 and compared as float32;
    a GPU adds in another order than the CPU, so that blocks may be chosen differently whose sums differ by
    that rounding. Raises Error for a fraction outside [0, 1] or a side below 1.
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

    def _spec(self) -> tuple[str, float, int, int]:
        return "blockwise_fraction", float(self.fraction), *self._sides()


@named_init
@dataclass(frozen=True)
class PerBlockNM(_Selection):
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

    def _spec(self) -> tuple[str, float, int, int]:
        return "per_block_nm", 0.0, int(self.n), int(self.m)


@named_init
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
    halves rounded up. Scores are compared as float32; NaN is the highest, and of equal scores the one with
    the lowest index is. Raises Error for a fraction outside [0, 1].
    """

    kind, passes, memory = "materialising", 2, "O(n)"

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


def highest(scores: Tensor, fraction: float) -> Tensor:
    """Returns the mask that removes that fraction of all scores, the lowest; ties go to the lowest index."""
    return ScalarFraction(fraction).select_mask(_ranks(scores))


def _ranks(scores: Tensor) -> Tensor:
    """Returns float64 numbers >= 0 in the order of the scores, since ScalarFraction compares magnitudes: the
    bits of float32 as a whole number, which those of negative scores count down. Adding 0 makes -0 a 0."""
    single = scores.detach().float() + 0.0
    bits = single.masked_fill(single.isnan(), math.nan).view(torch.int32)
    return (bits ^ (bits >> 31 & 0x7FFFFFFF)).double() + 2.0**31


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
