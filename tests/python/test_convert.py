"""From and to dense layers and torch.sparse_bsr: exact copies, or no copy at all."""

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import ops, pattern
from sparseloom.nn import BlockSparseLinear

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
