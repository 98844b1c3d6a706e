"""Role: a part of a model whose width can shrink, found by the names and classes that packages give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..patch.optimizer import Swap
from .part import Part

#: Packages whose modules are taken by the names of their children: what a user's own forward does with layers
#: of the same names is not known.
_PACKAGES = ("transformers", "timm", "torch", "torchvision")


#: The key of a config for narrow_heads.py.
KEPT_HEADS = "kept_heads"


class Role(ABC):
    """One or two widths of a part of the model.

    Args:
        name: of the module that holds the layers.
        parts: the layers, by the names that the role gives them.
    """

    #: What is counted, for each width.
    kinds: ClassVar[tuple[str, ...]]
    before: tuple[int, ...]
    needed: tuple[int, ...]

    def __init__(self, name: str, parts: dict[str, Part]) -> None:
        self.name, self.parts = name, parts
        self.reason = next((part.refusal for part in parts.values() if part.refusal), "")

    @abstractmethod
    def examine(self, multiple: int) -> None:
        """Sets ``before`` and ``needed``: the widths, and the smallest that keep what the model computes."""

    @abstractmethod
    def shapes(self, widths: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Returns {name of a weight: its shape, as stored} for other widths."""

    @abstractmethod
    def cut(self, model: nn.Module, widths: tuple[int, ...]) -> list[Swap]:
        """Narrows the layers, all of which are dense by now."""

    def wider(self, widths: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Returns the widths to ask a config for, the wanted ones first, smaller than all."""
        return [widths]

    @abstractmethod
    def settings(self, widths: tuple[int, ...]) -> dict[str, Any]:
        """Returns what a transformers config says of these widths: {key: number}. "a|b" is the first that it
        has, and "a?" is left out where it has none."""

    def keep_all(self, reason: str) -> None:
        """Lets nothing go."""
        self.needed, self.reason = self.before, reason


def kept_units(alive: Tensor, width: int, granule: int) -> Tensor:
    """Returns the places of ``width`` units that hold all that are alive, in their order. Units go by whole
    blocks of ``granule``, so that those of a sparse weight stay blocks."""
    groups = list(torch.arange(len(alive), device="cpu").split(granule))
    living = [bool(alive[group].any()) for group in groups]
    room = width - sum(len(group) for group, lives in zip(groups, living, strict=True) if lives)
    rest: list[Tensor] = []
    for i, group in enumerate(groups):
        if not living[i] and len(group) <= room:
            living[i], room = True, room - len(group)
        elif not living[i] and not rest:
            rest = [group]
    kept = [group for group, lives in zip(groups, living, strict=True) if lives]
    return torch.cat([*kept, *(group[:room] for group in rest)])


def width_of(alive: Tensor, granule: int, multiple: int) -> int:
    """Returns the smallest width that ``kept_units`` can be asked for, rounded up to a multiple."""
    groups = alive.cpu().split(granule)
    width = max(1, sum(len(group) for group in groups if bool(group.any())))
    return min(len(alive), -(-width // multiple) * multiple)


def from_a_package(module: nn.Module) -> bool:
    """Returns whether the forward of a module is that of a package whose names are known."""
    cls = next(each for each in type(module).__mro__ if "forward" in vars(each))
    return cls.__module__.split(".")[0] in _PACKAGES


def others_are_idle(module: nn.Module, children: Iterable[str]) -> str:
    """Returns a text about the first child beside these, or Parameter, that computes something; "" if none
    does. Dropouts do nothing in evaluation."""
    known = {name.split(".")[0] for name in children}
    for name, child in module.named_children():
        idle = isinstance(child, (nn.Identity, nn.Dropout)) or type(child).__name__ == "DropPath"
        if name not in known and not idle:
            return f"its {name} is not known"
    own = [name for name, parameter in module._parameters.items() if parameter is not None]
    return f"its {own[0]} is not known" if own else ""


def child(module: nn.Module, path: str) -> nn.Module | None:
    """Returns the module at a dotted path; None if there is none."""
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None
