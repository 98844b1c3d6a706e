"""Moves parts of a model to a device for as long as they compute there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


class Residence:
    """Keeps a model where it is, and lends parts of it to ``device``: blocks one at a time, and the rest
    while the whole model runs. Without a device nothing moves."""

    def __init__(self, model: nn.Module, device: torch.device | None) -> None:
        self._model, self.device = model, device

    @contextmanager
    def of(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Moves the modules' own tensors to the device, and back, with what was written into Parameters."""
        if self.device is None:
            yield
            return
        moved: list[tuple[Tensor, Tensor, Tensor]] = []
        buffers: list[tuple[nn.Module, str, Tensor]] = []
        known: set[int] = set()
        try:
            for module in modules:
                for parameter in module._parameters.values():
                    if parameter is None or id(parameter) in known:
                        continue
                    known.add(id(parameter))
                    home = parameter.data
                    parameter.data = home.to(self.device)
                    moved.append((parameter, home, parameter.data))
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        buffers.append((module, name, buffer))
                        module._buffers[name] = buffer.to(self.device)
            yield
        finally:
            for owner, home, there in moved:
                if there.data_ptr() != home.data_ptr():
                    home.copy_(there)
                owner.data = home
            for module, name, buffer in buffers:
                module._buffers[name] = buffer

    @contextmanager
    def running(self, blocks: Sequence[nn.Module], idle: Iterable[nn.Module] = ()) -> Iterator[None]:
        """Moves all but the blocks for the body, and each block while it is called. ``idle`` are modules that
        compute nothing; their own tensors stay."""
        if self.device is None:
            yield
            return
        inside = {id(module) for block in blocks for module in block.modules()} | {id(each) for each in idle}
        stays: dict[int, Any] = {}

        def before(block: nn.Module, args: Any) -> None:
            stays[id(block)] = self.of(block.modules())
            stays[id(block)].__enter__()

        def after(block: nn.Module, args: Any, output: Any) -> None:
            stays.pop(id(block)).__exit__(None, None, None)

        with ExitStack() as stack:
            stack.enter_context(self.of(m for m in self._model.modules() if id(m) not in inside))
            for block in blocks:
                stack.callback(block.register_forward_pre_hook(before).remove)
                stack.callback(block.register_forward_hook(after).remove)
            try:
                yield
            finally:
                for stay in list(stays.values()):  # of blocks that raised
                    stay.__exit__(None, None, None)

    def there(self, tree: Any) -> Any:
        """Returns a batch with its tensors on the device."""
        if self.device is None:
            return tree

        def moved(leaf: Any) -> Any:
            return leaf.to(self.device, non_blocking=True) if isinstance(leaf, Tensor) else leaf

        return tree_map(moved, tree)

    def home(self, tensor: Tensor) -> Tensor:
        """Returns an activation on the host; without a device where it is. Memory that a GPU reads directly
        takes a copy a fraction of the time."""
        tensor = tensor.detach()
        if self.device is None or not tensor.is_cuda:
            return tensor if self.device is None else tensor.cpu()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor)
