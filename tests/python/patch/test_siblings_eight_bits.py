"""Layers of 8 bits that read the same x round it once on CPUs, and multiply it once."""

import contextlib
import copy
import pickle

import pytest
import torch
from eight_bits import fast_int8
from sibling_models import Q_K_V, Attention, apart, bert, merged, tokens, words

import sparseloom
from sparseloom import ops
from sparseloom.nn.held.siblings import names_of_merged
from sparseloom.nn.held.sparse_weight import sparse_layers


def in_eight_bits(model):
    """The model's 8-bit twin, by the reference kernel, which every CPU has."""
    with pytest.warns(UserWarning) if not fast_int8() else contextlib.nullcontext():
        sparseloom.quantize_(model)
    for layer in sparse_layers(model):
        layer.weight.owner.kernel = "reference"
    return model.eval()


@pytest.mark.parametrize(
    "make", [Attention, lambda: Attention(bias=False), bert], ids=["attention", "no bias", "bert"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_in_eight_bits_they_round_x_once(make, dtype, monkeypatch):
    model = merged(make).to(dtype)
    names = names_of_merged(model)
    model, products = in_eight_bits(model), []
    assert names_of_merged(model) == names and names
    twin = apart(model)
    scaled_linear = ops.scaled_linear
    monkeypatch.setattr(ops, "scaled_linear", lambda *a, **k: products.append(1) or scaled_linear(*a, **k))
    x = words() if make is bert else tokens().to(dtype)
    counts, outputs = [], []
    for each in (model, twin, model):
        products.clear()
        y = each(x)
        outputs.append(y if isinstance(y, torch.Tensor) else y[0])
        counts.append(len(products))
    assert counts[1] - counts[0] == 2 * len(names) // 3 and counts[2] == counts[0]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


@torch.no_grad()
def test_in_eight_bits_what_changes_is_stacked_anew():
    model = in_eight_bits(merged())
    x = tokens()
    model(x)
    changes = [
        lambda: model.key.values.mul_(2),
        lambda: setattr(model.value, "w_scale", 2 * model.value.w_scale),
        lambda: setattr(model.query, "x_scale", 0.5),
        lambda: model.to(torch.bfloat16),
        lambda: setattr(model.query, "kernel", None) or setattr(model.query, "kernel", "reference"),
    ]
    for change in changes:
        change()
        x = x.to(model.out.bias.dtype)
        assert torch.equal(model(x), apart(model)(x))
    model.query.x_scale = None
    assert torch.equal(model(x), apart(model)(x))
    assert copy.deepcopy(model.key)._siblings is None
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert names_of_merged(twin) == Q_K_V and torch.equal(twin(x), model(x))
