"""report: every layer, what it runs, what it gains, and where dense is better."""

import dataclasses
import json
import re
from collections import UserDict, namedtuple
from types import MappingProxyType

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import report as report_function
from sparseloom.nn import BlockSparseLinear
from sparseloom.report import LayerReport, Report, medians
from sparseloom.report import layers as layer_reports


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 64)
        self.up = BlockSparseLinear(64, 128, density=0.25, block=16, activation="gelu")
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(128)
        self.down = BlockSparseLinear(128, 64, density=0.25, block=16, bias=False)
        self.unused = BlockSparseLinear(8, 8, density=1, block=8)
        self.head = nn.Linear(64, 20)

    def forward(self, tokens):
        h = self.up(self.embed(tokens))
        h = self.norm(self.drop(h).flatten(0, 1)).view_as(h)
        return self.head(self.down(x=h))


@pytest.fixture(scope="module")
def made():
    return sparseloom.report(Model(), torch.randint(0, 20, (3, 7)), seconds=0.02)


def test_every_layer_is_listed_with_its_figures(made):
    layers = {layer.name: layer for layer in made.layers}
    assert list(layers) == ["embed", "up", "norm", "down", "unused", "head"]
    up = layers["up"]
    assert (up.shape, up.block, up.density, up.tokens, up.dtype) == ((128, 64), (16, 16), 0.25, 21, "float32")
    assert up.bytes == 4 * (8 * 256 + 128) + 4 * (9 + 8) and up.dense_bytes == 4 * (128 * 64 + 128)
    assert set(up.kernels) == {"forward", "dx", "dw"} and set(up.kernels.values()) <= set(
        sparseloom.info()["kernels"]
    )
    assert set(up.times) == set(up.dense_times) == {"forward", "backward"} and min(up.times.values()) > 0
    assert layers["down"].kernels and layers["head"].note == layers["embed"].note == "dense, not touched"
    assert layers["unused"].note == "not reached by the example input" and layers["unused"].times is None
    assert layers["head"].bytes == 4 * (64 * 20 + 20)


def test_slower_than_dense_is_marked(monkeypatch):
    layer = LayerReport(
        "a",
        "BlockSparseLinear",
        (8, 8),
        1,
        2,
        times={"forward": 9.0, "backward": 1.0},
        dense_times={"forward": 3.0, "backward": 2.0},
    )
    assert layer.slower == ["forward"] and layer.speedups == {"forward": 1 / 3, "backward": 2.0}
    assert layer.to_dict()["slower_than_dense"] == ["forward"]
    # Rounds that agree: beside other work a slower layer's may not, and then no difference is shown.
    monkeypatch.setattr(layer_reports, "in_turn", lambda calls, *a, **k: [[9.0] * 5, [3.0] * 5][: len(calls)])
    slow = sparseloom.report(
        nn.Sequential(BlockSparseLinear(16, 16, density=1.0, block=8)), torch.randn(2, 16), seconds=0.02
    )
    assert (
        slow.layers[0].slower and "slower than dense" in str(slow) and "slower than dense" in slow.to_html()
    )


def test_table_html_and_dict_tell_the_same(made):
    text, page, data = str(made), made.to_html(), json.loads(json.dumps(made.to_dict()))
    for name in ("embed", "up", "norm", "down", "unused", "head"):
        assert name in page and name in [layer["name"] for layer in data["layers"]]
        assert (name in text) == (name in ("up", "down", "unused"))
    assert "128x64 b16 .25" in text and "128 x 64" in page and re.search(r"[#.>]{8} [ ~]*\d+\.\d\dx", text)
    assert (
        page.count("<svg") == 3 and "http" not in re.sub(r'xmlns="[^"]*"', "", page) and "<script" not in page
    )
    assert data["threads"] == torch.get_num_threads() and data["machine"]
    assert "pattern" not in data["layers"][1] and data["layers"][1]["speedups"]["forward"] > 0


def test_names_are_escaped_in_html():
    page = Report([LayerReport("<script>", "K&R", (1,), 1, 1, block=(8, 8))], 1, "cpu").to_html()
    assert "<script>" not in page and "&lt;script&gt;" in page and "K&amp;R" in page


