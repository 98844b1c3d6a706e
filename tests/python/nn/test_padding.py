"""Padding of ragged edges: it stays zero under every optimizer, and no write in place reaches a file."""

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import nn as sparse
from sparseloom.nn.held import padding
from sparseloom.nn.held.sparse_weight import sparse_layers

LAYERS = {
    "linear": lambda: sparse.BlockSparseLinear(41, 35, density=0.5, block=8),
    "capacity": lambda: sparse.BlockSparseLinear(41, 35, density=0.5, block=8, capacity=0.8),
    "conv": lambda: sparse.BlockSparseConv2d(17, 23, 3, density=0.5, block=8),
    "conv transposed": lambda: sparse.BlockSparseConvTranspose1d(17, 23, 3, density=0.5, block=8),
    "lstm": lambda: sparse.BlockSparseLSTM(17, 23, density=0.5, block=8),
    "nm": lambda: sparse.SparseLinear(41, 35, layout="nm", n=2, m=4),
    "nmg": lambda: sparse.SparseLinear(41, 35, layout="nmg", n=1, m=4, g=4),
    "semi24": lambda: sparse.Semi24Linear(41, 35),
}
OPTIMIZERS = {
    "SGD": lambda each: torch.optim.SGD(each, 0.1, momentum=0.9, weight_decay=0.1),
    "AdamW fused": lambda each: torch.optim.AdamW(each, 0.1, fused=True),
    "Adafactor": lambda each: torch.optim.Adafactor(each, 0.1),
}


def weights(model):
    return [layer.weight for layer in sparse_layers(model)]


def padding_of(weight):
    apart = weight.values.detach() - weight.packed(weight.to_dense())
    return apart[: weight.pattern.blocks] if weight.layout == "bsr" else apart  # without free slots


@pytest.mark.parametrize("kind", LAYERS)
def test_noise_that_reaches_the_padding_stays_out_of_weights_and_files(kind, tmp_path):
    """save went through, and every load refused the file; norms counted the padding."""
    model = nn.Sequential(LAYERS[kind]())
    for make in OPTIMIZERS.values():
        optimizer = make(model.parameters())
        for _ in range(2):
            for (
                parameter
            ) in model.parameters():  # those of 2:4 need no gradient, and are written all the same
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
            assert not any(padding_of(weight).any() for weight in weights(model))
    if "capacity" in kind:
        model[0].fix_topology_()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter))
    assert any(padding_of(weight).any() for weight in weights(model))
    dense = [weight.to_dense() for weight in weights(model)]
    sparseloom.save(model, tmp_path / "m")
    assert not any(padding_of(weight).any() for weight in weights(model))
    sparseloom.load(tmp_path / "m", model)
    assert all(torch.equal(weight.to_dense(), was) for weight, was in zip(weights(model), dense, strict=True))


def test_padding_is_cleared_behind_another_pattern_and_without_waiting_for_a_dynamic_one():
    layer = LAYERS["linear"]()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(3):
        order = torch.randperm(layer.pattern.mask.numel())
        layer.set_topology_(layer.pattern.mask.flatten()[order].view_as(layer.pattern.mask))
        layer.values.grad = torch.randn_like(layer.values)
        optimizer.step()
        assert not padding_of(weights(layer)[0]).any()


def replace(module, name, tensor):
    """Assigns copies of the tensor until one has the id of the tensor that it replaces by way of another:
    Python gives a new object the address of one that is gone."""
    old = id(module._buffers[name])
    for _ in range(100):
        module._buffers[name] = tensor.clone()
        if id(module._buffers[name]) == old:
            return


@pytest.mark.parametrize("kind", ["linear", "capacity", "conv", "semi24", "csr", "bitmap", "tiles"])
def test_a_new_index_with_the_id_of_the_old_one_is_another(kind):
    """Caches knew an index by its id: a load cleared values as padding, and products read old metadata."""
    make = LAYERS.get(kind) or (lambda: sparse.SparseLinear(130, 70, layout=kind, density=0.5))
    layer, other = make(), make()
    x = torch.randn(3, 17, 9, 9) if kind == "conv" else torch.randn(3, layer.in_features)
    state = {name: entry.clone() for name, entry in other.state_dict().items()}
    expected = forward_and_dx(other, x)
    padding.clear(layer)  # it knows what the index says is padding from here on
    layer._index = layer._last = None  # which hold the index, as they do once a layer was called
    with torch.no_grad():
        layer.bias.copy_(other.bias)
        layer.values.data = other.values.detach().clone()
    for name in ["packed_index"] if hasattr(layer, "packed_index") else layer._parts:
        replace(layer, name, getattr(other, name))
    if hasattr(layer, "packed_index"):  # as _set_index leaves it
        layer._pattern, layer._digest = other.pattern, other._digest
        layer._writes = layer.packed_index._version
    torch.testing.assert_close(forward_and_dx(layer, x), expected)
    assert all(torch.equal(entry, state[name]) for name, entry in layer.state_dict().items())


def forward_and_dx(layer, x):
    x = x.clone().requires_grad_()
    y = layer(x)
    return y.detach(), torch.autograd.grad(y.square().sum(), x)[0]
