"""What CUDA products promise about numbers: NaN rules, fp32 sums, TF32 by torch's switch, autocast, bitwise
repeatability."""

from dataclasses import replace

import pytest
import torch
from on_gpu import make, random

from sparseloom import ops, pattern
from sparseloom.nn import BlockSparseLinear
from sparseloom.testing import (
    Case,
    check_product,
    dense_product,
    exact_product,
    kernels_for,
    packed,
    sparse_product,
    tf32_switch,
)

pytestmark = pytest.mark.gpu
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def able(case, inputs):
    """The kernels that promise the NaN rule: all but the dense one and those that multiply zeros between
    blocks."""
    zeros = ("dense", "merged", "expanded")
    return [kernel for kernel in kernels_for(case, inputs) if not any(word in kernel for word in zeros)]


@pytest.mark.parametrize("m", [8, 130])
@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_b20_nan_under_an_absent_block_does_not_spread(dtype, block, m):
    made = pattern.block_diagonal(4 * block, 4 * block, block, 4)
    for direction in ("forward", "dx"):
        case = Case("b20", direction, dtype, (block, block), m, 4 * block, 4 * block, device="cuda")
        layer = BlockSparseLinear(4 * block, 4 * block, pattern=made, dtype=dtype, device="cuda")
        x = random(m, 4 * block, dtype=dtype)
        x[2, 3], x[5, 4 * block - 4] = torch.nan, torch.inf  # under the first and the last block alone
        inputs = replace(
            case.inputs(), x=x, dy=x, values=layer.values.detach(), pattern=made, index=layer.index
        )
        assert able(case, inputs)
        for kernel in able(case, inputs):
            bad = ~sparse_product(case, inputs, kernel).isfinite()
            assert bad[2, :block].all() and bad[5, 3 * block :].all() and bad.sum() == 2 * block, kernel
        values = inputs.values.clone()
        # a NaN in a stored block does spread: to one output feature, or one input feature
        values[1, 2, 3] = torch.nan
        ones = torch.ones_like(x)
        for kernel in kernels_for(case, inputs):
            result = sparse_product(case, replace(inputs, x=ones, dy=ones, values=values), kernel)
            assert result[:, block + (2 if direction == "forward" else 3)].isnan().all(), kernel


@pytest.mark.parametrize("dtype", DTYPES)
def test_b20_dw_keeps_nan_to_the_blocks_that_read_it(dtype):
    case = Case("b20", "dw", dtype, (16, 32), 40, 96, 64, "full", device="cuda")
    inputs = case.inputs()
    inputs.x[7, 40] = torch.nan  # in the second block column
    for kernel in able(case, inputs):
        bad = sparse_product(case, inputs, kernel).isnan()
        column = inputs.index.col.long() == 1
        assert bad[column][:, :, 8].all() and bad.sum() == 16 * int(column.sum()), kernel


