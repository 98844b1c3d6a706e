"""What a user does to any nn.Module, with each family of layers: other dtypes, export, tracing, draws."""

import pytest
import safetensors.torch
import torch
from eight_bits import quantized
from torch import nn

from sparseloom import BlockSparse, Error, sparsify_
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
    "bitmap": in_layout("bitmap", density=0.3),
    "blocks": in_layout("blocks", density=0.3, block=16),
    "nm": in_layout("nm", n=1, m=4),
    "nmg": in_layout("nmg", n=2, m=4),
    "tiles": in_layout("tiles", density=0.7),
    "semi24": lambda: sparse.Semi24Linear(64, 96),
    "masked": lambda: masked(16, (6, 4)),
    "masked elements": lambda: masked(1, (96, 64)),
    "8 bits": lambda: quantized(blocks()),
    "8 bits of 2:4": lambda: sparse.QuantizedSemi24Linear.from_sparse(sparse.Semi24Linear(64, 96)),
    "8 bits of bitmaps": lambda: sparse.QuantizedSparseLinear.from_sparse(in_layout("bitmap", density=0.3)()),
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


def attention():
    model = nn.ModuleList([nn.MultiheadAttention(32, 4)])
    sparsify_(model, {".*": BlockSparse(8, 0.5)})
    return model


#: Layers whose x is of another shape, too.
SAVED = LAYERS | {
    "conv": lambda: sparse.BlockSparseConv2d(20, 36, 3, density=0.5, block=16),
    "conv transposed": lambda: sparse.BlockSparseConvTranspose1d(20, 36, 3, density=0.5, block=16),
    "lstm": lambda: sparse.BlockSparseLSTM(24, 32, 2, density=0.5, block=8),
    "gru": lambda: sparse.BlockSparseGRU(24, 32, density=0.5, block=8),
    "gated": lambda: sparse.GatedBlockSparseLinear(blocks()),
    "attention": attention,
    "dynamic": lambda: blocks(capacity=1.0).fix_topology_(),
}


@pytest.mark.parametrize("kind", SAVED)
def test_entries_of_a_state_dict_own_their_memory_and_safetensors_saves_them_all(kind, tmp_path):
    """crow and col were views of one buffer: save_model of safetensors and accelerate left one out or
    refused both."""
    layer = SAVED[kind]()
    state = layer.state_dict()
    for tensor in state.values():
        assert tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    held = [tensor.data_ptr() for tensor in state.values() if tensor.numel()]
    assert len(set(held)) == len(held)
    own = {parameter.data_ptr() for parameter in layer.parameters() if parameter.numel()}
    assert own <= set(held)  # as everywhere in torch: averages write to them
    before = {name: tensor.clone() for name, tensor in state.items()}
    safetensors.torch.save_model(layer, tmp_path / "m.safetensors")
    for parameter in layer.parameters():
        parameter.data.zero_()
    safetensors.torch.load_model(layer, tmp_path / "m.safetensors")
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


ONNX = {
    "linear": (blocks, (2, 64)),
    "csr": (in_layout("csr", density=0.3), (2, 64)),
    "semi24": (lambda: sparse.Semi24Linear(64, 96), (2, 64)),
    "conv": (lambda: sparse.BlockSparseConv1d(64, 32, 3, density=0.5, block=16), (2, 64, 8)),
    "lstm": (lambda: sparse.BlockSparseLSTM(64, 32, density=0.5, block=16), (3, 2, 64)),
}


@pytest.mark.parametrize("kind", ONNX)
def test_onnx_export_of_a_sparse_layer_says_that_densify_comes_first(kind, monkeypatch):
    """Both exporters trace first; neither package of ONNX is needed to see what they would be told."""
    import torch.onnx

    make, shape = ONNX[kind]
    net, x = nn.Sequential(make()).eval(), torch.randn(shape)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    for trace in (torch.jit.trace, torch.export.export):
        with pytest.raises(Exception, match=r"\[onnx\] expected a dense model.*densify_\(model\) first"):
            trace(net, (x,))
    monkeypatch.undo()
    net(x)
    torch.export.export(net, (x,))
