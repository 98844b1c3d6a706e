"""Operands on CUDA as callers bring them: any memory layout, alignment and shape, empty rows and columns,
zero sizes."""

from dataclasses import replace

import pytest
import torch
from on_gpu import make, poisoned_product, random

from sparseloom import ops, pattern
from sparseloom.nn import BlockSparseLinear
from sparseloom.testing import Case, check_product, kernels_for, sparse_product

pytestmark = pytest.mark.gpu
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LAYOUTS = ["transposed", "step 2", "offset", "wide rows", "every other row"]


def strided(tensor, how):
    """The same matrix in other memory, NaN around it."""
    rows, cols = tensor.shape
    if how == "transposed":
        return tensor.t().contiguous().t()
    if how == "step 2":
        return torch.stack([tensor, torch.full_like(tensor, torch.nan)], -1)[..., 0]
    if how == "offset":
        memory = torch.full((rows * cols + 7,), torch.nan, dtype=tensor.dtype, device=tensor.device)
        return memory[7:].copy_(tensor.reshape(-1)).view(rows, cols)
    if how == "wide rows":  # x[:, :k] of a wider matrix
        beside = torch.full((rows, 5), torch.nan, dtype=tensor.dtype, device=tensor.device)
        return torch.cat([tensor, beside], 1)[:, :cols]
    return torch.stack([tensor, torch.full_like(tensor, torch.nan)], 1)[:, 0]


def require(case, inputs, moved=None):
    """Every kernel on the moved operands against the reference on the plain ones."""
    for kernel in kernels_for(case, inputs):
        found = check_product(case, moved or inputs, poisoned_product(case, moved or inputs, kernel))
        assert found.ok, f"{kernel}: {found}"


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("direction", ops.DIRECTIONS)
@pytest.mark.parametrize("m", [21, 150])  # of the decode kernels, and beyond
def test_b1_b2_operands_of_any_memory_layout(how, dtype, direction, m):
    case = Case("b1", direction, dtype, (16, 32), m, 75, 53, bias=direction == "forward", device="cuda")
    inputs = case.inputs()
    values = strided(inputs.values.reshape(-1, 32), how).unflatten(0, (-1, 16))
    bias = None if inputs.bias is None else torch.stack([inputs.bias, inputs.bias * 9], 1)[:, 0]
    moved = replace(inputs, x=strided(inputs.x, how), dy=strided(inputs.dy, how), values=values, bias=bias)
    for kernel in kernels_for(case, inputs):
        found = check_product(case, inputs, sparse_product(case, moved, kernel))
        assert found.ok, f"{kernel}: {found}"


