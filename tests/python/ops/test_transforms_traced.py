"""Transforms compiled, and layers under jit.trace and fx: the eager values, or a refusal in one line."""

import re

import pytest
import torch
from masked_twin import F64, close, copied_or_quantized, layer_of, twin, x_of
from torch import nn
from torch.func import grad, jacrev, jvp, vmap

import sparseloom
from sparseloom import ops
from sparseloom.nn import BlockSparseLinear


@pytest.mark.parametrize("transform", [
    lambda f, x: vmap(f)(x),
    lambda f, x: jvp(f, (x,), (x,))[1],
    lambda f, x: grad(lambda x: f(x).square().sum())(x),
    lambda f, x: jacrev(f)(x),
    lambda f, x: vmap(grad(lambda x: f(x).square().sum()))(x),
])  # fmt: skip
def test_compiled_transforms_give_the_eager_values(transform):
    layer, x = layer_of("gelu"), x_of(3)
    try:
        actual = torch.compile(lambda x: transform(layer, x), backend="aot_eager")(x)
        close(actual, transform(lambda x: twin(layer, x), x))
    finally:
        torch._dynamo.reset()


@pytest.mark.parametrize("product", ["linear", "dx", "dw"])
def test_products_with_gradients_stay_one_compiled_graph(product):
    layer = layer_of()
    x, dy = x_of(3).requires_grad_(), torch.randn(3, 27, requires_grad=True, **F64)
    f = {
        "linear": lambda: ops.linear(x, layer.values, layer.index, layer.bias),
        "dx": lambda: ops.linear_dx(dy, layer.values, layer.index),
        "dw": lambda: ops.linear_dw(dy, x, layer.index),
    }[product]
    try:
        close(torch.compile(f, backend="aot_eager", fullgraph=True)(), f())
    finally:
        torch._dynamo.reset()


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_jit_trace_runs_and_is_saved(needs_grad, activation, tmp_path):
    model = nn.Sequential(layer_of(activation), nn.ReLU()).requires_grad_(needs_grad)
    traced = torch.jit.trace(model, x_of(3))
    torch.jit.save(traced, tmp_path / "traced.pt")
    for again in (traced, torch.jit.load(tmp_path / "traced.pt")):
        close(again(x_of(5)).detach(), model(x_of(5)).detach())


class Holder(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.last = layer, nn.Linear(layer.out_features, 4, **F64)

    def forward(self, x):
        return self.last(self.layer(x) * 2)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_fx_keeps_the_layers_of_a_model_as_leaves(activation):
    model = Holder(layer_of(activation))
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["layer", "last"]
    close(traced(x_of(3)), model(x_of(3)))
    traced(x_of(3)).sum().backward()
    assert model.layer.values.grad is not None


def test_fx_keeps_residuals_attention_and_convolutions():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(32, 32, 1)
            self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
            self.out = BlockSparseLinear(32, 32, density=0.5, block=16)

        def forward(self, x):
            y = self.conv(x).flatten(2).transpose(1, 2)
            z, _ = self.attention(y, y, y, need_weights=False)
            return self.out(z, residual=y)

    model, x = Block().eval(), torch.randn(2, 32, 4, 4)
    sparseloom.sparsify_(model, {".*(conv|attention).*": sparseloom.BlockSparse(density=0.5, block=16)})
    traced = torch.fx.symbolic_trace(model)
    assert {"conv.linear", "attention", "out"} <= {
        n.target for n in traced.graph.nodes if n.op == "call_module"
    }
    close(traced(x), model(x))


def test_fx_keeps_layers_in_other_layouts():
    model = nn.Sequential(sparseloom.nn.SparseLinear(32, 32, layout="csr", density=0.5), nn.ReLU())
    traced, x = torch.fx.symbolic_trace(model), torch.randn(3, 32)
    close(traced(x), model(x))


@pytest.mark.parametrize("layer", [layer_of(), copied_or_quantized("quantized")])
def test_fx_of_a_layer_alone_is_refused_in_one_line(layer):
    with pytest.raises(sparseloom.Error, match=re.escape("trace torch.nn.Sequential(module)")) as refused:
        torch.fx.symbolic_trace(layer)
    assert "\n" not in str(refused.value)
