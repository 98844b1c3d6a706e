"""advise: what would gain, before anything is changed."""

import json
import sys

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import advise, sparsify_
from sparseloom.nn import BlockSparseLinear
from sparseloom.report.break_even import Size, break_even, crossing


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.Linear(256, 512), nn.Linear(512, 4))


def test_every_size_is_predicted_against_a_measured_dense_layer_and_nothing_changes():
    net = model().train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    rng = torch.get_rng_state()
    found = advise(net, torch.randn(64, 256, generator=torch.Generator().manual_seed(0)), seconds=0.01)
    assert torch.equal(torch.get_rng_state(), rng) and net.training and not any(m._forward_hooks for m in net.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert [layer.names for layer in found.layers] == [["0", "3"], ["2"], ["4"]]
    first = found.layers[0]
    assert (first.shape, first.tokens, first.dtype) == ((512, 256), 64, "float32") and first.dense_us > 0
    assert [(o.block, o.density) for o in first.options] == [((b, b), d) for b in (16, 32, 64) for d in (0.1, 0.25, 0.5)]
    assert all(o.measured_us is None and o.kernels["forward"] not in ("dense", "reference") for o in first.options)
    sparse = [o.predicted_us for o in first.options if o.block == (32, 32)]
    assert sparse == sorted(sparse) and sparse[0] < sparse[-1]  # less to multiply, less time
    assert not found.layers[2].options  # 4 outputs are less than any block
    size = Size((512, 256), 64, torch.float32, torch.device("cpu"), True)
    assert first.break_even == {(b, b): break_even(size, (b, b), ["forward"], first.dense_us) for b in (16, 32, 64)}
    json.dumps(found.to_dict())


def test_the_prediction_is_the_plans_of_the_layer_that_would_be_made():
    net, x = nn.Sequential(nn.Linear(256, 512)), torch.randn(64, 256)
    found = advise(net, x, blocks=[32], densities=[0.25], training=True, seconds=0.01)
    layer = BlockSparseLinear(256, 512, density=0.25, generator=torch.Generator().manual_seed(0))
    layer.strict = True
    option = found.layers[0].options[0]
    plans = {direction: layer.plan(64, direction) for direction in ("forward", "dx", "dw")}
    assert option.kernels == {direction: plan["kernel"] for direction, plan in plans.items()}
    total = sum(next(c["predicted_us"] for c in p["candidates"] if c["kernel"] == p["kernel"]) for p in plans.values())
    assert option.predicted_us == pytest.approx(total)


def test_measured_when_asked_for_and_used_for_the_advice():
    found = advise(nn.Sequential(nn.Linear(512, 512)), torch.randn(128, 512), densities=[0.1, 1.0], measure=True, seconds=0.02)
    layer = found.layers[0]
    assert all(option.measured_us > 0 and option.us == option.measured_us for option in layer.options)
    layer.dense_us = 1e9  # whatever this machine measured
    best = layer.best(1.0)
    assert best.us == min(option.us for option in layer.options)
    layer.dense_us = 0.0
    assert layer.best(1.0) is None and "slower than dense" in str(found)


def test_what_is_measured_is_the_block_sparse_layer_by_its_sparse_kernels(monkeypatch):
    """A plan that goes dense would give the dense time for the sparse one."""
    timed = []

    class Timed:
        def __init__(self, layer, tokens, training):
            timed.append((type(layer), getattr(layer, "strict", None), getattr(layer, "density", None), tokens, training))

        def median(self, seconds):
            return 7.0 * len(timed)

    monkeypatch.setattr(sys.modules["sparseloom.advise"], "_Timed", Timed)
    found = advise(nn.Sequential(nn.Linear(64, 64)), torch.randn(8, 64), blocks=[16], densities=[0.25, 1.0], measure=True)
    sparse = [(BlockSparseLinear, True, density, 8, False) for density in (0.25, 1.0)]
    assert timed == [(nn.Linear, None, None, 8, False), *sparse]
    assert found.layers[0].dense_us == 7.0 and [option.measured_us for option in found.layers[0].options] == [14.0, 21.0]


def test_strict_names_every_layer_that_would_fall_back_and_times_nothing(monkeypatch):
    monkeypatch.setattr(sys.modules["sparseloom.advise"], "medians", lambda *a, **k: pytest.fail("timed"))
    net = nn.ModuleDict({"a": nn.Linear(64, 64), "b": nn.Linear(64, 64), "c": nn.Linear(4, 4)}).double()
    model = nn.Sequential(*net.values())
    model.forward = lambda x: net["c"](net["b"](net["a"](x))[..., :4])
    # fp64 has no sparse kernel: which of the other two is predicted faster is the machine's matter.
    none = "(reference|dense)"
    named = rf"0, 1 at block 16 x 16, density 0\.25 \(forward {none}, dx {none}, dw {none}\)"
    with pytest.raises(sparseloom.Error, match=named) as error:
        advise(model, torch.randn(8, 64).double(), blocks=[16], densities=[0.25], training=True, strict=True)
    assert "2 at" not in str(error.value) and "[advise] expected sparse kernels in every layer (strict=True)" in str(error.value)


def test_strict_lets_layers_with_sparse_kernels_through():
    net, x = nn.Sequential(nn.Linear(512, 512)), torch.randn(128, 512)
    assert advise(net, x, blocks=[32], densities=[0.1], seconds=0.01, strict=True).layers[0].options


def test_the_advice_goes_into_sparsify():
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 2))
    found = advise(net, torch.randn(128, 512), densities=[0.1], seconds=0.01)
    for layer in found.layers:
        layer.dense_us = 1e9
    result = sparsify_(net, found.patterns())
    assert [change.names for change in result.changed] == [("0",), ("2",)]
    best = found.layers[0].best(0.25)
    assert [(change.block, change.density) for change in result.changed] == [(best.block, pytest.approx(0.1, abs=0.03))] * 2


