"""prune_ with quantize: 8-bit numbers that quantize_ stores as they are, and errors that later values make
up for."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from pruning import batches
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, Error, InLayout, Semi24, prune_, quantize_
from sparseloom.prune import solve

DTYPES = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn}
RECIPES: dict[str, Any] = {"2:4": Semi24(), "blocks": BlockSparse(block=8, density=0.5)}
WAYS: dict[str, dict[str, Any]] = {
    "sparsegpt": {"method": "sparsegpt"},
    "refit": {"method": "sparsegpt", "swaps": 20, "refit": 10},
    "wanda": {"method": "wanda"},
    "magnitude": {"method": "magnitude"},
}


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16)).to(dtype).eval()
    with torch.no_grad():
        model[0].weight[3] = 0  # a row without a factor
        model[2].weight[5] *= 100
    return model


def weights(model: nn.Module) -> list[Tensor]:
    dense = copy.deepcopy(model)
    sparseloom.densify_(dense)
    return [dense[0].weight.detach(), dense[2].weight.detach()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "target", "way"), itertools.product(DTYPES, RECIPES, WAYS))
def test_quantize_stores_the_numbers_that_prune_has_chosen(
    kind: str, target: str, way: str, dtype: torch.dtype
) -> None:
    if target == "blocks" and way == "refit":
        way = "sparsegpt"  # it refits blocks itself
    model, data = net(dtype), [each.to(dtype) for each in batches()]
    prune_(model, {".*": RECIPES[target]}, data=data, quantize=kind, **WAYS[way])  # type: ignore[arg-type]
    floats, unit = weights(model), torch.finfo(dtype).eps
    result = quantize_(model, DTYPES[kind])
    assert max(layer.error for layer in result.changed) < unit  # each row has one factor for all numbers
    for layer, weight in zip((model[0], model[2]), floats, strict=True):
        rows = weight.float().abs().amax(1) / (127 if kind == "int8" else 448)
        assert torch.equal(layer.w_scale, rows)
        again = layer.dequantized(dtype).to_dense()
        again = again[0] if isinstance(again, nn.Sequential) else again
        exact = unit if dtype == torch.float32 else 0.0  # of 16 bits, these very bits
        torch.testing.assert_close(again.weight, weight, rtol=exact, atol=0)


def outputs_error(model: nn.Module, dense: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return float((model(x) - dense(x)).square().mean())


@pytest.mark.parametrize(("kind", "target"), itertools.product(DTYPES, RECIPES))
def test_the_error_is_smaller_than_that_of_rounding_afterwards(kind: str, target: str) -> None:
    torch.manual_seed(0)
    dense, x = nn.Sequential(nn.Linear(128, 96)).eval(), torch.randn(500, 128)
    for column in range(1, 128):  # each input is much like the one before
        x[:, column] += 0.9 * x[:, column - 1]
    data = [x]
    apart, joint = copy.deepcopy(dense), copy.deepcopy(dense)
    found = [
        prune_(model, {".*": RECIPES[target]}, data=data, quantize=quantize)
        for model, quantize in ((apart, None), (joint, kind))
    ]
    least = outputs_error(apart, dense, torch.cat(data))
    quantize_(apart, DTYPES[kind])
    afterwards = outputs_error(apart[0].dequantized(), dense, torch.cat(data))
    quantize_(joint, DTYPES[kind])
    at_once = outputs_error(joint[0].dequantized(), dense, torch.cat(data))
    assert at_once - least < 0.8 * (afterwards - least)
    assert found[1].plan is not None and found[1].plan.method == f"sparsegpt and {kind}"


def test_the_grid_is_that_of_quantize_rows() -> None:
    torch.manual_seed(0)
    weight = torch.randn(9, 70)
    mask = torch.ones_like(weight, dtype=torch.bool)
    for kind, dtype in DTYPES.items():
        grid = solve.Grid.of(weight, mask, torch.float32, kind)
        values, _ = solve.swept(weight, torch.eye(70, dtype=torch.float64), mask, grid=grid)
        eight, scale = sparseloom.ops.quantize_rows(weight, dtype)
        torch.testing.assert_close(values, eight.float() * scale, rtol=1e-6, atol=0)


def test_what_quantize_cannot_store_is_refused() -> None:
    data = batches()
    with pytest.raises(Error, match="BlockSparse or Semi24"):
        prune_(net(), {".*": InLayout("csr", density=0.5)}, data=data, quantize="int8")
    conv = nn.Sequential(nn.Conv2d(8, 8, 3))
    with pytest.raises(Error, match=r"BlockSparse or Semi24.*Conv2d"):
        prune_(conv, {".*": BlockSparse(8, 1.0)}, data=[torch.randn(9, 8, 9, 9)], quantize="int8")
    with pytest.raises(Error, match="quantize or reconstruct"):
        prune_(net(), {".*": Semi24()}, data=data, quantize="int8", reconstruct=3)
    with pytest.raises(Error, match="'int8', 'e4m3'"):
        prune_(net(), {".*": Semi24()}, data=data, quantize="int4")  # type: ignore[arg-type]
    model = net()
    prune_(model, {".*": InLayout("csr", density=0.5)}, data=data, quantize="int8", exchange=False)
    assert all(len(row.unique()) < 256 for row in model[0].weight)
