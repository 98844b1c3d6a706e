"""Gradients on CUDA: against dense autograd and fp64 by tile, in every combination, of second order, with any
optimizer."""

import itertools
from dataclasses import replace

import pytest
import torch
from on_gpu import make, random
from torch import nn

from sparseloom import ops
from sparseloom.nn import BlockSparseLinear
from sparseloom.testing import Case, check_product

pytestmark = pytest.mark.gpu


def close(a, b, tolerance=1e-4):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_equal_those_of_the_dense_twin(activation, bias):
    layer = make(activation=activation, bias=bias)
    dense, x = layer.to_dense(), random(3, 7, 100)
    twin = dense[0] if activation else dense
    gradient = random(3, 7, 70, seed=1)
    leaves, twins = (
        [x.clone().requires_grad_(), *layer.parameters()],
        [x.clone().requires_grad_(), *twin.parameters()],
    )
    y, expected = layer(leaves[0]), dense(twins[0])
    close(y, expected, 1e-5)
    got = torch.autograd.grad(y, leaves, gradient)
    wanted = list(torch.autograd.grad(expected, twins, gradient))
    wanted[1] = BlockSparseLinear.from_dense(wanted[1], layer.pattern).values.detach()
    for a, b in zip(got, wanted, strict=True):
        close(a, b)
    with torch.no_grad():
        close(layer(x), expected, 1e-5)  # the fused route


@pytest.mark.parametrize("need", list(itertools.product([False, True], repeat=3)), ids=str)
def test_b26_every_combination_of_needs(need):
    layer = make(37, 27, block=8)
    dense, x = layer.to_dense(), random(5, 37)
    a, b = x.clone().requires_grad_(need[0]), x.clone().requires_grad_(need[0])
    for module in (layer, dense):
        for parameter, wanted in zip(module.parameters(), need[1:], strict=True):
            parameter.requires_grad_(wanted)
    y = layer(a)
    assert y.requires_grad == any(need)
    if not any(need):
        return
    y.square().sum().backward()
    dense(b).square().sum().backward()
    assert [t.grad is not None for t in (a, layer.values, layer.bias)] == list(need)
    if need[0]:
        close(a.grad, b.grad)
    if need[1]:
        close(
            layer.values.grad, BlockSparseLinear.from_dense(dense.weight.grad, layer.pattern).values.detach()
        )
    if need[2]:
        close(layer.bias.grad, dense.bias.grad)


@pytest.mark.parametrize("block", [(8, 128), (128, 8), (32, 32), (64, 64), (128, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_b14_backward_of_the_layer_agrees_with_fp64_by_tile(block, dtype):
    case = Case(
        "b14", "dw", dtype, block, 133, 2 * block[1] + 5, 3 * block[0] + 1, "full", bias=True, device="cuda"
    )
    inputs = case.inputs()
    layer = BlockSparseLinear(case.k, case.n, pattern=inputs.pattern, dtype=dtype, device="cuda")
    with torch.no_grad():
        layer.values.copy_(inputs.values)
    x = inputs.x.clone().requires_grad_()
    layer(x).backward(inputs.dy)
    found = check_product(case, inputs, layer.values.grad)
    assert found.ok, found
    found = check_product(replace(case, direction="dx"), inputs, x.grad)
    assert found.ok, found
    exact = inputs.dy.double().sum(0)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(layer.bias.grad.double(), exact, atol=100 * eps, rtol=4 * eps)


def test_second_order():
    layer, x = make(19, 13, block=8, activation="gelu_tanh"), random(4, 19).requires_grad_()
    dense = layer.to_dense()

    def second(call, x):
        (first,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    close(second(layer, x), second(dense, x), 1e-3)


def test_gradients_that_arrive_expanded_or_transposed():
    layer, x = make(48, 32), random(6, 48).requires_grad_()
    dense, steps = layer.to_dense(), torch.arange(6.0, device="cuda")
    for finish in (
        lambda y: y.sum(),
        lambda y: (y.t() * steps).sum(),
        lambda y: y[:, ::2].sum(),
        lambda y: y[::3].mean(),
    ):
        close(torch.autograd.grad(finish(layer(x)), x)[0], torch.autograd.grad(finish(dense(x)), x)[0], 1e-5)


def test_checkpointing_and_inference_mode():
    layer, x = make(64, 64, activation="gelu"), random(3, 64).requires_grad_()
    expected = torch.autograd.grad(layer(x).sum(), [x, layer.values])
    again = torch.autograd.grad(
        torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum(), [x, layer.values]
    )
    for a, b in zip(expected, again, strict=True):
        assert torch.equal(a, b)
    with torch.inference_mode():
        assert not layer(x).requires_grad


@pytest.mark.parametrize("kernel", ["sm80_mma", "dense"])
def test_a_forced_kernel_takes_part_in_gradients(kernel):
    case = Case("forced", "forward", torch.bfloat16, (16, 16), 70, 64, 48, bias=True, device="cuda")
    inputs = case.inputs()
    x, values = inputs.x.requires_grad_(), inputs.values.requires_grad_()
    ops.linear(x, values, inputs.index, inputs.bias, kernel=kernel).sum().backward()
    assert x.grad.isfinite().all() and values.grad.shape == values.shape


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "AdamW fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_trains_it_and_padding_stays_zero(name):
    layer, head = make(activation="relu"), nn.Linear(70, 3, device="cuda")
    inside = (
        BlockSparseLinear.from_dense(torch.ones(70, 100, device="cuda"), layer.pattern).values.detach() == 1
    )
    x, target = random(32, 100), random(32, 3, seed=1)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer, losses = OPTIMIZERS[name](parameters), []
    for _ in range(25):
        optimizer.zero_grad()
        loss = (head(layer(x)) - target).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 10.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0] and (layer.values.detach()[~inside] == 0).all()
