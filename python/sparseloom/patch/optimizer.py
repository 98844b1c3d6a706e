"""Handles the optimizers of a patched model: they get the new Parameters with their state, or their next step
raises Error.

An optimizer that still holds a replaced Parameter would go on silently: that Parameter gets no gradient any
more, and its replacement is never updated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import ops
from ..errors import Error

_LOG = logging.getLogger("sparseloom")
#: id -> replaced Parameter, as long as anything still holds it. Empty in a program that makes its optimizer
#: after patching.
_replaced: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()
_hooked = False


@dataclass(frozen=True)
class Swap:
    """A Parameter and its replacement. ``carry`` converts a tensor of the old one's shape to the new
    one's."""

    name: str
    old: nn.Parameter
    new: nn.Parameter
    carry: Callable[[Tensor], Tensor]


def apply(swaps: Sequence[Swap], optimizers: Iterable[Optimizer]) -> list[str]:
    """Carries gradients and optimizer state over, and guards all other optimizers. Returns a note for each
    state that could not be carried over."""
    _guard()
    with torch.no_grad():
        for swap in swaps:
            _replaced[id(swap.old)] = swap.old
            # A frozen Parameter with a gradient would be changed by the optimizer's next step.
            if swap.old.grad is not None and swap.new.requires_grad:
                swap.new.grad = swap.carry(swap.old.grad)
    return [note for optimizer in optimizers for note in _repoint(optimizer, swaps)]


def forget(parameters: Iterable[nn.Parameter]) -> None:
    """Lets optimizers hold these Parameters again, after their exchange was undone."""
    for parameter in parameters:
        _replaced.pop(id(parameter), None)


def leave(removed: Sequence[nn.Parameter], optimizers: Iterable[Optimizer]) -> None:
    """Removes parameters from the optimizers; a group that held nothing else stays, empty."""
    ids = {id(parameter) for parameter in removed}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in ids]
        for parameter in removed:
            optimizer.state.pop(parameter, None)


def _repoint(optimizer: Optimizer, swaps: Sequence[Swap]) -> list[str]:
    by_id = {id(swap.old): swap for swap in swaps}
    notes = []
    for group in optimizer.param_groups:
        for i, parameter in enumerate(group["params"]):
            swap = by_id.get(id(parameter))
            if swap is None:
                continue
            group["params"][i] = swap.new
            state = optimizer.state.pop(parameter, None)
            if not state:
                continue
            carried = {key: _carried(value, swap) for key, value in state.items()}
            if any(value is NotImplemented for value in carried.values()):
                notes.append(
                    f"{swap.name}: {type(optimizer).__name__} keeps state of another shape; it starts anew"
                )
                _LOG.warning(notes[-1])
            else:
                optimizer.state[swap.new] = carried
    return notes


def _carried(value: Any, swap: Swap) -> Any:
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    if value.shape == swap.old.shape and value.dtype in ops.DTYPES:
        return swap.carry(value.detach())
    return NotImplemented


def _guard() -> None:
    """Registers one hook for every optimizer of the program, when the first Parameter is replaced."""
    global _hooked
    if not _hooked:
        register_optimizer_step_pre_hook(_refuse_replaced)
        _hooked = True


def _refuse_replaced(optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
    if not _replaced:
        return
    for number, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            if id(parameter) in _replaced:
                got = (
                    f"parameter {i} of group {number} "
                    f"({' x '.join(map(str, parameter.shape))}), which is in no model any more"
                )
                remedy = "pass optimizer= to sparsify_ or densify_, or make the optimizer after that call"
                raise Error("optimizer", "parameters of the model as it is now", got, remedy)
