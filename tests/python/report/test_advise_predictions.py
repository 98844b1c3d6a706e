"""advise: how times of layers and of the whole model are predicted."""

import sys

import pytest
import torch
from advise_stand import clock_of
from torch import nn

from sparseloom import advise
from sparseloom.nn import BlockSparseLinear
from sparseloom.report import trial
from sparseloom.report.break_even import Size, crossing, predicted
from sparseloom.report.trial import Anchor


@pytest.fixture
def clock(monkeypatch):
    return clock_of(monkeypatch)


def test_predictions_are_the_plans_scaled_to_a_layer_that_was_called_and_hold_its_overhead(clock):
    clock["sparse"] = lambda layer: 60.0
    net, x = nn.Sequential(nn.Linear(256, 512)), torch.randn(64, 256)
    found = advise(net, x, blocks=[32], densities=[0.1, 0.25, 0.5], training=True)
    size = Size((512, 256), 64, torch.float32, torch.device("cpu"), True)
    plans = [predicted(size, (32, 32), density, ["forward", "dx", "dw"]) for density in (0.1, 0.25, 0.5)]
    anchor = Anchor(60.0, plans[1][0], 10.0, False)
    assert [o.kernels for o in found.layers[0].options] == [kernels for _, kernels in plans]
    assert [o.predicted_us for o in found.layers[0].options] == [
        pytest.approx(anchor.predicted(us)) for us, _ in plans
    ]
    assert found.layers[0].options[1].predicted_us == found.layers[0].options[1].measured_us == 60.0
    assert clock["called"][0].in_features == 256 and [layer.density for layer in clock["called"][1:]] == [
        0.25
    ]
    assert all(layer.strict for layer in clock["called"][1:])


def test_an_anchor_foretells_other_densities_by_their_plans_beside_the_overhead():
    # twice what was planned, and 10 us
    anchor = Anchor(us=110.0, planned_us=50.0, overhead_us=10.0, queued=False)
    assert anchor.predicted(50.0) == 110.0
    assert (
        10 + 2 * 100 * 0.8 < anchor.predicted(100.0) <= 10 + 2 * 100
        and 10 + 2 * 20 <= anchor.predicted(20.0) < 60
    )
    # all but overhead: nothing to scale by
    assert Anchor(20.0, 0.5, 19.0, False).predicted(0.6) == pytest.approx(20.0, abs=0.5)
    assert Anchor(20.0, 5.0, 19.5, False).predicted(0.0) >= 19.5
    host_bound, kernel_bound = Anchor(30.0, 5.0, 29.0, True), Anchor(300.0, 150.0, 30.0, True)
    assert host_bound.predicted(10.0) == 29.0 and host_bound.predicted(100.0) == 100.0
    assert kernel_bound.predicted(75.0) == 150.0 and kernel_bound.predicted(1.0) == 30.0


def test_the_overhead_of_a_call_is_measured_once_and_is_what_a_small_layer_takes():
    arguments = torch.float32, torch.device("cpu")

    def once():
        trial._overhead.cache_clear()
        return trial.overhead(*arguments, False), trial.overhead(*arguments, True)

    # Python's and autograd's own, in one of ten attempts: others may be busy during one of the two.
    found = next(((one, both) for one, both in (once() for _ in range(10)) if 1 < one < both < 1e5), None)
    assert found and trial.overhead(*arguments, False) == found[0]


def test_a_layer_that_becomes_slower_by_its_calls_overhead_is_not_recommended(clock, monkeypatch):
    """64 x 64, 8 tokens: predicted 9.65x by the products alone, .85x in truth."""
    clock["dense"], clock["sparse"] = 17.0, lambda layer: 20.0
    # The products' times are the plans' of a Zen 4: another machine, or a busy one, has others.
    planned = lambda size, block, density, ways: (4 * density, dict.fromkeys(ways, "avx512_panel"))  # noqa: E731
    monkeypatch.setattr(sys.modules["sparseloom.advise"], "predicted", planned)
    layer = nn.Sequential(nn.Linear(64, 64))
    found = advise(layer, torch.randn(8, 64))
    assert (
        not any(found.patterns(density) for density in (0.1, 0.25, 0.5))
        and str(found).count("slower than dense") >= 3
    )
    # none of them is below the overhead of 10 us
    assert all(option.speedup(17.0) <= 1.7 for option in found.layers[0].options)


