"""report and plan of convolutions: what they run, their sizes with all taps, and their times."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from conv_twins import choose, made, made_transposed
from torch import nn

import sparseloom
from sparseloom import Error, ops
from sparseloom.nn import BlockSparseConv2d, BlockSparseConvTranspose2d
from sparseloom.ops.conv import product


def ran() -> dict[str, int]:
    found: dict[str, int] = json.loads(ops.call("kernel_runs"))
    return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = BlockSparseConv2d(32, 48, 3, padding=1, density=0.5, block=16, activation="relu")
        self.same = BlockSparseConv2d(48, 48, 3, density=1.0, block=16, padding=1, padding_mode="circular")
        self.up = BlockSparseConvTranspose2d(48, 16, 4, stride=2, density=0.5, block=16)
        self.edged = BlockSparseConv2d(16, 16, 3, padding=1, density=1.0, block=16, edge_bias=True)
        self.unused = BlockSparseConv2d(16, 16, 3, density=1.0, block=16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.edged(self.up(self.same(self.first(x))))
        return y


@pytest.fixture(scope="module")
def told() -> Any:
    torch.manual_seed(0)
    return sparseloom.report(Net(), torch.randn(2, 32, 6, 5), seconds=0.01)


def test_sizes_count_every_tap(told: Any) -> None:
    layers = {layer.name: layer for layer in told.layers}
    first, twin = layers["first"], nn.Conv2d(32, 48, 3, padding=1)
    assert first.shape == (48, 32, 3, 3) and first.x_shape == (2, 32, 6, 5) and first.tokens is None
    dense = sum(parameter.numel() for parameter in twin.parameters())
    assert first.dense_bytes == 4 * dense and first.bytes == 4 * (48 * 32 * 9 // 2 + 48) + 4 * (4 + 3)
    whole: Any = Net()
    sparseloom.densify_(whole)  # leaves what has an edge bias
    whole.edged = nn.Conv2d(16, 16, 3, padding=1)
    edges = sum(parameter.numel() for parameter in Net().edged.edges.parameters())
    assert told.totals.dense_parameters == sum(each.numel() for each in whole.parameters()) + edges
    assert 0 < told.totals.parameters < told.totals.dense_parameters
    assert "48x32x3x3 b16" in str(told) and "input 2 x 32 x 6 x 5 of float32" in told.to_html()


def test_kernels_and_times_are_those_of_the_layer(told: Any) -> None:
    layers = {layer.name: layer for layer in told.layers}
    for name in ("first", "same", "up"):
        layer = layers[name]
        assert set(layer.kernels) == {"forward", "dx", "dw"}
        assert set(layer.kernels.values()) <= {"avx2_conv", "avx512_conv", "dense"}
        assert set(layer.times) == set(layer.dense_times) == set(layer.speedups) == {"forward", "backward"}
        assert min(*layer.times.values(), *layer.dense_times.values()) > 0
    assert layers["edged"].times is None and "no dense twin" in layers["edged"].note
    assert layers["unused"].note == "not reached by the example input" and not layers["unused"].kernels


OPTIONS: list[tuple[Any, dict[str, Any]]] = [
    (made, {"padding": 1}),
    (made, {"padding": "same", "kernel_size": 4}),
    (made, {"padding": 2, "padding_mode": "reflect", "stride": 2}),
    (made_transposed, {"stride": 2, "padding": 1, "output_padding": 1}),
    (made_transposed, {"dilation": 2, "padding": 2, "output_padding": 1}),
]


@pytest.mark.parametrize("dense", [(), ("forward", "dx", "dw"), ("dw",)], ids=str)
@pytest.mark.parametrize(("make", "how"), OPTIONS, ids=[f"{make.__name__} {how}" for make, how in OPTIONS])
def test_what_the_plan_says_runs(
    make: Any, how: dict[str, Any], dense: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call counts what ran."""
    choose(monkeypatch, **{each: "dense" if each in dense else "rows" for each in ops.DIRECTIONS})
    layer, x = make(2, **how), torch.randn(2, 24, 7, 6, requires_grad=True)
    plans = {each: layer.plan(x.shape, each) for each in ops.DIRECTIONS}
    before = ran()
    layer(x).sum().backward()
    counted = {name: count - before.get(name, 0) for name, count in ran().items()}
    assert counted.get("dense_conv", 0) == len(dense)
    assert sum(count for name, count in counted.items() if name.endswith("_conv")) == 3
    assert sum(plan["kernel"] == "dense" for plan in plans.values()) == len(dense)


def test_where_no_row_runs_the_plan_says_so() -> None:
    layer = made(2, dtype=torch.float64)
    for asked, shape in ((layer, (2, 24, 7, 6)), (made(2), (0, 24, 7, 6))):
        found = asked.plan(shape)
        assert (found["kernel"], found["predicted_us"]) == ("dense", None) and "no rows for" in found["text"]
    assert not product.have_rows(torch.device("cpu"), torch.float64)


def test_plan_refuses_what_is_no_call() -> None:
    for call, said in (
        (lambda: made(2).plan((2, 24, 7, 6), "dy"), "a direction of forward, dx, dw"),
        (lambda: made(2).plan((2, 23, 7, 6)), r"x \[images, 24, height, width\]"),
        (lambda: made(2).plan((2, 24, 7)), r"x \[images, 24, height, width\]"),
        (lambda: made(2).plan((2, 24, 2, 6)), "taps that reach"),
        (lambda: made_transposed(2, padding=2).plan((2, 24, 2, 1)), "at least one element"),
    ):
        with pytest.raises(Error, match=said):
            call()


def test_strict_reports_name_convolutions_that_run_dense() -> None:
    net = nn.Sequential(BlockSparseConv2d(32, 32, 3, density=1.0, block=16).double())
    with pytest.raises(Error, match=r"0 \(forward dense, dx dense, dw dense\)"):
        sparseloom.report(net, torch.randn(2, 32, 6, 5, dtype=torch.float64), strict=True)


@pytest.mark.gpu
def test_gpu_layers_are_told_and_timed() -> None:
    layer = BlockSparseConv2d(64, 64, 3, padding=1, density=0.5, block=32).to("cuda", torch.bfloat16)
    x = torch.randn(4, 64, 9, 8, device="cuda", dtype=torch.bfloat16)
    (told,) = sparseloom.report(nn.Sequential(layer), x, seconds=0.01).layers
    assert set(told.kernels.values()) <= {"sm90_conv", "sm90_conv_narrow", "sm80_conv", "dense"}
    assert told.times is not None and set(told.times) == {"forward", "backward"}
    assert layer.float().plan(x.shape)["kernel"] == "dense"