def test_model_is_left_as_it_was():
    model = Model().train()
    model.drop.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator_state = torch.get_rng_state()
    sparseloom.report(model, (torch.randint(0, 20, (3, 7), generator=torch.Generator()),), seconds=0.01)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model.training and model.norm.training and not model.drop.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(generator_state, torch.get_rng_state())


def test_keywords_copied_meta_and_untrained_layers():
    model = Model()
    model.up.dense_copy = True
    model.down.requires_grad_(False)
    layers = {
        layer.name: layer
        for layer in report_function(model, {"tokens": torch.randint(0, 20, (2, 2))}, seconds=0.01).layers
    }
    assert layers["up"].kernels["forward"] == "dense copy" != layers["up"].kernels["dx"]
    assert set(layers["up"].times) == {"forward", "backward"}
    assert set(layers["down"].times) == {"forward"}
    meta = report_function(
        BlockSparseLinear(16, 16, density=0.5, block=8, device="meta"), torch.randn(2, 16, device="meta")
    )
    assert meta.layers[0].note == "on meta: nothing to measure" and meta.layers[0].name == ""


def test_errors_of_the_model_are_named_and_leave_no_hooks():
    model = Model()
    with pytest.raises(sparseloom.Error, match="runs on example_input, got IndexError") as refused:
        sparseloom.report(model, torch.full((1, 1), 99))
    assert isinstance(refused.value.__cause__, IndexError)
    assert model.training and not any(module._forward_pre_hooks for module in model.modules())


def test_medians_interleave():
    order = []
    times = medians([lambda: order.append("a"), lambda: order.append("b")], 0.0)
    assert order == ["a", "b"] * 6 and len(times) == 2 and min(times) >= 0
    with pytest.raises(sparseloom.Error):
        medians([], 1.0)


def test_inputs_may_be_what_a_tokenizer_returns_and_other_mappings():
    """BatchEncoding is a UserDict; others have keys and items alone; model outputs are dataclasses."""
    made = dataclasses.make_dataclass("Made", [("tokens", torch.Tensor)])
    named = namedtuple("Named", ["tokens"])
    tokens, model = torch.randint(0, 20, (2, 3)), Model()

    class Duck:
        def keys(self):
            return ["tokens"]

        def __getitem__(self, key):
            return tokens

    given = {"tokens": tokens}
    kinds = [
        UserDict(given),
        MappingProxyType(given),
        Duck(),
        made(tokens),
        named(tokens),
        [tokens],
        (tokens,),
    ]
    for each in kinds:
        found = sparseloom.report(model, each, seconds=0.001, batch_sizes=[4])
        assert {layer.name: layer.tokens for layer in found.layers}["up"] == 6, each
        assert found.batches[0].times, each
        advice = sparseloom.advise(model, each, seconds=0.001, blocks=[16], densities=[0.5])
        assert [layer.names for layer in advice.layers] == [["head"]]
    for call in (sparseloom.report, sparseloom.advise):
        with pytest.raises(sparseloom.Error, match='return_tensors="pt"'):
            call(model, UserDict(tokens=[[1, 2, 3]]))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("layout", ["blocks", "2:4"])
def test_an_8_bit_model_is_counted_as_its_dense_twin_would_be(dtype, layout):
    recipe = sparseloom.Semi24("magnitude") if layout == "2:4" else sparseloom.BlockSparse(16, density=0.5)
    net = nn.Sequential(nn.Linear(64, 32, bias=layout == "blocks"))
    sparseloom.sparsify_(net, {"0": recipe})
    sparseloom.quantize_(net, dtype)
    if dtype is torch.float8_e4m3fn or layout == "blocks":
        net[0].kernel = "reference"  # no CPU has a fast one of float8, and some have none of int8
    found, twin = sparseloom.report(net, torch.randn(4, 64), seconds=0.01), net[0].to_dense()
    values = net[0].values.numel() + (32 if layout == "blocks" else 0)
    assert found.totals.parameters == values
    assert found.totals.dense_parameters == sum(each.numel() for each in twin.parameters())
    assert found.totals.dense_bytes == sum(each.nbytes for each in twin.parameters())
    assert found.totals.sparse_share == 64 * 32 / found.totals.dense_parameters
    assert found.layers[0].dense_bytes == found.totals.dense_bytes
    assert found.layers[0].bytes == found.totals.bytes < found.totals.dense_bytes
