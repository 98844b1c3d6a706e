"""Recognises activation modules that the products of sparse layers can fuse."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from .. import ops
from .._home import is_ours
from .traced import untouched

#: Softmax and its variants are not elementwise, and an attention is not an activation.
_OTHERS = (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d, nn.MultiheadAttention)
#: Values at which modules of other packages are compared: dense where the functions bend, and some large
#: ones, where clipped functions differ.
_GRID = (*(i / 64 for i in range(-768, 769)), -1e4, -100.0, -30.0, 30.0, 100.0, 1e4, -0.0, 1e-30, -1e-30)
#: Tolerance relative to max(1, |expected|). In fp32, other formulas of the same function differ by a few
#: roundings of 2^-24 each; the two forms of GELU differ by 2^-11.
_ROUNDING = 2**-20


def products_have() -> str:
    """Returns the names of the activations that the products support, as text."""
    return ", ".join(name for name in ops.ACTIVATIONS if name is not None)


def is_activation(module: nn.Module) -> bool:
    """Returns whether a module is an activation, whether the products support it or not."""
    if is_ours(type(module)):
        return False
    listed = any("activation" in base.__module__ for base in type(module).__mro__)
    return (listed and not isinstance(module, _OTHERS)) or bool(activation_of(module))


def activation_of(module: nn.Module) -> str:
    """Returns the name of the activation that a module computes in training and in evaluation; "" for any
    other module."""
    if type(module) is nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(module.approximate, "")
    if type(module) in (nn.ReLU, nn.SiLU):
        return type(module).__name__.lower()
    parts = (module.parameters(), module.buffers(), module.children())
    if type(module).__module__.startswith("torch.nn.") or any(next(each, None) is not None for each in parts):
        return ""
    try:
        with untouched(module) as was_changed, torch.no_grad(), torch.autocast("cpu", enabled=False):
            x = torch.tensor(_GRID, dtype=torch.float32, device="cpu")
            values = [_given(module, x, training) for training in (True, False)]
        name = next((name for name in ops.ACTIVATIONS if _is(name, x, values)), "") or ""
        return "" if was_changed() else name
    except MemoryError:
        raise
    except Exception:  # an activation does not raise for a vector
        return ""


def _given(module: nn.Module, x: Tensor, training: bool) -> list[Tensor]:
    """Returns the module's results for x as a vector and as a 3-dimensional tensor."""
    module.training = training
    return [module(x.clone()), module(x.clone()[None, None])[0, 0]]


def _is(name: str | None, x: Tensor, values: list[list[Tensor]]) -> bool:
    if name is None:
        return False
    expected = ops.activate(x.double(), name)
    scale = expected.abs().maximum(torch.tensor(1.0, dtype=torch.float64, device="cpu"))
    for y in itertools.chain.from_iterable(values):
        if not isinstance(y, Tensor) or y.shape != x.shape or y.dtype != x.dtype:
            return False
        worst = float(((y.double() - expected).abs() / scale).max())
        if not math.isfinite(worst) or worst > _ROUNDING:
            return False
    return True
