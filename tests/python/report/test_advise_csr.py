"""advise on layers in CSR: each density beside dense, and what goes into sparsify_."""

import json
import sys

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import advise, sparsify_
from sparseloom.advise.advice import Advice, LayerAdvice, Option
from sparseloom.nn import SparseLinear


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.Linear(64, 96))


@pytest.fixture
def taken(monkeypatch):
    """Every call takes microseconds by what it calls: 100 dense, 400 times the density in CSR, else 90."""
    called = []

    def us(call):
        layer = call.__self__.layer
        called.append((layer, call.__self__.training))
        if isinstance(layer, SparseLinear):
            return 400 * layer.values.numel() / (layer.in_features * layer.out_features)
        return 100.0 if isinstance(layer, nn.Linear) else 90.0

    def in_turn(calls, seconds, gpu=None, **options):
        return [[us(call)] * 5 for call in calls]

    monkeypatch.setattr(sys.modules["sparseloom.advise"], "in_turn", in_turn)
    monkeypatch.setattr(sys.modules["sparseloom.advise"], "BUSY", 1.0)  # whatever else runs meanwhile
    return called


@pytest.mark.parametrize("training", [False, True])
def test_each_density_is_called_beside_dense_when_asked_for(taken, training: bool):
    net, x = model(), torch.randn(5, 64)
    found = advise(net, x, blocks=[32], densities=[0.1, 0.5], training=training, csr=True)
    assert [layer.names for layer in found.layers] == [["0", "3"], ["2"]]
    for layer in found.layers:
        assert [(each.density, round(each.measured_us)) for each in layer.csr] == [(0.1, 40), (0.5, 200)]
        assert [each.speedup(layer.dense_us) for each in layer.csr] == pytest.approx([2.5, 0.5], rel=0.02)
        assert all(each.kernels.keys() == set(found.directions) for each in layer.csr)
        assert layer.csr_names == layer.names and not any(each in layer.options for each in layer.csr)
    trained = [training for layer, training in taken if isinstance(layer, SparseLinear)]
    assert trained == [training] * 4
    text = str(found)
    assert text.count("csr") == 4 and "  1 x 1" not in text
    plain = json.loads(json.dumps(found.to_dict()))["layers"][0]["csr"]
    assert [(each["density"], each["speedup"] > 1) for each in plain] == [(0.1, True), (0.5, False)]


def test_the_advice_goes_into_sparsify(taken):
    net, x = model(), torch.randn(5, 64)
    found = advise(net, x, blocks=[32], densities=[0.1, 0.5], csr=True)
    for layer in found.layers:  # which kernel a plan takes is this machine's matter
        layer.csr = [
            Option(each.block, each.density, {"forward": "avx2_lanes"}, 1.0, each.us) for each in layer.csr
        ]
    assert found.csr_patterns(0.5) == {}
    assert str(found.csr_patterns()["0"]) == "InLayout('csr', density=0.1)"
    weight = net[0].weight.detach().clone()
    sparsify_(net, found.csr_patterns(0.1))
    layers = [net[0], net[2], net[3]]
    assert all(isinstance(each, SparseLinear) and each.layout.name == "csr" for each in layers)
    least = net[0].values.detach().abs().min()
    assert net[0].values.numel() == round(0.1 * 64 * 96) == int((weight.abs() >= least).sum())


def test_a_plan_that_goes_dense_is_not_advised():
    for kernel in ("dense", "dense_on_device", "reference"):
        option = Option((1, 1), 0.1, {"forward": kernel}, 10.0, 10.0, dense_in=("forward",))
        layer = LayerAdvice(["a"], (64, 64), 8, "float32", 100.0, csr=[option], csr_names=["a"])
        advice = Advice([layer], {}, ("forward",), (0.1,))
        assert advice.csr_patterns(0.1) == {} and "plan goes dense" in str(advice)


def test_only_linear_layers_are_called_and_only_what_was_asked_is_answered():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.linear = nn.Conv2d(64, 64, 1), nn.Linear(64, 64)

        def forward(self, x):
            return self.linear(self.conv(x).flatten(2).transpose(1, 2))

    net, x = Net(), torch.randn(2, 64, 2, 2)
    found = advise(net, x, blocks=[32], densities=[0.1], seconds=0.01, csr=True)
    (layer,) = found.layers
    assert layer.names == ["conv", "linear"] and layer.csr_names == ["linear"]
    assert len(layer.csr) == 1 and layer.csr[0].measured_us > 0 and layer.csr[0].kernels["forward"]
    with pytest.raises(sparseloom.Error, match=r"looked at: 0\.1, got 0\.2"):
        found.csr_patterns(0.2)
    without = advise(net, x, blocks=[32], densities=[0.1], seconds=0.01)
    assert without.layers[0].csr == []
    with pytest.raises(sparseloom.Error, match=r"call advise\(\.\.\., csr=True\)"):
        without.csr_patterns(0.1)


@pytest.mark.gpu
def test_gpu_layers_in_csr_are_called_beside_dense():
    net, x = model().cuda(), torch.randn(5, 64, device="cuda")
    found = advise(net, x, blocks=[32], densities=[0.1], training=True, seconds=0.01, csr=True)
    for layer in found.layers:
        assert layer.csr[0].measured_us > 0 and layer.csr[0].kernels.keys() == {"forward", "dx", "dw"}