def test_the_break_even_is_where_the_prediction_meets_dense():
    assert crossing([(0.1, 10.0), (0.5, 50.0), (1.0, 100.0)], 70.0) == pytest.approx(0.7)
    assert crossing([(0.1, 10.0), (1.0, 100.0)], 5.0) is None and crossing([(0.1, 10.0), (1.0, 50.0)], 60.0) == 1.0


def test_layers_that_cannot_become_sparse_and_those_not_reached_are_named():
    net = nn.ModuleDict({"used": nn.Linear(64, 64), "idle": nn.Linear(64, 64), "parametrized": nn.Linear(64, 64)})
    nn.utils.parametrizations.weight_norm(net["parametrized"])

    class Wrap(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.attention, self.conv = net, nn.MultiheadAttention(64, 2), nn.Conv2d(64, 32, 1, stride=2)

        def forward(self, x):
            y = self.net["parametrized"](self.net["used"](x))
            return self.conv(self.attention(y, y, y)[0].reshape(2, 64, 4, -1))

    found = advise(Wrap(), (torch.randn(8, 2, 64),), seconds=0.01)
    assert "does not reach" in found.skipped["net.idle"] and "parametrized" in found.skipped["net.parametrized"]
    tokens = {name: layer.tokens for layer in found.layers for name in layer.names}
    assert tokens == {"net.used": 16, "attention.in_proj": 16, "attention.out_proj": 16, "conv": 4}
    assert "net.idle: stays dense" in str(found)


def test_where_no_sparse_kernel_runs_it_says_so_and_advises_nothing():
    net, x = nn.Sequential(nn.Linear(64, 64)).double(), torch.randn(8, 64).double()
    found = advise(net, x, densities=[0.1], measure=True, seconds=0.01)
    option = found.layers[0].options[0]  # fp64 has the reference alone, which is no kernel to gain with
    assert option.predicted_us is None and option.kernels == {} and "no sparse kernel" in str(found) and not found.patterns(1.0)
    assert found.to_dict()["layers"][0]["options"][0]["speedup"] == 0


def test_a_model_on_meta_is_refused():
    with torch.device("meta"):
        net = model()
    with pytest.raises(sparseloom.Error, match="a model with values"):
        advise(net, torch.randn(1, 256))
