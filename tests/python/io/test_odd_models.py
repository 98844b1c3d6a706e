"""Odd but valid models: each call gives our Error, or does what it does to any other model."""

import pytest
import torch
from torch import nn

from sparseloom import BlockSparse, Error, Semi24, load, prune_, save, sparsify_


def expanded():
    model = nn.Sequential(nn.Linear(32, 32))
    model[0].weight = nn.Parameter(torch.randn(1, 32).expand(32, 32))
    return model


def of_inference_mode():
    with torch.inference_mode():
        return nn.Sequential(nn.Linear(32, 32))


def prune(model, path):
    prune_(model, {".*": Semi24()}, method="magnitude", progress=False)


def through_a_file(model, path):
    save(model, path)
    load(path, model)


def sparsified_by_a_file(model, path):
    of_blocks = nn.Sequential(nn.Linear(64, 32))
    sparsify_(of_blocks, BlockSparse(16, 0.5))
    save(of_blocks, path)
    load(path, model, sparsify=True)


def as_dense(model, path):
    save(model, path, format="dense")


@pytest.mark.parametrize(
    "make, call, said",
    [
        (expanded, prune, "weights whose elements lie apart"),
        (expanded, through_a_file, "a model that takes its state_dict"),
        (of_inference_mode, through_a_file, "expected"),
        (lambda: nn.Sequential(nn.LazyLinear(32)), prune, "a model of known sizes, got lazy 0.weight"),
        (lambda: nn.Sequential(nn.LazyLinear(32)), through_a_file, "a model of known sizes"),
        (lambda: nn.Sequential(nn.LazyLinear(32)), sparsified_by_a_file, "a model of known sizes"),
        (lambda: nn.Sequential(nn.LazyLinear(32)), as_dense, "a model of known sizes"),
        (lambda: nn.Sequential(nn.Linear(0, 32)), prune, "weights with elements"),
    ],
)
def test_what_cannot_be_done_is_an_error_and_the_model_stays(make, call, said, tmp_path):
    model = make()
    before = {
        name: each.detach().clone()
        for name, each in model.named_parameters()
        if hasattr(each, "numel") and not isinstance(each, nn.parameter.UninitializedTensorMixin)
    }
    with pytest.raises(Error, match=said):
        call(model, tmp_path / "model.safetensors")
    for name, value in before.items():
        assert torch.equal(model.get_parameter(name), value), name