def test_no_option_of_a_small_layer_is_foretold_below_what_a_call_costs():
    def foretold_below():
        trial._overhead.cache_clear()
        net, x = nn.Sequential(nn.Linear(64, 64)), torch.randn(8, 64)
        layer = advise(net, x, training=True, seconds=0.05).layers[0]
        least = 0.4 * trial.overhead(torch.float32, torch.device("cpu"), True)
        return [option for option in layer.options if option.us <= least]

    # The two are measured one after the other: in one of ten attempts beside the same neighbours.
    assert not all(foretold_below() for _ in range(10))


def test_a_recurrent_layers_tokens_are_those_of_its_products():
    """They were counted as steps x batch x units."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.gru = nn.LSTM(32, 64, batch_first=True), nn.GRU(64, 32)

        def forward(self, x):
            y = self.gru(self.lstm(x)[0].transpose(0, 1))[0]
            packed = nn.utils.rnn.pack_padded_sequence(y, [5, 3, 3])
            self.gru.flatten_parameters()
            return packed, self.lstm(y[:, 0])

    found = advise(Net(), torch.randn(3, 5, 32), blocks=[16], densities=[0.25], seconds=0.01)
    seen = {name: (layer.tokens, layer.calls) for layer in found.layers for name in layer.names}
    assert seen == {
        "lstm.ih_l0": (15, 2), "lstm.hh_l0": (3, 10), "gru.ih_l0": (15, 1), "gru.hh_l0": (3, 5),
    }  # fmt: skip


def test_the_whole_models_time_is_its_own_and_what_changed_modules_gain(clock, monkeypatch):
    whole = sys.modules["sparseloom.advise.whole"]
    times = {"model": 1000.0, nn.Linear: 300.0, BlockSparseLinear: 100.0}

    def us(call):  # of the model, or of some modules one after the other
        listed = call.args[0] if isinstance(call.args[0], list) else []
        return sum(times[type(module)] for module in listed) or times["model"]

    def in_turn(calls, seconds, gpu=None, **options):
        return [[us(call)] * 3 for call in calls]

    monkeypatch.setattr(whole, "in_turn", in_turn)
    monkeypatch.setattr(whole, "_in_bf16", lambda *a: None)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    found = advise(net, torch.randn(8, 64), densities=[0.25])
    assert found.model.predicted_us == 600.0 and found.model.changed == 2 and not found.model.bf16_first
    words = "The whole model takes 1 ms a call; with advice.best() 0.6 ms are predicted (1.67x)."
    assert words in str(found) and "best single setting is BlockSparse((" in str(found)
    assert found.to_dict()["model"]["predicted_us"] == 600.0
    # never less than the changed modules take
    times["model"] = 250.0
    assert advise(net, torch.randn(8, 64), densities=[0.25]).model.predicted_us == 200.0
    model = whole.ModelAdvice(1000.0, 600.0, 2, bf16_us=400.0)
    assert model.bf16_first and model.line().endswith("Go to bf16 first: that is the larger gain.")
    assert not whole.ModelAdvice(1000.0, 600.0, 2, bf16_us=700.0).bf16_first
    assert advise(net, torch.randn(8, 64), training=True, densities=[0.25]).model is None


def test_the_break_even_is_where_the_prediction_meets_dense():
    assert crossing([(0.1, 10.0), (0.5, 50.0), (1.0, 100.0)], 70.0) == pytest.approx(0.7)
    assert (
        crossing([(0.1, 10.0), (1.0, 100.0)], 5.0) is None
        and crossing([(0.1, 10.0), (1.0, 50.0)], 60.0) == 1.0
    )
