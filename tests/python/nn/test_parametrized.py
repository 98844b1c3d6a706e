"""values and bias that torch computes: parametrizations, weight norms old and new, pruning."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations, parametrize, prune

import sparseloom
from sparseloom.nn import BlockSparseLinear


class Squashed(nn.Module):
    def forward(self, v):
        return 2 * v.tanh()

    def right_inverse(self, v):
        return (v / 2).atanh()


def remove(layer):
    parametrize.remove_parametrizations(layer, "values")


#: name -> (apply, remove, the entries that take the place of values, whether values change)
WAYS = {
    "register_parametrization": (
        lambda layer: parametrize.register_parametrization(layer, "values", Squashed()),
        remove,
        {"parametrizations.values.original"},
        False,
    ),
    "weight_norm": (
        lambda layer: parametrizations.weight_norm(layer, "values"),
        remove,
        {"parametrizations.values.original0", "parametrizations.values.original1"},
        False,
    ),
    "orthogonal": (
        lambda layer: parametrizations.orthogonal(layer, "values"),
        remove,
        {"parametrizations.values.original", "parametrizations.values.0.base"},
        True,
    ),
    "spectral_norm": (
        lambda layer: parametrizations.spectral_norm(layer.eval(), "values"),
        remove,
        {"parametrizations.values.original", "parametrizations.values.0._u", "parametrizations.values.0._v"},
        True,
    ),
    "old weight_norm": (
        lambda layer: utils.weight_norm(layer, "values"),
        lambda layer: utils.remove_weight_norm(layer, "values"),
        {"values_g", "values_v"},
        False,
    ),
    "prune": (
        lambda layer: prune.l1_unstructured(layer, "values", 0.3),
        lambda layer: prune.remove(layer, "values"),
        {"values_orig", "values_mask"},
        True,
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
X = torch.randn(5, 60, generator=torch.Generator().manual_seed(0))


def layer_of(seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return BlockSparseLinear(60, 90, density=0.5, block=16, activation="relu", seed=generator, **options)


def trained(layer, steps=3):
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (layer(X) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("way", WAYS)
def test_computed_values_train_and_are_removed(way):
    apply, undo, entries, changes = WAYS[way]
    layer = layer_of()
    before = layer(X)
    apply(layer)
    assert layer.state_dict().keys() == {"bias", "crow", "col"} | entries
    assert torch.allclose(layer(X), before, atol=1e-6) or changes
    dense = nn.functional.linear(X, layer.to_dense()[0].weight, layer.bias).relu()
    torch.testing.assert_close(layer(X), dense)
    losses = trained(layer)
    assert losses[-1] < losses[0]
    assert all(p.grad is not None for p in layer.parameters())
    expected = layer(X).detach()
    undo(layer)
    assert type(layer) is BlockSparseLinear and isinstance(layer.values, nn.Parameter)
    assert layer.state_dict().keys() == {"bias", "crow", "col", "values"}
    torch.testing.assert_close(layer(X), expected)
    trained(layer)


@pytest.mark.parametrize("way", WAYS)
def test_computed_values_are_saved_loaded_copied_compiled_and_called_functionally(way, tmp_path):
    apply, *_ = WAYS[way]
    layer, again, third = layer_of(), layer_of(seed=1), layer_of(seed=2)
    for each in (layer, again, third):
        apply(each)
    trained(layer, 1)
    y = layer.eval()(X)
    assert again.eval().load_state_dict(layer.state_dict()).missing_keys == [] and torch.equal(again(X), y)
    sparseloom.save(layer, tmp_path / "layer.safetensors")
    sparseloom.load(tmp_path / "layer.safetensors", third.eval())
    assert torch.equal(third(X), y) and third.pattern == layer.pattern
    torch.testing.assert_close(torch.func.functional_call(layer, dict(layer.named_parameters()), (X,)), y)
    try:
        torch.testing.assert_close(torch.compile(layer, backend="aot_eager")(X), y)
    finally:
        torch._dynamo.reset()
    # torch itself copies no values with a gradient's history, which hooks leave in the layer
    with torch.no_grad():
        layer(X)
        assert torch.equal(copy.deepcopy(layer)(X), y)


def test_a_checkpoint_of_another_pattern_with_as_many_blocks_moves_parametrized_values():
    mask = torch.zeros(6, 4, dtype=torch.bool)
    mask[:, 0] = True
    layer = BlockSparseLinear(60, 90, pattern=sparseloom.Pattern(90, 60, 16, mask))
    other = BlockSparseLinear(60, 90, pattern=sparseloom.Pattern(90, 60, 16, mask.roll(1, 1)))
    for each in (layer, other):
        parametrize.register_parametrization(each, "values", Squashed())
    other.load_state_dict(layer.state_dict())
    assert other.pattern == layer.pattern and torch.equal(other(X), layer(X))


def test_another_number_of_blocks_is_refused_while_values_are_computed():
    layer, other = layer_of(), BlockSparseLinear(60, 90, density=0.25, block=16, activation="relu")
    for each in (layer, other):
        parametrize.register_parametrization(each, "values", Squashed())
    before = other(X)
    with pytest.raises(
        RuntimeError, match="remove the parametrization, norm or pruning, load, and register it again"
    ):
        other.load_state_dict(layer.state_dict())
    assert torch.equal(other(X), before)


def test_a_parametrized_bias_is_added_and_trained():
    layer = layer_of()
    parametrize.register_parametrization(layer, "bias", Squashed())
    torch.testing.assert_close(
        layer(X),
        nn.functional.linear(
            X, layer.to_dense()[0].weight, 2 * layer.parametrizations.bias.original.tanh()
        ).relu(),
    )
    trained(layer, 1)
    assert layer.parametrizations.bias.original.grad.abs().sum() > 0
    parametrize.register_parametrization(layer, "values", Squashed())
    assert (
        set(layer.parametrizations) == {"bias", "values"}
        and layer.parametrizations.values is layer.parametrizations["values"]
    )
    parametrize.remove_parametrizations(layer, "bias")
    remove(layer)
    assert not hasattr(layer, "parametrizations")


@pytest.mark.parametrize("way", WAYS)
def test_what_writes_to_values_is_refused_while_they_are_computed(way):
    apply, *_ = WAYS[way]
    layer = layer_of().requires_grad_(False)
    apply(layer)
    with pytest.raises(sparseloom.Error, match="remove the parametrization, norm or pruning first"):
        layer.set_topology_(layer.pattern)
    model = nn.Sequential(layer, BlockSparseLinear(90, 32, density=0.5))
    result = sparseloom.densify_(model)
    assert model[0] is layer and isinstance(model[1], nn.Linear)
    assert [skip.reason for skip in result.skipped] == [
        "its values are parametrized, normed or pruned: remove that first"
    ]


def test_an_empty_parametrizations_dict_keeps_the_methods_of_a_module_dict():
    layer = layer_of()
    layer.parametrizations = nn.ModuleDict()
    assert list(layer.parametrizations.values()) == []
    layer.parametrizations["bias"] = nn.ReLU()
    assert len(list(layer.parametrizations.values())) == 1
