"""dense_copy of convolutions: calls for inference run torch's with a weight that the layer keeps, and never a
stale one. test_dense_copy.py has what ends a copy; layers of all kinds share it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conv_twins import OPTIONS, TRANSPOSED_OPTIONS, made, made_transposed
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, Error
from sparseloom.nn import BlockSparseConv2d
from sparseloom.ops.conv import plans, product
from sparseloom.patch import fold_batchnorm_
from sparseloom.patch.described import described, make_described

SPACE = (7, 6, 5)


def kept(layer: Any) -> Tensor | None:
    """The copy that the layer has at this moment."""
    found: Tensor | None = layer._copy and layer._copy._weight
    return found


def same(layer: Any, x: Tensor, **how: Any) -> bool:
    """Calls the layer for inference, and returns whether it has a copy now. Either way, the result must be
    that of the values as they are."""
    twin = copy.deepcopy(layer)
    twin.dense_copy = False
    with torch.no_grad():
        torch.testing.assert_close(layer(x, **how), twin(x, **how), atol=1e-5, rtol=1e-5)
    return kept(layer) is not None


EVERY = [*((made, how) for how in OPTIONS), *((made_transposed, how) for how in TRANSPOSED_OPTIONS)]


@pytest.mark.parametrize(("make", "how"), EVERY, ids=[f"{make.__name__} {how}" for make, how in EVERY])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_every_option_with_a_copy(dimensions: int, make: Any, how: dict[str, Any]) -> None:
    x = torch.randn(2, 24, *SPACE[:dimensions], generator=torch.Generator().manual_seed(1))
    layer = make(dimensions, dense_copy=True, **how)
    assert same(layer, x) and same(layer, x[0])
    first = kept(layer)
    layer(x).sum().backward()  # its values train: this call made no use of the copy, and ends it
    assert first is not None and layer.of_channels(first).shape == layer.dense_shape and not same(layer, x)


def test_a_copy_gives_the_size_that_a_call_asks_for() -> None:
    smallest = made_transposed(2, stride=2, dense_copy=True)
    assert same(smallest, torch.randn(1, 24, 3, 3), output_size=(8, 7))
    with pytest.raises(Error, match="output_size"), torch.no_grad():
        smallest(torch.randn(1, 24, 3, 3), output_size=(9, 7))


def test_gradients_pass_a_copy_of_frozen_values() -> None:
    layer = made(2, padding=1, dense_copy=False)
    layer.values.requires_grad_(False)
    x, dy = torch.randn(2, 24, 6, 5, requires_grad=True), torch.randn(2, 20, 6, 5)
    want = torch.autograd.grad(layer(x), (x, layer.bias), dy)
    layer.dense_copy = True
    with torch.inference_mode():
        layer(x)  # makes the copy, which must not be an inference tensor
    got = torch.autograd.grad(layer(x), (x, layer.bias), dy)
    assert kept(layer) is not None
    torch.testing.assert_close(got, want)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "values": lambda layer: layer.values.detach().mul_(2),
    "load_state_dict": lambda layer: layer.load_state_dict(
        {name: 2 * each if name == "values" else each for name, each in layer.state_dict().items()}
    ),
    "double": lambda layer: layer.double(),
    "reset_parameters": lambda layer: layer.reset_parameters(),
    "another Parameter": lambda layer: setattr(layer, "values", nn.Parameter(2 * layer.values.detach())),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_copy_is_stale(change: str) -> None:
    layer, x = made(2, dense_copy=True), torch.randn(2, 24, 6, 5)
    assert same(layer, x)
    CHANGES[change](layer)
    x = x.to(layer.values.dtype)
    assert same(layer, x) == (change != "values")  # a write from outside ends it, until it is assigned
    layer.dense_copy = True
    assert same(layer, x)


def test_a_batch_norm_is_folded_into_the_copy() -> None:
    model = nn.Sequential(made(2, dense_copy=True), nn.BatchNorm2d(20)).eval()
    x = torch.randn(2, 24, 6, 5)
    with torch.no_grad():
        model[1].running_var.uniform_(0.5, 2)
        want = model(x)
        fold_batchnorm_(model)
        torch.testing.assert_close(model(x), want, atol=1e-5, rtol=1e-5)
    assert same(model[0], x)


def test_auto_follows_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = made(2, dense_copy="auto"), torch.randn(2, 24, 6, 5)
    real = plans.plan
    for chosen, kept_one, wanted in ((1.0, 1.5, False), (1.0, 0.9, True), (1.0, None, False)):
        times = {"predicted_us": chosen, "dense_copy_us": kept_one}
        monkeypatch.setattr(plans, "plan", lambda *how, times=times: {**real(*how), **times})
        plans._copy_is_faster.cache_clear()
        layer.dense_copy = "auto"
        assert same(layer, x) == wanted, times
        told = layer.plan(x.shape)["dense_copy"]
        assert told["used"] == wanted and told["predicted_us"] == kept_one

    def none(*_: Any) -> Any:
        raise Error("bsr_conv", "a row", "none", "pass other blocks")

    monkeypatch.setattr(plans, "plan", none)
    plans._copy_is_faster.cache_clear()
    assert same(layer, x) and layer.plan(x.shape)["dense_copy"]["used"]
    plans._copy_is_faster.cache_clear()
    assert not product.have_rows(x.device, torch.float64) and same(layer.double(), x.double())


def test_a_plan_says_bytes_and_reason() -> None:
    layer = made(2, dense_copy=True)
    told = layer.plan((2, 24, 6, 5))
    assert told["dense_copy"]["bytes"] == 20 * 24 * 9 * 4 and told["dense_copy"]["used"]
    assert "dense copy of W, 17280 bytes" in told["text"] and "used for inference" in told["text"]
    made_in_the_call = next(each for each in told["candidates"] if each["kernel"] == "dense")
    assert 0 < told["dense_copy_us"] < made_in_the_call["predicted_us"]
    assert layer.plan((2, 24, 6, 5), "dx")["dense_copy"]["reason"] == "the values train"
    assert "dense_copy" not in layer.plan((2, 24, 6, 5), "dw")
    assert made(2).plan((2, 24, 6, 5))["dense_copy"]["reason"] == "dense_copy is False"
    layer.values.requires_grad_(False)
    layer.dense_copy = True
    assert "used in backward passes" in layer.plan((2, 24, 6, 5), "dx")["text"]
    report = sparseloom.report(nn.Sequential(layer), torch.randn(2, 24, 6, 5), seconds=0.01)
    assert report.layers[0].kernels["forward"] == "dense copy" and report.layers[0].copy_bytes == 17280


def test_strict_refuses_a_copy() -> None:
    layer = made(2, dense_copy=True)
    layer.strict = True
    with pytest.raises(Error, match=r"\[conv\] expected dense_copy=False with strict=True"):
        layer(torch.randn(2, 24, 6, 5))
    with pytest.raises(Error, match="dense_copy to be False, True or 'auto'"):
        made(2, dense_copy="yes")


def test_sparsify_takes_it_and_it_is_described() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(32, 32, 3), nn.ConvTranspose2d(32, 32, 3))

    made_sparse = model()
    sparseloom.sparsify_(made_sparse, {"0|1": BlockSparse(16, 0.5)}, dense_copy="auto")
    assert all(layer.dense_copy == "auto" for layer in made_sparse)
    assert isinstance(made_sparse[0], BlockSparseConv2d) and "dense_copy=auto" in repr(made_sparse)
    assert described(made_sparse)["0"]["dense_copy"] == "auto"
    again = model()
    make_described(again, described(made_sparse), "")
    assert all(layer.dense_copy == "auto" for layer in again)
