"""Models of tiles that are saved, loaded into another choice, quantized and made dense."""

from __future__ import annotations

import copy

import pytest
import torch
from tile_twins import KINDS, kinds_of, made
from torch import nn
from torch.nn import functional as F

import sparseloom
from sparseloom import Error, InLayout
from sparseloom.layouts import Tiles
from sparseloom.nn import QuantizedBlockSparseLinear, SparseLinear


def test_a_model_is_made_of_tiles_saved_loaded_and_made_dense(tmp_path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(192, 256), nn.GELU(), nn.Linear(256, 128))
    x = torch.randn(5, 192)
    print(sparseloom.sparsify_(net, {"[02]": InLayout("tiles", density=0.6)}))
    kept = sum(layer.layout.blocks * 2 - layer.layout.semi24 for layer in (net[0], net[2]))
    assert all(isinstance(layer, SparseLinear) for layer in (net[0], net[2])) and kept > 0
    y = net(x)
    sparseloom.save(net, tmp_path / "net.safetensors")
    again = nn.Sequential(nn.Linear(192, 256), nn.GELU(), nn.Linear(256, 128))
    sparseloom.load(tmp_path / "net.safetensors", again, sparsify=True)
    assert torch.equal(again(x), y)
    assert "2:4, expanded" in again[0].plan(tokens=8, direction="dw")["text"]
    assert "tiles" in str(sparseloom.report(net, x, seconds=0.01))
    sparseloom.densify_(again)
    torch.testing.assert_close(again(x), y)


@pytest.mark.parametrize("way", ["load_state_dict", "assign", "load"])
@pytest.mark.parametrize("layout", ["tiles", "blocks"])
@pytest.mark.parametrize(("before", "after"), [(0.3, 0.8), (0.8, 0.3), (0.6, 0.0), (0.0, 0.6)])
def test_another_choice_of_tiles_is_loaded(
    tmp_path, before: float, after: float, layout: str, way: str
) -> None:
    torch.manual_seed(0)
    mine, its = (nn.Sequential(nn.Linear(256, 192)) for _ in range(2))
    for net, density in ((mine, before), (its, after)):
        sparseloom.sparsify_(net, InLayout(layout, density=density))
    x = torch.randn(4, 256)
    mine(x)
    if way == "load":
        sparseloom.save(its, tmp_path / "its.safetensors")
        sparseloom.load(tmp_path / "its.safetensors", mine)
    else:
        mine.load_state_dict(its.state_dict(), assign=way == "assign")
    assert mine[0].layout.options() == its[0].layout.options()
    assert torch.equal(mine(x), its(x)) and mine[0].describe() == its[0].describe()
    mine(x).sum().backward()
    its(x).sum().backward()
    assert torch.equal(mine[0].values.grad, its[0].values.grad)


def test_optimizer_state_follows_to_another_choice_of_tiles() -> None:
    torch.manual_seed(0)
    mine, its = (nn.Sequential(nn.Linear(256, 192)) for _ in range(2))
    for net, density in ((mine, 0.8), (its, 0.5)):
        sparseloom.sparsify_(net, InLayout("tiles", density=density))
    optimizer = torch.optim.SGD(mine.parameters(), 0.1, momentum=0.9)
    mine(torch.randn(4, 256)).sum().backward()
    optimizer.step()
    momentum = mine[0].layout.to_dense(optimizer.state[mine[0].values]["momentum_buffer"])
    mine.load_state_dict(its.state_dict())
    mine(torch.randn(4, 256)).sum().backward()
    mine[0].values.grad.zero_()
    optimizer.step()
    got = mine[0].layout.to_dense(optimizer.state[mine[0].values]["momentum_buffer"])
    torch.testing.assert_close(got, 0.9 * momentum * mine[0].layout.mask())


@pytest.mark.parametrize("part", ["packed", "is24", "positions"])
def test_a_state_dict_with_a_part_cut_off_is_refused(part: str) -> None:
    net = nn.Sequential(nn.Linear(256, 192))
    sparseloom.sparsify_(net, InLayout("tiles", density=0.5))
    state = net.state_dict()
    for cut in (state[f"0.{part}"][:-1], state[f"0.{part}"][:0]):
        # The last list of the index may end before its padding does, which no product reads.
        if part != "packed" or not len(cut):
            with pytest.raises(Error):
                net.load_state_dict({**state, f"0.{part}": cut})


