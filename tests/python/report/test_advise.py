"""advise: what is called, recommended and refused, before anything is changed."""

import json
import math
import sys

import pytest
import torch
from advise_stand import Share, clock_of, model
from torch import nn

import sparseloom
from sparseloom import advise, sparsify_
from sparseloom.advise.advice import WORTH, Advice, LayerAdvice, Option
from sparseloom.nn import BlockSparseLinear
from sparseloom.timing.rounds import Spread


@pytest.fixture
def clock(monkeypatch):
    return clock_of(monkeypatch)


def test_every_size_is_predicted_against_a_measured_dense_layer_and_nothing_changes(monkeypatch):
    # No prediction is below it: measured beside other work it may be more than the layer itself takes later.
    monkeypatch.setattr(sys.modules["sparseloom.advise"], "overhead", lambda *a: 1.0)
    net = model().train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    rng = torch.get_rng_state()
    found = advise(net, torch.randn(64, 256, generator=torch.Generator().manual_seed(0)), seconds=0.01)
    assert (
        torch.equal(torch.get_rng_state(), rng)
        and net.training
        and not any(m._forward_hooks for m in net.modules())
    )
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert [layer.names for layer in found.layers] == [["0", "3"], ["2"], ["4"]]
    first = found.layers[0]
    assert (first.shape, first.tokens, first.dtype) == ((512, 256), 64, "float32") and first.dense_us > 0
    assert [(o.block, o.density) for o in first.options] == [
        ((b, b), d) for b in (16, 32, 64) for d in (0.1, 0.25, 0.5)
    ]
    assert all(o.kernels["forward"] not in ("dense", "reference") for o in first.options)
    assert [(o.block[0], o.density) for o in first.options if o.measured_us is not None] == [
        (16, 0.25),
        (32, 0.25),
        (64, 0.25),
    ]
    sparse = [o.predicted_us for o in first.options if o.block == (32, 32)]
    assert sparse == sorted(sparse) and sparse[0] < sparse[-1]  # less to multiply, less time
    assert not found.layers[2].options  # 4 outputs are less than any block
    assert set(first.break_even) == {(b, b) for b in (16, 32, 64)}
    json.dumps(found.to_dict())


def test_all_options_are_called_beside_dense_when_asked_for(clock):
    clock["sparse"] = lambda layer: 80.0 * layer.density
    net = nn.Sequential(nn.Linear(512, 512))
    found = advise(net, torch.randn(128, 512), blocks=[16, 32], densities=[0.25, 1.0], measure=True)
    layer = found.layers[0]
    assert [option.measured_us for option in layer.options] == [20.0, 80.0, 20.0, 80.0]
    assert [option.speedup(layer.dense_us) for option in layer.options] == [5.0, 1.25, 5.0, 1.25]
    sparse = [each for each in clock["called"] if isinstance(each, BlockSparseLinear)]
    # each option once, never by a plan that goes dense
    assert all(each.strict for each in sparse) and len(sparse) == 4
    real = advise(net, torch.randn(128, 512), densities=[0.1, 1.0], measure=True, seconds=0.02).layers[0]
    assert all(
        option.measured_us > 0 and option.ratio.p20 <= option.ratio.median <= option.ratio.p80
        for option in real.options
    )


def test_measured_differences_that_are_noise_are_said_to_show_none_and_advise_nothing(clock):
    clock["sparse"], clock["rounds"] = lambda layer: 90.0, [0.5, 0.6, 1.3, 1.4, 1.5]
    found = advise(
        nn.Sequential(nn.Linear(64, 64)), torch.randn(8, 64), blocks=[16], densities=[0.5], measure=True
    )
    option = found.layers[0].options[0]
    assert option.ratio.median > WORTH and option.ratio.shows_none and not found.patterns(0.5)
    assert "1.44x (0.67 to 1.56)  no difference shown" in str(found) and "recommended\n" not in str(found)
    plain = found.to_dict()["layers"][0]["options"][0]
    assert plain["ratio"]["p20"] == pytest.approx(0.667, abs=1e-3) and plain["gains"] is False
    clock["rounds"] = [1.3, 1.4, 1.5, 1.4, 1.3]
    shown = advise(
        nn.Sequential(nn.Linear(64, 64)), torch.randn(8, 64), blocks=[16], densities=[0.5], measure=True
    )
    assert shown.patterns(0.5) and "1.56x (1.44 to 1.56)" in str(shown) and "no difference" not in str(shown)


