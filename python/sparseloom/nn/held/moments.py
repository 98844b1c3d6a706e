"""Moments: what optimizers keep of a layer's values, where a load gives the layer another pattern.

An optimizer knows the Parameter alone. After another number of blocks came, a fused step would read and write
behind the ends of its state; after as many came at other places, each would go on with the moments of
another. So the state of optimizers that have stepped moves with what is stored, and a step with state of
another size is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...errors import Error
from ...layouts import Layout
from ...pattern import Pattern
from . import padding
from .cut import held

_LOG = logging.getLogger("sparseloom")
#: Layers whose values an optimizer may hold, and their names in the model that was last loaded.
_layers: WeakSet[nn.Module] = WeakSet()
_names: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
#: Optimizers that have stepped, each with whether its state was loaded since: it may then belong to the
#: pattern that is loaded next.
_stepped: WeakKeyDictionary[Optimizer, bool] = WeakKeyDictionary()
#: What fused kernels of torch and bitsandbytes read in step with the Parameter.
_IN_STEP = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum", "state1", "state2")
_REMEDY = (
    "load the optimizer's state of the same checkpoint, or start it anew: optimizer.state.pop(layer.values)"
)
#: While a load may still fail: (optimizer, Parameter) and the state that they had.
_before: dict[tuple[Optimizer, Tensor], dict[str, Any]] | None = None
_hooked = False


@dataclass(frozen=True)
class Way:
    """How what is stored came from the places of another pattern."""

    came: Tensor  # int64 [stored now]: the place before, -1 for what is new
    before: tuple[int, ...]  # the shape of the places, the first dimensions of the values
    after: tuple[int, ...]

    @staticmethod
    def of_blocks(old: Pattern, new: Pattern, slots: tuple[int, int]) -> Way:
        """Of blocks in values with so many slots, before and after."""
        places = torch.where(old.mask.flatten(), old.mask.flatten().cumsum(0) - 1, -1)
        came = torch.full((slots[1],), -1, dtype=torch.int64, device="cpu")
        came[: new.blocks] = places[new.mask.flatten()]
        return Way(came, slots[:1], slots[1:])

    @staticmethod
    def of_layouts(old: Layout, new: Layout, before: Sequence[int], after: Sequence[int]) -> Way:
        """Of the elements of two layouts of one weight, in values of these shapes."""
        (index, *_) = new.tensors().values()
        numbers = torch.arange(1, prod(before) + 1, dtype=torch.float64, device=index.device)
        came = new.pack(old.to_dense(numbers.view(tuple(before)))).flatten().long() - 1
        return Way(came, tuple(before), tuple(after))

    def leaves(self, tensor: Tensor) -> bool:
        """Returns whether a tensor has something for each row, say, of places that moved within them."""
        of = self.before[: tensor.dim()]
        return self.before == self.after != of and tuple(tensor.shape) == of

    def carried(self, tensor: Tensor) -> Tensor:
        """Returns a tensor of the places before in those of now; what is new is zero."""
        rest = tensor.shape[len(self.before) :]
        flat = tensor.reshape(-1, *rest) if tensor.numel() else tensor.new_zeros((prod(self.before), *rest))
        came = self.came.to(tensor.device)
        kept = came >= 0
        made = flat.new_zeros((len(came), *rest))
        made[kept] = flat[came[kept]]
        return made.view(*self.after, *rest)


def watch(layer: nn.Module) -> None:
    """Says that an optimizer may hold the layer's values."""
    global _hooked
    _layers.add(layer)
    padding.watch(layer)
    if not _hooked:
        register_optimizer_step_pre_hook(_before_step)
        _hooked = True


def holding(layer: Any) -> list[Optimizer]:
    """Returns the optimizers that have stepped and keep state of the layer's values."""
    values = layer._parameters.get("values")
    return [each for each in list(_stepped) if values is not None and each.state.get(values)]