def test_a_model_of_transformers_comes_back(tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 2, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(vocab_size=60, **sizes)).eval()
    sparseloom.sparsify_(model, {".*intermediate.dense|.*0.output.dense": InLayout("tiles", density=0.6)})
    model.save_pretrained(tmp_path)
    again = transformers.AutoModel.from_pretrained(tmp_path).eval()
    mine, its = model.state_dict(), again.state_dict()
    assert mine.keys() == its.keys() and all(torch.equal(mine[name], its[name]) for name in mine)
    tiles = [layer.layout for layer in again.modules() if isinstance(layer, SparseLinear)]
    assert len(tiles) == 3 and all(isinstance(layout, Tiles) and layout.semi24 for layout in tiles)
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).pooler_output, again(tokens).pooler_output)


def test_tiles_are_made_and_told_under_a_default_device() -> None:
    weight, layout = made("mixed")
    values, kinds = layout.pack(weight), kinds_of("mixed")
    with torch.device("meta"):
        again = Tiles.from_kinds(weight, kinds, layout.side)
        told, placeholder = layout.kinds, Tiles.anywhere(*weight.shape, device="cpu", **layout.options())
        masked = Tiles.from_mask(weight, layout.mask(), layout.side)
    assert torch.equal(again.to_dense(again.pack(weight)), layout.to_dense(values))
    assert torch.equal(told, layout.kinds) and torch.equal(masked.kinds, told)
    assert {n: t.shape for n, t in placeholder.tensors().items()} == {
        n: t.shape for n, t in layout.tensors().items()
    }
    placeholder.require_consistent("test", torch.zeros_like(values))


def test_values_and_index_that_do_not_belong_together_are_refused() -> None:
    weight, layout = made("mixed")
    values = layout.pack(weight)
    with pytest.raises(Error, match="values"):
        layout.require_consistent("load", values[:-1])
    with pytest.raises(Error, match="that are 2:4"):
        layout.with_tensors({"is24": torch.zeros_like(layout.is24)}).require_consistent("load", values)
    wrong = layout.with_tensors({"positions": torch.zeros_like(layout.positions)})
    with pytest.raises(Error, match="ascending order"):
        wrong.require_consistent("load", values)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize("name", KINDS)
def test_tiles_are_quantized_as_blocks(tmp_path, name: str, dtype: torch.dtype) -> None:
    weight, layout = made(name)
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    layer = SparseLinear.from_dense(linear, layout, activation="relu")
    net, x = nn.Sequential(layer), torch.randn(5, weight.shape[1])
    before = layer.to_dense()[0].weight.detach()
    result = sparseloom.quantize_(net, dtype)
    eight = net[0]
    assert isinstance(eight, QuantizedBlockSparseLinear) and eight.block == (layout.side, layout.side)
    assert result.changed[0].blocks == layout.blocks and result.changed[0].error < 0.04
    eight.kernel = "reference"
    after = eight.to_dense()[0].weight
    # A half of e4m3's last bit of four, or of int8's step; below its normal numbers e4m3 has steps, too.
    step = before.abs().amax(1, keepdim=True) / {torch.int8: 127, torch.float8_e4m3fn: 448}[dtype]
    allowed = step / 2 if dtype is torch.int8 else torch.maximum(before.abs() / 16, step * 2.0**-10)
    assert bool(((after - before).abs() <= allowed * (1 + 1e-5)).all()) and bool(
        (after[before == 0] == 0).all()
    )
    with torch.no_grad():
        y = net(x)
        torch.testing.assert_close(y, F.linear(x, after, linear.bias).relu(), rtol=0.1, atol=0.1)
    sparseloom.save(net, tmp_path / "net.safetensors")
    again = copy.deepcopy(net)
    again[0].w_scale.zero_()
    sparseloom.load(tmp_path / "net.safetensors", again)
    assert torch.equal(again(x), y)
