"""Optimizer state of cut layers, in the order of the whole weight where it is saved.

The moments of a cut layer's values have the order of its parts. Every optimizer that holds such a Parameter
gets two hooks at its first step, which torch's get_optimizer_state_dict makes before it asks for anything.
Its state dict then does not tell how the layers were cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..errors import Error
from ..nn.held.cut_state import cut_layers, in_order
from ..nn.held.sharded import take_
from ..nn.held.sharded_rows import ShardedRows

_looked_at: WeakSet[Optimizer] = WeakSet()
_hooked = False


def guard() -> None:
    """Makes every optimizer of the program look for cut layers at its first step."""
    global _hooked
    if not _hooked:
        register_optimizer_step_pre_hook(_before_step)
        _hooked = True


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if optimizer in _looked_at:
        return
    _looked_at.add(optimizer)
    owners = _owners()
    if any(parameter in owners for group in optimizer.param_groups for parameter in group["params"]):
        optimizer.register_state_dict_post_hook(_saved)
        optimizer.register_load_state_dict_pre_hook(_loaded)
        for parameter, state in optimizer.state.items():  # loaded before the first step
            if parameter in owners:
                optimizer.state[parameter] = _in_parts(parameter, state, *owners[parameter])


def _owners() -> dict[Any, tuple[Any, str]]:
    """Returns {Parameter: (layer, name)} of the cut layers. fully_shard exchanges Parameters, so that they
    are looked up each time."""
    named = (
        (layer, name, layer._parameters.get(name)) for layer in cut_layers for name in ("values", "bias")
    )
    return {parameter: (layer, name) for layer, name, parameter in named if parameter is not None}


def _states(optimizer: Optimizer, state_dict: dict[str, Any]) -> Iterator[tuple[Any, Any, Any, str]]:
    """Yields (key in the state, Parameter, its layer, its name there) of the cut layers' Parameters."""
    owners = _owners()
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=False):
        for parameter, key in zip(group["params"], saved["params"], strict=False):
            if parameter in owners and key in state_dict["state"]:
                yield key, parameter, *owners[parameter]


def _saved(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns the state dict with moments in the order of the whole weight."""
    state = dict(state_dict["state"])
    for key, parameter, layer, name in _states(optimizer, state_dict):
        state[key] = {
            entry: in_order(layer, name, value) if _like(value, parameter) else value
            for entry, value in state[key].items()
        }
    return {**state_dict, "state": state}


def _loaded(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Undoes _saved; also takes whole tensors."""
    state = dict(state_dict["state"])
    for key, parameter, layer, name in _states(optimizer, state_dict):
        state[key] = _in_parts(parameter, state[key], layer, name)
    return {**state_dict, "state": state}


def _in_parts(parameter: Any, state: dict[str, Any], layer: Any, name: str) -> dict[str, Any]:
    expected = in_order(layer, name, parameter.detach())
    if not isinstance(expected, ShardedRows):
        return state
    result = dict(state)
    for entry, value in state.items():
        if isinstance(value, ShardedRows):
            result[entry] = _as_parameter(value._local_tensor, parameter)
        elif isinstance(value, DTensor):
            # set_optimizer_state_dict(full_state_dict=True) has cut it as if it had the parts' order
            remedy = "load with torch.distributed.checkpoint"
            ordered = f"{entry} in the order of the whole weight"
            raise Error("load_state_dict", ordered, "the order of the parts", remedy)
        elif isinstance(value, Tensor) and value.shape == expected.shape:
            result[entry] = _as_parameter(torch.zeros_like(parameter._local_tensor), parameter)
            take_(in_order(layer, name, result[entry]), value)
    return result


def _as_parameter(rows: Tensor, parameter: Any) -> DTensor:
    layout: dict[str, Any] = {"shape": parameter.shape, "stride": parameter.stride()}
    return DTensor.from_local(rows, parameter.device_mesh, parameter.placements, run_check=False, **layout)


def _like(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, DTensor) and value.shape == parameter.shape
