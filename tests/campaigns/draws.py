"""What random cases are drawn from, and how results are held against fp64."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

from sparseloom.ops import ACTIVATIONS, activate

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
#: Roundings of the summed magnitudes that a sum may lean by: sums of these campaigns have at most 600 terms.
SUMMING = 4.0


class Draw:
    """Draws one case's numbers: the same for the same seed, on every machine."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(60))
        self.pick = self.random.choice
        self.integers = self.chance(0.2)
        # one thread mostly: waking a second one costs more than a product of these sizes
        torch.set_num_threads(self.pick((1, 1, 1, 1, 1, 1, 2, 3)))

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def size(self, most: int) -> int:
        """Returns 1 to ``most``: small ones often, and neighbours of multiples of 8."""
        kind = self.random.random()
        if kind < 0.3:
            return self.random.randint(1, min(most, 9))
        if kind < 0.7:
            return max(
                1, min(most, 8 * self.random.randint(1, max(1, most // 8)) + self.random.randint(-1, 1))
            )
        return self.random.randint(1, most)

    def dtype(self, allowed: tuple[torch.dtype, ...] = DTYPES) -> torch.dtype:
        return self.pick((*allowed, torch.float32))

    def numbers(self, *shape: int) -> Tensor:
        """Returns fp64 numbers: normal, or small integers whose sums are exact."""
        if self.integers:
            return torch.randint(-2, 3, shape, generator=self.generator).double()
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def mask(self, *shape: int) -> Tensor:
        density = self.pick((0.0, 0.05, 0.3, 0.5, 0.8, 1.0))
        return torch.rand(shape, generator=self.generator) < density

    def placed(self, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns a matrix of those numbers in memory that may begin anywhere and have longer rows; what lies
        around it is NaN, so that a result which something outside has reached shows it."""
        numbers = numbers.to(dtype)
        if numbers.dim() < 2 or self.chance(0.4):
            return numbers.contiguous()
        *lead, width = numbers.shape
        before, behind = self.random.randint(0, 9), self.random.randint(0, 9)
        room = torch.full((*lead, before + width + behind), math.nan).to(dtype)
        inside = room[..., before : before + width]
        inside.copy_(numbers)
        return inside

    def epilogue(self, dtype: torch.dtype, rows: int, shape: tuple[int, ...]) -> Epilogue:
        bias = self.numbers(rows).to(dtype) if self.chance(0.5) else None
        activation = self.pick(tuple(ACTIVATIONS)) if self.chance(0.4) else None
        residual = self.placed(self.numbers(*shape), dtype) if self.chance(0.3) else None
        return Epilogue(bias, activation, residual)


class Epilogue:
    """act(z + bias) + residual, in fp64 beside the magnitudes that bound its rounding errors."""

    def __init__(self, bias: Tensor | None, activation: str | None, residual: Tensor | None) -> None:
        self.bias, self.activation, self.residual = bias, activation, residual

    def of(self, exact: Tensor, magnitude: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the answer, the summed magnitudes, and those of what the row `dense` rounds on the way: its
        product, and the sum before a residual."""
        if self.bias is not None:
            exact, magnitude = exact + self.bias.double(), magnitude + self.bias.double().abs()
        rounded = torch.zeros_like(exact)
        if self.activation is not None or self.residual is not None:
            rounded = exact.abs()
        if self.activation is not None:
            steep = (2 * exact).clamp(min=1.2) if self.activation == "relu2" else 1.2
            exact, magnitude = activate(exact, self.activation), magnitude * steep
            rounded = rounded * steep + exact.abs()
        if self.residual is not None:
            exact = exact + self.residual.double()
            magnitude = magnitude + self.residual.double().abs()
        return exact, magnitude, rounded


def require(
    name: str, got: Tensor, exact: Tensor, magnitude: Tensor, rounded: Tensor | float = 0.0,
    dense: Callable[[], Tensor] | None = None,
) -> None:  # fmt: skip
    """Raises AssertionError unless each element of ``got`` is within one rounding of its dtype, of itself and
    of ``rounded``, and SUMMING of its accumulator's in the summed magnitudes. Zero sums have to be zero.
    ``dense``: torch's own result in the dtype, twice whose worst error is right as well; made only where
    that decides."""
    assert got.shape == exact.shape, f"{name}: shape {list(got.shape)} for {list(exact.shape)}"
    accumulator = torch.float64 if got.dtype == torch.float64 else torch.float32
    summing = SUMMING * torch.finfo(accumulator).eps
    bound = torch.finfo(got.dtype).eps * (exact.abs() + rounded) + summing * magnitude
    if got.dtype == torch.float16:
        bound = bound + 2.0**-24  # its smallest number
    error = (got.double() - exact).abs()
    right = error <= bound
    if not bool(right.all()) and dense is not None:
        right = error <= 2 * (dense().double() - exact).abs().max()
    if not bool(right.all()):
        at = int(right.flatten().logical_not().nonzero()[0])
        where = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), got.shape)) if got.dim() else ()
        numbers = [float(each.flatten()[at]) for each in (got, exact, bound)]
        text = "{} for {}, bound {:.3g}".format(*numbers)
        wrong = int((~right).sum())
        raise AssertionError(f"{name} {list(got.shape)}: {wrong} wrong elements, first {list(where)}: {text}")
