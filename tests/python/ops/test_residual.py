"""layer(x, residual): the product's own addition against the one behind it, on the CPU."""

import pytest
import torch

from sparseloom import ops
from sparseloom.errors import Error
from sparseloom.nn import BlockSparseLinear

ACTIVATIONS = list(ops.ACTIVATIONS)


def make(activation, dtype=torch.float32, **options):
    torch.manual_seed(0)
    return BlockSparseLinear(96, 72, density=0.4, block=8, activation=activation, dtype=dtype, **options)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 2, 1, 2, 3)])
def test_gives_what_adding_behind_gives_and_its_gradients(activation, shape):
    layer = make(activation)
    x, residual = torch.randn(*shape, 96, requires_grad=True), torch.randn(*shape, 72, requires_grad=True)
    dy = torch.randn(*shape, 72)
    leaves = [x, layer.values, layer.bias, residual]
    fused, behind = layer(x, residual), layer(x) + residual
    torch.testing.assert_close(fused, behind)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, residual), behind)
    for got, expected in zip(
        torch.autograd.grad(fused, leaves, dy), torch.autograd.grad(behind, leaves, dy), strict=True
    ):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_is_added_before_the_rounding(dtype):
    layer, x = make(None, dtype), torch.randn(40, 96).to(dtype)
    residual = (100 * torch.randn(40, 72)).to(dtype)
    exact = (
        torch.nn.functional.linear(x.double(), layer.to_dense().weight.double(), layer.bias.double())
        + residual.double()
    )
    with torch.no_grad():
        fused, behind = layer(x, residual), layer(x) + residual
    errors = [(y.double() - exact).norm() for y in (fused, behind)]
    assert torch.equal(fused, exact.to(dtype)) or errors[0] < errors[1]


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_second_derivatives(activation):
    layer = make(activation, torch.float64)
    x = torch.randn(3, 96, dtype=torch.float64, requires_grad=True)
    residual = torch.randn(3, 72, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x, residual), fast_mode=True)
    assert torch.autograd.gradgradcheck(layer, (x, residual), fast_mode=True)


def test_only_the_residual_needs_a_gradient():
    layer = make("gelu").requires_grad_(False)
    residual = torch.randn(4, 72, requires_grad=True)
    layer(torch.randn(4, 96), residual).sum().backward()
    assert torch.equal(residual.grad, torch.ones(4, 72))


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_compiles_whole(activation):
    layer = make(activation)
    x, residual = torch.randn(6, 96, requires_grad=True), torch.randn(6, 72, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    leaves, dy = [x, layer.values, residual], torch.randn(6, 72)
    for got, expected in zip(
        torch.autograd.grad(compiled(x, residual), leaves, dy),
        torch.autograd.grad(layer(x, residual), leaves, dy),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)


def test_autocast_copied_and_strided_residuals():
    layer, x = make("silu"), torch.randn(6, 96)
    residual = torch.randn(72, 6).t()
    with torch.no_grad():
        expected = layer(x) + residual
        torch.testing.assert_close(layer(x, residual), expected)
        with torch.autocast("cpu", torch.bfloat16):
            half = layer(x, residual)
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.float(), expected, atol=0.03, rtol=0.03)
        layer.dense_copy = True
        torch.testing.assert_close(layer(x, residual), expected)
        with pytest.raises(Error, match="a residual of y's shape"):
            layer(x, residual[0])


@pytest.mark.parametrize(
    "residual, text",
    [
        (torch.zeros(6, 71), "a residual of y's shape [6, 72], got [6, 71]"),
        (torch.zeros(72), "a residual of y's shape"),
        (torch.zeros(6, 72, dtype=torch.float64), "residual of x's dtype f32, got f64"),
    ],
)
@pytest.mark.parametrize("train", [False, True])
def test_refuses_what_does_not_fit(residual, text, train):
    with torch.set_grad_enabled(train), pytest.raises(Error) as error:
        make(None)(torch.zeros(6, 96), residual)
    assert text in str(error.value)


def test_the_operator_keeps_no_activation_s_input_beside_a_residual_on_the_cpu():
    layer, index = make("gelu"), make("gelu").index
    with pytest.raises(RuntimeError, match="add it afterwards"):
        torch.ops.sparseloom.bsr_linear_train(
            torch.zeros(2, 96),
            layer.values,
            index.packed,
            72,
            None,
            2,
            torch.zeros(2, 72),
        )
