"""values that torch computes (parametrizations, norms, pruning) in every kind of layer beside
BlockSparseLinear, of which test_parametrized.py tells."""

import copy

import pytest
import torch
from eight_bits import quantized
from test_parametrized import WAYS, Squashed
from torch import nn
from torch.nn.utils import parametrize, prune

import sparseloom
from sparseloom import nn as sparse
from sparseloom.nn.held.driven import StoredWeight

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")


def in_layout(layout, **options):
    def made(seed):
        torch.manual_seed(seed)
        return sparse.SparseLinear.from_dense(nn.Linear(64, 96), layout, **options)

    return made, (5, 64)


def convolution(cls):
    def made(seed):
        generator = torch.Generator().manual_seed(seed)
        return cls(32, 48, 3, density=0.5, block=16, activation="relu", seed=generator)

    return made, (2, 32, 8, 8)


#: name -> (what makes the layer from a seed, the shape of x)
LAYERS = {
    "csr": in_layout("csr", density=0.3),
    "coo": in_layout("coo", density=0.3),
    "bitmap": in_layout("bitmap", density=0.3),
    "blocks": in_layout("blocks", density=0.3, block=16),
    "nm": in_layout("nm", n=1, m=4),
    "nmg": in_layout("nmg", n=2, m=4),
    "conv": convolution(sparse.BlockSparseConv2d),
    "conv_transpose": convolution(sparse.BlockSparseConvTranspose2d),
}
#: Not orthogonal, which torch gives matrices alone: single elements are stored as a vector.
TAKEN = [way for way in WAYS if way != "orthogonal"]


def made(kind, seed=0):
    make, shape = LAYERS[kind]
    return make(seed), torch.randn(shape, generator=torch.Generator().manual_seed(7))


def trained(layer, x, steps=3):
    optimizer, losses = torch.optim.Adam(layer.parameters(), 1e-2), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (layer(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("way", TAKEN)
@pytest.mark.parametrize("kind", LAYERS)
def test_computed_values_train_and_are_removed(kind, way):
    apply, undo, entries, changes = WAYS[way]
    layer, x = made(kind)
    before, names = layer(x), layer.state_dict().keys()
    apply(layer)
    if way == "spectral_norm" and layer.values.dim() == 1:  # of a vector torch keeps no singular vectors
        entries = {"parametrizations.values.original"}
    assert layer.state_dict().keys() == (names - {"values"}) | entries
    assert torch.allclose(layer(x), before, atol=1e-5) or changes
    torch.testing.assert_close(layer(x), layer.to_dense()(x))
    losses = trained(layer, x)
    assert losses[-1] < losses[0] and all(p.grad is not None for p in layer.parameters())
    expected = layer(x).detach()
    undo(layer)
    assert isinstance(layer.values, nn.Parameter) and layer.state_dict().keys() == names
    torch.testing.assert_close(layer(x), expected)
    trained(layer, x)


@pytest.mark.parametrize("way", TAKEN)
@pytest.mark.parametrize("kind", LAYERS)
def test_computed_values_are_saved_loaded_copied_and_called_functionally(kind, way, tmp_path):
    apply = WAYS[way][0]
    (layer, x), (again, _), (third, _) = made(kind), made(kind, 1), made(kind)
    for each in (layer, again, third):
        apply(each)
    trained(layer, x, 1)
    y = layer.eval()(x).detach()
    told = again.eval().load_state_dict(layer.state_dict())
    assert not told.missing_keys and not told.unexpected_keys and torch.equal(again(x), y)
    sparseloom.save(layer, tmp_path / "layer.safetensors")
    sparseloom.load(tmp_path / "layer.safetensors", third.eval())
    assert torch.equal(third(x), y)
    torch.testing.assert_close(torch.func.functional_call(layer, dict(layer.named_parameters()), (x,)), y)
    # torch itself copies no values with a gradient's history, which hooks leave in the layer
    with torch.no_grad():
        layer(x)
        assert torch.equal(copy.deepcopy(layer)(x), y)


@pytest.mark.parametrize("kind", ["csr", "conv"])
def test_computed_values_compile(kind):
    layer, x = made(kind)
    y = layer(x)
    y.sum().backward()
    want, layer.values.grad = layer.values.grad, None
    parametrize.register_parametrization(layer, "values", Squashed())
    original = layer.parametrizations.values.original
    try:
        torch.compile(layer, backend="aot_eager")(x).sum().backward()
        got, original.grad = original.grad.clone(), None
        layer(x).sum().backward()
        torch.testing.assert_close(got, original.grad)
        assert got.shape == want.shape and not torch.equal(got, want)
    finally:
        torch._dynamo.reset()


@pytest.mark.parametrize("kind", LAYERS)
def test_what_writes_to_computed_values_is_refused(kind):
    layer, _ = made(kind)
    parametrize.register_parametrization(layer, "values", Squashed())
    with pytest.raises(sparseloom.Error, match="remove the parametrization, norm or pruning first"):
        layer.reset_parameters()
    model = nn.Sequential(layer, nn.Flatten(), sparse.BlockSparseLinear(90, 32, density=0.5))
    skipped = sparseloom.densify_(model).skipped
    assert [skip.reason for skip in skipped] == [
        "its values are parametrized, normed or pruned: remove that first"
    ]


def test_another_index_of_as_many_values_moves_computed_ones_and_of_others_is_refused():
    layer, x = made("csr")
    as_many, more = made("csr", 1)[0], sparse.SparseLinear(64, 96, layout="csr", density=0.5)
    for each in (layer, as_many, more):
        parametrize.register_parametrization(each, "values", Squashed())
    as_many.load_state_dict(layer.state_dict())
    assert torch.equal(as_many(x), layer(x))
    before = more(x)
    with pytest.raises((RuntimeError, sparseloom.Error), match="values"):
        more.load_state_dict(layer.state_dict())
    assert torch.equal(more(x), before)


def test_frozen_two_of_four_values_may_be_computed():
    x = torch.randn(5, 64)
    layer = sparse.Semi24Linear(64, 96, activation="relu", dense_copy=True)
    parametrize.register_parametrization(layer, "values", Squashed())
    layer.dense_copy = False
    torch.testing.assert_close(layer(x), layer.to_dense()(x))
    other = sparse.Semi24Linear(64, 96, activation="relu")
    parametrize.register_parametrization(other, "values", Squashed())
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x)) and not other.parametrizations.values.original.requires_grad
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    parametrize.remove_parametrizations(layer, "values")
    assert torch.equal(other(x), layer(x)) and not layer.values.requires_grad
    prune.l1_unstructured(layer, "values", 0.3)
    torch.testing.assert_close(layer(x), layer.to_dense()(x))
    assert int((layer.values == 0).sum()) == round(0.3 * layer.values.numel())


