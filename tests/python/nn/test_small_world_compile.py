"""SmallWorldLSTM under torch.compile and torch.export, beside itself in eager mode."""

import pytest
import torch
from small_worlds import HIDDEN, make


@pytest.fixture(autouse=True)
def forgetful():
    yield
    torch._dynamo.reset()


def gradients(call, layer, x, state):
    y, (h, c) = call(x, state)
    loss = y.square().sum() + (h * c).sum()
    return y, h, c, *torch.autograd.grad(loss, [x, *state, *layer.parameters()])


@pytest.mark.parametrize("options", [{}, {"pattern": None}, {"inputs": HIDDEN, "outputs": HIDDEN}])
def test_one_graph_computes_results_and_gradients_of_eager_mode(options):
    """In float64, where the two orders of the sums differ by less than the tolerance."""
    layer = make(dtype=torch.float64, **options)
    x = torch.randn(2, 2, 20, dtype=torch.float64, requires_grad=True)
    state = tuple(torch.randn(2, HIDDEN, dtype=torch.float64, requires_grad=True) for _ in range(2))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled, layer, x, state), gradients(layer, layer, x, state))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, state), layer(x, state))


def test_autocast_tokens_classes_and_dropout():
    layer = make(tokens=11, classes=5, dropout=0.2, steps=2)
    tokens = torch.randint(11, (2, 2))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        y, state = compiled(tokens)
        again, _ = compiled(tokens)
    again.float().square().sum().backward()
    assert y.shape == (2, 2, 5) and not torch.equal(y, again) and state[1].dtype == torch.float32
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in layer.parameters())
    compiled = torch.compile(layer.eval(), fullgraph=True)  # torch's own code generator
    with torch.no_grad():
        torch.testing.assert_close(compiled(tokens)[0], layer(tokens)[0])


def test_export_keeps_the_program_of_eager_mode():
    layer, x = make().eval(), torch.randn(2, 2, 20)
    program = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(program(x), layer(x))
