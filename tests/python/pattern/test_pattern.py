"""Pattern: generators, algebra, immutability, pictures."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sparseloom
from sparseloom import Pattern, pattern

GENERATORS = [pattern.random, pattern.balanced, pattern.biregular]
sides = st.sampled_from([8, 16, 32, 64, 128])
sizes = st.integers(0, 400)
densities = st.floats(0, 1)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(sizes, sizes, sides, sides, densities, st.integers(0, 2**31))
def test_generated_counts_are_exact(rows, cols, bm, bn, density, seed):
    grid = -(-rows // bm) * -(-cols // bn)
    for generate in GENERATORS:
        made = generate(rows, cols, (bm, bn), density, seed)
        assert abs(made.blocks - density * grid) <= 0.5
        counts = made.mask.sum(1)
        if generate is not pattern.random and len(counts):
            assert counts.max() - counts.min() <= 1
        if generate is pattern.biregular and made.mask.shape[1]:
            columns = made.mask.sum(0)
            assert columns.max() - columns.min() <= 1


@settings(deadline=None, max_examples=60, derandomize=True)
@given(sizes, sizes, sides, sides, densities, st.integers(0, 2**31))
def test_algebra_is_that_of_the_masks(rows, cols, bm, bn, density, seed):
    a, b = (
        pattern.random(rows, cols, (bm, bn), density, seed),
        pattern.random(rows, cols, (bm, bn), 0.5, seed + 1),
    )
    assert torch.equal((a & b).mask, a.mask & b.mask)
    assert torch.equal((a | b).mask, a.mask | b.mask)
    assert torch.equal((a ^ b).mask, a.mask ^ b.mask)
    assert torch.equal((a - b).mask, a.mask & ~b.mask)
    assert torch.equal((~a).mask, ~a.mask)
    assert a.transposed().transposed() == a
    assert Pattern.from_index(*a.index(), rows, cols, (bm, bn)) == a


def test_patterns_of_different_shape_do_not_combine():
    with pytest.raises(sparseloom.Error, match="two patterns of one shape"):
        pattern.full(64, 64, 32) & pattern.full(64, 64, 16)
    with pytest.raises(TypeError):
        pattern.full(64, 64, 32) & 3


@pytest.mark.parametrize("generate", GENERATORS)
def test_seeds_and_generators_decide(generate):
    make = lambda seed: generate(640, 640, 32, 0.3, seed)  # noqa: E731
    assert make(7) == make(7) and make(7) != make(8)
    assert make(torch.Generator().manual_seed(1)) == make(torch.Generator().manual_seed(1))
    torch.manual_seed(3)
    first = make(None)
    torch.manual_seed(3)
    assert first == make(None) and first != make(None)


def test_stats_leave_padding_out():
    stats = pattern.full(100, 130, 16).stats()
    assert (stats.blocks, stats.elements, stats.block_density, stats.element_density) == (63, 13000, 1.0, 1.0)
    assert (stats.row_min, stats.row_max, stats.row_mean) == (9, 9, 9.0)
    empty = pattern.full(0, 130, 16)
    assert (empty.blocks, empty.density, empty.stats().element_density) == (0, 0.0, 0.0)


def test_pattern_is_immutable_hashable_and_copies_to_itself():
    made = pattern.balanced(96, 96, 16, 0.5, 0)
    with pytest.raises(sparseloom.Error, match="immutable"):
        made._rows = 5
    made.mask.fill_(True)
    assert made.blocks == 18
    given_mask = torch.zeros(6, 6, dtype=torch.bool)
    kept = Pattern(96, 96, 16, given_mask)
    given_mask.fill_(True)
    assert kept.blocks == 0
    assert copy.deepcopy(made) is made and copy.copy(made) is made
    again = pickle.loads(pickle.dumps(made))
    assert again == made and hash(again) == hash(made) and len({again, made}) == 1


@pytest.mark.parametrize(
    "mask", [torch.ones(2, 2), torch.ones(3, 2, dtype=torch.bool), torch.ones(4, dtype=torch.bool), [[True]]]
)
def test_wrong_masks_are_refused(mask):
    with pytest.raises(sparseloom.Error):
        Pattern(64, 64, 32, mask)


def test_pictures():
    made = pattern.banded(64, 64, 16, 0)
    assert made.ascii().split() == ["#...", ".#..", "..#.", "...#"]
    assert str(made).startswith("Pattern(64 x 64, block 16 x 16, 4 blocks, density 0.25)\n#...")
    assert made.svg().startswith("<svg") and made.svg().rstrip().endswith("</svg>")
    assert made.svg() in made._repr_html_()


def test_top_k_takes_ties_by_lowest_index_and_refuses_nan():
    scores = torch.tensor([[1.0, 3.0, 3.0], [3.0, 0.0, 2.0]])
    assert pattern.top_k(16, 24, 8, scores, 2).mask.tolist() == [[False, True, True], [False, False, False]]
    scores[0, 0] = torch.nan
    with pytest.raises(sparseloom.Error):
        pattern.top_k(16, 24, 8, scores, 2)


@pytest.mark.parametrize(("norm", "best"), [("l1", 0), ("l2", 1), ("max", 2)])
def test_from_dense_ranks_blocks_by_norm(norm, best):
    weight = torch.zeros(8, 24)
    weight[:, :8] = 1.0  # l1 64, l2 8
    weight[0, 8:12] = 6.0  # l1 24, l2 12
    weight[0, 16] = 10.0  # l1 10, l2 10, max 10
    assert pattern.from_dense(weight, 8, 1 / 3, norm).mask[0].int().argmax() == best


def test_from_mask_and_block_diagonal():
    mask = torch.eye(3, dtype=torch.bool)
    assert (
        pattern.from_mask(24, 24, 8, mask)
        == pattern.block_diagonal(24, 24, 8, 3)
        == pattern.banded(24, 24, 8, 0)
    )


def test_top_k_by_row_gives_every_block_row_its_share():
    scores = torch.tensor([[9.0, 8, 7, 6], [1, 4, 2, 3]])
    assert pattern.top_k(16, 32, 8, scores, 4).mask.sum(1).tolist() == [4, 0]
    rows = [[True, True, False, False], [False, True, False, True]]
    assert pattern.top_k(16, 32, 8, scores, 4, scope="row").mask.tolist() == rows
    assert pattern.top_k(16, 32, 8, scores, 5, scope="row").mask.sum(1).tolist() == [3, 2]
    for scope in ("column", None):
        with pytest.raises(sparseloom.Error, match=r"scope to be 'layer' or 'row'.*pass scope="):
            pattern.top_k(16, 32, 8, scores, 4, scope=scope)


def test_from_dense_by_row_keeps_blocks_in_rows_of_small_weights():
    weight = torch.randn(128, 128) * torch.logspace(0, 3, 4).repeat_interleave(32)[:, None]
    assert pattern.from_dense(weight, 32, 0.25).mask.sum(1).tolist() == [0, 0, 0, 4]
    assert pattern.from_dense(weight, 32, 0.25, scope="row").mask.sum(1).tolist() == [1, 1, 1, 1]