def called(layer: nn.Module, prefix: str) -> None:
    """Says what the layer is called in the model that is loaded: ``prefix`` is that of its entries."""
    if prefix:
        _names[layer] = prefix[:-1]


def follow(layer: Any, way: Callable[[], Way]) -> None:
    """Moves the state of the layer's values, and their gradients where their shape stays. State of another
    form starts anew, with a warning; what was loaded since the optimizer's last step stays."""
    values = layer._parameters.get("values")
    optimizers = [each for each in holding(layer) if not _stepped[each]]
    if values is None or values.is_meta or (not optimizers and values.grad is None):
        return
    made = way()
    with torch.no_grad():
        if made.before == made.after:
            for gradient in (values.grad, getattr(values, "main_grad", None)):
                if isinstance(gradient, Tensor) and (own := _own(layer, gradient, made)) is not None:
                    own.copy_(made.carried(own))
        for optimizer in optimizers:
            _remember(optimizer, values)
            _move(layer, optimizer, values, made)


def _move(layer: Any, optimizer: Optimizer, values: Tensor, way: Way) -> None:
    state = optimizer.state[values]
    moved: dict[str, tuple[Tensor, Tensor]] = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dim() and not way.leaves(value):
            if (own := _own(layer, value, way)) is None:
                _LOG.warning(
                    "%s: %s keeps %s of another form than the values; its state starts anew, for another "
                    "pattern was loaded",
                    _name(layer), type(optimizer).__name__, key,
                )  # fmt: skip
                del optimizer.state[values]
                return
            moved[key] = own, way.carried(own)
    for key, (own, carried) in moved.items():
        if own.shape == carried.shape:
            own.copy_(carried)  # in place, for CUDA graphs that hold it
        else:
            state[key] = carried


def _own(layer: Any, tensor: Tensor, way: Way) -> Tensor | None:
    """Returns what this rank stores of a tensor that goes with the values; None where it does not."""
    own = held(layer, tensor) if getattr(layer, "_cut", None) is not None else tensor
    plain = type(own) in (Tensor, nn.Parameter)
    return own if plain and tuple(own.shape[: len(way.before)]) == way.before else None


def _remember(optimizer: Optimizer, values: Tensor) -> None:
    if _before is not None and (optimizer, values) not in _before:
        kept = optimizer.state[values]
        copies = {key: each.clone() if isinstance(each, Tensor) else each for key, each in kept.items()}
        _before[optimizer, values] = copies


@contextmanager
def as_before_on_error() -> Iterator[None]:
    """Gives optimizers the state back that they had, where the body raises."""
    global _before
    _before = {}
    try:
        yield
    except BaseException:
        for (optimizer, values), state in _before.items():
            optimizer.state[values] = state
        raise
    finally:
        _before = None


def _before_step(optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
    """Checks the state of an optimizer in its first step, and in the first after its state was loaded."""
    if torch.compiler.is_compiling() or _stepped.get(optimizer) is False:
        return
    of = {id(values): each for each in _layers if (values := each._parameters.get("values")) is not None}
    held_ones = [
        (of[id(each)], each) for group in optimizer.param_groups for each in group["params"] if id(each) in of
    ]
    for layer, values in held_ones:
        for key, value in optimizer.state.get(values, {}).items():
            if key in _IN_STEP and isinstance(value, Tensor) and value.dim() and value.shape != values.shape:
                expected = f"state of {_name(layer)} for values {list(values.shape)}"
                raise Error("optimizer", expected, f"{key} {list(value.shape)}", _REMEDY)
    if held_ones and optimizer not in _stepped:
        optimizer.register_load_state_dict_post_hook(_loaded)
    if held_ones:
        _stepped[optimizer] = False


def _loaded(optimizer: Optimizer) -> None:
    _stepped[optimizer] = True


def _name(layer: Any) -> str:
    said = f"{type(layer).__name__}({layer.in_features}, {layer.out_features})"
    return f"{_names[layer]}, {said}" if layer in _names else said
