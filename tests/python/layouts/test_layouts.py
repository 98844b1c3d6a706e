"""Layouts from outside, in Python alone: registered by name, multiplied, trained, saved and reported."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import sparseloom
from sparseloom import Error, layouts
from sparseloom.layouts import products
from sparseloom.nn import SparseLinear

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "custom_layout" / "row_wise.py"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("row_wise", EXAMPLE)
    assert spec and spec.loader
    module = sys.modules["row_wise"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", autouse=True)
def row_wise() -> ModuleType:
    return load_example()


@pytest.fixture
def layer() -> SparseLinear:
    torch.manual_seed(0)
    return SparseLinear(24, 16, layout="row_wise", keep=5)


@pytest.fixture
def names_kept() -> Iterator[None]:
    before = dict(layouts.registry._REGISTERED)
    yield
    layouts.registry._REGISTERED.clear()
    layouts.registry._REGISTERED.update(before)


def test_the_example_has_under_60_lines():
    assert len(EXAMPLE.read_text().splitlines()) < 60


@pytest.mark.parametrize("shape", [(24,), (7, 24), (2, 3, 24), (0, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_products_and_gradients_are_those_of_the_dense_twin(shape: tuple[int, ...], bias: bool):
    torch.manual_seed(1)
    layer = SparseLinear(24, 16, bias, layout="row_wise", keep=5, dtype=torch.float64)
    twin = layer.to_dense()
    x, x_twin = (
        torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) for _ in "ab"
    )
    y, y_twin = layer(x.requires_grad_()), twin(x_twin.requires_grad_())
    torch.testing.assert_close(y, y_twin)
    y.square().sum().backward()
    y_twin.square().sum().backward()
    torch.testing.assert_close(x.grad, x_twin.grad)
    assert layer.values.grad is not None and twin.weight.grad is not None
    torch.testing.assert_close(layer.values.grad, layer.layout.pack(twin.weight.grad))
    if bias:
        torch.testing.assert_close(layer.bias.grad, twin.bias.grad)


def test_gradients_hold_to_the_second_order(layer: SparseLinear):
    layer.double()
    x = torch.randn(3, 24, dtype=torch.float64, requires_grad=True)
    operands = (x, layer.values, layer.bias)
    assert torch.autograd.gradcheck(lambda *each: products.linear(*each, layer.layout), operands)
    assert torch.autograd.gradgradcheck(lambda *each: products.linear(*each, layer.layout), operands)


def test_from_dense_keeps_the_largest_of_each_row():
    dense = nn.Linear(24, 16)
    layer = SparseLinear.from_dense(dense, "row_wise", keep=3)
    back = layer.to_dense()
    kept = back.weight != 0
    assert kept.sum(1).tolist() == [3] * 16
    assert torch.equal(back.weight[kept], dense.weight[kept]) and torch.equal(back.bias, dense.bias)
    assert (
        dense.weight.abs()[~kept].view(16, 21).amax(1) <= dense.weight.abs()[kept].view(16, 3).amin(1)
    ).all()


def test_initial_values_use_the_true_fan_in(layer: SparseLinear):
    assert layer.values.abs().max() <= 5**-0.5 < 1.2 * layer.values.abs().max()


def test_copies_pickles_compiles_exports_and_runs_under_autocast(layer: SparseLinear):
    x = torch.randn(3, 24)
    want = layer(x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), want)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), want)
    compiled(x).sum().backward()
    assert layer.values.grad is not None and layer.values.grad.shape == (16, 5)
    exported = torch.export.export(layer, (x,))
    torch.testing.assert_close(exported.module()(x), want)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.values.grad.dtype == torch.float32


def test_another_pattern_and_number_of_values_load(layer: SparseLinear):
    other = SparseLinear(24, 16, layout="row_wise", keep=7)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(3, 24)
    assert torch.equal(other(x), layer(x))
    meta = SparseLinear(24, 16, layout="row_wise", keep=7, device="meta")
    meta.load_state_dict(layer.state_dict(), assign=True)
    assert torch.equal(meta(x), layer(x))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda state: state.pop("col"), "no col"),
        (lambda state: state["col"].fill_(3), "a place of its own in W"),
        (lambda state: state["col"].fill_(24), "out of bounds"),
        (lambda state: state.update(values=torch.ones(16, 4)), "values"),
        (lambda state: state.update(col=3), "col of int"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(layer: SparseLinear, spoil, says: str):
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    before = {name: tensor.clone() for name, tensor in state.items()}
    spoil(state)
    with pytest.raises(Error, match=says):
        layer.load_state_dict(state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


def test_save_load_report_densify_and_ddp(layer: SparseLinear, tmp_path: Path):
    net, x = nn.Sequential(layer, nn.ReLU(), nn.Linear(16, 4)), torch.randn(3, 24)
    sparseloom.save(net, tmp_path / "net.safetensors")
    twin = nn.Sequential(SparseLinear(24, 16, layout="row_wise", keep=7), nn.ReLU(), nn.Linear(16, 4))
    sparseloom.load(tmp_path / "net.safetensors", twin)
    assert torch.equal(twin(x), net(x))
    dense = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4))
    sparseloom.load(tmp_path / "net.safetensors", dense, sparsify=True)
    assert torch.equal(dense(x), net(x)) and dense[0].layout.name == "row_wise"
    report = sparseloom.report(net, x, seconds=0.01)
    assert "16x24 row_wise .21" in str(report) and "row_wise" in report.to_html()
    assert report.layers[0].layout == "row_wise" and report.totals.dense_parameters == 24 * 16 + 16 + 17 * 4
    assert sparseloom.prepare_ddp(net)._ddp_params_and_buffers_to_ignore == ["0.col"]
    optimizer = torch.optim.Adam(net.parameters())
    net(x).sum().backward()
    optimizer.step()
    y, momentum = net(x), layer.layout.to_dense(optimizer.state[layer.values]["exp_avg"])
    sparseloom.densify_(net, optimizer=optimizer)
    torch.testing.assert_close(net(x), y)
    assert torch.equal(optimizer.state[net[0].weight]["exp_avg"], momentum)


def test_a_description_says_layout_shape_and_options(layer: SparseLinear):
    assert layer.describe()["values"] == {"layout": "row_wise", "out_features": 16, "in_features": 24}
    assert "layout=row_wise, density=0.2083" in repr(layer)
    plan = layer.plan(8)
    assert plan["kernel"] == "dense" and "layout=row_wise" in plan["text"]
    of_blocks = sparseloom.nn.BlockSparseLinear(8, 8, density=1.0, block=8).plan(1).keys()
    assert plan.keys() >= of_blocks - {"dense_copy", "dense_copy_us"}  # only weights in blocks keep a copy


@pytest.mark.usefixtures("names_kept")
def test_a_layout_may_bring_products_of_its_own(layer: SparseLinear, row_wise: ModuleType):
    @layouts.register
    class Gathered(row_wise.RowWise):
        def linear(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
            y = (x[:, self.col] * values).sum(-1)
            return y if bias is None else y + bias

    other = SparseLinear(24, 16, layout="gathered", keep=5)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(3, 24)
    torch.testing.assert_close(other(x), layer(x))
    other(x).sum().backward()
    layer(x).sum().backward()
    torch.testing.assert_close(other.values.grad, layer.values.grad)
    assert [other.plan(3, each)["kernel"] for each in ("forward", "dx", "dw")] == [
        "gathered",
        "dense",
        "dense",
    ]


@pytest.mark.usefixtures("names_kept")
def test_names_are_unique_and_unknown_ones_listed(row_wise: ModuleType):
    assert layouts.get("row_wise") is row_wise.RowWise
    with pytest.raises(Error, match=r"one of .*row_wise.*got 'ell'"):
        layouts.get("ell")
    with pytest.raises(Error, match=r"a name that is free, got 'row_wise', the name of row_wise\.RowWise"):
        layouts.register(type("RowWise", (row_wise.RowWise,), {"__module__": "elsewhere"}))
    assert load_example().RowWise is layouts.get("row_wise")  # as a notebook's cell that runs again
    with pytest.raises(Error, match="Ell without pack, to_dense"):
        layouts.register(
            type("Ell", (layouts.Layout,), {"from_dense": classmethod(lambda cls, weight: cls())})
        )


def test_wrong_arguments_are_named(row_wise: ModuleType, layer: SparseLinear):
    with pytest.raises(Error, match=r"options of layout row_wise: keep, got kept=5; did you mean keep="):
        SparseLinear(24, 16, layout="row_wise", kept=5)
    with pytest.raises(Error, match="the fields col, got none"):
        row_wise.RowWise(16, 24)
    with pytest.raises(Error, match=r"a layout of \[8, 24\], got one of \[16, 24\]"):
        SparseLinear(24, 8, layout=layer.layout)
    with pytest.raises(Error, match=r"x \[..., 24\] of torch.float32 on cpu, got \[3, 23\]"):
        layer(torch.randn(3, 23))
    with pytest.raises(Error, match="a direction of forward, dx, dw, got 'back'"):
        layer.plan(3, "back")