@pytest.mark.parametrize("way", ["register_parametrization", "prune"])
@pytest.mark.parametrize("cls", [sparse.BlockSparseLSTM, sparse.BlockSparseGRU])
def test_recurrent_weights_may_be_computed(cls, way):
    torch.manual_seed(0)
    layer, x = cls(32, 64, density=0.5, block=16), torch.randn(5, 3, 32)
    WAYS[way][0](layer.hh_l0), WAYS[way][0](layer.ih_l0)
    y, twin = layer(x)[0], layer.to_dense()
    torch.testing.assert_close(y, twin(x)[0])
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())


def test_gated_and_unit_norm_layers_take_computed_values():
    torch.manual_seed(0)
    inner, x = sparse.BlockSparseLinear(64, 96, density=0.5, block=16), torch.randn(5, 64)
    gated = sparse.GatedBlockSparseLinear(inner).eval()
    parametrize.register_parametrization(inner, "values", Squashed())
    packed = gated.pack()
    torch.testing.assert_close(gated(x), packed(x))
    gated(x).sum().backward()
    assert inner.parametrizations.values.original.grad.abs().sum() > 0


def test_methods_refuse_computed_values():
    layer = sparse.BlockSparseLinear(64, 96, density=0.5, block=16)
    parametrize.register_parametrization(layer, "values", Squashed())
    with pytest.raises(sparseloom.Error, match="remove the parametrization, norm or pruning first"):
        StoredWeight("layer", layer.sparse_weights()["values"], 0.5)


def test_eight_bit_values_may_be_computed():
    layer, x = sparse.BlockSparseLinear(64, 96, density=0.5, block=16), torch.randn(5, 64)
    eight = quantized(layer)
    with torch.no_grad():
        y = eight(x)
        parametrize.register_parametrization(eight, "values", nn.Identity())
        assert torch.equal(eight(x), y)
