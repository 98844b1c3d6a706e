"""Gradients: against fp64 finite differences, in every combination, of second order, and never dropped
silently."""

import itertools
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import sparseloom
from sparseloom import ops
from sparseloom.nn import BlockSparseLinear
from sparseloom.ops import autograd, operators
from sparseloom.testing import Case, check_product


def operands(block=(8, 16), pattern="skewed", m=3, k=37, n=27):
    case = Case("gradients", "forward", torch.float64, block, m, k, n, pattern, bias=True)
    inputs = case.inputs()
    leaves = [inputs.x, inputs.values, inputs.bias, inputs.dy]
    return [leaf.requires_grad_() for leaf in leaves], inputs.index


@pytest.mark.parametrize("pattern", ["skewed", "full", "none", "corner"])
@pytest.mark.parametrize("activation", [None, "gelu", "silu"])
def test_gradcheck_linear(pattern, activation):
    (x, values, bias, _), index = operands(pattern=pattern)
    assert gradcheck(
        lambda *leaves: ops.linear(leaves[0], leaves[1], index, leaves[2], activation), (x, values, bias)
    )


@pytest.mark.parametrize("block", [(8, 8), (16, 8), (32, 16)])
def test_gradcheck_the_products_of_the_backward_pass(block):
    (x, values, _, dy), index = operands(block)
    assert gradcheck(lambda dy, values: ops.linear_dx(dy, values, index), (dy, values))
    assert gradcheck(lambda dy, x: ops.linear_dw(dy, x, index), (dy, x))


def test_gradgradcheck():
    (x, values, bias, _), index = operands((8, 8), m=2, k=19, n=13)
    assert gradgradcheck(
        lambda *leaves: ops.linear(leaves[0], leaves[1], index, leaves[2]), (x, values, bias)
    )


@pytest.mark.parametrize("activation", list(ops.ACTIVATIONS)[1:])
def test_gradgradcheck_through_an_activation(activation, monkeypatch):
    monkeypatch.setattr(autograd, "CPU_FUSES", tuple(ops.ACTIVATIONS))  # as on CUDA
    (x, values, bias, _), index = operands((8, 8), m=2, k=19, n=13)
    function = lambda *leaves: ops.linear(leaves[0], leaves[1], index, leaves[2], activation)  # noqa: E731
    assert gradcheck(function, (x, values, bias)) and gradgradcheck(
        function, (x, values, bias), fast_mode=True
    )
    for only in range(3):  # what the others' gradients would need is not kept then
        leaves = [leaf.detach().requires_grad_(i == only) for i, leaf in enumerate((x, values, bias))]
        assert gradgradcheck(function, tuple(leaves), fast_mode=True)


@pytest.mark.parametrize("activation", ops.ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_equal_those_of_separate_operators(activation, dtype, monkeypatch):
    monkeypatch.setattr(autograd, "CPU_FUSES", tuple(ops.ACTIVATIONS))
    layer = BlockSparseLinear(64, 96, density=0.5, block=16, activation=activation, dtype=dtype)
    x, dy = torch.randn(2, 5, 64, dtype=dtype, requires_grad=True), torch.randn(2, 5, 96, dtype=dtype)
    leaves = [x, layer.values, layer.bias]
    got = torch.autograd.grad(layer(x), leaves, dy)
    expected = torch.autograd.grad(
        ops.activate(ops.linear(x, layer.values, layer.index, layer.bias), activation), leaves, dy
    )
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 if dtype is torch.float32 else 2e-2, rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_relu_lets_a_gradient_through_where_its_output_is_nan(dtype):
    x = torch.tensor(
        [[1.0, -1.0, 0.0, float("nan"), float("inf"), -float("inf")]], dtype=dtype
    ).T.requires_grad_()
    layer = BlockSparseLinear(1, 1, bias=False, density=1.0, block=8, activation="relu", dtype=dtype)
    with torch.no_grad():
        layer.values[0, 0, 0] = 1
    dy = torch.arange(1.0, 7.0, dtype=dtype)[:, None]
    (dx,) = torch.autograd.grad(layer(x), x, dy)
    assert (
        dx.flatten().tolist()
        == [1, 0, 0, 4, 5, 0]
        == torch.autograd.grad(x.relu(), x, dy)[0].flatten().tolist()
    )


@pytest.mark.parametrize("fused", [(None, "relu"), (None, "relu", "gelu")], ids=["CPU", "as on CUDA"])
def test_a_relu_layer_saves_its_output_and_a_gelu_layer_its_input(fused, monkeypatch):
    monkeypatch.setattr(autograd, "CPU_FUSES", fused)
    (x, values, bias, _), index = operands()
    for activation in ("relu", "gelu"):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append(t.detach()) or t, lambda t: t
        ):
            y = ops.linear(x, values, index, bias, activation)
        assert len(saved) == 3
        torch.testing.assert_close(
            saved[2], y if activation == "relu" else ops.linear(x, values, index, bias)
        )


