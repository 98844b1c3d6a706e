"""The algebra of one-shot pruning against naive formulas in float64."""

from __future__ import annotations

import itertools

import pytest
import torch

from sparseloom import Error
from sparseloom.ops.operators import call
from sparseloom.prune import solve


def operands(rows: int, cols: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight and the damped Hessian of correlated inputs, in float64."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4 * cols, cols, generator=generator, dtype=torch.float64)
    x = x @ torch.randn(cols, cols, generator=generator, dtype=torch.float64)
    return torch.randn(rows, cols, generator=generator, dtype=torch.float64), solve.damped(x.t() @ x, 0.01)


def remaining_inverse(hessian: torch.Tensor, column: int) -> torch.Tensor:
    return torch.linalg.inv(hessian[column:, column:])


def naive_sweep(
    weight: torch.Tensor, hessian: torch.Tensor, mask: torch.Tensor | None, n: int, m: int
) -> tuple:
    """Each column removed by the inverse of what is left of the Hessian, computed anew."""
    w, kept = weight.clone(), torch.zeros_like(weight, dtype=torch.bool) if mask is None else mask
    cols = w.shape[1]
    for j in range(cols):
        if mask is None and j % m == 0:
            group = range(j, min(j + m, cols))
            pivots = torch.stack([remaining_inverse(hessian, c)[0, 0] for c in group])
            best = (w[:, group.start : group.stop].square() / pivots).topk(min(n, len(group)), 1).indices
            kept[:, group.start : group.stop] = torch.zeros(len(w), len(group), dtype=torch.bool).scatter(
                1, best, True
            )
        inverse = remaining_inverse(hessian, j)
        error = torch.where(kept[:, j], 0.0, w[:, j]) / inverse[0, 0]
        w[:, j:] -= error[:, None] * inverse[0]
    return w.masked_fill(~kept, 0), kept


@pytest.mark.parametrize(
    ("rows", "cols", "n", "m"), [(6, 24, 2, 4), (5, 30, 1, 4), (3, 150, 3, 8), (4, 18, 2, 6)]
)
def test_sweep_of_n_of_m_is_the_naive_one(rows: int, cols: int, n: int, m: int) -> None:
    weight, hessian = operands(rows, cols)
    expected, kept = naive_sweep(weight, hessian, None, n, m)
    values, mask = solve.swept(weight, solve.inverse_of(hessian), n=n, m=m)
    assert torch.equal(mask, kept)
    torch.testing.assert_close(values.double(), expected, rtol=2e-3, atol=2e-4)


def test_sweep_of_a_mask_is_the_naive_one() -> None:
    weight, hessian = operands(7, 140)
    mask = torch.rand(7, 140, generator=torch.Generator().manual_seed(3)) < 0.4
    values, same = solve.swept(weight, solve.inverse_of(hessian), mask)
    assert torch.equal(same, mask)
    torch.testing.assert_close(
        values.double(), naive_sweep(weight, hessian, mask, 0, 0)[0], rtol=2e-3, atol=2e-4
    )


def test_sweep_with_a_diagonal_hessian_keeps_the_values() -> None:
    weight, _ = operands(4, 16)
    values, mask = solve.swept(weight, torch.eye(16, dtype=torch.float64), n=2, m=4)
    torch.testing.assert_close(values, weight.float().masked_fill(~mask, 0), rtol=0, atol=0)
    assert torch.equal(mask.unflatten(1, (4, 4)).sum(2), torch.full((4, 4), 2))


def test_a_tiles_error_is_what_the_sweep_makes_without_it() -> None:
    weight, hessian = operands(100, 90)  # 2 x 2 tiles, ragged
    inverse = solve.inverse_of(hessian)
    half, absent = solve.tile_errors(weight, inverse, 64)
    assert half.shape == absent.shape == (2, 2) and bool((absent >= half).all())
    for row, col in itertools.product(range(2), repeat=2):
        mask = torch.ones(100, 90, dtype=torch.bool)
        mask[64 * row : 64 * row + 64, 64 * col : 64 * col + 64] = False
        values, _ = solve.swept(weight, inverse, mask)
        change = values.double().masked_fill(~mask, 0) - weight
        made = ((change @ hessian) * change).sum()
        torch.testing.assert_close(absent[row, col], made, rtol=1e-3, atol=0)
        # of 2:4 the smallest pairs by themselves, a part of what both together cost
        pairs = (weight / torch.linalg.cholesky(inverse, upper=True).diagonal()).square().masked_fill(mask, 0)
        groups = torch.nn.functional.pad(pairs, (0, 2)).unflatten(1, (-1, 4))
        torch.testing.assert_close(half[row, col], groups.topk(2, largest=False).values.sum())


def best_swap(row: torch.Tensor, values: torch.Tensor, hessian: torch.Tensor, i: int, j: int) -> float:
    """The error once i is removed and j has its best value, found by a parabola through three of them."""

    def error(at_j: float) -> float:
        left = values.clone()
        left[i], left[j] = 0, at_j
        return float((row - left) @ hessian @ (row - left))

    low, middle, high = error(-1.0), error(0.0), error(1.0)
    curve, slope = (low + high) / 2 - middle, (high - low) / 2
    return middle - slope**2 / (4 * curve)


def error_of(row: torch.Tensor, values: torch.Tensor, hessian: torch.Tensor) -> float:
    return float((row - values) @ hessian @ (row - values))


@pytest.mark.parametrize("m", [4, 0])
@pytest.mark.parametrize("corrected", [False, True])
def test_no_single_swap_is_left_that_helps(m: int, corrected: bool) -> None:
    cols = 12
    weight, hessian = operands(5, cols, seed=2)
    start = torch.arange(cols).expand(5, cols) % 2 == 0
    first = weight.masked_fill(~start, 0)
    if corrected:
        first = solve.swept(weight, solve.inverse_of(hessian), start)[0].double()
    values, mask, count = solve.swapped(weight, first, hessian, start, m, 1000)
    values = values.double()
    assert count > 0
    assert torch.equal(mask.sum(1), start.sum(1))
    assert not bool(values[~mask].any())
    for row, before, after, kept in zip(weight, first, values, mask, strict=True):
        least = error_of(row, after, hessian)
        assert least <= error_of(row, before, hessian) * (1 + 1e-5)
        for i, j in itertools.product(range(cols), repeat=2):
            if kept[i] and not kept[j] and (m == 0 or i // m == j // m):
                assert best_swap(row, after, hessian, i, j) >= least * (1 - 1e-4)


def test_one_swap_is_the_best_of_a_group() -> None:
    weight, hessian = operands(1, 4, seed=5)
    start = torch.tensor([[True, True, False, False]])
    first = weight.masked_fill(~start, 0)
    errors = {(i, j): best_swap(weight[0], first[0], hessian, i, j) for i in (0, 1) for j in (2, 3)}
    values, mask, count = solve.swapped(weight, first, hessian, start, 4, 1)
    (i, j), least = min(errors.items(), key=lambda item: item[1])
    assert count == 1
    assert (bool(mask[0, i]), bool(mask[0, j])) == (False, True)
    assert error_of(weight[0], values[0].double(), hessian) == pytest.approx(least, rel=1e-5)


def test_refit_is_least_squares() -> None:
    weight, hessian = operands(6, 40)
    mask = torch.rand(6, 40, generator=torch.Generator().manual_seed(1)) < 0.5
    fitted = solve.refitted(weight, weight, mask, hessian, 200)
    for row, kept, got in zip(weight, mask, fitted, strict=True):
        best = torch.linalg.solve(hessian[kept][:, kept], hessian[kept] @ row)
        torch.testing.assert_close(got[kept], best, rtol=1e-5, atol=1e-6)
        assert not bool(got[~kept].any())


@pytest.mark.parametrize("cols", [24, 20])
def test_whitened_blocks_are_the_error_of_removing_them(cols: int) -> None:
    weight, hessian = operands(4, cols)
    whitened = solve.whitened(weight, solve.inverse_of(hessian), 8).double()
    for begin in range(0, cols, 8):
        end, rest = min(begin + 8, cols), [c for c in range(cols) if not begin <= c < begin + 8]
        for row, got in zip(weight, whitened[:, begin:end].square().sum(1), strict=True):
            best = torch.zeros(cols, dtype=torch.float64)
            best[rest] = torch.linalg.solve(hessian[rest][:, rest], hessian[rest] @ row)
            change = best - row
            torch.testing.assert_close(got, change @ hessian @ change, rtol=1e-4, atol=1e-6)


def test_an_input_that_is_always_zero_has_an_inverse() -> None:
    hessian = torch.zeros(3, 3)
    hessian[0, 0] = 4.0
    assert torch.equal(
        solve.damped(hessian, 0.5).diagonal(), torch.full((3,), 4 + 0.5 * 4 / 3, dtype=torch.float64)
    )
    assert torch.equal(solve.damped(torch.zeros(2, 2), 0.5), torch.eye(2, dtype=torch.float64))


def test_indefinite_hessian_is_refused() -> None:
    with pytest.raises(Error, match=r"positive definite.*damping"):
        solve.inverse_of(-torch.eye(4, dtype=torch.float64))


REFUSED = {
    "factor": lambda w, f, k, e: (w, f[:3], k, e, 2, 4),
    "mask": lambda w, f, k, e: (w, f, k.float(), e, 2, 4),
    "0 <= n <= m": lambda w, f, k, e: (w, f, k, e, 5, 4),
    "128 columns": lambda w, f, k, e: (
        w.repeat(1, 40),
        torch.eye(160),
        k.repeat(1, 40),
        e.repeat(1, 40),
        0,
        0,
    ),
}


@pytest.mark.parametrize("told", REFUSED)
def test_sweep_refuses_operands_that_do_not_fit(told: str) -> None:
    operands = torch.ones(2, 4), torch.eye(4), torch.ones(2, 4, dtype=torch.bool), torch.ones(2, 4)
    with pytest.raises(Error, match=told):
        call("column_sweep", *REFUSED[told](*operands))
