"""or_as_before: restores modules and optimizers when a change of them is interrupted, by an out-of-memory
error or by Ctrl-C."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer


@contextmanager
def or_as_before(
    model: nn.Module, optimizers: Sequence[Optimizer] = (), written: Iterable[nn.Module] = ()
) -> Iterator[None]:
    """Restores the model and the optimizers if the body raises anything, KeyboardInterrupt included: the
    modules with their classes, attributes, Parameters and buffers, the hooks of Parameters, and the
    optimizers' groups and state.

    ``written`` are the modules whose tensors the body writes into. Only the content of these tensors is
    copied, before the body starts; restoring allocates no further memory.
    """
    saved = _Before(list(model.modules()), optimizers, list(written))
    try:
        yield
    except BaseException:
        saved.put_back()
        raise


class _Before:
    def __init__(
        self, modules: list[nn.Module], optimizers: Sequence[Optimizer], written: list[nn.Module]
    ) -> None:
        self._modules = [(module, type(module), _attributes(module)) for module in modules]
        parameters = {id(p): p for module in modules for p in module.parameters(recurse=False)}
        self._parameters = [(p, _parts_of(p)) for p in parameters.values()]
        self._optimizers = [
            (
                optimizer,
                [(group, dict(group), list(group["params"])) for group in optimizer.param_groups],
                {parameter: dict(state) for parameter, state in optimizer.state.items()},
                dict(optimizer.state),
            )
            for optimizer in optimizers
        ]
        tensors: dict[int, Tensor] = {id(each): each for module in written for each in _tensors(module)}
        self._contents = [
            (each, each.data if type(each) is Tensor else None, each.detach().clone())
            for each in tensors.values()
            if not each.is_meta
        ]
        stateful = (each for each in written if type(each).get_extra_state is not nn.Module.get_extra_state)
        self._extra = [(module, copy.deepcopy(module.get_extra_state())) for module in stateful]

    def put_back(self) -> None:
        for module, cls, attributes in self._modules:
            if type(module) is not cls:  # torch's parametrization makes a class for each module
                module.__class__ = cls
            attributes_now = vars(module)
            for name in attributes_now.keys() - attributes.keys():
                del attributes_now[name]
            for name, (value, content) in attributes.items():
                attributes_now[name] = value
                if content is not None:
                    _refill(value, content)
        for parameter, (data, requires_grad, grad, marks, hooks) in self._parameters:
            if data is not None:
                parameter.grad = None  # torch refuses memory of another size beside it
                parameter.data = data
            if parameter.requires_grad != requires_grad:  # refused by one that inference_mode made
                parameter.requires_grad_(requires_grad)
            parameter.grad = grad
            vars(parameter).clear()
            vars(parameter).update(marks)
            if parameter._backward_hooks is not None:  # type: ignore[has-type]
                _refill(parameter._backward_hooks, hooks)  # type: ignore[has-type]
        for optimizer, groups, states, held_states in self._optimizers:
            optimizer.param_groups[:] = [group for group, _, _ in groups]
            for group, entries, params in groups:
                group.clear()
                group.update(entries)
                group["params"][:] = params
            optimizer.state.clear()
            for key, state in held_states.items():
                state.clear()
                state.update(states[key])
                optimizer.state[key] = state
        with torch.no_grad():
            for tensor, memory, content in self._contents:
                if memory is not None:  # a buffer may have got other memory, as a Parameter may
                    tensor.data = memory
                _written_once(tensor.detach()).copy_(_written_once(content, tensor))
        for module, state in self._extra:
            module.set_extra_state(state)


def _written_once(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Returns one index of each axis along which an expanded tensor (``like``) repeats its memory: torch
    refuses to write the whole."""
    for axis, step in enumerate((tensor if like is None else like).stride()):
        if step == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _attributes(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Returns the attributes of a module, each with a shallow copy where it is a container."""
    return {
        name: (value, copy.copy(value) if isinstance(value, (dict, set, list)) else None)
        for name, value in vars(module).items()
    }


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    else:
        container.update(content)


def _parts_of(
    parameter: nn.Parameter,
) -> tuple[Tensor | None, bool, Tensor | None, dict[str, Any], dict[int, Any]]:
    """Returns a Parameter's data (None where it cannot be exchanged), requires_grad, grad, attributes and
    hooks of its gradient."""
    plain = type(parameter) is nn.Parameter and not is_lazy(parameter)
    data = parameter.data if plain and type(parameter.data) is Tensor else None
    hooks = dict(parameter._backward_hooks or {})  # type: ignore[has-type]
    return data, parameter.requires_grad, parameter.grad, dict(vars(parameter)), hooks


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yields the tensors of a module without its children: Parameters, buffers and attributes."""
    for mapping in (module._parameters, module._buffers, vars(module)):
        yield from (each for each in mapping.values() if isinstance(each, Tensor) and not is_lazy(each))