def test_what_does_not_belong_to_a_backward_pass_is_refused():
    (x, values, bias, dy), index = operands()
    packed, blocks, rows, cols, bm, bn, _ = index
    where = (packed, cols, blocks, bm, bn)
    for saved, code, text in (
        (None, 2, "an activation"),
        (dy, 0, "an activation"),
        (dy[:, :-1], 2, "dy's shape"),
        (x, 9, "activation 0"),
    ):
        with pytest.raises(RuntimeError, match=text):
            torch.ops.sparseloom.bsr_linear_backward(dy, saved, x, values, *where, None, True, code)
    with pytest.raises(RuntimeError, match="call linear"):
        torch.ops.sparseloom.bsr_linear_train(x, values, packed, rows, bias, 0)


@pytest.mark.parametrize("need", list(itertools.product([False, True], repeat=3)), ids=str)
def test_b26_every_combination_computes_only_what_is_needed(need, monkeypatch):
    layer = BlockSparseLinear(37, 27, density=0.5, block=8)
    dense = layer.to_dense()
    x, twin_x = (
        torch.randn(5, 37, generator=torch.Generator().manual_seed(0)).requires_grad_(need[0])
        for _ in range(2)
    )
    for module in (layer, dense):
        for parameter, wanted in zip(module.parameters(), need[1:], strict=True):
            parameter.requires_grad_(wanted)
    called, real = [], operators.linear_backward
    monkeypatch.setattr(
        operators, "linear_backward", lambda *a: called.append((a, real(*a))) or called[-1][1]
    )
    y = layer(x)
    assert y.requires_grad == any(need)
    if not any(need):
        return
    y.square().sum().backward()
    dense(twin_x).square().sum().backward()
    ((arguments, results),) = called  # one dispatch
    assert [arguments[3] is not None, arguments[2] is not None, arguments[10]] == list(need)
    assert [result.numel() > 0 for result in results] == list(need)
    assert [t.grad is not None for t in (x, layer.values, layer.bias)] == list(need)
    if need[0]:
        torch.testing.assert_close(x.grad, twin_x.grad, atol=1e-4, rtol=1e-4)
    if need[1]:
        expected = BlockSparseLinear.from_dense(dense.weight.grad, layer.pattern).values
        torch.testing.assert_close(layer.values.grad, expected.detach(), atol=1e-4, rtol=1e-4)
    if need[2]:
        torch.testing.assert_close(layer.bias.grad, dense.bias.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("need_x", "need_values"), [(True, False), (False, True), (True, True)])
def test_only_the_operand_that_a_gradient_needs_is_saved(need_x, need_values):
    (x, values, _, _), index = operands()
    x, values = x.detach().requires_grad_(need_x), values.detach().requires_grad_(need_values)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(tuple(t.shape)) or t, lambda t: t):
        ops.linear(x, values, index)
    assert saved == [tuple(x.shape)] * need_values + [tuple(values.shape)] * need_x


def raw_calls():
    """Each operator called past _autograd.py, and a leaf that needs a gradient through it."""
    (x, values, bias, dy), index = operands()
    packed, blocks, rows, cols, bm, bn, _ = index
    crow, col = index.crow, index.col
    raw, weight = torch.ops.sparseloom, torch.ones(rows, cols, dtype=torch.float64, requires_grad=True)
    return {
        "bsr_linear": (lambda: raw.bsr_linear(x, values, packed, rows, bias), x),
        "bsr_linear_dx": (
            lambda: raw.bsr_linear_dx(dy, values, packed, cols),
            values,
        ),
        "bsr_linear_dw": (
            lambda: raw.bsr_linear_dw(dy, x, packed, blocks, bm, bn),
            x,
        ),
        "pack": (lambda: raw.pack(weight, crow, col, bm, bn), weight),
        "unpack": (lambda: raw.unpack(values, crow, col, rows, cols), values),
    }