@pytest.mark.parametrize("block", [(32, 32), (64, 128)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_operands_off_by_one_element(direction, dtype, block):
    """Divisible sizes whose base and rows are not aligned to 16 bytes, and aligned ones beside them: the plan
    chooses a kernel that takes them, and one that is named takes or refuses them."""
    case = Case(
        "alignment", direction, dtype, block, 130, 4 * block[1], 3 * block[0], "random", device="cuda"
    )
    inputs = case.inputs()

    def shifted(tensor, by):
        return (
            torch.empty(tensor.numel() + by, dtype=tensor.dtype, device="cuda")[by:]
            .view(tensor.shape)
            .copy_(tensor)
        )

    for by in (1, 2, 4, 8):
        moved = replace(
            inputs, x=shifted(inputs.x, by), dy=shifted(inputs.dy, by), values=shifted(inputs.values, by)
        )
        for kernel in [None, *kernels_for(case, inputs)]:
            try:
                product = poisoned_product(case, moved, kernel)
            except RuntimeError as error:  # the kernel was named, and needs TMA
                assert kernel is not None and by * dtype.itemsize % 16 != 0, error
                assert "multiples of 16 bytes" in str(error)
                continue
            found = check_product(case, moved, product)
            assert found.ok, f"{kernel}: {found}"


@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_b1_expanded_operands(direction):
    case = Case("b1", direction, torch.bfloat16, (16, 32), 21, 75, 53, device="cuda")
    inputs = case.inputs()
    require(case, replace(inputs, x=inputs.x[:1].expand(21, -1), dy=inputs.dy[:1].expand(21, -1)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_b5_negative_zeros_and_denormals(direction, dtype):
    case = Case("b5", direction, dtype, (16, 16), 9, 40, 40, "full", device="cuda")
    inputs = case.inputs()
    for tensor in (inputs.x, inputs.dy, inputs.values):
        flat = tensor.view(-1)
        flat[::3] = -0.0
        flat[1::7] = torch.finfo(dtype).tiny / 4
    require(case, inputs)
    zeros = replace(inputs, x=torch.full_like(inputs.x, -0.0), dy=torch.full_like(inputs.dy, -0.0))
    for kernel in kernels_for(case, inputs):
        assert (sparse_product(case, zeros, kernel) == 0).all(), kernel


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k", "n"), [(40, 1), (1, 1), (1, 40), (33, 17)])
def test_b6_bias_is_one_value_per_output(dtype, k, n):
    case = Case("b6", "forward", dtype, (8, 16), 5, k, n, "full", bias=True, device="cuda")
    inputs = case.inputs()
    require(case, inputs)
    for bad in (
        torch.zeros(n + 1, dtype=dtype),
        torch.zeros(1, n, dtype=dtype),
        torch.zeros(n, dtype=torch.int32),
    ):
        with pytest.raises(RuntimeError, match="bias"):
            ops.linear(inputs.x, inputs.values, inputs.index, bad.cuda())


@pytest.mark.parametrize(
    "empty", ["first row", "last row", "every row but one", "all", "first column", "last column"]
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [19, 140])
def test_b12_b13_empty_rows_and_columns(empty, dtype, m):
    grid = torch.ones(4, 5, dtype=torch.bool)
    where = {
        "first row": grid[:1],
        "last row": grid[-1:],
        "every row but one": grid[1:],
        "all": grid,
        "first column": grid[:, :1],
    }
    where.get(empty, grid[:, -1:]).fill_(False)
    for direction in ops.DIRECTIONS:
        case = Case("b12", direction, dtype, (16, 8), m, 37, 61, bias=direction == "forward", device="cuda")
        made = pattern.from_mask(61, 37, (16, 8), grid)
        layer = BlockSparseLinear.from_dense(random(61, 37, dtype=dtype), made)
        inputs = replace(case.inputs(), values=layer.values.detach(), pattern=made, index=layer.index)
        require(case, inputs)
        for kernel in kernels_for(case, inputs):
            # exactly the bias, not zero and not what the memory held
            if empty == "all" and direction == "forward":
                assert torch.equal(poisoned_product(case, inputs, kernel), inputs.bias.expand(m, -1)), kernel
            if empty == "all" and direction == "dx":
                assert (poisoned_product(case, inputs, kernel) == 0).all(), kernel


@pytest.mark.parametrize("sizes", [(0, 16, 16), (3, 0, 16), (3, 16, 0), (0, 0, 0)])
def test_b13_zero_sizes_forward_and_backward(sizes):
    m, k, n = sizes
    layer = make(k, n, density=1.0, block=8)
    x = random(m, k).requires_grad_()
    layer(x).sum().backward()
    assert x.grad.shape == (m, k) and layer.values.grad.shape == layer.values.shape
    assert torch.equal(layer.bias.grad, torch.full((n,), float(m), device="cuda"))


@pytest.mark.parametrize("sizes", [(1, 3000), (3000, 1), (7, 2049), (2049, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_b24_skinny_and_tall(sizes, dtype):
    for direction in ops.DIRECTIONS:
        case = Case("b24", direction, dtype, (32, 32), 5, *sizes, "full", device="cuda")
        require(case, case.inputs())


@pytest.mark.parametrize(
    "shape", [(64,), (1, 64), (0, 64), (2, 3, 64), (2, 3, 4, 64), (2, 0, 4, 64), (2, 1, 3, 1, 64)]
)
def test_b25_no_dimension_is_lost(shape):
    layer, x = make(64, 48), random(*shape).requires_grad_()
    y = layer(x)
    assert y.shape == (*shape[:-1], 48) and y.is_cuda
    y.sum().backward()
    assert x.grad.shape == x.shape


def test_b10_more_than_32767_blocks():
    layer = make(2048, 1088, density=1.0, block=8)
    assert layer.values.shape[0] == 34816
    x = random(2, 2048)
    torch.testing.assert_close(layer(x), layer.to_dense()(x), atol=1e-4, rtol=1e-4)
