"""prune_: what it keeps in each target by each method, on the trees of models that it knows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import tiny_models
import torch
import transformers
from pruning import Cheapest, batches, stack
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, InLayout, Semi24, prune_, sparsify_
from sparseloom.nn import Semi24TrainingConv2d
from sparseloom.sparsify import Method
from sparseloom.sparsify.gradients import Masked
from sparseloom.sparsify.select import NM

TARGETS: dict[str, Callable[[], Any]] = {
    "2:4": Semi24,
    "n:m": lambda: InLayout("nm", n=1, m=4),
    "csr": lambda: InLayout("csr", density=0.3),
    "blocks": lambda: BlockSparse(block=8, density=0.5),
}
DENSITIES = {"2:4": 0.5, "n:m": 0.25, "csr": 0.3, "blocks": 0.5}


def dense_of(layer: nn.Module) -> Tensor:
    whole = nn.Sequential(copy.deepcopy(layer))
    sparseloom.densify_(whole)
    return whole[0].weight.detach()


def kept_of(weight: Tensor, x: Tensor, method: str, target: str) -> Tensor:
    """The mask by the methods' definitions, in float64."""
    scores = weight.double().abs()
    if method == "wanda":
        scores = scores * x.double().square().sum(0).sqrt()
    rows, cols = scores.shape
    if target in ("2:4", "n:m"):
        n = 2 if target == "2:4" else 1
        best = scores.unflatten(1, (-1, 4)).topk(n, 2).indices
        return torch.zeros(rows, cols // 4, 4, dtype=torch.bool).scatter(2, best, True).flatten(1)
    if target == "csr" and method == "wanda":
        best = scores.topk(round(0.3 * cols), 1).indices
        return torch.zeros(rows, cols, dtype=torch.bool).scatter(1, best, True)
    if target == "csr":
        best = scores.flatten().topk(round(0.3 * rows * cols)).indices
        return torch.zeros(rows * cols, dtype=torch.bool).scatter(0, best, True).view(rows, cols)
    powers = scores.square() if method == "wanda" else scores
    sums = powers.unflatten(1, (-1, 8)).unflatten(0, (-1, 8)).sum((1, 3))
    best = sums.flatten().topk(sums.numel() // 2).indices
    mask = torch.zeros(sums.numel(), dtype=torch.bool).scatter(0, best, True).view_as(sums)
    return mask.repeat_interleave(8, 0).repeat_interleave(8, 1)


BIASED: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(16, 24),
    "conv": lambda: nn.Conv1d(16, 24, 3),
    "transposed": lambda: nn.ConvTranspose1d(16, 24, 3, 2),
    "no bias": lambda: nn.Linear(16, 24, bias=False),
}


@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
@pytest.mark.parametrize("kind", BIASED)
def test_a_compensated_bias_keeps_the_means_of_the_outputs(kind: str, method: str) -> None:
    torch.manual_seed(0)
    dense, recipe = nn.Sequential(BIASED[kind]()).eval(), {".*": BlockSparse(8, 0.5)}
    x = torch.randn(90, 16, 9) + 2 * torch.randn(16, 1)
    data = list((x if "Conv" in type(dense[0]).__name__ else x[..., 0]).split(30))
    model = copy.deepcopy(dense)
    result = prune_(model, recipe, method=method, data=data, compensate_bias=True)
    with torch.no_grad():
        change = (model(torch.cat(data)) - dense(torch.cat(data))).movedim(1, -1).flatten(0, -2)
    if kind == "no bias":
        assert "1 layers have no bias" in str(result)
    else:
        torch.testing.assert_close(change.mean(0), torch.zeros(24), atol=1e-5, rtol=0)
        assert float(change.square().mean()) > 1e-3


@pytest.mark.parametrize("method", ["magnitude", "wanda"])
@pytest.mark.parametrize("target", DENSITIES)
def test_masks_are_those_of_the_definitions(method: str, target: str) -> None:
    model, data = stack(), batches()
    weights, x = [model[0].weight.detach().clone(), model[2].weight.detach().clone()], torch.cat(data)
    result = prune_(model, {".*": TARGETS[target]()}, method=method, data=data, fuse=False)
    first = dense_of(model[0])
    assert torch.equal(first, weights[0].masked_fill(~kept_of(weights[0], x, method, target), 0))
    inputs = torch.relu(x @ first.t() + model[0].bias)  # of the pruned layer, not of the dense one
    second = weights[1].masked_fill(~kept_of(weights[1], inputs.detach(), method, target), 0)
    assert torch.equal(dense_of(model[2]), second)
    assert [change.names[0] for change in result.changed] == ["0", "2"]
    share = weights[0].masked_fill(first == 0, 0).abs().sum() / weights[0].abs().sum()
    assert result.changed[0].kept == pytest.approx(float(share), abs=1e-6)


@pytest.mark.parametrize("target", DENSITIES)
def test_sparsegpt_loses_less_than_magnitude(target: str) -> None:
    dense, data = stack(), batches()
    y, losses = dense(torch.cat(data)), {}
    for method in ("magnitude", "wanda", "sparsegpt"):
        model = copy.deepcopy(dense)
        result = prune_(model, {".*": TARGETS[target]()}, method=method, data=data, fuse=False)
        losses[method] = float((model(torch.cat(data)) - y).square().mean().detach())
        stored = [
            float(dense_of(layer).count_nonzero()) / layer.out_features / layer.in_features
            for layer in (model[0], model[2])
        ]
        assert stored == pytest.approx([DENSITIES[target]] * 2, abs=0.02)
        assert all(layer.density == pytest.approx(DENSITIES[target], abs=0.02) for layer in result.layers)
    assert losses["sparsegpt"] < 0.85 * min(losses["magnitude"], losses["wanda"])


@pytest.mark.parametrize("options", [{"swaps": 100}, {"refit": 30}, {"swaps": 100, "refit": 30}])
@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_swaps_and_refit_lower_the_error(method: str, options: dict[str, int]) -> None:
    dense, data = nn.Sequential(nn.Linear(24, 32)), batches()
    y, losses = dense(torch.cat(data)), []
    for more in ({}, options):
        model = copy.deepcopy(dense)
        (layer,) = prune_(model, {".*": Semi24()}, method=method, data=data, **more).layers
        losses.append(float((model(torch.cat(data)) - y).square().mean().detach()))
        assert (layer.swaps > 0) == ("swaps" in more)
    assert losses[1] < losses[0]


def test_sparsifiers_of_users_get_the_statistics() -> None:
    model, data, own = stack(), batches(), Cheapest()
    weight, x = model[0].weight.detach().clone(), torch.cat(data)
    prune_(model, {".*": Semi24()}, method=own, data=data)
    first = own.contexts[0]
    torch.testing.assert_close(first.input_statistics, x.square().mean(0))
    torch.testing.assert_close(first.hessian, x.t() @ x / len(x))
    assert torch.equal(first.weight, weight)
    assert len(own.contexts) == 2


def test_choices_of_the_recipe_stay_and_their_values_are_corrected() -> None:
    dense, data = stack(), batches()
    pattern = sparseloom.pattern.balanced(32, 24, 8, 0.5)
    mask = torch.arange(32 * 16).view(16, 32) % 3 == 0
    recipes = {"0": BlockSparse(select=pattern), "2": InLayout("csr", mask=mask)}
    y, losses = dense(torch.cat(data)), []
    for method in ("magnitude", "sparsegpt"):
        model = copy.deepcopy(dense)
        prune_(model, recipes, method=method, data=data, fuse=False)
        assert model[0].pattern == pattern
        assert torch.equal(dense_of(model[2]) != 0, mask)
        losses.append(float((model(torch.cat(data)) - y).square().mean().detach()))
    assert losses[1] < losses[0]


def test_layers_that_train_on_keep_the_masks() -> None:
    model, data = stack(), batches()
    masked = Method(select=NM(4), gradient=Masked())
    blocks = Method(gradient=Masked())
    recipes = {"0": InLayout("semi24", method=masked), "2": BlockSparse(block=8, density=0.5, method=blocks)}
    dense = copy.deepcopy(model)
    prune_(dense, {"0": Semi24(), "2": BlockSparse(block=8, density=0.5)}, data=data, fuse=False)
    prune_(model, recipes, data=data)
    torch.testing.assert_close(model(data[0]), dense(data[0]), rtol=1e-4, atol=1e-5)
    assert [type(model[at]).__name__ for at in (0, 2)] == ["Semi24Training", "MaskedLinear"]


@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
@pytest.mark.parametrize(("channels", "kernel"), [(8, (3, 3)), (6, (1, 3)), (6, (1, 1))])
def test_convolutions_that_train_on_have_masks_of_four_channels(
    method: str, channels: int, kernel: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    conv = nn.Sequential(nn.Conv2d(channels, 12, kernel, padding="same", dilation=2)).eval()
    data = [torch.randn(6, channels, 6, 6) + 0.3 for _ in range(2)]
    recipe = InLayout("semi24", method=Method(select=NM(4), gradient=Masked()))
    zeros, by_magnitude = copy.deepcopy(conv), copy.deepcopy(conv)
    options = {"method": method, "data": data, "compensate_bias": True}
    prune_(zeros, {"0": recipe}, exchange=False, **options)
    prune_(conv, {"0": recipe}, **options)
    sparsify_(by_magnitude, {"0": recipe})
    assert type(conv[0]) is Semi24TrainingConv2d
    assert int(conv[0].mask.unflatten(1, (-1, 4)).sum(2).max()) == 2
    if method == "magnitude":
        assert torch.equal(conv[0].mask, by_magnitude[0].mask)
    torch.testing.assert_close(conv(data[0]), zeros(data[0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(conv[0].to_dense().weight, zeros[0].weight, rtol=0, atol=0)


def test_zeros_may_stay_in_a_dense_model() -> None:
    model, data = stack(), batches()
    sparse = copy.deepcopy(model)
    prune_(sparse, {".*": Semi24()}, data=data, fuse=False)
    model[0].register_forward_hook(lambda *_: called.append(1))  # hooks stay with the layer
    called: list[int] = []
    result = prune_(model, {".*": Semi24()}, data=data, exchange=False)
    assert isinstance(model[0], nn.Linear) and called and len(model[0]._forward_hooks) == 1
    assert all(torch.equal(model[at].weight, dense_of(sparse[at])) for at in (0, 2))
    assert "left dense" in str(result)


def test_an_input_that_is_always_zero_costs_nothing() -> None:
    model, data = stack(), batches()
    for batch in data:
        batch[:, 5] = 0
    dense = copy.deepcopy(model)
    prune_(model, {"0": InLayout("csr", density=23 / 24)}, data=data, fuse=False)
    torch.testing.assert_close(model(data[0]), dense(data[0]), rtol=2e-2, atol=2e-2)


def test_the_scale_of_the_inputs_does_not_decide() -> None:
    """Half of the inputs are always zero."""
    weights, errors = [], []
    for scale in (1.0, 2.0**-7):
        model, data = nn.Sequential(stack()[0]), [batch * scale for batch in batches()]
        for batch in data:
            batch[:, ::2] = 0
        recipe = {".*": InLayout("csr", density=0.25)}
        errors += [layer.error for layer in prune_(model, recipe, data=data, exchange=False).layers]
        weights.append(model[0].weight)
    assert torch.equal(weights[0] != 0, weights[1] != 0)
    assert errors[0] == pytest.approx(errors[1], rel=1e-6)


def test_padding_does_not_count() -> None:
    model, own = tiny_models.made("BertModel", "bert"), Cheapest()
    ids = tiny_models.tokens(20, 9)
    mask = (torch.arange(9) < torch.arange(1, 21).clamp(max=9)[:, None]).long()
    batch = transformers.BatchEncoding({"input_ids": ids, "attention_mask": mask})
    prune_(model, {r".*query": Semi24()}, method=own, data=[batch], device="cpu")
    embedded = tiny_models.made("BertModel", "bert").embeddings(ids)[mask.bool()]
    torch.testing.assert_close(own.contexts[0].input_statistics, embedded.square().mean(0).detach())
