"""dW on Hopper at sizes that fill it: whole rounds of the grid, items whose tokens are cut, tails, regions;
integers, so exactly.

A part's sums travel through the workspace behind flags that no one clears beforehand: it may hold anything,
also what the last launch left there, and a graph replays one launch's nonce.
"""

import pytest
import torch
from on_gpu import capture, poison

from sparseloom import ops, pattern
from sparseloom.nn import BlockSparseLinear
from sparseloom.nn.held.state import build_index
from sparseloom.testing import packed

pytestmark = pytest.mark.gpu
SIDE = 4096


def operands(tokens: int, rows: int, cols: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """dY [tokens, rows] and X [tokens, cols] of small integers, whose sums fp32 holds exactly."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    return tuple(
        torch.randint(-2, 3, (tokens, width), generator=generator, device="cuda").to(dtype)
        for width in (rows, cols)
    )


def exact(dy: torch.Tensor, x: torch.Tensor, shape: pattern.Pattern) -> torch.Tensor:
    """dY^T X at the stored blocks, rounded once."""
    return packed(dy.double().T @ x.double(), shape).to(dy.dtype)


def needs_hopper() -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("sm90_wgmma runs on Hopper")


@pytest.mark.parametrize("density", [0.02, 0.05, 0.1, 0.2, 0.35, 0.5])
@pytest.mark.parametrize("block", [16, 32, 64, 128, (16, 32), (32, 16), (64, 128)], ids=str)
def test_every_item_once_whatever_the_workspace_holds(block, density):
    needs_hopper()
    shape = pattern.balanced(SIDE, SIDE, block, density, 0)
    index = build_index(shape).to("cuda")
    dy, x = operands(2048, SIDE, SIDE, torch.bfloat16)
    expected = exact(dy, x, shape)
    workspace = ops.plan(build_index(shape), "dw", torch.bfloat16, 2048, kernel="sm90_wgmma", device="cuda")[
        "workspace_bytes"
    ]
    for _ in range(3):
        poison(expected.numel() * 2, workspace)
        assert torch.equal(ops.linear_dw(dy, x, index, kernel="sm90_wgmma"), expected)


@pytest.mark.parametrize("tokens", [1, 449, 512, 1000, 5003])
@pytest.mark.parametrize("block", [16, 32, 128])
def test_ragged_sides_and_any_number_of_tokens(block, tokens):
    needs_hopper()
    rows, cols = 1000 + block // 2, 2200 + block // 4
    shape = pattern.balanced(rows, cols, block, 0.15, 0)
    dy, x = operands(tokens, rows, cols + 8 - cols % 8, torch.float16)
    # rows of multiples of 16 bytes, as the copy engine needs
    dy = torch.nn.functional.pad(dy, (0, 8 - rows % 8))[:, :rows]
    x = x[:, :cols]
    found = ops.linear_dw(dy, x, build_index(shape).to("cuda"), kernel="sm90_wgmma")
    assert torch.equal(found, exact(dy, x, shape))


@pytest.mark.parametrize("block", [16, 32, 128])
def test_rows_of_very_different_lengths(block):
    needs_hopper()
    count = 2048 // block
    mask = torch.rand(count, count, generator=torch.Generator().manual_seed(0)) < 0.03
    mask[1], mask[count // 2 : count // 2 + 3], mask[-1] = True, False, True
    shape = pattern.from_mask(2048, 2048, block, mask)
    dy, x = operands(3000, 2048, 2048, torch.bfloat16)
    found = ops.linear_dw(dy, x, build_index(shape).to("cuda"), kernel="sm90_wgmma")
    assert torch.equal(found, exact(dy, x, shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tokens", [0, 8, 1000, 8192])
@pytest.mark.parametrize(
    "block, density", [(16, 0.1), (32, 0.05), (32, 0.5), (64, 0.1), (128, 0.2), ((8, 128), 0.3)], ids=str
)
def test_every_kernel_adds_to_an_fp32_gradient_at_any_address(block, density, tokens, dtype):
    shape = pattern.balanced(1000, 1512, block, density, 0)
    index = build_index(shape).to("cuda")
    dy, x = operands(tokens, 1000, 1512, dtype)
    expected = packed(dy.double().T @ x.double(), shape)
    plan = ops.plan(build_index(shape), "dw", dtype, tokens, device="cuda")
    kernels = [c["kernel"] for c in plan["candidates"] if not c["refusal"]]
    assert kernels
    for kernel in kernels:
        poison(max(plan["workspace_bytes"], 1))
        for shift in (0, 1):
            buffer = torch.full((expected.numel() + 2,), 0.5, device="cuda")
            out = buffer[shift : shift + expected.numel()].view(expected.shape)
            for call in (1, 2):
                try:
                    assert ops.linear_dw(dy, x, index, kernel=kernel, out=out) is out
                except RuntimeError as error:  # a kernel that is named may refuse an odd address
                    assert shift == 1 and "multiples of 16 bytes" in str(error), error
                    break
                inside = packed(torch.ones(1000, 1512, device="cuda", dtype=torch.float64), shape)
                assert torch.equal(out.double() * inside, (call * expected + 0.5) * inside), kernel
                assert (out[inside == 0] == 0.5).all(), kernel
            assert (buffer[:shift] == 0.5).all() and (buffer[shift + expected.numel() :] == 0.5).all(), kernel


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_layer_adds_its_gradient_to_main_grad(autocast, activation):
    torch.manual_seed(0)
    dtype = torch.float32 if autocast else torch.bfloat16
    options = {"density": 0.2, "activation": activation, "device": "cuda", "dtype": dtype}
    fused, plain = (
        BlockSparseLinear(1024, 1024, fuse_wgrad_accumulation=on, **options) for on in (True, False)
    )
    plain.load_state_dict(fused.state_dict())
    fused.values.main_grad = torch.zeros(fused.values.shape, device="cuda")
    exact = torch.zeros(fused.values.shape, device="cuda", dtype=torch.float64)
    for _ in range(4):
        x, dy = (torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for layer in (fused, plain):
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
                y = layer(x)
            y.backward(dy)
        exact += plain.values.grad.double()
        plain.values.grad = None
    assert fused.values.grad is None
    # plain's gradients are rounded to bf16, four times, and reach 120.
    torch.testing.assert_close(fused.values.main_grad.double(), exact, atol=1, rtol=2e-2)


@pytest.mark.parametrize("block, density", [(128, 0.1), (64, 0.1), (32, 0.3), (16, 0.1), (8, 0.1)])
def test_a_graph_adds_the_same_bits_in_every_replay(block, density):
    shape = pattern.balanced(SIDE, SIDE, block, density, 0)
    index = build_index(shape).to("cuda")
    dy, x = (torch.randn(8192, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.zeros(len(index.col), block, block, device="cuda")
    graph, _ = capture(lambda: ops.linear_dw(dy, x, index, out=out))
    expected = ops.linear_dw(dy, x, index, out=torch.ones_like(out))
    for _ in range(50):
        out.fill_(1)
        graph.replay()
        assert torch.equal(out, expected)


@pytest.mark.parametrize("block, density", [(128, 0.1), (128, 0.2), (64, 0.1), (32, 0.3), (16, 0.1)])
def test_a_graph_replays_cut_items_bitwise(block, density):
    needs_hopper()
    shape = pattern.balanced(SIDE, SIDE, block, density, 0)
    index = build_index(shape).to("cuda")
    dy, x = (torch.randn(8192, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    expected = ops.linear_dw(dy, x, index, kernel="sm90_wgmma")
    graph, found = capture(lambda: ops.linear_dw(dy, x, index, kernel="sm90_wgmma"))
    for _ in range(50):
        found.fill_(torch.nan)
        graph.replay()
        assert torch.equal(found, expected)
