"""Sparsifiers of single elements against masks that plain Python sorts out."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from element_twins import mask_by_torch
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, Error, ops
from sparseloom.pattern import draw_seed
from sparseloom.sparsify import (
    BlockwiseFraction,
    Context,
    ElementSparsifier,
    KeepAll,
    Learned,
    PerBlockNM,
    RandomFraction,
    SameFormat,
    ScalarFraction,
    ScalarThreshold,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Many equal magnitudes of both signs among others, so that ties decide."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(-3, 4, shape, generator=generator).float()
    fine = torch.randn(shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < 0.5, coarse, fine).to(dtype)


def first_of(sizes: list[float], count: int) -> set[int]:
    """The indices of the ``count`` largest; NaN counts as Inf, and the lowest index wins a tie."""
    key = [math.inf if math.isnan(size) else abs(size) for size in sizes]
    return set(sorted(range(len(key)), key=lambda i: (-key[i], i))[:count])


def kept(mask: Tensor) -> set[int]:
    return set(mask.flatten().nonzero().flatten().tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fraction", [0, 0.1, 0.5, 0.9, 0.999, 1])
def test_scalar_fraction_removes_exactly_that_fraction(dtype: torch.dtype, fraction: float) -> None:
    dense = drawn(37, 41, dtype=dtype)
    mask = ScalarFraction(fraction).select_mask(dense)
    assert mask.dtype is torch.bool and mask.shape == dense.shape
    count = dense.numel() - math.floor(fraction * dense.numel() + 0.5)
    assert kept(mask) == first_of(dense.flatten().tolist(), count)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (), (1,), (3, 2, 5)])
def test_any_shape_has_a_mask(shape: tuple[int, ...]) -> None:
    dense = torch.randn(shape)
    for sparsifier in (
        *(KeepAll(), RandomFraction(0.5), ScalarThreshold(0.1), ScalarFraction(0.5)),
        *(BlockwiseFraction(0.5, 2), PerBlockNM(1, 2), SameFormat(dense > 0)),
    ):
        mask = sparsifier.select_mask(dense)
        assert mask.dtype is torch.bool and mask.shape == dense.shape, sparsifier


def test_nan_inf_and_signs() -> None:
    dense = torch.tensor([-0.0, 1.0, -2.0, math.nan, -math.inf, math.inf, 0.0, 2.0])
    assert kept(ScalarFraction(5 / 8).select_mask(dense)) == {3, 4, 5}  # -Inf and NaN count as Inf
    assert kept(ScalarFraction(6 / 8).select_mask(dense)) == {3, 4}
    assert kept(ScalarFraction(4 / 8).select_mask(dense)) == {2, 3, 4, 5}  # of 2 and -2 the first one
    assert kept(ScalarThreshold(math.inf).select_mask(dense)) == set()
    assert kept(ScalarThreshold(0).select_mask(dense)) == {1, 2, 3, 4, 5, 7}
    assert kept(ScalarThreshold(2).select_mask(dense)) == {3, 4, 5}
    assert kept(PerBlockNM(1, 4).select_mask(dense)) == {3, 4}
    assert kept(ScalarFraction(0.5).select_mask(-torch.ones(6))) == {0, 1, 2}
    assert ScalarFraction(0.5).select_mask(torch.full((6,), math.nan)).sum() == 3


@pytest.mark.parametrize(("n", "m"), [(1, 4), (2, 4), (4, 4), (1, 8), (3, 7), (2, 64)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_per_block_nm_keeps_n_of_m(n: int, m: int, dtype: torch.dtype) -> None:
    dense = drawn(5, 45, dtype=dtype, seed=n + m)
    mask = PerBlockNM(n, m).select_mask(dense)
    for row, first in product(range(5), range(0, 45, m)):
        group = dense[row, first : first + m].tolist()
        assert kept(mask[row, first : first + m]) == first_of(group, n), (row, first)


@pytest.mark.parametrize("block", [1, 4, (3, 8), (64, 64)])
@pytest.mark.parametrize("fraction", [0, 0.4, 0.75, 1])
def test_blockwise_fraction_removes_whole_blocks(block: int | tuple[int, int], fraction: float) -> None:
    dense = torch.randint(-3, 4, (18, 21), generator=torch.Generator().manual_seed(1)).float()
    bm, bn = (block, block) if isinstance(block, int) else block
    mask = BlockwiseFraction(fraction, block).select_mask(dense)
    grid = list(product(range(0, 18, bm), range(0, 21, bn)))
    sums = [float(dense[r : r + bm, c : c + bn].abs().sum()) for r, c in grid]
    stays = first_of(sums, len(grid) - math.floor(fraction * len(grid) + 0.5))
    for index, (r, c) in enumerate(grid):
        assert bool((mask[r : r + bm, c : c + bn] == (index in stays)).all())


def test_random_fraction_draws_each_element_alone() -> None:
    dense = torch.zeros(200, 500)

    def mask(seed: int) -> Tensor:
        return RandomFraction(0.9).select_mask(dense, torch.Generator().manual_seed(seed))

    assert torch.equal(mask(1), mask(1)) and not torch.equal(mask(1), mask(2))
    # 100 000 draws with a standard deviation of 95
    assert abs(int(mask(1).sum()) - 10_000) < 500
    assert not RandomFraction(1).select_mask(dense).any() and RandomFraction(0).select_mask(dense).all()


ON_HOST: list[ElementSparsifier] = [
    *(
        KeepAll(),
        RandomFraction(0.7),
        ScalarThreshold(0.1),
        ScalarFraction(0.9),
        BlockwiseFraction(0.6, (8, 3)),
    ),
    *(PerBlockNM(2, 4), PerBlockNM(3, 40)),
]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64, torch.int8])
@pytest.mark.parametrize("sparsifier", ON_HOST, ids=repr)
def test_the_host_chooses_as_torch_does(sparsifier: ElementSparsifier, dtype: torch.dtype) -> None:
    dense = drawn(300, 301).to(dtype)

    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    mask = sparsifier.select_mask(dense, seeded())
    assert torch.equal(mask, mask_by_torch(sparsifier, dense, draw_seed(seeded())))
    assert torch.equal(
        sparsifier.select_mask(dense.t(), seeded()), sparsifier.select_mask(dense.t().clone(), seeded())
    )
    values = sparsifier.sparsified(dense, seeded())
    assert values.dtype is dtype and torch.equal(values, torch.where(mask, dense, 0))


@pytest.mark.parametrize("sparsifier", ON_HOST, ids=repr)
def test_the_chunk_reader_counts_the_passes_of_the_table(sparsifier: ElementSparsifier) -> None:
    dense = drawn(256, 320, dtype=torch.bfloat16)
    before = ops.call("sparsifier_reads")
    sparsifier.sparsified(dense)
    elements, size = (
        after - earlier for after, earlier in zip(ops.call("sparsifier_reads"), before, strict=True)
    )
    assert elements == sparsifier.passes * dense.numel() and size == 2 * elements


def test_the_operators_are_torchs() -> None:
    for op in (torch.ops.sparseloom.sparsifier_mask.default, torch.ops.sparseloom.sparsifier_values.default):
        torch.library.opcheck(op, (torch.randn(8, 12), "scalar_fraction", 0.5, 1, 1, 0))


def test_same_format_repeats_a_mask() -> None:
    dense = torch.randn(4, 6)
    mask = ScalarFraction(0.5).select_mask(dense)
    assert torch.equal(SameFormat(mask).select_mask(dense + 3), mask)
    with pytest.raises(Error, match=r"mask of what was kept.*SameFormat\(mask\)"):
        SameFormat().select_mask(dense)
    with pytest.raises(Error, match=r"a bool mask \[4, 6\]"):
        SameFormat(mask[:2]).select_mask(dense)


class Movement(Learned):
    """Scores that fall as training moves an element towards zero."""

    def scores(self, context: Context) -> Tensor:
        return -context.weight * context.need("gradient")


def test_a_learned_sparsifier_reads_the_context() -> None:
    weight, gradient = torch.randn(6, 8), torch.randn(6, 8)
    mask = Movement(0.75).select(Context(weight, gradient=gradient))
    scores = (-weight * gradient).flatten()
    assert kept(mask) == set(scores.topk(12).indices.tolist())
    with pytest.raises(Error, match="gradient"):
        Movement(0.75).select_mask(weight)

    class Short(Learned):
        def scores(self, context: Context) -> Tensor:
            return context.weight[0]

    with pytest.raises(Error, match=r"scores \[6, 8\]"):
        Short(0.5).select_mask(weight)


@pytest.mark.parametrize("fraction", [0, 0.3, 0.5, 0.9, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_the_highest_scores_are_those_of_a_stable_sort(dtype: torch.dtype, fraction: float) -> None:
    scores = torch.randn(40, 50).mul(3).round().div(4)  # many ties, 0 and -0
    scores[3, ::7] = -math.inf
    scores[5, ::3] = math.inf
    if dtype.is_floating_point:
        scores[7, ::5], scores[8, ::5] = math.nan, -math.nan
        scores[9] = torch.randn(50) * 1e-40  # subnormal numbers
    scores = scores.clamp(-9, 9).to(dtype) if dtype == torch.int64 else scores.to(dtype)

    class Given(Learned):
        def scores(self, context: Context) -> Tensor:
            return scores

    order = scores.float().flatten().argsort(descending=True, stable=True)
    count = scores.numel() - math.floor(fraction * scores.numel() + 0.5)
    assert kept(Given(fraction).select_mask(torch.zeros(40, 50))) == set(order[:count].tolist())


def test_elements_choose_the_blocks_that_hold_them() -> None:
    layer = nn.Linear(64, 48, bias=False)
    with torch.no_grad():
        layer.weight.zero_()[17, 40] = -3
    model = nn.Sequential(layer)
    sparseloom.sparsify_(model, {"0": BlockSparse(16, select=ScalarThreshold(0.5))})
    assert model[0].pattern.blocks == 1 and model[0].pattern.mask[1, 2]


#: STen's table, row by row.
TABLE: dict[Any, tuple[str, int, str]] = {
    KeepAll: ("streaming", 1, "O(1)"),
    RandomFraction: ("streaming", 1, "O(1)"),
    ScalarThreshold: ("streaming", 1, "O(1)"),
    ScalarFraction: ("materialising", 2, "O(nnz)"),
    BlockwiseFraction: ("materialising", 2, "O(nnz)"),
    PerBlockNM: ("blocking", 2, "O(b)"),
    SameFormat: ("streaming", 1, "O(1)"),
    Learned: ("materialising", 2, "O(n)"),
}


@pytest.mark.parametrize("sparsifier", TABLE)
def test_kinds_passes_and_memory_are_those_of_the_table(sparsifier: Any) -> None:
    assert (sparsifier.kind, sparsifier.passes, sparsifier.memory) == TABLE[sparsifier]


@pytest.mark.parametrize("wrong", [-0.1, 1.5, math.nan, "half", True, None])
def test_fractions_are_numbers_from_0_to_1(wrong: object) -> None:
    made: tuple[Callable[[Any], object], ...]
    made = (ScalarFraction, RandomFraction, Movement, lambda fraction: BlockwiseFraction(fraction, 4))
    for each in made:
        with pytest.raises(Error, match=r"fraction in \[0, 1\]"):
            each(wrong)


def test_other_arguments_are_checked() -> None:
    with pytest.raises(Error, match="1 <= n <= m"):
        PerBlockNM(5, 4)
    for n, m in ((0, 4), (2, 0), (1.5, 4)):
        with pytest.raises(Error, match="PerBlockNM"):
            PerBlockNM(n, m)  # type: ignore[arg-type]
    for threshold in (-1, math.nan):
        with pytest.raises(Error, match="a threshold >= 0"):
            ScalarThreshold(threshold)
    with pytest.raises(Error, match="block"):
        BlockwiseFraction(0.5, (4, 0))
    for wrong in (torch.eye(3).to_sparse(), torch.zeros(2, dtype=torch.complex64), [1.0]):
        with pytest.raises(Error, match="a strided tensor of real numbers"):
            ScalarFraction(0.5).select_mask(wrong)  # type: ignore[arg-type]
