"""What prune_ tells about the quality of a model, and what decides it: gates, evaluators, budgets."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors
import tiny_models
import torch
from pruning import EVERY, assert_same, bits, data, llama
from torch import nn

import sparseloom
from sparseloom import Error, InLayout, Semi24, prune_
from sparseloom.prune import embedding_agreement, owl, perplexity


def test_the_gate_stops_and_restores() -> None:
    model, batches = llama(), data()
    with torch.no_grad():
        before, logits = bits(model), model(batches[0]).logits

    @torch.no_grad()
    def judge(model: nn.Module) -> float:
        return float((model(batches[0]).logits - logits).square().mean())

    with pytest.raises(Error, match="gets worse by at most 1e-06"):
        prune_(model, EVERY, data=batches, evaluate=judge, max_loss=1e-6)
    assert_same(model, before)
    result = prune_(model, EVERY, data=batches, evaluate=judge, max_loss=1e-6, allow_loss=True)
    assert [name for name, _ in result.stages] == ["dense", "pruned", "exchanged"]
    assert result.stages[0][1] == 0
    assert result.stages[2][1] == pytest.approx(judge(model), rel=1e-6)
    assert result.stages[1][1] == pytest.approx(result.stages[2][1], rel=1e-3)
    assert "evaluation: dense" in str(result)


def test_perplexity_is_that_of_the_next_tokens() -> None:
    model, ids = llama(), tiny_models.tokens(4, 9)
    losses = model(ids, labels=ids).loss
    assert perplexity([ids])(model) == pytest.approx(float(losses.detach().exp()), rel=1e-5)
    mask = torch.ones_like(ids)
    mask[:, 6:] = 0
    for padded in (mask, mask.flip(1)):
        short = perplexity([{"input_ids": ids, "attention_mask": padded}])(model)
        real = ids[padded.bool()].view(4, 6)
        assert short == pytest.approx(perplexity([real])(model), rel=1e-4)


def test_embedding_agreement_is_higher_where_less_is_removed() -> None:
    model, ids = tiny_models.made("BertModel", "bert"), tiny_models.tokens(30, 9)
    judge = embedding_agreement(model, [ids])
    assert judge(model) == pytest.approx(1.0)
    agreements = []
    for n in (3, 1):
        pruned = copy.deepcopy(model)
        prune_(pruned, {"encoder.*": InLayout("nm", n=n, m=4)}, data=[ids], evaluate=judge, max_loss=1.0)
        agreements.append(judge(pruned))
    assert 1 > agreements[0] > agreements[1]
    with pytest.raises(Error, match="gets worse by at most 0"):
        prune_(model, {"encoder.*": Semi24()}, data=[ids], evaluate=judge, max_loss=0)


def test_budgets_decide_densities() -> None:
    model, told = llama(), {}

    def budget(known: Any) -> dict[str, float]:
        told.update({name: (each.tokens, tuple(each.squares.shape)) for name, each in known.items()})
        return {name: 0.25 if "mlp" in name else 0.75 for name in known}

    result = prune_(model, {r".*(self_attn|mlp).*": InLayout("csr", density=0.5)}, data=data(), budget=budget)
    assert len(told) == 14
    assert set(told.values()) == {(216, (32,)), (216, (72,))}
    for layer in result.layers:
        assert layer.density == pytest.approx(0.25 if "mlp" in layer.name else 0.75, abs=0.01)


def test_owl_keeps_more_where_outliers_are() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    with torch.no_grad():
        net[4].weight[::7, ::5] *= 30
    result = prune_(
        net, {".*": InLayout("csr", density=0.5)}, method="wanda", data=[torch.randn(200, 32)],
        budget=owl(0.5, spread=0.1),
    )  # fmt: skip
    densities = [layer.density for layer in result.layers]
    assert max(densities) == densities[2]
    assert sum(densities) / 3 == pytest.approx(0.5, abs=0.02)
    with pytest.raises(Error, match="owl"):
        owl(0.95, spread=0.1)


def test_reconstruction_does_not_look_at_padding() -> None:
    ids, weights = tiny_models.tokens(20, 9), []
    mask = (torch.arange(9) < torch.arange(1, 21).clamp(max=9)[:, None]).long()
    for filled in (3, 50):
        model = tiny_models.made("BertModel", "bert")
        batch = {"input_ids": ids.masked_fill(mask == 0, filled), "attention_mask": mask}
        prune_(model, {"encoder.*": Semi24()}, data=[batch], reconstruct=5, exchange=False)
        weights.append(model.encoder.layer[0].output.dense.weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [0, 2])
def test_layers_that_are_not_reconstructed_are_counted(steps: int) -> None:
    result = prune_(llama(), EVERY, data=data(), reconstruct=steps, exchange=False)
    assert ("1 layers outside of repeated blocks were not reconstructed" in str(result)) == bool(steps)


def test_reconstruction_comes_closer_to_the_dense_blocks() -> None:
    x, errors = torch.cat(data()), []
    for steps in (0, 60):
        dense, model = llama(), llama()
        prune_(model, {r".*(self_attn|mlp).*": Semi24()}, data=data(), reconstruct=steps)
        with torch.no_grad():
            errors.append(float((model(x).logits - dense(x).logits).square().mean()))
    assert errors[1] < 0.9 * errors[0]


def test_the_saved_file_tells_the_evaluations(tmp_path: Path) -> None:
    model, ids = llama(), data()
    result = prune_(model, EVERY, data=ids, evaluate=perplexity(ids))
    sparseloom.save(model, tmp_path / "pruned.safetensors")
    with safetensors.safe_open(tmp_path / "pruned.safetensors", framework="pt") as file:
        told = json.loads(file.metadata()["pruning"])
    assert told == {"method": "sparsegpt", "stages": dict(result.stages)}
    again = llama()
    sparseloom.load(tmp_path / "pruned.safetensors", again, sparsify=True)
    assert_same(again, bits(model))


def test_budgets_may_be_numbers_and_need_no_data() -> None:
    model = llama()
    names = [name for name, _ in model.named_modules() if name.endswith("_proj")]
    budget = {name: 0.2 + 0.05 * at for at, name in enumerate(names)}
    recipes = {r".*_proj": InLayout("csr", density=0.5)}
    result = prune_(model, recipes, method="magnitude", budget=budget)
    assert {layer.name: layer.density for layer in result.layers} == pytest.approx(budget, abs=0.01)
    with pytest.raises(Error, match="for pruned layers"):
        prune_(llama(), recipes, method="magnitude", budget={"lm_head": 0.5})
    with pytest.raises(Error, match=r"1\.5 for"):
        prune_(llama(), recipes, data=data(), budget=lambda known: dict.fromkeys(known, 1.5))
