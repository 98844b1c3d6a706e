"""Kernels that begin while the one before them ends (programmatic dependent launch) still read what it wrote,
and write behind it.

Each chain runs twice on the same operands, once with the host waiting behind every call: nothing can overlap
there, so any bit that differs is a read or a write that came too early."""

from collections.abc import Callable

import pytest
import torch
from on_gpu import capture, random
from torch import Tensor

from sparseloom import ops
from sparseloom.nn import BlockSparseLinear
from sparseloom.nn.held.state import build_index
from sparseloom.testing import Case, kernels_for

pytestmark = pytest.mark.gpu
#: Calls in a chain, each of which reads what the one before wrote.
CALLS = 40


def index_of(case: Case):
    return build_index(case.inputs().pattern).to("cuda")


def waited(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def and_wait(*operands, **options):
        torch.cuda.synchronize()
        result = call(*operands, **options)
        torch.cuda.synchronize()
        return result

    return and_wait


def expect_same_in_a_row(chain: Callable[[Callable], list[Tensor]]) -> None:
    """The chain waiting, eager and as a graph. Memory is recycled within it, so a late reader would find
    newer bits as well."""
    expected = [t.clone() for t in chain(waited)]
    assert all(bool(t.isfinite().all()) for t in expected)
    for _ in range(5):
        for got, want in zip(chain(lambda call: call), expected, strict=True):
            assert torch.equal(got, want)
    results: list[Tensor] = []

    def call() -> Tensor:
        results[:] = chain(lambda call: call)
        return results[0]

    graph, _ = capture(call)
    for _ in range(5):
        for t in results:
            t.fill_(torch.nan)
        graph.replay()
        for got, want in zip(results, expected, strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize("m", [16, 700])
@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("direction", ["forward", "dx"])
def test_every_kernel_reads_what_the_one_before_wrote(direction, dtype, block, m):
    case = Case("chain", direction, dtype, (block, block), m, 512, 512, "random", 0.3, device="cuda")
    inputs, index = case.inputs(), index_of(case)
    values = inputs.values / 12  # keeps the chain's numbers where they are
    start = random(m, 512, dtype=dtype)
    product = {"forward": ops.linear, "dx": ops.linear_dx}[direction]
    for kernel in kernels_for(case, inputs):
        if kernel == "dense":
            continue

        def chain(wrap: Callable, kernel=kernel) -> list[Tensor]:
            call, x, kept = wrap(product), start, []
            for i in range(CALLS):
                x = call(x, values, index, kernel=kernel)
                if i % 10 == 9:
                    kept.append(x)
            return kept

        expect_same_in_a_row(chain)


@pytest.mark.parametrize("block", [16, 32, 128])
@pytest.mark.parametrize("m", [16, 700])
def test_values_that_a_product_has_just_written_are_multiplied(block, m):
    """dW's result as the next product's values, and that one's output as the next dW's operand."""
    case = Case(
        "values", "forward", torch.bfloat16, (block, block), m, 512, 512, "random", 0.3, device="cuda"
    )
    index, start = index_of(case), random(m, 512, dtype=torch.bfloat16)

    def chain(wrap: Callable) -> list[Tensor]:
        linear, dw = wrap(ops.linear), wrap(ops.linear_dw)
        x = start
        for i in range(CALLS):
            values = dw(x, x, index)
            x = linear(x, values / values.abs().amax().clamp_min(1) if i % 2 else values, index)
            x = x / x.abs().amax().clamp_min(1)
        return [x, values]

    expect_same_in_a_row(chain)


def test_a_backward_pass_in_a_row():
    """The pass over dy, its sums, dX and dW follow each other without the host, and torch's allocator
    recycles what they leave."""
    torch.manual_seed(0)
    layer = BlockSparseLinear(
        512, 512, density=0.3, block=32, activation="gelu", device="cuda", dtype=torch.bfloat16
    )
    start, dy = random(700, 512, dtype=torch.bfloat16), random(700, 512, seed=1, dtype=torch.bfloat16)

    def chain(wrap: Callable) -> list[Tensor]:
        step = wrap(lambda x, dy: torch.autograd.grad(layer(x), [x, *layer.parameters()], dy))
        x, gradients = start, []
        for _ in range(CALLS):
            dx, *gradients = step(x.detach().requires_grad_(), dy)
            x = dx / dx.abs().amax()
        return [t.detach() for t in (x, *gradients)]

    expect_same_in_a_row(chain)


def test_a_product_behind_two_streams_waits_for_both():
    """In a capture its dependencies are a kernel of its own stream and one of another."""
    case = Case("join", "forward", torch.bfloat16, (64, 64), 300, 512, 512, "random", 0.3, device="cuda")
    values, index = case.inputs().values, index_of(case)
    x = random(300, 512, dtype=torch.bfloat16)
    expected = ops.linear(ops.linear(x, values, index) + ops.linear(-x / 2, values, index), values, index)

    def joined() -> Tensor:
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            other = ops.linear(-x / 2, values, index)
        own = ops.linear(x, values, index)
        here.wait_stream(side)
        return ops.linear(own + other, values, index)

    graph, result = capture(joined)
    for _ in range(20):
        result.fill_(torch.nan)
        graph.replay()
        assert torch.equal(result, expected)
