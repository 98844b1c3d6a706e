"""What a user does to any nn.Module, with each family of layers: other dtypes, export, tracing, draws."""

import pytest
import torch
from torch import nn

from sparseloom import Error
from sparseloom import nn as sparse


def in_layout(layout, **options):
    return lambda: sparse.SparseLinear.from_dense(nn.Linear(64, 96), layout, **options)


def blocks(**options):
    return sparse.BlockSparseLinear(64, 96, density=0.4, block=16, **options)


def masked(block, shape):
    return sparse.MaskedLinear(64, 96, block=block, mask=torch.rand(shape) > 0.5)


LAYERS = {
    "linear": blocks,
    "capacity": lambda: blocks(capacity=0.6),
    "csr": in_layout("csr", density=0.3),
    "coo": in_layout("coo", density=0.3),
    "blocks": in_layout("blocks", density=0.3, block=16),
    "nm": in_layout("nm", n=1, m=4),
    "nmg": in_layout("nmg", n=2, m=4),
    "semi24": lambda: sparse.Semi24Linear(64, 96),
    "masked": lambda: masked(16, (6, 4)),
    "masked elements": lambda: masked(1, (96, 64)),
    "8 bits": lambda: sparse.QuantizedBlockSparseLinear.from_sparse(blocks()),
    "8 bits of 2:4": lambda: sparse.QuantizedSemi24Linear.from_sparse(sparse.Semi24Linear(64, 96)),
}
X = torch.randn(5, 64, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def layer(request):
    torch.manual_seed(0)
    return LAYERS[request.param]().eval()


@pytest.mark.parametrize("layer", LAYERS, indirect=True)
def test_type_converts_no_index_and_no_mask(layer):
    kept = {name: each.clone() for name, each in layer.named_buffers() if not each.is_floating_point()}
    with torch.no_grad():
        want = layer.to(torch.bfloat16)(X.bfloat16())
        got = layer.type(torch.bfloat16)(X.bfloat16())
    assert torch.equal(got, want) and kept
    assert all(torch.equal(layer.get_buffer(name), each) for name, each in kept.items())
    assert all(layer.get_buffer(name).dtype == each.dtype for name, each in kept.items())


@pytest.mark.parametrize("layer", LAYERS, indirect=True)
def test_export_and_trace_compute_what_the_layer_does(layer):
    with torch.no_grad():
        y = layer(X)
        torch.testing.assert_close(torch.export.export(layer, (X,)).module()(X), y)
        torch.testing.assert_close(torch.jit.trace(layer, (X,), check_trace=False)(X), y)


@pytest.mark.parametrize("layer", ["8 bits", "8 bits of 2:4"], indirect=True)
def test_8_bits_are_not_drawn(layer):
    with pytest.raises(Error, match="draw before quantize_"):
        layer.reset_parameters()
