"""Fused: replaces an activation module that a sparse layer applies in its epilogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .convert import STANDING, applies_the_models
from .sparse_weight import sparse_layers


class Fused(nn.Module):
    """Returns x, the result of ``layer``, as it is, because the layer has applied ``original`` already. If
    the layer's ``activation`` is set to None again, this module applies ``original``."""

    def __init__(self, original: nn.Module, layer: Any, name: str) -> None:
        super().__init__()
        # A tuple, so that nn.Module registers no children: module names and state dict keys stay the same.
        self._held = original, layer
        self.name = name
        self.train(original.training)
        STANDING.add(self)

    @property
    def original(self) -> nn.Module:
        """The activation, as the model had it."""
        return self._held[0]

    @property
    def layer(self) -> Any:
        """The layer that applies it: the one that has the values."""
        return self._held[1]

    @property
    def active(self) -> bool:
        """Whether the layer applies it."""
        return self.layer.activation is not None

    def forward(self, x: Tensor) -> Tensor:
        """Returns x."""
        return x if self._held[1].activation is not None else self._held[0](x)

    def extra_repr(self) -> str:
        kind = type(self.original).__name__
        return f"{kind} {'' if self.active else 'no longer '}fused into {self.name}"

    def __setstate__(self, state: dict[str, Any]) -> None:  # in copies and from pickles
        super().__setstate__(state)
        STANDING.add(self)


def fused_in(model: nn.Module) -> list[Fused]:
    """Returns the Fused modules of a model."""
    return [module for module in model.modules() if isinstance(module, Fused)]


def names_of_fused(model: nn.Module) -> list[str]:
    """Returns the layers that apply an activation of the model, by the names that sparsify_ matches."""
    owners = {id(each.layer) for each in fused_in(model) if each.active}
    return sorted(each.matched for each in sparse_layers(model) if id(each.weight.owner) in owners)


def unfuse(layer: Any) -> bool:
    """Lets the model apply a layer's fused activation again. Returns whether the layer has none left."""
    if layer.activation is not None and applies_the_models(layer):
        layer.activation = None
    return layer.activation is None


def follow(model: nn.Module, new_of: Mapping[nn.Module, nn.Module]) -> dict[nn.Module, nn.Module]:
    """Points the Fused modules to the layers that replace theirs (``new_of`` is {old module: new module}).
    Returns all replacements: where the new layer has no activation, the original replaces Fused again."""
    changed = dict(new_of)
    inside = {part: old for old in new_of for part in old.modules()}
    for fused in fused_in(model):
        if (old := inside.get(fused.layer)) is None:
            continue
        target = next((part for part in changed[old].modules() if hasattr(part, "activation")), None)
        if target is not None:
            fused._held = fused.original, target
        else:
            changed[fused] = fused.original.train(fused.training)
    return changed
