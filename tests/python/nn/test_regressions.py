"""Bugs of earlier sparse libraries, each as the test that would have found it; the names are those of the
design notes."""

import itertools
import resource
from dataclasses import replace

import pytest
import torch

from sparseloom import ops, pattern
from sparseloom.nn import BlockSparseLinear
from sparseloom.testing import Case, check_product, kernels_for, require_product, sparse_product

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def strided(tensor, how):
    """The same matrix in other memory."""
    rows, cols = tensor.shape
    if how == "transposed":
        return tensor.t().contiguous().t()
    if how == "step 2":
        return torch.stack([tensor, torch.full_like(tensor, torch.nan)], -1)[..., 0]
    if how == "offset":
        memory = torch.full((rows * cols + 7,), torch.nan, dtype=tensor.dtype)
        return memory[7:].copy_(tensor.reshape(-1)).view(rows, cols)
    if how == "wide rows":  # x[:, :k] of a wider matrix
        return torch.cat([tensor, torch.full((rows, 5), torch.nan, dtype=tensor.dtype)], 1)[:, :cols]
    if how == "every other row":
        return torch.stack([tensor, torch.full_like(tensor, torch.nan)], 1)[:, 0]
    return tensor


LAYOUTS = ["contiguous", "transposed", "step 2", "offset", "wide rows", "every other row"]


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_b1_b2_operands_of_any_memory_layout(how, dtype, direction):
    case = Case("b1", direction, dtype, (16, 32), 21, 75, 53, bias=direction == "forward")
    inputs = case.inputs()
    x, dy, values = strided(inputs.x, how), strided(inputs.dy, how), inputs.values
    if how != "contiguous":
        values = strided(values.reshape(-1, 32), how).unflatten(0, (-1, 16))
        bias = None if inputs.bias is None else torch.stack([inputs.bias, inputs.bias * 9], 1)[:, 0]
    else:
        bias = inputs.bias
    moved = replace(inputs, x=x, dy=dy, values=values, bias=bias)
    for kernel in kernels_for(case, inputs):
        found = check_product(case, inputs, sparse_product(case, moved, kernel))
        assert found.ok, f"{kernel}: {found}"


@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_b1_expanded_operands(direction):
    case = Case("b1", direction, torch.float32, (16, 32), 21, 75, 53)
    inputs = case.inputs()
    x, dy = inputs.x[:1].expand(21, -1), inputs.dy[:1].expand(21, -1)
    for kernel in kernels_for(case, inputs):
        found = check_product(
            case, replace(inputs, x=x, dy=dy), sparse_product(case, replace(inputs, x=x, dy=dy), kernel)
        )
        assert found.ok, f"{kernel}: {found}"


