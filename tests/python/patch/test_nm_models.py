"""n:m and n:m:g weights in models: sparsify_ and back, training, files, reports, compiling, transformers."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import sparseloom
from sparseloom import BlockSparse, Error, InLayout, densify_, sparsify_
from sparseloom.nn import SparseLinear

RECIPES = [("nm", {"n": 1, "m": 4}), ("nmg", {"n": 1, "m": 8, "g": 2}), ("nmg", {"n": 2, "m": 5, "g": 1})]
EVERY = pytest.mark.parametrize(("name", "options"), RECIPES)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16))


@EVERY
def test_sparsify_and_densify(name: str, options: dict[str, int]) -> None:
    model, twin, x = net(), net(), torch.randn(5, 32)
    result = sparsify_(model, {"0": InLayout(name, **options)})
    layer = model[0]
    assert f"layout {name}" in str(result) and isinstance(layer, SparseLinear)
    share = options["n"] / options["m"]
    with torch.no_grad():
        kept = layer.layout.to_dense(torch.ones_like(layer.values))
        assert abs(float(kept.mean()) - share) < 0.06  # a cut group keeps more or less
        twin[0].weight.mul_(kept)
    torch.testing.assert_close(model(x), twin(x))
    densify_(model)
    assert type(model[0]) is nn.Linear and torch.equal(model[0].weight, twin[0].weight)


@EVERY
def test_a_step_of_adam_is_the_masked_twins(name: str, options: dict[str, int]) -> None:
    model, twin, x = net(), net(), torch.randn(5, 32)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    its = torch.optim.Adam(twin.parameters(), 0.01)
    for each, of in ((model, optimizer), (twin, its)):
        each(x).square().mean().backward()
        of.step()
        of.zero_grad()
    sparsify_(model, {"0": InLayout(name, **options)}, optimizer=optimizer)
    kept = model[0].layout.to_dense(torch.ones_like(model[0].values).detach())
    moment = its.state[twin[0].weight]["exp_avg"] * kept
    assert torch.equal(model[0].layout.to_dense(optimizer.state[model[0].values]["exp_avg"]), moment)
    with torch.no_grad():
        twin[0].weight.mul_(kept)
    for each, of in ((model, optimizer), (twin, its)):
        each(x).square().mean().backward()
        of.step()
    expected = twin[0].weight.detach() * kept
    torch.testing.assert_close(model[0].layout.to_dense(model[0].values.detach()), expected)
    assert model[0].values.grad is not None and model[0].values.grad.shape == model[0].values.shape


@EVERY
def test_files_states_and_copies(name: str, options: dict[str, int], tmp_path: Path) -> None:
    model, x = net(), torch.randn(3, 32)
    sparsify_(model, {"0": InLayout(name, **options), "2": BlockSparse(8, 0.5)})
    y = model(x)
    sparseloom.save(model, tmp_path / "net.safetensors")
    for sparsify in (True, False):
        again = net()
        if not sparsify:
            again[0] = SparseLinear(32, 64, layout=name, **options)
            sparsify_(again, {"2": BlockSparse(8, 0.5)})
        sparseloom.load(tmp_path / "net.safetensors", again, sparsify=sparsify)
        assert torch.equal(again(x), y) and again[0].layout.options() == options
    other = nn.Sequential(SparseLinear(32, 64, layout=name, **options), *net()[1:])
    sparsify_(other, {"2": BlockSparse(8, 0.5)})
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(other(x), y)
    assert torch.equal(copy.deepcopy(model)(x), y) and torch.equal(pickle.loads(pickle.dumps(model))(x), y)
    state = model.state_dict()
    (index,) = (key for key in ("0.positions", "0.order") if key in state)
    state[index] = state[index].clone()
    state[index].view(-1)[-1] = 200 if name == "nm" else -1
    with pytest.raises(Error, match="below 4" if name == "nm" else "outputs of a chunk once"):
        other.load_state_dict(state)


@EVERY
def test_compiles_whole(name: str, options: dict[str, int]) -> None:
    model, x = net(), torch.randn(6, 32)
    sparsify_(model, {"0": InLayout(name, **options)})
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    mine, its = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = compiled(mine), model(its)
    torch.testing.assert_close(y, expected)
    of_compiled = torch.autograd.grad(y.square().sum(), [mine, *model.parameters()])
    for got, each in zip(
        of_compiled, torch.autograd.grad(expected.square().sum(), [its, *model.parameters()]), strict=True
    ):
        torch.testing.assert_close(got, each)


@EVERY
def test_a_report_names_the_layout(name: str, options: dict[str, int]) -> None:
    model, x = net(), torch.randn(5, 32)
    sparsify_(model, {"0": InLayout(name, **options)})
    report = sparseloom.report(model, x, seconds=0.02)
    assert f" {name} " in str(report)
    if name == "nmg":  # planned: timed alone
        (layer,) = [each for each in report.layers if each.layout == name]
        assert layer.times is not None and set(layer.times) == {"forward", "backward"}
        with FlopCounterMode(display=False) as counter:
            model(x)
        dense = 2 * 5 * 64 * 16
        assert counter.get_total_flops() == 2 * 5 * model[0].values.numel() + dense


def test_autocast_and_half_layers() -> None:
    layer, x = SparseLinear(32, 64, layout="nmg", n=1, m=4, g=4), torch.randn(5, 32)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), rtol=0.02, atol=0.02)
    assert layer.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.package("transformers")
def test_transformers_models_go_round(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    import sparseloom.hf  # noqa: F401

    config = BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=50
    )
    torch.manual_seed(0)
    model = BertModel(config).eval()
    sparsify_(
        model,
        {
            r".*intermediate\.dense": InLayout("nmg", n=1, m=8, g=4),
            r".*value": InLayout("nm", n=2, m=5),
            r".*query": InLayout("csr", density=0.2),
        },
    )
    model.save_pretrained(tmp_path)
    again = BertModel.from_pretrained(tmp_path).eval()
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(again(tokens)[0], model(tokens)[0], rtol=0, atol=0)
    assert again.encoder.layer[0].intermediate.dense.layout.options() == {"n": 1, "m": 8, "g": 4}
