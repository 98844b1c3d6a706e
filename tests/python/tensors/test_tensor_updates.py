"""Optimizers that write into SparseTensors, one Parameter after the other or all in one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ell import Ell
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, Optimizer, RMSprop, Rprop

from sparseloom import SparseTensor, ops
from sparseloom.layouts import Bsr, Csr, MaskedDense

#: Layout -> options that store some of a weight [6, 7]; blocks reach over its edge.
LAYOUTS: dict[Any, dict[str, Any]] = {
    Csr: {"density": 0.3},
    Ell: {"width": 3},
    MaskedDense: {"mask": torch.arange(42).view(6, 7) % 3 == 0},
    Bsr: {"block": 8},
}
#: Name -> what makes it, and whether it computes densely in part, as torch then says.
OPTIMIZERS: dict[str, tuple[Callable[[Any], Optimizer], bool]] = {
    "sgd": (lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=0.01), False),
    "adam": (lambda p: Adam(p, 0.1, weight_decay=0.01), False),
    "adamw": (lambda p: AdamW(p, 0.1), False),
    "amsgrad": (lambda p: AdamW(p, 0.1, amsgrad=True), False),
    "adamax": (lambda p: Adamax(p, 0.1), False),
    "rmsprop": (lambda p: RMSprop(p, 0.01), False),
    "adagrad": (lambda p: Adagrad(p, 0.1), True),
    "rprop": (lambda p: Rprop(p, 0.01), True),
    "sgd foreach": (lambda p: SGD(p, 0.1, momentum=0.9, weight_decay=0.01, foreach=True), False),
    "amsgrad foreach": (lambda p: Adam(p, 0.1, amsgrad=True, foreach=True), False),
    "adamax foreach": (lambda p: Adamax(p, 0.1, foreach=True), False),
    "rmsprop foreach": (lambda p: RMSprop(p, 0.01, centered=True, foreach=True), True),
    "rprop foreach": (lambda p: Rprop(p, 0.01, foreach=True), True),
    "sgd fused": (lambda p: SGD(p, 0.1, momentum=0.9, fused=True), False),
    "amsgrad fused": (lambda p: AdamW(p, 0.1, amsgrad=True, fused=True), False),
    "adagrad fused": (lambda p: Adagrad(p, 0.1, fused=True), True),
}


def trained(layout: Any, optimizer: str, saved: bool = False) -> tuple[Any, Tensor, Optimizer]:
    """Returns a Parameter after some steps, its dense twin, whose gradient was masked, and its optimizer."""
    make, falls_back = OPTIMIZERS[optimizer]
    weight = torch.randn(6, 7, generator=torch.Generator().manual_seed(0))
    parameter = nn.Parameter(SparseTensor.from_dense(weight, layout, **LAYOUTS[layout]))
    bias = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(6))
    mask = parameter.detach().to_dense() != 0
    twin = nn.Parameter(parameter.detach().to_dense().clone())
    steps = [make([parameter, bias[0]]), make([twin, bias[1]])]
    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if falls_back else "error", ops.DenseFallback)
        for i in range(4):
            if saved and i == 2:
                states = steps[0].state_dict()
                steps[0] = make([parameter, bias[0]])
                steps[0].load_state_dict(states)
            for each, b, step in zip((parameter, twin), bias, steps, strict=True):
                step.zero_grad()
                dense = each.to_dense() if each is parameter else each * mask
                (x @ dense.t() + b).square().sum().backward()
                step.step()
    torch.testing.assert_close(bias[0], bias[1])
    return parameter, twin.detach() * mask, steps[0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_updates_in_place_keep_the_format(layout: Any, optimizer: str):
    """Trap 19 of earlier libraries: an optimizer's update in place lost the sparsity."""
    parameter, twin, made = trained(layout, optimizer)
    assert parameter.format is layout
    torch.testing.assert_close(parameter.detach().to_dense(), twin)
    parameter.layout_index.require_consistent("test", parameter.stored.detach())
    state = [each for each in made.state[parameter].values() if each.dim()]
    assert state and (OPTIMIZERS[optimizer][1] or all(isinstance(each, SparseTensor) for each in state))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_states_from_a_file_go_on(optimizer: str):
    parameter, twin, _ = trained(Csr, optimizer, saved=True)
    torch.testing.assert_close(parameter.detach().to_dense(), twin)


def test_norms_and_scales_of_lists():
    """clip_grad_norm_ and GradScaler take lists of gradients, too."""
    weight = torch.randn(6, 7, generator=torch.Generator().manual_seed(0))
    one, other = SparseTensor.from_dense(weight, Csr, density=0.3), torch.ones(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ops.DenseFallback)
        norms = torch._foreach_norm([one, other])
        powers = torch._foreach_pow(2.0, [one, other])
    torch.testing.assert_close(norms, [one.to_dense().norm(), other.norm()])
    torch.testing.assert_close(powers, [2.0 ** one.to_dense(), 2.0**other])
    halves = torch._foreach_div([one, other], [2.0, 4.0])
    assert halves[0].format is Csr
    torch.testing.assert_close([halves[0].to_dense(), halves[1]], [one.to_dense() / 2, other / 4])
