"""Bugs of earlier sparse libraries in sizes and indices, each as the test that would have found it; see
test_regressions.py."""

import os

import numpy as np
import pytest
import torch

import sparseloom
from sparseloom import ops, pattern
from sparseloom.nn import BlockSparseLinear
from sparseloom.testing import Case, kernels_for, require_product, sparse_product


@pytest.mark.parametrize("k", [32, 64, 96, 160, 192, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_b7_any_number_of_inputs_with_odd_numbers_of_tokens_and_outputs(dtype, k):
    for direction in ops.DIRECTIONS:
        case = Case("b7", direction, dtype, (64, 64), 13, k, 77, bias=direction == "forward")
        for kernel in kernels_for(case):
            require_product(case, case.inputs(), kernel)


def free_memory():
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(free_memory() < 8 << 30, reason="needs 8 GB of free memory")
def test_b11_more_than_two_to_the_31_stored_elements():
    """One block of ones behind 2^31 zeros: an offset that wraps around reads a zero."""
    side = 363 * 128
    made = pattern.full(side, side, 128)
    memory = np.zeros((made.blocks, 128, 128), np.uint16)  # pages that nobody writes take no memory
    values = torch.from_numpy(memory).view(torch.bfloat16)
    assert values[:-1].numel() > 2**31
    values[-1] = 1
    index = ops.make_index(*made.index(), side, side, (128, 128))
    x = torch.ones(1, side, dtype=torch.bfloat16)
    for product in (ops.linear, ops.linear_dx):
        y = product(x, values, index)
        assert (y[0, -128:] == 128).all() and not y[0, :-128].any()


def test_b15_no_result_depends_on_who_was_first():
    """Bitwise the same in many launches while other threads of the caller do the same."""
    from concurrent.futures import ThreadPoolExecutor

    layer = BlockSparseLinear(160, 144, density=0.4, block=16)
    x = torch.randn(37, 160)
    dy = torch.randn(37, 144)
    values = layer.values.detach()

    def all_three():
        return [
            ops.linear(x, values, layer.index),
            ops.linear_dx(dy, values, layer.index),
            ops.linear_dw(dy, x, layer.index),
        ]

    expected = all_three()

    def work(_):
        return all(torch.equal(a, b) for _ in range(150) for a, b in zip(all_three(), expected, strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_b14_many_rows_that_select_the_same_columns():
    """The transposed index then has one long list: where duplicates were lost, dX was wrong and the forward
    pass exact."""
    grid = torch.zeros(40, 9, dtype=torch.bool)
    grid[:, 4] = grid[::3, 8] = True
    made = pattern.from_mask(40 * 8, 9 * 16, (8, 16), grid)
    layer = BlockSparseLinear(144, 320, pattern=made)
    dense, x = layer.to_dense(), torch.randn(21, 144, requires_grad=True)
    dy = torch.randn(21, 320)
    mine = torch.autograd.grad(layer(x), [x, layer.values], dy)
    theirs = torch.autograd.grad(dense(x), [x, dense.weight], dy)
    torch.testing.assert_close(mine[0], theirs[0], atol=1e-4, rtol=1e-4)
    packed = BlockSparseLinear.from_dense(theirs[1], made).values.detach()
    torch.testing.assert_close(mine[1], packed, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_b16_the_indices_alone_define_the_pattern(direction):
    """Values that happen to be zero are stored all the same; indices in other memory give the same result or
    an error."""
    case = Case("b16", direction, torch.float32, (16, 32), 9, 96, 64)
    inputs = case.inputs()
    index = inputs.index
    for kernel in kernels_for(case, inputs):
        expected = sparse_product(case, inputs, kernel)
        behind = torch.cat([torch.full((3,), 10**6, dtype=torch.int32), index.packed])[3:]
        moved = inputs.__class__(**{**vars(inputs), "index": index._replace(packed=behind)})
        assert torch.equal(sparse_product(case, moved, kernel), expected), kernel
        apart = torch.stack([index.packed] * 2, 1)[:, 0]
        assert not apart.is_contiguous()
        moved = inputs.__class__(**{**vars(inputs), "index": index._replace(packed=apart)})
        try:
            got = sparse_product(case, moved, kernel)
        except sparseloom.Error as error:
            assert "contiguous" in str(error)
        else:
            assert torch.equal(got, expected), kernel


def test_b16_gradients_reach_stored_blocks_that_are_zero():
    layer = BlockSparseLinear(64, 64, density=0.5, block=16)
    with torch.no_grad():
        layer.values.zero_()
    layer(torch.ones(2, 64)).sum().backward()
    assert (layer.values.grad == 2).all()


def test_b19_duplicate_columns_are_refused_by_every_door():
    crow, col = torch.tensor([0, 2, 2], dtype=torch.int32), torch.tensor([1, 1], dtype=torch.int32)
    with pytest.raises(sparseloom.Error, match="col"):
        pattern.Pattern.from_index(crow, col, 32, 64, 16)
    with pytest.raises(sparseloom.Error, match="col"):
        ops.make_index(crow, col, 32, 64, (16, 16))
    layer = BlockSparseLinear(64, 32, False, pattern=pattern.random(32, 64, 16, 0.25, 0))
    with pytest.raises(RuntimeError, match="col"):
        layer.load_state_dict({"values": layer.values, "crow": crow, "col": col})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block", [8, 16, (32, 8)])
def test_b30_the_blocks_of_a_random_pattern_are_counted_once(seed, block):
    made = pattern.random(130, 200, block, 0.37, seed)
    layer = BlockSparseLinear(200, 130, pattern=made)
    crow, col = made.index()
    grid = -(-130 // made.block[0]) * -(-200 // made.block[1])
    assert (
        made.blocks
        == int(crow[-1])
        == len(col)
        == len(layer.values)
        == len(layer.index.slot)
        == int(0.37 * grid + 0.5)
    )
    assert layer(torch.randn(3, 200)).shape == (3, 130)
    assert ops.linear_dw(torch.randn(3, 130), torch.randn(3, 200), layer.index).shape == layer.values.shape
