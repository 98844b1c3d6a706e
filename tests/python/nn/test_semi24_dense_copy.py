"""dense_copy of 2:4 layers; test_dense_copy.py has what it does in layers of blocks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call

import sparseloom
from sparseloom import BlockSparse, Error, Semi24, sparsify_
from sparseloom.nn import QuantizedSemi24Linear, Semi24Linear
from sparseloom.nn.held import dense_copy
from sparseloom.ops import semi24
from sparseloom.patch.described import described, make_described

X = torch.randn(20, 30, generator=torch.Generator().manual_seed(1))


def make(setting: Any = True, **options: Any) -> Semi24Linear:
    torch.manual_seed(0)
    return Semi24Linear(30, 22, activation="silu", dense_copy=setting, **options)


def stored(layer: Semi24Linear, x: torch.Tensor = X) -> torch.Tensor:
    """What the layer's own weight gives, whatever it keeps."""
    with torch.no_grad():
        return semi24.linear(x, layer.values, layer.positions, 30, layer.bias, layer.activation)


def copied(layer: Semi24Linear, x: torch.Tensor = X) -> bool:
    """Calls the layer for inference, compares with its weight as it is now, and returns whether it
    multiplied with a copy."""
    products: list[torch.Tensor] = []

    def seen(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        products.append(weight)
        return nn.functional.linear(x, weight, bias)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(dense_copy, "F", type("F", (), {"linear": staticmethod(seen)}))
        torch.testing.assert_close(layer(x), stored(layer, x), atol=1e-5, rtol=1e-5)
    told = layer.plan(20)["dense_copy"]
    assert told["used"] == bool(products) == (not told["reason"])
    return bool(products)


def test_it_is_off_by_default_and_made_once_where_asked_for() -> None:
    assert Semi24Linear(30, 22).dense_copy is False and not copied(make(False))
    layer = make()
    assert copied(layer) and "dense_copy=True" in repr(layer)
    kept = layer._copy and layer._copy._weight
    assert copied(layer) and layer._copy is not None and layer._copy._weight is kept
    assert kept is not None and torch.equal(kept, layer.layout.to_dense(layer.values))
    assert set(layer.state_dict()) == {"values", "bias", "positions"}
    residual = torch.randn(20, 22)
    with torch.no_grad():
        torch.testing.assert_close(layer(X, residual), stored(layer) + residual, atol=1e-5, rtol=1e-5)


def test_auto_follows_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make("auto")
    plan = layer.plan
    for faster in (False, True):
        us = {"dense_copy_us": 1.0, "predicted_us": 2.0 if faster else 0.5}
        monkeypatch.setattr(layer, "plan", lambda *a, us=us, **k: plan(*a, **k) | us)
        monkeypatch.setattr(dense_copy, "_faster", {})
        with torch.no_grad():
            layer(X)
        assert layer._copy is not None and (layer._copy._weight is not None) == faster


def test_a_plan_tells_bytes_and_predicted_time(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, real, beside = Semi24Linear(1024, 1024, dense_copy="auto"), semi24.plan, 0.5

    # On a busy machine torch's product may have been measured so slow that no copy would be used.
    def planned(*problem: Any, **how: Any) -> dict[str, Any]:
        plan = real(*problem, **how)
        assert plan["dense_copy_us"] > 0
        return plan | {"dense_copy_us": beside * plan["predicted_us"]}

    monkeypatch.setattr(semi24, "plan", planned)
    plan = layer.plan(4096)
    told = plan["dense_copy"]
    assert told["bytes"] == 1024 * 1024 * 4 and told["predicted_us"] == plan["predicted_us"] / 2
    assert told["used"] and "dense copy of W, 4194304 bytes" in plan["text"]
    assert layer.plan(4096, dtype=torch.bfloat16)["dense_copy"]["bytes"] == 1024 * 1024 * 2
    dx = layer.plan(4096, "dx")
    assert dx["dense_copy"] | {"predicted_us": 0} == told | {"predicted_us": 0}
    assert dx["dense_copy"]["predicted_us"] < dx["predicted_us"] and "used in backward passes" in dx["text"]
    beside = 2.0
    assert not layer.plan(4096)["dense_copy"]["used"] and "; not used: " in layer.plan(4096)["text"]


def change(layer: Semi24Linear, name: str) -> None:
    with torch.no_grad():
        if name == "values in place":
            layer.values.mul_(2)
        elif name == "positions in place":
            layer.positions.copy_(make(bias=False).positions.flip(0))
        elif name == "other positions":
            layer.positions = layer.positions.flip(0)
        else:
            layer.values.data = layer.values.detach() * 2


@pytest.mark.parametrize(
    "name", ["values in place", "positions in place", "other positions", "memory of another"]
)
def test_a_write_ends_it_until_it_is_assigned_again(name: str) -> None:
    layer = make()
    assert copied(layer)
    change(layer, name)
    assert not copied(layer)
    layer.load_state_dict(layer.state_dict())
    assert not copied(layer)
    layer.dense_copy = True
    assert copied(layer)


def test_what_the_layer_does_itself_makes_a_new_copy() -> None:
    layer = make()
    assert copied(layer)
    other = Semi24Linear(30, 22, activation="silu")
    layer.load_state_dict(other.state_dict())
    assert copied(layer) and torch.equal(layer.positions, other.positions)
    layer.load_state_dict({"weight": other.to_dense()[0].weight, "bias": torch.zeros(22)})  # type: ignore[index]
    layer.reset_parameters()
    assert copied(layer)
    assert copied(layer.double(), X.double()) and copied(layer.float()) and copied(layer.train())
    layer.values = nn.Parameter(torch.zeros_like(layer.values), requires_grad=False)
    assert copied(layer)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_of_the_layer_has_the_setting_and_no_copy(way: Any) -> None:
    layer = make()
    assert copied(layer)
    again = way(layer)
    assert again.dense_copy is True and again._copy._weight is None and copied(again)


def gradients(layer: Semi24Linear, x: torch.Tensor, kept: bool) -> list[torch.Tensor]:
    """The gradients of x, the bias and a residual. `kept`: no product may read what is stored."""
    x, residual = x.detach().clone().requires_grad_(), torch.ones(*x.shape[:-1], 22, requires_grad=True)

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("what is stored was multiplied")

    with pytest.MonkeyPatch.context() as patch:
        if kept:
            patch.setattr(semi24, "dx", refused)
            patch.setattr(semi24, "linear", refused)
        y = layer(x, residual)
        return list(torch.autograd.grad((y * y.detach().cos()).sum(), [x, layer.bias, residual]))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(20, 30), (30,), (2, 1, 1, 2, 5, 30)])
