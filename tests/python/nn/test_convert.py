"""From and to dense layers and torch.sparse_bsr: exact copies, or no copy at all."""

import itertools
import logging

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import BlockSparse, InLayout, layouts, ops, pattern, sparsify_
from sparseloom.nn import BlockSparseLinear, SparseLinear

SIZES = [((64, 96), (16, 32)), ((70, 101), (16, 32)), ((7, 5), (8, 8)), ((128, 128), (128, 128))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("sizes", "block"), SIZES)
def test_unpack_of_pack_is_the_masked_weight_exactly(dtype, sizes, block):
    made = pattern.random(*sizes, block, 0.5, 0)
    weight = torch.randn(sizes).to(dtype)
    weight[0, 0] = -0.0
    layer = BlockSparseLinear.from_dense(weight, made)
    mask = made.mask.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[: sizes[0], : sizes[1]]
    expected = torch.where(mask, weight, torch.zeros((), dtype=dtype))
    # bit for bit, -0.0 too
    assert torch.equal(layer.to_dense().weight.view(torch.uint8), expected.view(torch.uint8))


def test_b20_to_dense_is_a_copy_so_nan_and_inf_stay_where_they_are():
    weight = torch.randn(64, 64)
    weight[3, 5], weight[40, 60] = torch.nan, torch.inf
    layer = BlockSparseLinear.from_dense(weight, pattern.full(64, 64, 16))
    dense = layer.to_dense().weight
    assert (
        dense.isnan().sum() == 1
        and dense.isinf().sum() == 1
        and dense[3, 5].isnan()
        and dense[40, 60] == torch.inf
    )


def test_from_dense_layer_keeps_values_bias_dtype_mode_and_requires_grad():
    dense = nn.Linear(96, 64, dtype=torch.bfloat16).eval()
    dense.bias.requires_grad_(False)
    layer = BlockSparseLinear.from_dense(dense, density=0.25, block=(16, 32))
    assert layer.values.dtype == torch.bfloat16 and not layer.training
    assert layer.values.requires_grad and not layer.bias.requires_grad and torch.equal(layer.bias, dense.bias)
    assert layer.pattern == pattern.from_dense(dense.weight, (16, 32), 0.25)
    kept = layer.to_dense().weight != 0
    assert torch.equal(layer.to_dense().weight[kept], dense.weight[kept])
    assert layer.values.data_ptr() != dense.weight.data_ptr()


def test_magnitude_keeps_the_largest_blocks():
    weight = torch.randn(64, 64) * torch.arange(1, 5).repeat_interleave(16)
    layer = BlockSparseLinear.from_dense(weight, density=0.25, block=16)
    assert layer.pattern.mask[:, 3].all() and layer.pattern.blocks == 4


def test_from_a_transposed_or_sliced_weight():
    weight = torch.randn(96, 64)
    for view in (weight.t(), weight[::2], weight[:, ::2], weight.expand(2, 96, 64)[1]):
        layer = BlockSparseLinear.from_dense(view, pattern.full(*view.shape, 16))
        assert torch.equal(layer.to_dense().weight, view)


def test_to_dense_carries_the_activation():
    layer = BlockSparseLinear(32, 32, density=0.5, block=8, activation="gelu")
    twin = layer.to_dense()
    assert isinstance(twin, nn.Sequential) and "gelu" in repr(twin)
    assert isinstance(BlockSparseLinear(32, 32, density=0.5, block=8).to_dense(), nn.Linear)


@pytest.mark.filterwarnings("ignore:Sparse BSR tensor support is in beta")
def test_torch_bsr_shares_memory_in_both_directions():
    layer = BlockSparseLinear(96, 64, density=0.5, block=(16, 32))
    shared = layer.to_torch_bsr()
    assert shared.layout == torch.sparse_bsr and shared.shape == (64, 96)
    assert shared.values().data_ptr() == layer.values.data_ptr()
    assert shared.crow_indices().data_ptr() == layer.crow.data_ptr()
    assert torch.equal(shared.to_dense(), layer.to_dense().weight)
    again = BlockSparseLinear.from_torch_bsr(shared, layer.bias.detach())
    assert again.values.data_ptr() == layer.values.data_ptr()
    assert again.crow.data_ptr() != layer.crow.data_ptr()  # each layer packs an index of its own
    assert again.pattern == layer.pattern
    x = torch.randn(4, 96)
    assert torch.equal(again(x), layer(x))
    again(x).sum().backward()
    assert again.values.grad is not None