def test_nothing_is_recommended_from_what_was_measured_beside_other_work(clock, monkeypatch):
    """It printed "605x recommended" below its own warning, and handed it out."""
    busy = type("Busy", (Share,), {"lost": 0.46})
    monkeypatch.setattr(sys.modules["sparseloom.advise"], "Watch", busy)
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 96))
    found = advise(net, torch.randn(8, 64), densities=[0.25], semi24=True, csr=True)
    assert str(found).startswith("!!! BUSY MACHINE: 46 % of the CPU time went to other work")
    assert "Nothing is recommended: 2 of 2 dense layers" in str(found) and "recommended  " not in str(found)
    assert found.to_dict()["busy"] and not any(
        option["gains"] for layer in found.to_dict()["layers"] for option in layer["options"]
    )
    assert not found.best() and not found.patterns() and not found.semi24_patterns()
    assert not found.csr_patterns(0.25) and "are predicted" not in str(found)
    # the first group is quiet when it is measured once more, the second stays busy
    busy.lost, busy.looks = 0.05, [0.5, 0.1, 0.5, 0.5]
    found = advise(net, torch.randn(8, 64), densities=[0.25], seconds=0.01)
    assert [layer.disturbed for layer in found.layers] == [False, True] and list(found.best()) == ["0"]
    assert "BUSY" not in str(found) and "measured beside other work" in str(found)


def test_patterns_are_of_the_density_asked_for_or_refused(clock):
    """Of .25 they were of .1, the fastest option of at most that density."""
    clock["sparse"] = lambda layer: 100 * layer.density
    net = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512, bias=False), nn.Linear(512, 2))
    found = advise(
        net, torch.randn(128, 512), measure=True
    )  # else by plans, which go by this machine's rates
    for density in (0.1, 0.25, 0.5):
        patterns = found.patterns(density=density)
        assert set(patterns) == {"0", "1"} and {pattern.density for pattern in patterns.values()} == {density}
    assert found.patterns() == found.patterns(density=0.25)
    with pytest.raises(
        sparseloom.Error, match=r"looked at: 0\.1, 0\.25, 0\.5, got 0\.3; .*densities=\[0\.3\]"
    ):
        found.patterns(density=0.3)
    with pytest.raises(sparseloom.Error, match="densities above 0"):
        advise(net, torch.randn(128, 512), densities=[])


def test_an_option_whose_plan_goes_dense_is_not_recommended():
    """The sparse kernels were faster than dense; the layer that sparsify_ makes runs neither, but scatters
    its weight."""
    kernels = dict.fromkeys(("forward", "dx", "dw"), "avx2_panel")
    forward = Option((32, 32), 0.5, {"forward": "avx2_panel"}, 50.0, dense_in=("forward",))
    both, one = (
        Option((32, 32), 0.5, kernels, 50.0, dense_in=dense) for dense in (("forward", "dx"), ("dx",))
    )
    assert forward.goes_dense and not forward.gains(100.0) and not both.gains(100.0) and one.gains(100.0)
    layer = LayerAdvice(["a"], (64, 64), 8, "float32", 100.0, [forward], {(32, 32): None})
    assert "plan goes dense" in str(Advice([layer], {}, ("forward",), (0.5,)))
    for tokens in (64, 512):
        made = advise(
            nn.Sequential(nn.Linear(256, 256)),
            torch.randn(tokens, 256),
            blocks=[32],
            densities=[0.9],
            seconds=0.01,
        )
        # the pattern that advise plans: of another one a plan near dense's time may choose otherwise
        real = BlockSparseLinear(256, 256, pattern=sparseloom.pattern.balanced(256, 256, 32, 0.9, 0))
        assert made.layers[0].options[0].goes_dense == (real.plan(tokens)["kernel"] == "dense")


def test_the_best_block_of_a_density_is_the_one_that_gains_most():
    options = [
        Option((16, 16), 0.25, {}, 40.0),
        Option((32, 32), 0.25, {}, 20.0),
        Option((64, 64), 0.25, {}, 10.0, bare_rows=3),
    ]
    layer = LayerAdvice(
        ["a.b"], (64, 64), 8, "float32", 50.0, options, {option.block: None for option in options}
    )
    assert layer.best(0.25) is options[1]  # blocks of 64 would leave outputs without inputs
    advice = Advice([layer], {}, ("forward",), (0.25,))
    assert list(advice.patterns()) == ["a\\.b"] and "3 bare rows" in str(advice)
    layer.dense_us = 21.0
    assert layer.best(0.25) is None  # 1.05x: less than predictions miss by
    measured = Option((32, 32), 0.25, {}, 40.0, 10.0, Spread(5.0, 4.0, 6.0))
    assert measured.us == 10.0 and measured.speedup(20.0) == 5.0 and measured.gains(20.0)
    assert Option((32, 32), 0.25, {}, None).us == math.inf