def test_dx_multiplies_with_the_copy(shape: tuple[int, ...], training: bool) -> None:
    layer, x = make().train(training), torch.randn(shape)
    for ours, expected in zip(gradients(layer, x, True), gradients(make(False), x, False), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    made = layer._copy and layer._copy._weight
    gradients(layer, x, True)
    assert layer._copy is not None and made is not None and layer._copy._weight is made


def test_each_product_follows_its_own_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("linear", "dx"):
        real = getattr(semi24, name)
        monkeypatch.setattr(
            semi24, name, lambda *a, real=real, name=name, **k: called.append(name) or real(*a, **k)
        )
    layer, expected = make("auto"), gradients(make(False), X, False)
    plan = layer.plan
    for faster in ({"forward", "dx"}, {"forward"}, {"dx"}, set()):

        def planned(tokens: int, direction: str, *a: Any, faster: Any = faster, **k: Any) -> dict[str, Any]:
            us = {"dense_copy_us": 1.0, "predicted_us": 2.0 if direction in faster else 0.5}
            return plan(tokens, direction, *a, **k) | us

        monkeypatch.setattr(layer, "plan", planned)
        monkeypatch.setattr(dense_copy, "_faster", {})
        called.clear()
        for ours, other in zip(gradients(layer, X, False), expected, strict=True):
            torch.testing.assert_close(ours, other, atol=1e-5, rtol=1e-5)
        assert {{"linear": "forward"}.get(name, name) for name in called} == {"forward", "dx"} - faster


@pytest.mark.parametrize("name", ["values in place", "positions in place"])
def test_a_write_before_the_backward_pass_is_an_error_as_without_a_copy(name: str) -> None:
    for setting in (True, False):
        layer, x = make(setting), X.clone().requires_grad_()
        y = layer(x)
        change(layer, name)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    assert not copied(layer)


def begun_again(layer: Semi24Linear) -> None:
    layer.values = nn.Parameter(layer.values.detach() * 2, requires_grad=False)


@pytest.mark.parametrize(
    "between",
    [
        begun_again,
        lambda layer: setattr(layer, "dense_copy", False),
        lambda layer: setattr(layer.values, "grad", torch.ones_like(layer.values)),
        lambda layer: layer.load_state_dict(make(bias=False).state_dict(), strict=False, assign=True),
        lambda layer: layer.eval(),
    ],
)
def test_the_backward_pass_is_of_the_values_that_were_multiplied(between: Any) -> None:
    x = X.clone().requires_grad_()
    layer, expected = make(), torch.autograd.grad(make(False)(x).sum(), x)[0]
    y = layer(x)
    between(layer)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected, atol=1e-5, rtol=1e-5)