def test_torch_bsr_with_int64_indices_is_converted():
    weight = torch.randn(64, 64).to_sparse_bsr((16, 16))
    assert weight.crow_indices().dtype == torch.int64
    layer = BlockSparseLinear.from_torch_bsr(weight)
    assert layer.crow.dtype == layer.col.dtype == torch.int32 and layer.bias is None
    assert layer.values.data_ptr() == weight.values().data_ptr()
    assert torch.equal(layer.to_dense().weight, weight.to_dense())


def test_ragged_sizes_are_refused_by_torch_bsr_with_the_reason():
    with pytest.raises(
        sparseloom.Error,
        match=r"divisible by block 32 x 32, got 70 x 100; torch.sparse_bsr has no ragged edges",
    ):
        BlockSparseLinear(100, 70, density=0.5).to_torch_bsr()


def test_b19_duplicate_columns_of_a_torch_tensor_are_refused():
    crow, col = torch.tensor([0, 2]), torch.tensor([1, 1])
    weight = torch.sparse_bsr_tensor(crow, col, torch.ones(2, 16, 16), (16, 64), check_invariants=False)
    with pytest.raises(sparseloom.Error, match="col"):
        BlockSparseLinear.from_torch_bsr(weight)


def test_wrong_bias_is_refused():
    with pytest.raises(sparseloom.Error, match=r"bias \[64\]"):
        BlockSparseLinear.from_dense(torch.randn(64, 64), density=0.5, bias=torch.zeros(3))
    with pytest.raises(sparseloom.Error, match="own bias"):
        BlockSparseLinear.from_dense(nn.Linear(8, 8), density=0.5, bias=torch.zeros(8))


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_block_scores_leave_padding_out(norm):
    weight = torch.randn(20, 19)
    scores = ops.call("block_scores", weight, 16, 16, norm)
    power = {"l1": 1, "l2": 2, "max": torch.inf}[norm]
    for r in range(2):
        for c in range(2):
            block = weight[16 * r : 16 * r + 16, 16 * c : 16 * c + 16]
            torch.testing.assert_close(scores[r, c], block.flatten().norm(power), atol=1e-5, rtol=1e-5)