def test_strict_names_every_layer_that_would_fall_back_and_times_nothing(monkeypatch):
    monkeypatch.setattr(sys.modules["sparseloom.advise"], "in_turn", lambda *a, **k: pytest.fail("timed"))
    net = nn.ModuleDict({"a": nn.Linear(64, 64), "b": nn.Linear(64, 64), "c": nn.Linear(4, 4)}).double()
    model = nn.Sequential(*net.values())
    model.forward = lambda x: net["c"](net["b"](net["a"](x))[..., :4])
    # fp64 has no sparse kernel: which of the other two is predicted faster is the machine's matter.
    none = "(reference|dense)"
    named = rf"0, 1 at block 16 x 16, density 0\.25 \(forward {none}, dx {none}, dw {none}\)"
    with pytest.raises(sparseloom.Error, match=named) as error:
        advise(model, torch.randn(8, 64).double(), blocks=[16], densities=[0.25], training=True, strict=True)
    assert "2 at" not in str(
        error.value
    ) and "[advise] expected sparse kernels in every layer (strict=True)" in str(error.value)


def test_strict_lets_layers_with_sparse_kernels_through():
    net, x = nn.Sequential(nn.Linear(512, 512)), torch.randn(128, 512)
    assert advise(net, x, blocks=[32], densities=[0.1], seconds=0.01, strict=True).layers[0].options


def test_the_advice_goes_into_sparsify(clock):
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 2))
    found = advise(net, torch.randn(128, 512), densities=[0.1])
    result = sparsify_(net, found.patterns(0.1))
    assert [change.names for change in result.changed] == [("0",), ("2",)]
    best = found.layers[0].best(0.1)
    assert [(change.block, change.density) for change in result.changed] == [
        (best.block, pytest.approx(0.1, abs=0.03))
    ] * 2


def test_layers_that_cannot_become_sparse_and_those_not_reached_are_named():
    net = nn.ModuleDict(
        {"used": nn.Linear(64, 64), "idle": nn.Linear(64, 64), "parametrized": nn.Linear(64, 64)}
    )
    nn.utils.parametrizations.weight_norm(net["parametrized"])

    class Wrap(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.attention, self.conv = (
                net,
                nn.MultiheadAttention(64, 2),
                nn.Conv2d(64, 32, 1, stride=2),
            )
            self.taps = nn.Conv2d(32, 32, 3, padding=1)

        def forward(self, x):
            y = self.net["parametrized"](self.net["used"](x))
            return self.taps(self.conv(self.attention(y, y, y)[0].reshape(2, 64, 4, -1)))

    found = advise(Wrap(), (torch.randn(8, 2, 64),), seconds=0.01)
    assert (
        "does not reach" in found.skipped["net.idle"] and "parametrized" in found.skipped["net.parametrized"]
    )
    tokens = {name: layer.tokens for layer in found.layers for name in layer.names}
    assert tokens == {
        "net.used": 16, "attention.in_proj": 16, "attention.out_proj": 16, "conv": 4, "taps": 4,
    }  # fmt: skip
    assert "stay dense, the example input does not reach it: net.idle" in str(found)


def test_where_no_sparse_kernel_runs_it_says_so_and_advises_nothing():
    net, x = nn.Sequential(nn.Linear(64, 64)).double(), torch.randn(8, 64).double()
    found = advise(net, x, densities=[0.1], measure=True, seconds=0.01)
    option = found.layers[0].options[0]  # fp64 has the reference alone, which is no kernel to gain with
    assert (
        option.predicted_us is None
        and option.kernels == {}
        and "no sparse kernel" in str(found)
        and not found.patterns(0.1)
    )
    assert found.to_dict()["layers"][0]["options"][0]["speedup"] == 0


def test_a_model_on_meta_is_refused():
    with torch.device("meta"):
        net = model()
    with pytest.raises(sparseloom.Error, match="a model with values"):
        advise(net, torch.randn(1, 256))


def test_2_4_layers_are_called_beside_dense_when_asked_for(clock):
    net, x = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)), torch.randn(5, 64)
    found = advise(net, x, blocks=[32], densities=[0.5], semi24=True, seconds=0.01)
    for layer in found.layers:
        option = layer.semi24
        assert option.density == 0.5 and option.kernels["forward"] and option.measured_us > 0
        assert ("2:4" in str(found)) and option not in layer.options
    gains = [layer.semi24.gains(layer.dense_us) for layer in found.layers]
    assert len(found.semi24_patterns()) == sum(gains)
    assert found.to_dict()["layers"][0]["semi24"]["density"] == 0.5
    with pytest.raises(sparseloom.Error, match="semi24=True with training=True"):
        advise(net, x, semi24=True, training=True)
    with pytest.raises(sparseloom.Error, match="2:4 layers that advise looked at"):
        advise(net, x, blocks=[32], densities=[0.5], seconds=0.01).semi24_patterns()