def test_values_lent_for_a_call_have_their_own_gradient() -> None:
    layer, x = make(), X.clone().requires_grad_()
    assert copied(layer)
    y = functional_call(layer, {"values": layer.values.detach() * 0}, (x,))
    assert not torch.autograd.grad(y.sum(), x)[0].any()
    assert copied(layer)


def test_a_second_derivative_and_batched_gradients_take_the_stored_weight() -> None:
    layer = make().double()
    assert torch.autograd.gradcheck(layer, (X[:3].double().requires_grad_(),))
    assert torch.autograd.gradgradcheck(layer, (X[:3].double().requires_grad_(),))
    x = X.double().requires_grad_()
    y, many = layer(x), torch.eye(22, dtype=torch.float64)[:, None].expand(22, 20, 22)
    (batched,) = torch.autograd.grad(y, x, many, retain_graph=True, is_grads_batched=True)
    single = [torch.autograd.grad(y, x, each, retain_graph=True)[0] for each in many]
    torch.testing.assert_close(batched, torch.stack(single))


def test_autocast_and_checkpoints_have_the_gradients_of_the_copy() -> None:
    layer, x = make(), X.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    (dx,) = torch.autograd.grad(y.float().sum(), x)
    assert layer._copy is not None and layer._copy._weight is not None
    assert layer._copy._weight.dtype == torch.bfloat16
    expected = torch.autograd.grad(make(False)(x).sum(), x)[0]
    torch.testing.assert_close(dx, expected, atol=0.05, rtol=0.05)
    y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected, atol=1e-5, rtol=1e-5)


@pytest.fixture(name="swapping")
def _swapping() -> Iterator[None]:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


@pytest.mark.usefixtures("swapping")
@pytest.mark.parametrize("written", [False, True])
def test_parameters_may_be_swapped(written: bool) -> None:
    layer = make()
    assert copied(layer)
    if written:
        change(layer, "values in place")
    layer.double()
    assert copied(layer, X.double()) != written
    layer.load_state_dict(make(False).double().state_dict())
    assert copied(layer, X.double()) != written


def test_compiled_code_takes_the_stored_weight() -> None:
    layer = make()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), stored(layer))
        layer.values.mul_(2)
        torch.testing.assert_close(compiled(X), stored(layer))
    layer.values.requires_grad_()
    with pytest.raises(Error, match="2:4 values without a gradient"):
        layer(X)


def test_sparsify_sets_it_and_a_description_keeps_it(tmp_path: Path) -> None:
    model = nn.ModuleDict({"up": nn.Linear(64, 64), "down": nn.Linear(64, 64)})
    dense = copy.deepcopy(model)
    sparsify_(model, {"up": Semi24("magnitude"), "down": BlockSparse(16, 0.5)}, dense_copy="auto")
    assert model["up"].dense_copy == model["down"].dense_copy == "auto"
    entries = described(model)
    assert entries["up"]["dense_copy"] == "auto"
    make_described(dense, entries, "")
    assert dense["up"].dense_copy == "auto"
    sparseloom.save(model, tmp_path / "m.safetensors")
    sparseloom.load(tmp_path / "m.safetensors", dense)
    assert torch.equal(dense["up"].values, model["up"].values)  # type: ignore[arg-type]


def test_8_bit_layers_refuse_it_and_reports_tell_the_bytes() -> None:
    model = nn.Sequential(make())
    found = sparseloom.report(model, X, seconds=0.01)
    (layer,) = (each for each in found.layers if each.sparse)
    assert layer.kernels == {"forward": "dense copy", "dx": "dense copy"} and layer.copy_bytes == 30 * 22 * 4
    with pytest.raises(Error, match="it may keep a dense copy"):
        sparseloom.quantize_(model, {".*": torch.int8})
    with pytest.raises(Error, match="copies are of layers that are not quantized"):
        QuantizedSemi24Linear.from_sparse(make(False)).dense_copy = True


@pytest.mark.parametrize("wrong", [1, None, "Auto"])
def test_another_setting_is_refused(wrong: Any) -> None:
    with pytest.raises(Error, match="dense_copy to be False, True or 'auto'"):
        make(wrong)
