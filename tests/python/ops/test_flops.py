"""FlopCounterMode counts the stored blocks' products: forward, backward, fused, 8-bit, under main_grad and
compiled."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import sparseloom
from sparseloom import ops
from sparseloom.nn import BlockSparseLinear, QuantizedBlockSparseLinear
from sparseloom.ops import autograd


def layer_of(**options):
    return BlockSparseLinear(64, 96, density=0.25, block=(16, 32), **options)


def one(layer, tokens):
    return 2 * layer.values.numel() * tokens


def counted(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_layer_s_products_are_counted_forward_and_backward(activation, fused, monkeypatch):
    if fused:
        monkeypatch.setattr(autograd, "CPU_FUSES", tuple(ops.ACTIVATIONS))  # as on CUDA
    layer, x = layer_of(activation=activation), torch.randn(2, 5, 64)
    product = one(layer, 10)
    assert product == 2 * 3 * 16 * 32 * 10
    with torch.no_grad():
        assert counted(lambda: layer(x)) == product
    assert counted(lambda: layer(x)) == product
    assert counted(lambda: layer(x).sum().backward()) == 2 * product  # x needs no gradient
    x.requires_grad_()
    assert counted(lambda: layer(x).sum().backward()) == 3 * product
    layer.requires_grad_(False)
    assert counted(lambda: layer(x).sum().backward()) == 2 * product


def test_a_full_pattern_counts_as_the_dense_layer_does():
    layer = BlockSparseLinear(64, 96, density=1.0, bias=False)
    dense, x = nn.Linear(64, 96, bias=False), torch.randn(7, 64, requires_grad=True)
    assert counted(lambda: layer(x).sum().backward()) == counted(lambda: dense(x).sum().backward())


def test_each_operator_has_its_formula():
    layer = layer_of()
    x, dy, index = torch.randn(5, 64), torch.randn(5, 96), layer.index
    values, product = layer.values.detach(), one(layer, 5)
    assert counted(lambda: ops.linear(x, values, index)) == product
    assert counted(lambda: ops.linear_dx(dy, values, index)) == product
    assert counted(lambda: ops.linear_dw(dy, x, index)) == product
    assert counted(lambda: ops.linear_dw(dy, x, index, out=torch.zeros(values.shape))) == product
    quantized = QuantizedBlockSparseLinear.from_sparse(layer)
    quantized.kernel = "reference"
    assert counted(lambda: quantized(x)) == product


def test_a_step_into_main_grad_is_counted():
    layer, x = layer_of(fuse_wgrad_accumulation=True), torch.randn(5, 64)
    layer.values.main_grad = torch.zeros(layer.values.shape)
    assert counted(lambda: layer(x).sum().backward()) == 2 * one(layer, 5)


def test_a_whole_model_is_counted_layer_by_layer():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 96))
    sparseloom.sparsify_(model, {"2": sparseloom.BlockSparse(density=0.25, block=16)})
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(3, 64))
    by_module = {name: sum(found.values()) for name, found in counter.get_flop_counts().items()}
    assert by_module["Sequential.2"] == one(model[2], 3) and by_module["Sequential.0"] == 2 * 64 * 64 * 3


def test_vmapped_samples_are_counted_once_each():
    layer, x = layer_of(), torch.randn(4, 5, 64)
    params = {name: p.detach() for name, p in layer.named_parameters()}
    loss = lambda p, x: torch.func.functional_call(layer, p, (x,)).sum()  # noqa: E731
    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))
    assert counted(lambda: per_sample(params, x)) == 2 * one(layer, 20)