@pytest.mark.parametrize("name", ["bsr_linear", "bsr_linear_dx", "bsr_linear_dw", "pack", "unpack"])
def test_raw_operators_do_not_drop_gradients_silently(name):
    call, leaf = raw_calls()[name]
    y = call()
    # so that backward arrives there, instead of leaving the inputs without a gradient unnoticed
    assert y.requires_grad
    with pytest.warns(UserWarning, match=f"sparseloom::{name}: an autograd kernel was not registered"):
        y.sum().backward()
    assert leaf.grad is None


def test_raw_operators_do_not_drop_gradients_silently_when_compiled():
    call, _ = raw_calls()["bsr_linear"]
    with pytest.warns(UserWarning, match="sparseloom::bsr_linear: an autograd kernel was not registered"):
        torch.compile(lambda: call().relu(), fullgraph=True, backend="aot_eager")().sum().backward()
    torch._dynamo.reset()


def test_outside_of_pytest_s_own_filters_the_warning_is_an_error():
    program = """
import torch, sparseloom
layer = sparseloom.nn.BlockSparseLinear(64, 64, density=0.5)
i = layer.index
x = torch.ones(2, 64)
y = torch.ops.sparseloom.bsr_linear(x, layer.values, i.packed, 64)
try:
    y.sum().backward()
except UserWarning as error:
    print("refused:", error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("refused: sparseloom::bsr_linear: an autograd kernel was not registered"), (
        ran.stdout + ran.stderr
    )


def test_the_layer_itself_never_warns():
    layer, x = BlockSparseLinear(64, 64, density=0.5), torch.randn(3, 64, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x).sum().backward()
        with torch.no_grad():
            layer(x)
        with torch.inference_mode():
            layer(x)
    assert x.grad is not None


def test_checkpointing_and_inference_mode():
    layer, x = (
        BlockSparseLinear(64, 64, density=0.5, activation="gelu"),
        torch.randn(3, 64, requires_grad=True),
    )
    expected = torch.autograd.grad(layer(x).sum(), [x, layer.values])
    again = torch.autograd.grad(
        torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum(), [x, layer.values]
    )
    for a, b in zip(expected, again, strict=True):
        assert torch.equal(a, b)
    with torch.inference_mode():
        assert not layer(x).requires_grad


@pytest.mark.parametrize("block", [(8, 128), (128, 8), (32, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_b14_backward_of_the_layer_agrees_with_fp64_by_tile(block, dtype):
    """Forward exact and gradients wrong is the commonest bug of the peers: the layer's own gradients, many
    rows per column."""
    case = Case("b14", "dw", dtype, block, 33, 2 * block[1] + 5, 3 * block[0] + 1, "full", bias=True)
    inputs = case.inputs()
    layer = BlockSparseLinear(case.k, case.n, pattern=inputs.pattern, dtype=dtype)
    with torch.no_grad():
        layer.values.copy_(inputs.values)
    x = inputs.x.clone().requires_grad_()
    layer(x).backward(inputs.dy)
    found = check_product(case, inputs, layer.values.grad)
    assert found.ok, found
    found = check_product(replace(case, direction="dx"), inputs, x.grad)
    assert found.ok, found
    exact = inputs.dy.double().sum(0)
    torch.testing.assert_close(
        layer.bias.grad.double(), exact, atol=40 * torch.finfo(dtype).eps, rtol=4 * torch.finfo(dtype).eps
    )


def test_a_forced_kernel_takes_part_in_gradients():
    (x, values, bias, _), index = operands()
    y = ops.linear(x, values, index, bias, kernel="reference")
    y.sum().backward()
    assert x.grad is not None
    with pytest.raises(sparseloom.Error, match="strict forbids going dense"):
        ops.linear(x, values, index, bias, strict=True, kernel="dense")
