"""Convolutions are advised on by calls of convolutions: with their taps, steps, images and memory format."""

import sys

import pytest
import torch
from advise_stand import Share
from torch import nn

import sparseloom
from sparseloom import Error, advise
from sparseloom.nn.conv.base import ConvModule


@pytest.fixture(name="calls")
def _calls(monkeypatch):
    """Every call runs once; sparse convolutions seem to take half as long as dense ones."""
    seen = []

    def in_turn(calls, seconds, gpu=None, **options):
        samples = []
        for call in calls:
            call()
            trial = call.__self__
            seen.append(trial)
            samples.append([50.0 if isinstance(trial.layer, ConvModule) else 100.0] * 5)
        return samples

    room = sys.modules["sparseloom.advise"]
    monkeypatch.setattr(room, "in_turn", in_turn)
    monkeypatch.setattr(room, "Watch", type("Quiet", (Share,), {}))
    monkeypatch.setattr(room, "overhead", lambda *a: 10.0)
    return seen


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(64, 128, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ConvTranspose2d(128, 64, 2, stride=2),
    )


@pytest.mark.parametrize("training", [False, True])
def test_convolutions_are_called_as_the_model_calls_them(calls, training):
    model = net()
    x = torch.randn(2, 64, 12, 12).contiguous(memory_format=torch.channels_last)
    found = advise(model, x, blocks=[32], densities=[0.5, 0.75], training=training, seconds=0.0)
    assert [layer.names for layer in found.layers] == [["0"], ["2", "3"], ["4"]]
    assert [layer.tokens for layer in found.layers] == [72, 72, 288]
    assert [layer.window for layer in found.layers] == [
        "2 of 12 x 12, 3 x 3 taps",
        "2 of 6 x 6, 3 x 3 taps",
        "2 of 6 x 6, 2 x 2 taps",
    ]
    assert {tuple(trial.x.shape) for trial in calls} == {(2, 64, 12, 12), (2, 128, 6, 6)}
    assert all(trial.x.is_contiguous(memory_format=torch.channels_last) for trial in calls)
    directions = ("forward", "dx", "dw") if training else ("forward",)
    for layer in found.layers:
        measured, predicted = layer.options  # at .5, from which .75 is predicted
        assert (measured.measured_us, measured.dense_us, predicted.measured_us) == (50.0, 100.0, None)
        assert tuple(measured.kernels) == directions and predicted.predicted_us > 0
        assert layer.gains(measured) and layer.break_even[32, 32] is not None
    assert "0: 128 x 64, 2 of 12 x 12, 3 x 3 taps, float32, dense 100 us" in str(found)
    assert not any(parameter.grad is not None for parameter in model.parameters())
    patterns = found.patterns(0.5)
    assert list(patterns) == ["0", "2", "3", "4"]
    done = sparseloom.sparsify_(model, patterns)
    assert len(done.changed) == 4 and model(x).shape == (2, 64, 12, 12)


def test_all_densities_are_measured_where_that_is_asked(calls):
    found = advise(net()[:1], torch.randn(64, 8, 8), blocks=[64], densities=[0.5, 1.0], measure=True)
    (layer,) = found.layers
    assert layer.window == "1 of 8 x 8, 3 x 3 taps"  # one image without its axis
    assert [option.measured_us for option in layer.options] == [50.0, 50.0]


def test_strict_names_the_convolutions_that_no_sparse_kernel_takes(calls):
    double, x = net()[:1].double(), torch.randn(1, 64, 8, 8, dtype=torch.float64)
    with pytest.raises(Error, match=r"0 at block 32 x 32, density 0.25 \(forward "):
        advise(double, x, blocks=[32], densities=[0.25], strict=True)
    (layer,) = advise(double, x, blocks=[32], densities=[0.25], seconds=0.0).layers
    assert not layer.gains(layer.options[0])  # however fast it seemed
