"""A choice by density that leaves most outputs without a weight says so, with the count, and scope="row" is
the way out."""

import warnings

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import BlockSparse, pattern, sparsify_
from sparseloom.nn import BlockSparseLinear


def uneven(rows=128, cols=128):
    """A layer whose last 32 output features are a thousand times the others."""
    layer = nn.Linear(cols, rows)
    with torch.no_grad():
        layer.weight[-32:] *= 1000
    return layer


def test_a_layer_without_blocks_warns_with_the_count():
    with pytest.warns(
        UserWarning, match=r"BlockSparseLinear\(64, 128, density=0.01\): 0 of 8 blocks.*higher density"
    ) as said:
        BlockSparseLinear(64, 128, density=0.01)
    assert [warning.filename for warning in said] == [__file__]


def test_magnitude_that_leaves_most_block_rows_empty_warns_with_the_count():
    with pytest.warns(UserWarning, match='3 of 4 block rows have no block.*scope="row"'):
        BlockSparseLinear.from_dense(uneven(), density=0.25)
    net = nn.Sequential(uneven(), nn.ReLU())
    with pytest.warns(UserWarning, match=r"sparsify_: 0: 3 of 4 block rows") as said:
        sparsify_(net, {"0": BlockSparse(density=0.25)})
    assert [warning.filename for warning in said] == [__file__]


def test_scope_row_keeps_the_same_share_in_every_block_row_without_a_warning():
    dense = uneven()
    net = nn.Sequential(dense, nn.ReLU())
    patcher = sparseloom.BlockSparseModelPatcher()
    patcher.add_pattern("0", {"density": 0.25, "scope": "row"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        layer = BlockSparseLinear.from_dense(dense, density=0.25, scope="row")
        patcher.patch_model(net)
    assert layer.pattern.mask.sum(1).tolist() == [1, 1, 1, 1] and net[0].pattern == layer.pattern
    scores = dense.weight.detach().reshape(4, 32, 4, 32).abs().sum((1, 3))
    assert torch.equal(layer.pattern.mask.int().argmax(1), scores.argmax(1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: BlockSparseLinear(64, 128, density=0.0),
        lambda: BlockSparseLinear(64, 128, density=0.25),
        lambda: BlockSparseLinear(128, 128, pattern=pattern.from_mask(128, 128, 32, torch.eye(4) > 2)),
        lambda: BlockSparseLinear(
            128, 128, pattern=pattern.from_mask(128, 128, 32, (torch.arange(16) < 4).reshape(4, 4))
        ),
        lambda: BlockSparseLinear(0, 0, density=0.5),
    ],
)
def test_what_was_asked_for_by_name_does_not_warn(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        make()


def test_an_unknown_scope_is_refused():
    for call in (
        lambda: BlockSparse(density=0.5, scope="global"),
        lambda: BlockSparseLinear.from_dense(nn.Linear(64, 64), density=0.5, scope="column"),
    ):
        with pytest.raises(sparseloom.Error, match=r"scope to be .*'layer'.* 'row'"):
            call()
