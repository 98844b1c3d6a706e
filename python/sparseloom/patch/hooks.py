"""Lets a user's hooks stay with a layer when it is exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from ..nn.held.watch import Watch

#: Where nn.Module keeps hooks, and what it was told of them; handles hold the dicts of the first kind.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TOLD = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")


@contextmanager
def without_hooks(model: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Takes the hooks off the modules of these names, and gives them to those that have the names at the
    end of the body."""
    kept = {name: nn.Module() for name in names}
    for name, keeper in kept.items():
        module = model.get_submodule(name)
        carry_hooks(module, keeper)
        carry_hooks(nn.Module(), module)
    yield
    for name, keeper in kept.items():
        carry_hooks(keeper, model.get_submodule(name))


def carry_hooks(old: nn.Module, new: nn.Module) -> None:
    """Gives a new module the hooks of the one that it replaces, less those by which a method watches it. The
    handles that registering returned remove them from then on."""
    for name in (*_HOOKS, *_TOLD):
        setattr(new, name, getattr(old, name))
    for key, hook in list(new._forward_hooks.items()):
        if isinstance(hook, Watch):
            del new._forward_hooks[key]
