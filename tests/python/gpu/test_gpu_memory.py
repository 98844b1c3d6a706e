"""Memory: matrices of more than 2^31 elements, and a GPU that is full."""

import pytest
import torch
from on_gpu import make, random

from sparseloom import ops, pattern
from sparseloom.nn.held.state import build_index
from sparseloom.testing import Case, check_tiles

pytestmark = pytest.mark.gpu
SIDE, BLOCK, DENSITY = 65536, 128, 0.52
DTYPE = torch.bfloat16


@pytest.fixture(autouse=True)
def give_back():
    torch.cuda.empty_cache()
    yield
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def huge():
    """(CPU index, index on the GPU, values of 4.5 GB): more than 2^31 stored elements."""
    host = build_index(pattern.balanced(SIDE, SIDE, BLOCK, DENSITY, 0))
    values = torch.empty(len(host.col), BLOCK, BLOCK, dtype=DTYPE, device="cuda")
    values.normal_(generator=torch.Generator("cuda").manual_seed(0))
    assert values.numel() > 2**31
    yield host, host.to("cuda"), values
    del values
    torch.cuda.empty_cache()


def kernels(host, direction, m):
    plan = ops.plan(host, direction, DTYPE, m, device="cuda")
    return [candidate["kernel"] for candidate in plan["candidates"] if not candidate["refusal"]]


def require(actual, a, b, tile):
    """actual = a b, all bf16, against fp64."""
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    found = check_tiles(actual, a @ b, exact, magnitude, tile)
    assert found.ok, found


def stripe(values, slots, at):
    """The dense [blocks of a side * BLOCK, BLOCK] that the blocks values[slots], already turned to [..,
    BLOCK, BLOCK], make."""
    dense = torch.zeros(SIDE // BLOCK, BLOCK, BLOCK, dtype=DTYPE, device="cuda")
    dense[at.long().cuda()] = values[slots]
    return dense.view(SIDE, BLOCK)


CHOSEN = [0, 1, 255, 509, 511]  # block rows and columns; the last ones lie behind 2^31 elements


@pytest.mark.parametrize("m", [16, 130])
def test_forward_with_more_than_two_to_the_31_stored_elements(huge, m):
    host, index, values = huge
    x = random(m, SIDE, dtype=DTYPE)
    for kernel in kernels(host, "forward", m):
        y = ops.linear(x, values, index, kernel=kernel)
        for r in CHOSEN:
            slots = slice(int(host.crow[r]), int(host.crow[r + 1]))
            weight = stripe(values.transpose(1, 2), slots, host.col[slots])
            require(y[:, r * BLOCK : (r + 1) * BLOCK], x, weight, (16, BLOCK))


@pytest.mark.parametrize("m", [16, 130])
def test_dx_with_more_than_two_to_the_31_stored_elements(huge, m):
    host, index, values = huge
    dy = random(m, SIDE, dtype=DTYPE)
    for kernel in kernels(host, "dx", m):
        dx = ops.linear_dx(dy, values, index, kernel=kernel)
        for c in CHOSEN:
            entries = slice(int(host.ccol[c]), int(host.ccol[c + 1]))
            weight = stripe(values, host.slot[entries].long().cuda(), host.row[entries])
            require(dx[:, c * BLOCK : (c + 1) * BLOCK], dy, weight, (16, BLOCK))


def test_dw_with_more_than_two_to_the_31_stored_elements(huge):
    host, index, _ = huge
    x, dy = random(16, SIDE, dtype=DTYPE), random(16, SIDE, seed=1, dtype=DTYPE)
    rows = torch.arange(SIDE // BLOCK).repeat_interleave(host.crow.diff())
    boundary = 2**31 // BLOCK**2
    for kernel in kernels(host, "dw", 16):
        dvalues = ops.linear_dw(dy, x, index, kernel=kernel)
        for i in (0, 1, boundary - 1, boundary, boundary + 1, len(host.col) - 1):
            r, c = int(rows[i]) * BLOCK, int(host.col[i]) * BLOCK
            require(dvalues[i], dy[:, r : r + BLOCK].t(), x[:, c : c + BLOCK], (BLOCK, BLOCK))
        del dvalues


def test_pack_and_unpack_with_more_than_two_to_the_31_elements(huge):
    host, index, values = huge
    dense = ops.call("unpack", values, index.crow, index.col, SIDE, SIDE)
    slots = slice(int(host.crow[511]), int(host.crow[512]))
    assert torch.equal(dense[511 * BLOCK :].t(), stripe(values.transpose(1, 2), slots, host.col[slots]))
    packed = ops.call("pack", dense, index.crow, index.col, BLOCK, BLOCK)
    del dense
    assert torch.equal(packed, values)


LONG = 140_003  # tokens x 16384 features > 2^31


@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_x_and_dx_of_more_than_two_to_the_31_elements(direction):
    case = Case("long", direction, DTYPE, (64, 64), LONG, 16384, 128, "random", 0.3, device="cuda")
    host = build_index(case.make_pattern())
    index, generator = host.to("cuda"), torch.Generator("cuda").manual_seed(0)

    def draw(*shape):
        return torch.empty(shape, dtype=DTYPE, device="cuda").normal_(generator=generator)

    values, dy = draw(len(host.col), 64, 64), draw(LONG, 128)
    weight = ops.call("unpack", values, index.crow, index.col, 128, 16384)
    ends = [slice(0, 64), slice(131_040, 131_104), slice(LONG - 64, LONG)]
    x = None if direction == "dx" else draw(LONG, 16384)
    for kernel in kernels(host, direction, LONG):
        if direction == "forward":
            y = ops.linear(x, values, index, kernel=kernel)
            for rows in ends:
                require(y[rows], x[rows], weight.t(), (16, 64))
        elif direction == "dx":
            dx = ops.linear_dx(dy, values, index, kernel=kernel)
            for rows in ends:
                require(dx[rows], dy[rows], weight, (16, 64))
            del dx
        else:
            dvalues, first, last = (
                ops.linear_dw(dy, x, index, kernel=kernel),
                int(host.col[0]) * 64,
                int(host.col[-1]) * 64,
            )
            require(dvalues[0], dy[:, :64].t(), x[:, first : first + 64], (64, 64))
            require(dvalues[-1], dy[:, 64:].t(), x[:, last : last + 64], (64, 64))


def test_out_of_memory_is_torch_s_own_error_and_life_goes_on():
    wide, deep = make(8, 2**20, density=1.0, block=8), make(2**20, 8, density=1.0, block=8)
    x = random(1, 8).expand(2**18, 8)  # an output of 1 TiB
    for _ in range(2):
        before = torch.cuda.memory_allocated()
        with torch.no_grad(), pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            wide(x)
        with pytest.raises(torch.OutOfMemoryError):
            wide(x)  # the differentiable route
        with pytest.raises(torch.OutOfMemoryError):
            ops.linear_dx(x, deep.values.detach(), deep.index)
        assert torch.cuda.memory_allocated() == before
        assert wide(x[:3]).isfinite().all() and deep(random(2, 2**20)).isfinite().all()


def test_out_of_memory_in_the_scratch_of_a_kernel():
    case = Case(
        "scratch", "forward", torch.bfloat16, (32, 32), 16, 16384, 16384, "random", 0.05, device="cuda"
    )
    inputs = case.inputs()
    ops.linear(inputs.x, inputs.values, inputs.index, kernel="dense")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    # the scratch is 512 MB
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            ops.linear(inputs.x, inputs.values, inputs.index, kernel="dense")
        assert ops.linear(inputs.x, inputs.values, inputs.index, kernel="sm80_mma").isfinite().all()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
