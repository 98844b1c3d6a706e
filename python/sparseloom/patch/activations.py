"""Tells which modules are activations that the products of sparse layers have."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .. import ops
from .traced import untouched

#: Softmax and its kin are no functions of single elements, and an attention is no function at all.
_OTHERS = (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d, nn.MultiheadAttention)
#: Values at which modules of other packages are compared: dense where the functions bend, some far outside,
#: where clipped ones differ.
_GRID = (*(i / 64 for i in range(-768, 769)), -1e4, -100.0, -30.0, 30.0, 100.0, 1e4, -0.0, 1e-30, -1e-30)
#: Of the larger of 1 and both values. In fp32 the same function, written otherwise, differs by a few
#: roundings, 2^-24 each, and the two forms of GELU by 2^-11.
_ROUNDING = 2**-20


def products_have() -> str:
    """Returns the names of the activations of the products, in words."""
    return ", ".join(name for name in ops.ACTIVATIONS if name is not None)


def is_activation(module: nn.Module) -> bool:
    """Returns whether a module is one of the functions that are called activations, that the products have or
    not."""
    if type(module).__module__.startswith("sparseloom."):
        return False
    listed = any("activation" in base.__module__ for base in type(module).__mro__)
    return (listed and not isinstance(module, _OTHERS)) or bool(activation_of(module))


def activation_of(module: nn.Module) -> str:
    """Returns the name of the activation that a module computes, whether it trains or not; "" for anything
    else."""
    if type(module) is nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(module.approximate, "")
    if type(module) in (nn.ReLU, nn.SiLU):
        return type(module).__name__.lower()
    kept = (module.parameters(), module.buffers(), module.children())
    if type(module).__module__.startswith("torch.nn.") or any(next(each, None) is not None for each in kept):
        return ""
    try:
        with untouched(module) as changed, torch.no_grad(), torch.autocast("cpu", enabled=False):
            x = torch.tensor(_GRID, dtype=torch.float32, device="cpu")
            given = [_given(module, x, training) for training in (True, False)]
        return "" if changed() else next((name for name in ops.ACTIVATIONS if _is(name, x, given)), "") or ""
    except MemoryError:
        raise
    except Exception:  # whatever the module raises for a vector is no activation's
        return ""


def _given(module: nn.Module, x: Tensor, training: bool) -> list[Tensor]:
    """Returns the module's values twice, of a vector and of a matrix."""
    module.training = training
    return [module(x.clone()), module(x.clone()[None, None])[0, 0]]


def _is(name: str | None, x: Tensor, given: list[list[Tensor]]) -> bool:
    if name is None:
        return False
    wanted = ops.activate(x.double(), name)
    scale = wanted.abs().maximum(torch.tensor(1.0, dtype=torch.float64, device="cpu"))
    for y in [each for pair in given for each in pair]:
        if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != x.dtype:
            return False
        worst = float(((y.double() - wanted).abs() / scale).max())
        if not math.isfinite(worst) or worst > _ROUNDING:
            return False
    return True