@pytest.mark.parametrize("how", ["dx", "dw", "forward"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_b20_padding_never_reads_beyond_the_matrix(how, dtype):
    """NaN in the memory right behind the rows of a sliced operand, where a ragged block would read on, and
    below the last row."""
    case = Case("b20", how, dtype, (32, 64), 9, 70, 37, "full", device="cuda")
    inputs = case.inputs()

    def framed(tensor):
        memory = torch.full(
            (tensor.shape[0] + 64, tensor.shape[1] + 27), torch.nan, dtype=dtype, device="cuda"
        )
        memory[: tensor.shape[0], : tensor.shape[1]] = tensor
        return memory[: tensor.shape[0], : tensor.shape[1]]

    moved = replace(inputs, x=framed(inputs.x), dy=framed(inputs.dy))
    for kernel in kernels_for(case, inputs):
        found = check_product(case, inputs, sparse_product(case, moved, kernel))
        assert found.ok, f"{kernel}: {found}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_b17_sums_are_kept_in_fp32(dtype, direction):
    """16 Ki ones, then small numbers that a 16-bit or a lazily rounded sum would lose."""
    long, small = 16384, 2.0**-9
    sizes = {"forward": (2, long, 8), "dx": (2, 8, long), "dw": (long, 8, 8)}[direction]
    case = Case("b17", direction, dtype, (8, 8), *sizes, "full", device="cuda")
    inputs = case.inputs()
    for tensor in (inputs.x, inputs.dy, inputs.values):
        tensor.fill_(1)
    terms = inputs.x if direction == "forward" else inputs.dy
    (terms.t() if direction == "dw" else terms)[:, 1::2] = small
    exact = long // 2 * (1 + small)  # 8208
    for kernel in able(case, inputs):
        got = sparse_product(case, inputs, kernel).double()
        assert (got - exact).abs().max() <= torch.finfo(dtype).eps * exact, f"{kernel}: {got.flatten()[0]}"


@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_tf32_follows_torch_s_switch(direction):
    off = Case("switch", direction, torch.float32, (32, 32), 300, 512, 384, "balanced", device="cuda")
    on, inputs = replace(off, tf32=True), off.inputs()  # operands that TF32 must round
    assert "sm80_mma" in kernels_for(on, inputs) and "sm80_mma" not in kernels_for(off, inputs)
    exact, rounded = sparse_product(off, inputs), sparse_product(on, inputs)
    assert not torch.equal(exact, rounded)
    found = check_product(off, inputs, exact)
    assert found.ok, found
    assert not check_product(off, inputs, rounded).ok
    # Each operand loses less than 2^-10 of itself, by rounding or by cutting off: 2^-9 of the summed
    # magnitudes, plus fp32's own.
    wanted = exact_product(on, inputs)
    operands = [operand.double().abs() for operand in (inputs.x, inputs.dy, inputs.weight())]
    magnitude = dense_product(replace(on, dtype=torch.float64, tf32=False), *operands, None)
    if direction == "dw":
        wanted, magnitude = packed(wanted, inputs.pattern), packed(magnitude, inputs.pattern)
    for kernel in kernels_for(on, inputs):
        error = (sparse_product(on, inputs, kernel).double() - wanted).abs()
        assert bool((error <= (2**-9 + 2**-16) * magnitude).all()), kernel


def test_gradients_follow_the_switch_too():
    layer, x = make(512, 512, block=32), random(300, 512).requires_grad_()
    gradients = []
    for on in (False, True):
        with tf32_switch(on):
            gradients.append(torch.autograd.grad(layer(x).square().sum(), [x, layer.values]))
    for exact, rounded in zip(*gradients, strict=True):
        assert not torch.equal(exact, rounded)
        torch.testing.assert_close(rounded, exact, atol=0.05 * float(exact.abs().max()), rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_for_nn_linear(dtype):
    layer, x = make(activation="gelu"), random(7, 100).requires_grad_()
    dense = layer.to_dense()
    with torch.autocast("cuda", dtype=dtype):
        y, expected = layer(x), dense(x)
    assert y.dtype == expected.dtype == dtype
    torch.testing.assert_close(y, expected, atol=2e-2, rtol=2e-2)
    y.sum().backward()
    assert x.grad.dtype == layer.values.grad.dtype == layer.bias.grad.dtype == torch.float32
    with torch.no_grad(), torch.autocast("cuda", dtype=dtype):
        torch.testing.assert_close(layer(x), y, atol=2e-2, rtol=2e-2)
    with torch.autocast("cuda", dtype=dtype, enabled=False):
        assert layer(x).dtype == torch.float32
    with torch.autocast("cpu", dtype=dtype):
        assert layer(x).dtype == torch.float32


def test_grad_scaler_with_fp16_autocast():
    layer, x = make(64, 64), random(33, 64)
    optimizer, scaler = (
        torch.optim.SGD(layer.parameters(), 0.1),
        torch.amp.GradScaler("cuda", init_scale=2.0**8),
    )
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = layer(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("direction", ops.DIRECTIONS)
@pytest.mark.parametrize("m", [33, 700])
def test_b21_bitwise_the_same_in_every_run_and_from_any_memory(dtype, direction, m):
    case = Case(
        "b21", direction, dtype, (16, 16), m, 200, 180, "skewed", bias=direction == "forward", device="cuda"
    )
    inputs = case.inputs()
    again = case.inputs()  # the same bits elsewhere
    for kernel in able(case, inputs):
        first = sparse_product(case, inputs, kernel)
        for _ in range(10):
            assert torch.equal(sparse_product(case, inputs, kernel), first), kernel
        assert torch.equal(sparse_product(case, again, kernel), first), kernel
