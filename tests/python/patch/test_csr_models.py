"""CSR and COO weights in models: sparsify_ and back, optimizers, files, reports and transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, Error, InLayout, Semi24, densify_, sparsify_
from sparseloom.layouts import Csr
from sparseloom.nn import SparseLinear

ALL = pytest.mark.parametrize("name", ["csr", "coo", "bitmap"])


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16))


def masked(weight: Tensor, density: float) -> Tensor:
    """The weight's largest elements, zero elsewhere."""
    kept = round(density * weight.numel())
    flat = weight.detach().flatten()
    return torch.zeros_like(flat).scatter(0, (at := flat.abs().topk(kept).indices), flat[at]).view_as(weight)


@ALL
def test_sparsify_keeps_the_largest_and_densify_undoes(name: str):
    model, x = net(), torch.randn(5, 32)
    twin = net()
    with torch.no_grad():
        twin[0].weight.copy_(masked(twin[0].weight, 0.25))
    bias = model[0].bias
    result = sparsify_(model, {"0": InLayout(name, density=0.25)})
    assert f"layout {name}" in str(result) and model[0].bias is bias
    assert isinstance(model[0], SparseLinear) and model[0].values.numel() == 512
    torch.testing.assert_close(model(x), twin(x))
    densify_(model)
    assert type(model[0]) is nn.Linear and model[0].bias is bias
    assert torch.equal(model[0].weight, twin[0].weight) and model[0].weight.requires_grad


def test_what_is_not_zero_or_a_mask_names_is_stored():
    model = net()
    with torch.no_grad():
        model[0].weight[:, ::4] = 0
    sparsify_(model, {"0": InLayout("csr"), "2": InLayout(Csr, mask=torch.eye(16, 64).bool())})
    assert model[0].values.numel() == 64 * 24 and model[2].values.numel() == 16
    assert repr(InLayout("csr", density=0.5)) == "InLayout('csr', density=0.5)"


def test_the_optimizer_goes_along():
    model, x = net(), torch.randn(5, 32)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    model(x).square().sum().backward()
    optimizer.step()
    moment = optimizer.state[model[0].weight]["exp_avg"].clone()
    sparsify_(model, {"0": InLayout("csr", density=0.1)}, optimizer=optimizer)
    state = optimizer.state[model[0].values]
    assert torch.equal(state["exp_avg"], model[0].layout.pack(moment))
    optimizer.zero_grad()
    model(x).square().sum().backward()
    before = model[0].values.detach().clone()
    optimizer.step()
    assert not torch.equal(model[0].values, before)


def test_what_cannot_lie_in_it_is_refused_and_nothing_changes():
    model = net()
    for options, says in (
        ({"density": 2.0}, "density in"),
        ({"keep": 3}, "options of layout csr"),
        ({"mask": torch.ones(2, 2).bool()}, "a bool mask"),
    ):
        with pytest.raises(Error, match=says):
            sparsify_(model, {"0": InLayout("csr", **options)})
    assert type(model[0]) is nn.Linear
    with pytest.raises(Error, match="one of"):
        InLayout("nothing")
    with pytest.raises(Error, match="Conv2d has no layer for the layout csr"):
        sparsify_(nn.Sequential(nn.Conv2d(8, 8, 1)), {"0": InLayout("csr")})
    with torch.device("meta"), pytest.raises(Error, match="a weight on the meta device"):
        sparsify_(net(), {"0": InLayout("csr")})


@ALL
def test_a_mixed_model_saves_and_loads_into_a_dense_one(name: str, tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 16))
    recipes = {"0": InLayout(name, density=0.2), "1": BlockSparse(8, 0.5), "2": Semi24("magnitude")}
    sparsify_(model, recipes)
    sparseloom.save(model, tmp_path / "net.safetensors")
    again = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 16))
    sparseloom.load(tmp_path / "net.safetensors", again, sparsify=True)
    x = torch.randn(3, 32)
    assert torch.equal(again(x), model(x)) and again[0].layout.name == name
    plain = torch.load(_saved(model.state_dict(), tmp_path), weights_only=True)
    again.load_state_dict(plain)
    assert torch.equal(again(x), model(x))


def _saved(state: dict[str, Tensor], folder: Path) -> Path:
    torch.save(state, folder / "state.pt")
    return folder / "state.pt"


def test_a_report_times_the_layer_alone():
    model, x = net(), torch.randn(5, 32)
    sparsify_(model, {"0": InLayout("csr", density=0.1)})
    report = sparseloom.report(model, x, seconds=0.02)
    assert " csr .1" in str(report)
    (layer,) = [each for each in report.layers if each.layout == "csr"]
    assert layer.times is not None and set(layer.times) == {"forward", "backward"}
    assert set(layer.kernels) == {"forward", "dx", "dw"}


@pytest.mark.package("transformers")
def test_transformers_models_go_round(tmp_path: Path):
    from transformers import BertConfig, BertModel

    import sparseloom.hf  # noqa: F401

    config = BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=50
    )
    torch.manual_seed(0)
    model = BertModel(config).eval()
    sparsify_(
        model,
        {r".*intermediate\.dense": InLayout("csr", density=0.3), r".*value": InLayout("coo", density=0.2)},
    )
    model.save_pretrained(tmp_path)
    again = BertModel.from_pretrained(tmp_path).eval()
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(again(tokens)[0], model(tokens)[0], rtol=0, atol=0)
    values = again.encoder.layer[0].intermediate.dense.values
    assert values.requires_grad and values.numel() == round(0.3 * 32 * 64)


@ALL
def test_a_conv1d_of_transformers_becomes_sparse_and_dense_again(name: str):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = nn.Sequential(transformers.Conv1D(48, 32), nn.GELU(), nn.Linear(48, 8))
    conv, x = model[0], torch.randn(5, 32)
    with torch.no_grad():
        conv.bias.normal_()
        weight = masked(conv.weight.t().contiguous(), 0.25)  # [out, in], as the layout has it
    bias = conv.bias.detach().clone()
    sparsify_(model, {"0": InLayout(name, density=0.25)}, fuse=False)
    layer = model[0]
    assert isinstance(layer, SparseLinear) and (layer.in_features, layer.out_features) == (32, 48)
    weight.requires_grad_()
    expected = torch.nn.functional.linear(x, weight, bias)
    got = layer(x)
    torch.testing.assert_close(got, expected)
    got.square().sum().backward()
    expected.square().sum().backward()
    stored = layer.layout.to_dense(layer.values.grad)
    torch.testing.assert_close(stored, weight.grad * (weight != 0), rtol=1e-4, atol=1e-4)
    densify_(model)
    assert type(model[0]) is transformers.pytorch_utils.Conv1D
    assert torch.equal(model[0].weight, weight.detach().t()) and torch.equal(model[0].bias, bias)


@ALL
def test_conv1d_in_a_file_is_read_back(name: str, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    model = nn.Sequential(transformers.Conv1D(48, 32))
    sparsify_(model, {"0": InLayout(name, density=0.25)})
    sparseloom.save(model, tmp_path / "m.safetensors")
    other = nn.Sequential(transformers.Conv1D(48, 32))
    sparseloom.load(tmp_path / "m.safetensors", other, sparsify=True)
    x = torch.randn(3, 32)
    assert torch.equal(other(x), model(x))
    densify_(other)
    assert type(other[0]) is transformers.pytorch_utils.Conv1D
