"""Checks that operands lie on one device, and brings offloaded tensors there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..errors import Error

Fake = TypeVar("Fake", bound=Callable[..., Any])


def require_one_device(op: str, operands: Mapping[str, Any]) -> None:
    """Raises Error unless all tensors among the operands, and in lists of them, lie on the first one's
    device."""
    first: tuple[str, torch.device] | None = None
    for name, operand in operands.items():
        for tensor in operand if isinstance(operand, (list, tuple)) else (operand,):
            if not isinstance(tensor, Tensor):
                continue
            first = first or (name, tensor.device)
            if tensor.device != first[1]:
                remedy = (
                    "give a module on meta its tensors (load_state_dict names the missing ones), or .to()"
                )
                raise Error(op, f"{name} on {first[1]}, as {first[0]}", str(tensor.device), remedy)


def on_one_device(op: str, schema: Any) -> Callable[[Fake], Fake]:
    """Adds the check of operands' devices to the fake kernel of an operator with that schema."""
    names = [argument.name for argument in schema.arguments]

    def with_check(fake: Fake) -> Fake:
        @functools.wraps(fake)
        def checked(*operands: Any, **named: Any) -> Any:
            require_one_device(op, dict(zip(names, operands, strict=False)) | named)
            return fake(*operands, **named)

        return checked  # type: ignore[return-value]

    return with_check


def at_hand(*layers: nn.Module | None) -> AbstractContextManager[Any]:
    """Brings the tensors of layers that accelerate has offloaded (cpu_offload, device_map) to the execution
    device, for as long as the context lasts. accelerate itself does so when a layer's forward is called; the
    parents of these layers read their tensors without calling them."""
    if torch.compiler.is_compiling():  # accelerate's hooks are not compiled
        return nullcontext()
    offloaded = [layer for layer in layers if layer is not None and "_hf_hook" in vars(layer)]
    return _brought(offloaded) if offloaded else nullcontext()


@contextmanager
def _brought(layers: list[nn.Module]) -> Iterator[None]:
    with ExitStack() as stack:
        for layer in layers:
            hook: Any = layer._hf_hook
            hook.pre_forward(layer)
            stack.callback(hook.post_forward, layer, None)
        yield