def test_b1_gradients_that_arrive_expanded_or_transposed():
    layer, x = BlockSparseLinear(48, 32, density=0.5, block=16), torch.randn(6, 48, requires_grad=True)
    dense = layer.to_dense()
    for finish in (
        lambda y: y.sum(),
        lambda y: (y.t() * torch.arange(6.0)).sum(),
        lambda y: y[:, ::2].sum(),
        lambda y: y[::3].mean(),
    ):
        got = torch.autograd.grad(finish(layer(x)), x)[0]
        torch.testing.assert_close(got, torch.autograd.grad(finish(dense(x)), x)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("direction", ops.DIRECTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_b5_negative_zeros_and_denormals(direction, dtype):
    case = Case("b5", direction, dtype, (16, 16), 9, 40, 40, "full")
    inputs = case.inputs()
    tiny = torch.finfo(dtype).tiny / 4
    for tensor in (inputs.x, inputs.dy, inputs.values):
        flat = tensor.view(-1)
        flat[::3] = -0.0
        flat[1::7] = tiny
    for kernel in kernels_for(case, inputs):
        require_product(case, inputs, kernel)
    zeros = replace(inputs, x=torch.full_like(inputs.x, -0.0), dy=torch.full_like(inputs.dy, -0.0))
    for kernel in kernels_for(case, inputs):
        assert (sparse_product(case, zeros, kernel) == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("k", "n"), [(40, 1), (1, 1), (1, 40), (33, 17)])
def test_b6_bias_is_one_value_per_output(dtype, k, n):
    case = Case("b6", "forward", dtype, (8, 16), 5, k, n, "full", bias=True)
    inputs = case.inputs()
    for kernel in kernels_for(case, inputs):
        require_product(case, inputs, kernel)
    for bad in (
        torch.zeros(n + 1, dtype=dtype),
        torch.zeros(1, n, dtype=dtype),
        torch.zeros(n, dtype=torch.int32),
    ):
        with pytest.raises(RuntimeError, match="bias"):
            ops.linear(inputs.x, inputs.values, inputs.index, bad)


@pytest.mark.parametrize(
    "empty", ["first row", "last row", "every row but one", "all", "first column", "last column"]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_b12_b13_empty_rows_and_columns(empty, dtype):
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
        case = Case("b12", direction, dtype, (16, 8), 19, 37, 61, bias=direction == "forward")
        inputs = case.inputs()
        made = pattern.from_mask(61, 37, (16, 8), grid)
        weight = torch.randn(61, 37).to(dtype)
        layer = BlockSparseLinear.from_dense(weight, made)
        inputs = replace(inputs, values=layer.values.detach(), pattern=made, index=layer.index)
        for kernel in kernels_for(case, inputs):
            require_product(case, inputs, kernel)
            # exactly the bias, not zero and not what the memory held
            if empty == "all" and direction == "forward":
                assert torch.equal(sparse_product(case, inputs, kernel), inputs.bias.expand(19, -1))
            if empty == "all" and direction == "dx":
                assert (sparse_product(case, inputs, kernel) == 0).all()


def test_b13_zero_sizes_forward_and_backward():
    for m, k, n in ((0, 16, 16), (3, 0, 16), (0, 0, 0)):
        layer = BlockSparseLinear(k, n, density=1.0, block=8)
        x = torch.randn(m, k, requires_grad=True)
        layer(x).sum().backward()
        assert x.grad.shape == (m, k) and layer.values.grad.shape == layer.values.shape
        assert torch.equal(layer.bias.grad, torch.full((n,), float(m)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("direction", ["forward", "dx", "dw"])
def test_b17_sums_are_kept_in_fp32(dtype, direction):
    """16 Ki ones, then small numbers that a 16-bit or a lazily rounded sum would lose."""
    long, small = 16384, 2.0**-9
    sizes = {"forward": (2, long, 8), "dx": (2, 8, long), "dw": (long, 8, 8)}[direction]
    case = Case("b17", direction, dtype, (8, 8), *sizes, "full")
    inputs = case.inputs()
    for tensor in (inputs.x, inputs.dy, inputs.values):
        tensor.fill_(1)
    terms = inputs.x if direction == "forward" else inputs.dy
    (terms.t() if direction == "dw" else terms)[:, 1::2] = small
    exact = long // 2 * (1 + small)  # 8208
    for kernel in kernels_for(case, inputs):
        got = sparse_product(case, inputs, kernel).double()
        assert (got - exact).abs().max() <= torch.finfo(dtype).eps * exact, f"{kernel}: {got.flatten()[0]}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_b20_nan_under_an_absent_block_does_not_spread(dtype):
    made = pattern.block_diagonal(64, 64, 16, 4)
    layer = BlockSparseLinear(64, 64, pattern=made, dtype=dtype)
    layer.strict = dtype != torch.float64  # only the reference kernel takes it, and strict forbids that
    strict = [c["kernel"] for c in layer.plan(8)["candidates"] if not c["refusal"] and c["kernel"] != "dense"]
    x = torch.randn(8, 64).to(dtype)
    x[2, 3], x[5, 60] = torch.nan, torch.inf  # under the blocks of outputs 0-15 and 48-63 alone
    assert strict
    for kernel in strict:
        y = ops.linear(x, layer.values.detach(), layer.index, kernel=kernel)
        bad = ~y.isfinite()
        assert bad[2, :16].all() and bad[5, 48:].all() and bad.sum() == 32, kernel
        dx = (
            ops.linear_dx(x, layer.values.detach(), layer.index, kernel=kernel)
            if kernel in dx_kernels(layer)
            else y
        )
        assert (~dx.isfinite()).sum() == 32, kernel
    with torch.no_grad():
        layer.values[1, 2, 3] = torch.nan  # a NaN in a stored block does spread
        assert layer(torch.ones(8, 64, dtype=dtype))[:, 18].isnan().all()


def dx_kernels(layer):
    return [c["kernel"] for c in layer.plan(8, "dx")["candidates"] if not c["refusal"]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_b20_to_dense_is_a_copy_and_no_product(dtype):
    """An Inf or a NaN stays where it is; a product with the identity would fill its row."""
    weight = torch.randn(70, 100).to(dtype)
    weight[3, 5], weight[40, 99], weight[69, 0] = torch.nan, torch.inf, -torch.inf
    made = pattern.full(70, 100, 16)
    layer = BlockSparseLinear.from_dense(weight, made)
    again = layer.to_dense().weight.detach()
    assert torch.equal(again.nan_to_num(7), weight.nan_to_num(7)) and int((~again.isfinite()).sum()) == 3


@pytest.mark.parametrize("how", ["dx", "dw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_b20_padding_never_reads_beyond_the_matrix(how, dtype):
    """NaN in the memory right behind the rows of a sliced operand, where a ragged block would read on."""
    case = Case("b20", how, dtype, (32, 64), 9, 70, 37, "full")
    inputs = case.inputs()
    moved = replace(inputs, x=strided(inputs.x, "wide rows"), dy=strided(inputs.dy, "wide rows"))
    for kernel in kernels_for(case, inputs):
        assert check_product(case, inputs, sparse_product(case, moved, kernel)).ok, kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_b21_bitwise_the_same_in_every_run_and_for_every_number_of_threads(dtype, direction):
    case = Case("b21", direction, dtype, (16, 16), 77, 200, 180, "skewed", bias=direction == "forward")
    inputs = case.inputs()
    threads = torch.get_num_threads()
    try:
        for kernel in kernels_for(case, inputs):
            if kernel == "dense":  # torch's own product: its word, not ours
                continue
            torch.set_num_threads(1)
            first = sparse_product(case, inputs, kernel)
            for count in (1, 2, 3, 7):
                torch.set_num_threads(count)
                for _ in range(10):
                    assert torch.equal(sparse_product(case, inputs, kernel), first), (
                        f"{kernel} on {count} threads"
                    )
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("direction", ["forward", "dx"])
def test_b21_outputs_that_outgrow_the_caches_have_the_same_bits(dtype, direction):
    """One thread writes them past its caches (3 and 6 MB), many threads' caches hold them. Of short sums:
    torch's own dX in 16 bits, which they are checked by, took twenty seconds for 2056 terms."""
    forward = direction == "forward"
    k, n = (264, 2056) if forward else (2056, 264)
    case = Case("b21", direction, dtype, (8, 8), 730, k, n, "balanced", density=0.16, bias=forward)
    inputs = case.inputs()
    threads = torch.get_num_threads()
    try:
        for kernel in kernels_for(case, inputs):
            if kernel in ("dense", "reference"):  # torch's own; and far too slow
                continue
            torch.set_num_threads(1)
            first = sparse_product(case, inputs, kernel)
            assert check_product(case, inputs, first).ok, kernel
            torch.set_num_threads(12)
            assert torch.equal(sparse_product(case, inputs, kernel), first), kernel
    finally:
        torch.set_num_threads(threads)


def test_b21_nothing_changes_under_torchs_own_switch():
    """Determinism is the default: the switch finds nothing to refuse, and the bits are the same."""
    layer, x = BlockSparseLinear(128, 96, density=0.5, block=16), torch.randn(40, 128)

    def step():
        layer.zero_grad()
        y = layer(x)
        y.square().sum().backward()
        return y.detach(), layer.values.grad.clone()

    first = step()
    torch.use_deterministic_algorithms(True)
    try:
        assert all(torch.equal(a, b) for a, b in zip(step(), first, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


def test_b22_threads_of_the_caller_at_once():
    from concurrent.futures import ThreadPoolExecutor

    layers = [BlockSparseLinear(64, 48, density=density, block=16) for density in (0.2, 0.5, 0.8, 1.0)]
    x = torch.randn(33, 64)
    # a copy: two results in one memory would agree with themselves
    expected = [layer(x).detach().clone() for layer in layers]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(expected, 2))

    def work(i):
        with torch.no_grad():
            return all(torch.equal(layers[i % 4](x), expected[i % 4]) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.parametrize(
    "shape", [(64,), (1, 64), (0, 64), (2, 3, 64), (1, 1, 64), (2, 3, 4, 64), (2, 0, 4, 64)]
)
def test_b25_no_dimension_is_lost(shape):
    layer, x = BlockSparseLinear(64, 48, density=0.5, block=16), torch.randn(shape, requires_grad=True)
    y = layer(x)
    assert y.shape == (*shape[:-1], 48)
    y.sum().backward()
    assert x.grad.shape == x.shape


def test_b26_memory_is_flat_over_a_thousand_steps():
    layer = BlockSparseLinear(64, 256, density=0.5)
    x = torch.randn(64, 64, requires_grad=True)

    def steps(count):
        for _ in range(count):
            layer(x).sum().backward()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB

    steps(100)
    assert steps(100) + 16384 > steps(900)  # an output of 64 kB lost in each step would be 57 MB


@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_b8_every_candidate_of_a_plan_gives_the_result_not_only_the_winner(direction):
    ran = set()
    # dense is a candidate of the full one, decode of 4 tokens
    for m, made in ((128, "balanced"), (128, "full"), (4, "balanced")):
        case = Case("b8", direction, torch.float32, (64, 64), m, 256, 256, made, bias=direction == "forward")
        inputs = case.inputs()
        kernels = kernels_for(case, inputs)
        assert len(kernels) >= 2
        for kernel in kernels:
            require_product(case, inputs, kernel)
        ran.update(kernels)
    assert ran >= {"reference"} | ({"dense"} if direction == "forward" else set())


def test_b10_more_than_32767_blocks():
    layer = BlockSparseLinear(2048, 1088, density=1.0, block=8)
    assert layer.values.shape[0] == 34816 > 32767
    x = torch.randn(2, 2048)
    torch.testing.assert_close(layer(x), layer.to_dense()(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sizes", [(1, 3000), (3000, 1), (7, 2049), (2049, 7)])
def test_b24_skinny_and_tall(sizes):
    case = Case("b24", "forward", torch.float32, (32, 32), 5, *sizes, "full")
    for direction in ops.DIRECTIONS:
        turned = replace(case, direction=direction)
        for kernel in kernels_for(turned):
            require_product(turned, turned.inputs(), kernel)
