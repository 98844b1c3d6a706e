"""The Hopper decode kernels begin while the kernel before them ends: what that one writes must be what they
read."""

import pytest
import torch
from on_gpu import capture

from sparseloom import ops, pattern
from sparseloom.nn.held.state import build_index

pytestmark = pytest.mark.gpu
KERNEL = "sm90_decode_lines"
SIDE = 2048
LINKS = 30


def weight(block, dtype=torch.bfloat16):
    """Index and values of a square weight that keeps the size of what it multiplies."""
    made = pattern.balanced(SIDE, SIDE, block, 0.1, 0)
    values = torch.randn(made.blocks, block, block, device="cuda", dtype=dtype) / (0.1 * SIDE) ** 0.5
    return build_index(made).to("cuda"), values


@pytest.fixture(autouse=True)
def hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("they need a Hopper GPU")


@pytest.mark.parametrize("tokens", [1, 16, 32])
@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_a_chain_reads_what_its_last_link_wrote(block, tokens):
    index, values = weight(block)
    x = torch.randn(tokens, SIDE, device="cuda", dtype=torch.bfloat16)

    def chain(wait):
        y = x
        for _ in range(LINKS):
            y = ops.linear(y, values, index, kernel=KERNEL)
            if wait:
                torch.cuda.synchronize()
        return y

    expected = chain(wait=True)
    assert expected.isfinite().all() and expected.abs().max() > 0
    for _ in range(20):
        assert torch.equal(chain(wait=False), expected)
    graph, y = capture(lambda: chain(wait=False))
    for _ in range(20):
        graph.replay()
        assert torch.equal(y, expected)


@pytest.mark.parametrize("block", [16, 32, 128])
def test_values_and_tokens_written_just_before_are_read(block):
    index, values = weight(block)
    x = torch.randn(16, SIDE, device="cuda", dtype=torch.bfloat16)
    steps, signs = [], [1.0, -2.0, 0.5, -1.0]
    for sign in signs:
        torch.cuda.synchronize()
        steps.append(ops.linear(x * sign, values * sign, index, kernel=KERNEL))
    torch.cuda.synchronize()
    written, tokens = torch.empty_like(values), torch.empty_like(x)
    for _ in range(20):
        results = []
        for sign in signs:
            torch.mul(x, sign, out=tokens)
            torch.mul(values, sign, out=written)
            results.append(ops.linear(tokens, written, index, kernel=KERNEL))
        for result, expected in zip(results, steps, strict=True):
            assert torch.equal(result, expected)


def test_an_output_is_not_written_while_the_kernel_before_still_reads_it():
    """The allocator gives the second call the memory that the first has just read."""
    index, values = weight(32)
    x = torch.randn(32, SIDE, device="cuda", dtype=torch.bfloat16)
    expected = ops.linear(x, values, index, kernel=KERNEL)
    for _ in range(100):
        first = x.clone()
        y = ops.linear(first, values, index, kernel=KERNEL)
        del first
        other = ops.linear(x, values, index, kernel=KERNEL)
        assert torch.equal(y, expected) and torch.equal(other, expected)
