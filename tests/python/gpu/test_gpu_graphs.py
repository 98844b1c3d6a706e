"""CUDA graphs: a forward pass, every kernel and a whole training step are captured, and replay bitwise what
eager calls compute."""

import copy

import pytest
import torch
from on_gpu import capture, make, random
from torch import nn

from sparseloom import ops
from sparseloom.nn.held import padding
from sparseloom.testing import Case, kernels_for, sparse_product

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("tokens", [1, 16, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_forward_pass_replays_bitwise(dtype, tokens):
    layer = make(300, 200, activation="gelu", dtype=dtype).requires_grad_(False)
    x = random(tokens, 300, dtype=dtype)
    graph, y = capture(lambda: layer(x))
    for seed in range(1, 4):
        x.copy_(random(tokens, 300, seed=seed))
        y.fill_(torch.nan)
        graph.replay()
        assert torch.equal(y, layer(x))


@pytest.mark.parametrize("m", [16, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_every_kernel_replays_bitwise(direction, dtype, m):
    case = Case("graph", direction, dtype, (32, 32), m, 200, 230, device="cuda")
    inputs, fresh = case.inputs(), case.inputs(seed=1)
    for kernel in kernels_for(case, inputs):
        graph, result = capture(lambda kernel=kernel: sparse_product(case, inputs, kernel))
        inputs.x.copy_(fresh.x)
        inputs.dy.copy_(fresh.dy)
        result.fill_(torch.nan)
        graph.replay()
        eager = sparse_product(case, inputs, kernel)
        if kernel == "dense":  # cuBLAS may choose otherwise in a capture
            torch.testing.assert_close(result, eager, atol=0.2, rtol=0.02)
        else:
            assert torch.equal(result, eager), kernel


@pytest.mark.parametrize("autocast", [False, True])
def test_a_training_step_replays_bitwise(autocast):
    """Forward, backward and fused AdamW in one graph, beside an eager twin that takes the same steps."""
    torch.manual_seed(0)
    model = nn.Sequential(
        make(96, 256, block=32, activation="gelu"),
        nn.LayerNorm(256, device="cuda"),
        make(256, 64, block=(64, 16), seed=1),
    )
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-2, fused=True, capturable=True) for m in (model, twin)]
    x, target = random(200, 96), random(200, 64, seed=1)

    def step(model, optimizer):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast, cache_enabled=False):
            loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # real steps, which the twin takes too
            step(model, optimizers[0])
    torch.cuda.current_stream().wait_stream(side)
    for _ in range(3):
        step(twin, optimizers[1])
    optimizers[0].zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(model, optimizers[0])
    losses = []
    for seed in range(2, 7):
        x.copy_(random(200, 96, seed=seed))
        graph.replay()
        losses.append((loss.clone(), step(twin, optimizers[1])))
    assert all(torch.equal(a, b) for a, b in losses)
    for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b), name
    first, last = losses[0][0].item(), losses[-1][0].item()
    assert first != last


def test_make_graphed_callables():
    layer, x = make(64, 48), random(9, 64).requires_grad_()
    expected = torch.autograd.grad(layer(x).sum(), [x, *layer.parameters()])
    graphed = torch.cuda.make_graphed_callables(
        copy.deepcopy(layer), (random(9, 64, seed=1).requires_grad_(),)
    )
    got = torch.autograd.grad(graphed(x).sum(), [x, *graphed.parameters()])
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


def test_padding_is_cleared_by_a_call_that_is_captured_first():
    """What is padding is asked of the index without waiting for it, which a graph does not allow."""
    layer, graph = make(100, 70).requires_grad_(False), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        padding.clear(layer)
    layer.values.fill_(1)
    graph.replay()
    assert layer.values.sum() == layer.to_dense().weight.sum()


@pytest.mark.parametrize(
    ("features", "tokens", "block", "density", "activation"),
    [
        (768, 4096, 64, 0.3, None),
        (768, 4096, 64, 0.3, "gelu"),
        (256, 200, 32, 0.5, None),
        (512, 1000, 16, 0.1, "relu"),
    ],
)
def test_a_captured_backward_replays_bitwise_often(features, tokens, block, density, activation):
    """Many replays in a row would show a race of the products, or of their memory."""
    layer = make(
        features, 2 * features, block=block, density=density, activation=activation, dtype=torch.bfloat16
    )
    x = random(tokens, features, dtype=torch.bfloat16).requires_grad_()
    dy = random(tokens, 2 * features, dtype=torch.bfloat16, seed=3)
    wanted = [x, layer.values, layer.bias]

    def gradients():
        return torch.autograd.grad(layer(x), wanted, dy)

    expected = [each.clone() for each in gradients()]
    graph, got = capture(gradients)
    for _ in range(300):
        for each in got:
            each.fill_(torch.nan)
        graph.replay()
        for each, want in zip(got, expected, strict=True):
            assert torch.equal(each, want)
