"""What optimizers keep of a layer's values, where the layer is given another pattern: it moves with what is
stored, or is refused; no step reaches behind its end."""

import copy
import logging

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import nn as sparse
from sparseloom import optim


def linear(density, **options):
    return sparse.BlockSparseLinear(40, 32, density=density, block=8, **options)


def in_layout(layout, **options):
    return sparse.SparseLinear(40, 36, layout=layout, **options)


#: density -> a layer
LAYERS = {
    "linear": linear,
    "capacity": lambda density: linear(density, capacity=0.8),
    "conv": lambda density: sparse.BlockSparseConv2d(24, 32, 3, density=density, block=8),
    "conv transposed": lambda density: sparse.BlockSparseConvTranspose1d(24, 32, 3, density=density, block=8),
    "lstm": lambda density: sparse.BlockSparseLSTM(24, 32, density=density, block=8),
    "csr": lambda density: in_layout("csr", density=density),
    "coo": lambda density: in_layout("coo", density=density),
    "bitmap": lambda density: in_layout("bitmap", density=density),
    "nm": lambda density: in_layout("nm", n=1, m=4),
    "nmg": lambda density: in_layout("nmg", n=1, m=4, g=4),
}
OPTIMIZERS = {
    "AdamW fused": lambda each: torch.optim.AdamW(each, 1e-2, fused=True),
    "AdamW": lambda each: torch.optim.AdamW(each, 1e-2, amsgrad=True),
    "SGD fused": lambda each: torch.optim.SGD(each, 1e-2, momentum=0.9, fused=True),
    "Adagrad fused": lambda each: torch.optim.Adagrad(each, 1e-2, fused=True),
    "optim.AdamW": lambda each: optim.AdamW(each, 1e-2),
}


def step(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()


def weights(model):
    return {layer.name: layer.weight for layer in sparseloom.nn.held.sparse_weight.sparse_layers(model)}


def moments(model, optimizer):
    """{(layer, name): the moment in the places of the dense weight}, all nonzero where one is stored."""
    return {
        (name, key): weight.unpacked(value).clone()
        for name, weight in weights(model).items()
        for key, value in optimizer.state[weight.values].items()
        if value.shape == weight.values.shape
    }


def load_state_dict(model, other, path):
    model.load_state_dict(other.state_dict())


def load(model, other, path):
    sparseloom.save(other, path)
    sparseloom.load(path, model)


@pytest.mark.parametrize(
    "way, densities",
    [(load_state_dict, (0.3, 0.6)), (load, (0.6, 0.3)), (load, (0.5, 0.5))],
    ids=["more blocks", "fewer blocks", "other blocks"],
)
@pytest.mark.parametrize("kind", LAYERS)
def test_moments_move_with_what_a_load_stores(kind, way, densities, tmp_path):
    """The state kept its old size and order: a fused step overran the heap, or used foreign moments."""
    for make in OPTIMIZERS.values():
        model, other = (nn.Sequential(LAYERS[kind](density)) for density in densities)
        optimizer = make(model.parameters())
        step(model, optimizer)
        before = moments(model, optimizer)
        way(model, other, tmp_path / "m")
        after, stored = moments(model, optimizer), weights(model)
        assert before.keys() == after.keys() and before
        for (name, key), moment in after.items():
            there = stored[name].unpacked(torch.ones_like(stored[name].values)) != 0
            assert torch.equal(moment, before[name, key].where(there, 0.0))
        twin = copy.deepcopy((model, optimizer.state_dict()))
        again = make(twin[0].parameters())
        again.load_state_dict(twin[1])
        torch.manual_seed(3)
        step(model, optimizer)
        torch.manual_seed(3)
        step(twin[0], again)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin[0].parameters(), strict=True))


@pytest.mark.parametrize("first", ["model", "optimizer"])
@pytest.mark.parametrize("density", [0.3, 0.5])
def test_a_checkpoint_of_both_is_taken_as_it_is(first, density):
    model, saved = nn.Sequential(linear(0.5)), nn.Sequential(linear(density))
    optimizer, of_saved = (OPTIMIZERS["AdamW fused"](each.parameters()) for each in (model, saved))
    step(model, optimizer), step(saved, of_saved)
    state = copy.deepcopy(of_saved.state_dict())
    parts = [(model, saved.state_dict()), (optimizer, state)]
    for part, entries in parts if first == "model" else reversed(parts):
        part.load_state_dict(entries)
    kept, want = optimizer.state[model[0].values], state["state"][0]
    assert all(torch.equal(kept[key], value) for key, value in want.items())
    step(model, optimizer)


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind not in ("capacity", "nm", "nmg")])
def test_state_of_another_size_is_refused_and_names_the_layer(kind):
    for make in (OPTIMIZERS["AdamW fused"], OPTIMIZERS["SGD fused"]):
        model, other = nn.Sequential(LAYERS[kind](0.3)), nn.Sequential(LAYERS[kind](0.6))
        optimizer, of_other = make(model.parameters()), make(other.parameters())
        step(other, of_other)
        optimizer.load_state_dict(of_other.state_dict())
        model.load_state_dict(model.state_dict())
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(
            sparseloom.Error, match=r"state of .*\d+, \d+\) for values.*of the same checkpoint"
        ):
            step(model, optimizer)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        model.load_state_dict(other.state_dict())
        step(model, optimizer)


def test_state_of_another_form_starts_anew_with_one_warning(caplog):
    model = nn.ModuleDict({"up": linear(0.3)})
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    step(model, optimizer)
    optimizer.state[model["up"].values]["rows"] = torch.zeros(3)
    model.load_state_dict(nn.ModuleDict({"up": linear(0.6)}).state_dict())
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "up, BlockSparseLinear(40, 32): SGD keeps rows" in caplog.text
    assert not optimizer.state.get(model["up"].values)
    step(model, optimizer)


def test_a_load_that_fails_leaves_the_optimizers_state_as_it_was(tmp_path):
    class Stubborn(nn.Linear):
        def _load_from_state_dict(self, state_dict, prefix, *rest):
            state_dict[prefix + "bias"] = state_dict[prefix + "bias"] * 0 + 7
            super()._load_from_state_dict(state_dict, prefix, *rest)

    model, other = nn.Sequential(linear(0.5), Stubborn(3, 3)), nn.Sequential(linear(0.3), nn.Linear(3, 3))
    optimizer = OPTIMIZERS["AdamW fused"](model.parameters())
    step(model, optimizer)
    before, pattern = copy.deepcopy(optimizer.state_dict()), model[0].pattern
    sparseloom.save(other, tmp_path / "m")
    with pytest.raises(sparseloom.Error, match=r"1\.bias to hold what the file has"):
        sparseloom.load(tmp_path / "m", model)
    assert model[0].pattern == pattern
    for i, state in before["state"].items():
        assert all(
            torch.equal(value, optimizer.state_dict()["state"][i][key]) for key, value in state.items()
        )


def test_room_that_comes_and_goes_without_an_optimizer_reaches_its_state_too():
    layer = linear(0.3)
    optimizer = OPTIMIZERS["AdamW fused"](layer.parameters())
    step(layer, optimizer)
    before = optimizer.state[layer.values]["exp_avg"].clone()
    layer.reserve_(0.9)
    assert torch.equal(optimizer.state[layer.values]["exp_avg"][: len(before)], before)
    step(layer, optimizer)
    layer.fix_topology_()
    assert optimizer.state[layer.values]["exp_avg"].shape == before.shape
    step(layer, optimizer)
