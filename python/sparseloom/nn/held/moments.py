"""Moments: moves the optimizer state of a layer's values when a load gives the layer another pattern.

An optimizer knows only the Parameter. After a load with another number of blocks, a fused step would access
memory past the end of its state; after a load with as many blocks at other places, blocks would go on with
the moments of others. So the state of optimizers that have stepped moves with the values, and a step with
state of another size raises Error.
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

from ..._checks import warn
from ...errors import Error
from ...layouts import Layout
from ...pattern import Pattern
from . import padding
from .cut import held

_LOG = logging.getLogger("sparseloom")
#: Layers whose values an optimizer may hold, and the layers' names in the model that was last loaded.
_layers: WeakSet[nn.Module] = WeakSet()
_names: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
#: Optimizers that have stepped -> whether their state was loaded since the last step: it may then belong to
#: the pattern that is loaded next.
_stepped: WeakKeyDictionary[Optimizer, bool] = WeakKeyDictionary()
#: Optimizers of which the user was told that they hold values that do not train.
told_untrained: WeakSet[Optimizer] = WeakSet()
#: State tensors that fused kernels of torch and bitsandbytes read elementwise along with the Parameter.
_IN_STEP = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum", "state1", "state2")
_REMEDY = (
    "load the optimizer's state of the same checkpoint, or start it anew: optimizer.state.pop(layer.values)"
)
#: During a load that may still fail: (optimizer, Parameter) -> their state before.
_before: dict[tuple[Optimizer, Tensor], dict[str, Any]] | None = None
_hooked = False


@dataclass(frozen=True)
class Way:
    """A mapping from the stored entries of an old pattern to those of a new one."""

    came: Tensor  # int64 [entries now]: the number of the old entry, -1 for a new one
    before: tuple[int, ...]  # the shape of the entries, the first dimensions of the values
    after: tuple[int, ...]

    @staticmethod
    def of_blocks(old: Pattern, new: Pattern, slots: tuple[int, int]) -> Way:
        """Returns the mapping of blocks; ``slots``: the number of slots of the values, before and after."""
        places = torch.where(old.mask.flatten(), old.mask.flatten().cumsum(0) - 1, -1)
        came = torch.full((slots[1],), -1, dtype=torch.int64, device="cpu")
        came[: new.blocks] = places[new.mask.flatten()]
        return Way(came, slots[:1], slots[1:])

    @staticmethod
    def of_layouts(old: Layout, new: Layout, before: Sequence[int], after: Sequence[int]) -> Way:
        """Returns the mapping of elements between two layouts of a weight, with values of these shapes."""
        (index, *_) = new.tensors().values()
        numbers = torch.arange(1, prod(before) + 1, dtype=torch.float64, device=index.device)
        came = new.pack(old.to_dense(numbers.view(tuple(before)))).flatten().long() - 1
        return Way(came, tuple(before), tuple(after))

    def leaves(self, tensor: Tensor) -> bool:
        """Returns whether the tensor has a coarser shape than the entries (one element per row, say), and
        entries moved without a change of shape: the tensor then stays as it is."""
        of = self.before[: tensor.dim()]
        return self.before == self.after != of and tuple(tensor.shape) == of

    def carried(self, tensor: Tensor) -> Tensor:
        """Maps a tensor of the old entries to the new ones; new entries are zero."""
        dims = tensor.shape[len(self.before) :]
        flat = tensor.reshape(-1, *dims) if tensor.numel() else tensor.new_zeros((prod(self.before), *dims))
        came = self.came.to(tensor.device)
        from_old = came >= 0
        carried = flat.new_zeros((len(came), *dims))
        carried[from_old] = flat[came[from_old]]
        return carried.view(*self.after, *dims)


def watch(layer: nn.Module) -> None:
    """Registers a layer whose values an optimizer may hold."""
    global _hooked
    _layers.add(layer)
    padding.watch(layer)
    if not _hooked:
        register_optimizer_step_pre_hook(_before_step)
        _hooked = True


def holding(layer: Any) -> list[Optimizer]:
    """Returns the optimizers that have stepped and keep state of the layer's values."""
    values = layer._parameters.get("values")
    return [optimizer for optimizer in list(_stepped) if values is not None and optimizer.state.get(values)]


