"""layer(x, residual) on CUDA: every kernel's epilogue, training, graphs and operands that TMA cannot
address."""

import pytest
import torch
from on_gpu import capture, device_work, make, random
from torch import nn
from torch.nn import functional as F

from sparseloom import ops

pytestmark = pytest.mark.gpu
bf16 = torch.bfloat16


def reference(layer, x, residual):
    dense = layer.to_dense()
    weight = (dense[0] if isinstance(dense, nn.Sequential) else dense).weight
    z = F.linear(x.double(), weight.double(), layer.bias.double())
    return ops.activate(z, layer.activation) + residual.double()


def close(got, expected):
    error = (got.double() - expected).norm() / expected.norm()
    assert error < (3e-3 if got.dtype == bf16 else 1e-3), error


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("block", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("tokens", [3, 16, 200, 3000])
def test_trains_as_adding_behind(activation, block, tokens):
    layer = make(512, 1280, block=block, dtype=bf16, activation=activation, density=0.3)
    x, residual = (
        random(tokens, 512, dtype=bf16).requires_grad_(),
        random(tokens, 1280, seed=1, dtype=bf16).requires_grad_(),
    )
    dy = random(tokens, 1280, seed=2, dtype=bf16)
    leaves = [x, layer.values, layer.bias, residual]
    got = layer(x, residual)
    close(got, reference(layer, x, residual))
    with torch.no_grad():
        close(layer(x, residual), reference(layer, x, residual))
    ours = torch.autograd.grad(got, leaves, dy)
    theirs = torch.autograd.grad(layer(x) + residual, leaves, dy)
    assert torch.equal(ours[3], dy)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.float() - other.float()).norm() <= 0.01 * other.float().norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, bf16])
@pytest.mark.parametrize("tf32", [False, True])
def test_every_kernel(dtype, tf32):
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        tried = set()
        for block in (16, 32, 64):
            layer = make(768, 640, block=block, dtype=dtype)
            for tokens in (5, 60, 700):
                x, residual = random(tokens, 768, dtype=dtype), random(tokens, 640, seed=1, dtype=dtype)
                expected = reference(layer, x, residual)
                for kernel in layer.plan(tokens)["candidates"]:
                    if kernel["refusal"] and kernel["kernel"] != "dense":
                        continue
                    got = ops.linear(
                        x, layer.values, layer.index, layer.bias, None, False, kernel["kernel"], residual
                    )
                    close(got.detach(), expected)
                    tried.add(kernel["kernel"])
        assert len(tried) >= 4, tried
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_is_one_launch():
    layer = make(1024, 1024, block=64, dtype=bf16)
    x, residual = random(4096, 1024, dtype=bf16), random(4096, 1024, seed=1, dtype=bf16)
    with torch.no_grad():
        assert len(device_work(lambda: layer(x, residual))) == 1


@pytest.mark.parametrize("offset", [1, 8])
def test_residuals_at_any_address(offset):
    layer = make(256, 320, block=64, dtype=bf16)
    x, wide = random(700, 256, dtype=bf16), random(700, 320 + offset, seed=1, dtype=bf16)
    residual = wide[:, offset:]
    with torch.no_grad():
        close(layer(x, residual), reference(layer, x, residual))


def test_in_a_graph():
    layer = make(512, 512, block=64, dtype=bf16, activation="silu")
    x, residual = random(2048, 512, dtype=bf16), random(2048, 512, seed=1, dtype=bf16)
    with torch.no_grad():
        graph, result = capture(lambda: layer(x, residual))
        for _ in range(3):
            residual.mul_(-0.5)
            graph.replay()
            assert torch.equal(result, layer(x, residual))
