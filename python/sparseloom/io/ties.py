"""Parameters that a model has under several names, which load_state_dict(assign=True) would part."""

from __future__ import annotations

from torch import nn


def ties_of(model: nn.Module) -> list[list[str]]:
    """Returns the names of each Parameter that has several."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def retie(model: nn.Module, ties: list[list[str]]) -> None:
    """Ties the Parameters again: each gets what its first name has."""
    for first, *names in ties:
        for name in names:
            module, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(module), attribute, model.get_parameter(first))