def called(layer: nn.Module, prefix: str) -> None:
    """Notes the layer's name in the model that is loaded, from the prefix of its entries."""
    if prefix:
        _names[layer] = prefix[:-1]


def follow(layer: Any, way: Callable[[], Way]) -> None:
    """Moves the optimizer state of the layer's values, and their gradients if the shape stays. State of
    another shape is dropped with a warning; state loaded since the optimizer's last step stays."""
    values = layer._parameters.get("values")
    optimizers = [optimizer for optimizer in holding(layer) if not _stepped[optimizer]]
    if values is None or values.is_meta or (not optimizers and values.grad is None):
        return
    moved_by = way()
    with torch.no_grad():
        if moved_by.before == moved_by.after:
            for gradient in (values.grad, getattr(values, "main_grad", None)):
                if isinstance(gradient, Tensor) and (own := _own(layer, gradient, moved_by)) is not None:
                    own.copy_(moved_by.carried(own))
        for optimizer in optimizers:
            _remember(optimizer, values)
            _move(layer, optimizer, values, moved_by)


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
    """Returns this rank's part of a tensor with the shape of the values; None for any other tensor."""
    stored = held(layer, tensor) if getattr(layer, "_cut", None) is not None else tensor
    plain = type(stored) in (Tensor, nn.Parameter)
    return stored if plain and tuple(stored.shape[: len(way.before)]) == way.before else None


def _remember(optimizer: Optimizer, values: Tensor) -> None:
    if _before is not None and (optimizer, values) not in _before:
        state = optimizer.state[values]
        copies = {key: each.clone() if isinstance(each, Tensor) else each for key, each in state.items()}
        _before[optimizer, values] = copies


@contextmanager
def as_before_on_error() -> Iterator[None]:
    """Restores the optimizers' state if the body raises."""
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
    """Checks the state of an optimizer in its first step, and in the first step after a load of its state."""
    if torch.compiler.is_compiling() or _stepped.get(optimizer) is False:
        return
    layer_of = {
        id(values): each for each in _layers if (values := each._parameters.get("values")) is not None
    }
    watched = [
        (layer_of[id(each)], each)
        for group in optimizer.param_groups
        for each in group["params"]
        if id(each) in layer_of
    ]
    for layer, values in watched:
        for key, value in optimizer.state.get(values, {}).items():
            if key in _IN_STEP and isinstance(value, Tensor) and value.dim() and value.shape != values.shape:
                expected = f"state of {_name(layer)} for values {list(values.shape)}"
                raise Error("optimizer", expected, f"{key} {list(value.shape)}", _REMEDY)
    if watched and optimizer not in _stepped:
        optimizer.register_load_state_dict_post_hook(_loaded)
        _tell_untrained(optimizer, [layer for layer, _ in watched])
    if watched:
        _stepped[optimizer] = False


def _tell_untrained(optimizer: Optimizer, layers: Sequence[Any]) -> None:
    """Emits a UserWarning, once for each optimizer, if it holds values that no product gives a gradient."""
    idle = [layer for layer in layers if layer.training and not trains(layer)]
    if idle and optimizer not in told_untrained:
        told_untrained.add(optimizer)
        counted = "1 layer" if len(idle) == 1 else f"{len(idle)} layers"
        names = " and ".join(sorted({layer.layout.name for layer in idle}))
        warn(
            f"{type(optimizer).__name__} holds the values of {counted} in layout {names}, which never train: "
            "prune by InLayout(layout, method=...) while dense, or leave them out"
        )


def trains(layer: Any) -> bool:
    """Returns whether a product of the layer gives its values a gradient."""
    return "dw" in next(iter(layer.sparse_weights().values())).directions


def _loaded(optimizer: Optimizer) -> None:
    _stepped[optimizer] = True


def _name(layer: Any) -> str:
    description = f"{type(layer).__name__}({layer.in_features}, {layer.out_features})"
    return f"{_names[layer]}, {description}" if layer in _names else description