def block_tensor(layout, block=16, shuffled=False, requires_grad=False):
    """A weight of 48 x 64 in half of its blocks, with its dense twin."""
    torch.manual_seed(0)
    bm, bn = block if isinstance(block, tuple) else (block, block)
    there = pattern.random(48 * 8 // bm, 64 * 8 // bn, 8, 0.5, 3).mask
    dense = torch.randn(48, 64) * there.repeat_interleave(bm, 0).repeat_interleave(bn, 1)
    blocks = layout.startswith("bs")
    made = dense.to_sparse(
        layout=getattr(torch, f"sparse_{layout}"), **({"blocksize": (bm, bn)} if blocks else {})
    )
    if shuffled:
        crow, col, values = made.crow_indices(), made.col_indices(), made.values()
        order = torch.cat([torch.arange(b, e).flip(0) for b, e in itertools.pairwise(crow)])
        made = torch.sparse_bsr_tensor(crow, col[order], values[order], dense.shape, check_invariants=False)
    return made.requires_grad_(requires_grad), dense


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize("layout", ["bsr", "bsr shuffled", "bsc", "csr", "csc", "coo"])
def test_every_sparse_layout_of_torch_becomes_blocks_and_single_elements(layout):
    name, _, shuffled = layout.partition(" ")
    weight, dense = block_tensor(name, shuffled=bool(shuffled))
    for cls in (layouts.Csr, layouts.Coo):
        index, values = cls.from_torch(weight)
        assert torch.equal(index.to_dense(values), dense)
        index.require_consistent("test", values)
    linear = nn.Linear(64, 48)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    made = [BlockSparseLinear.from_torch_bsr(weight, reblock=16), SparseLinear.from_dense(weight, "csr")]
    made += [BlockSparseLinear.from_dense(linear, select="stored", block=16)]
    made += [SparseLinear.from_dense(linear, "coo"), SparseLinear.from_dense(linear, "nm", n=4, m=4)]
    if name in ("bsr", "bsc"):
        made.append(BlockSparseLinear.from_torch_bsr(weight))
        assert made[-1].values.is_contiguous()
        shares = made[-1].values.data_ptr() == weight.values().data_ptr()
        assert shares == (layout == "bsr")
    else:
        with pytest.raises(sparseloom.Error, match=r"sparse_bsc tensor, got torch.sparse_.*pass reblock=32"):
            BlockSparseLinear.from_torch_bsr(weight)
    for layer in made:
        assert torch.equal(layer.to_dense().weight, dense)
    for recipe in (BlockSparse(16, select="stored"), InLayout("csr"), InLayout("nm", n=4, m=4)):
        net = nn.Sequential(nn.Linear(64, 48))
        net[0].weight = linear.weight
        (change,) = sparsify_(net, {"0": recipe}).changed
        assert torch.equal(net[0].to_dense().weight, dense) and change.kept == 1


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize(("block", "larger"), [(4, (8, 8)), ((12, 16), (16, 16)), ((2, 32), (8, 32))])
def test_blocks_without_a_kernel_are_refused_with_the_fill_in_and_taken_larger(block, larger, caplog):
    weight, dense = block_tensor("bsr", block)
    stored = pattern.from_nonzero(dense, larger).blocks * larger[0] * larger[1]
    zeros = stored - weight.values().numel()
    says = rf"pass reblock=\({larger[0]}, {larger[1]}\): of the {stored} elements .* {zeros} are zeros"
    with pytest.raises(sparseloom.Error, match=says):
        BlockSparseLinear.from_torch_bsr(weight)
    with caplog.at_level(logging.INFO, "sparseloom"):
        layer = BlockSparseLinear.from_torch_bsr(weight, reblock=larger)
    assert torch.equal(layer.to_dense().weight, dense)
    assert f"store {stored} elements for the {weight.values().numel()}" in caplog.text


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
def test_values_that_lie_transposed_are_made_contiguous():
    weight, dense = block_tensor("bsr")
    values = weight.values().transpose(1, 2).contiguous().transpose(1, 2)
    assert not values.is_contiguous()
    weight = torch.sparse_bsr_tensor(weight.crow_indices(), weight.col_indices(), values, (48, 64))
    layer = BlockSparseLinear.from_torch_bsr(weight)
    assert layer.values.is_contiguous() and torch.equal(layer.to_dense().weight, dense)
    assert all(entry.is_contiguous() for entry in layer.state_dict().values())


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("layout", ["strided", "bsr", "csr"])
def test_a_parameter_says_whether_its_layer_trains_and_any_other_tensor_does(layout, trains):
    weight, dense = block_tensor("bsr" if layout == "strided" else layout)
    weight = dense if layout == "strided" else weight
    bias = nn.Parameter(torch.ones(48), requires_grad=trains)
    held = nn.Parameter(weight, requires_grad=trains)
    linear = nn.Linear(64, 48).eval()
    linear.weight, linear.bias = held, bias
    for given, expected in ((held, trains), (weight, True)):
        made = [
            SparseLinear.from_dense(given, "csr", bias=bias),
            BlockSparseLinear.from_dense(given, density=1.0, block=16, bias=bias),
        ]
        if layout == "bsr":
            made.append(BlockSparseLinear.from_torch_bsr(given, bias))
        for layer in made:
            assert layer.values.requires_grad == expected and layer.bias.requires_grad == trains
    layer = SparseLinear.from_dense(linear, "csr")
    assert not layer.training and layer.values.requires_grad == trains
