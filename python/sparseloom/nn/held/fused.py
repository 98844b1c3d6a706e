"""Fused and FusedFunction: replace an activation, a module or a function that a module holds as an attribute,
which a sparse layer applies in its epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from .convert import STANDING, applies_the_models
from .options import takes
from .sparse_weight import sparse_layers


class _Stands:
    """What replaces an activation: it returns x, the result of ``layer``, as it is, because the layer has
    applied ``original`` already. If the layer's ``activation`` is set to None again, it applies
    ``original``. ``name``: the layer's, for people."""

    # A tuple, so that nn.Module registers no children: module names and state dict keys stay the same.
    _held: tuple[Any, Any]
    name: str

    @property
    def original(self) -> Any:
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


class Fused(_Stands, nn.Module):
    """In the place of a module."""

    def __init__(self, original: nn.Module, layer: Any, name: str) -> None:
        super().__init__()
        self._held, self.name = (original, layer), name
        self.train(original.training)
        STANDING.add(self)

    def forward(self, x: Tensor) -> Tensor:
        """Returns x."""
        return x if self._held[1].activation is not None else self._held[0](x)

    def __setstate__(self, state: dict[str, Any]) -> None:  # in copies and from pickles
        super().__setstate__(state)
        STANDING.add(self)

    def extra_repr(self) -> str:
        kind = type(self.original).__name__
        return f"{kind} {'' if self.active else 'no longer '}fused into {self.name}"


class FusedFunction(_Stands):
    """In the place of a function, the attribute ``attribute`` of the module ``owner``."""

    def __init__(
        self, original: Callable[[Tensor], Tensor], layer: Any, name: str, owner: nn.Module, attribute: str
    ) -> None:
        self._held, self.name = (original, layer), name
        self.owner, self.attribute = owner, attribute
        STANDING.add(self)

    def __call__(self, x: Tensor) -> Tensor:
        return x if self._held[1].activation is not None else self._held[0](x)  # type: ignore[no-any-return]

    def __setstate__(self, state: dict[str, Any]) -> None:  # in copies and from pickles
        vars(self).update(state)
        STANDING.add(self)

    def put(self, function: Callable[[Tensor], Tensor]) -> None:
        """Makes a function the owner's attribute."""
        setattr(self.owner, self.attribute, function)


def fused_in(model: nn.Module) -> list[Fused | FusedFunction]:
    """Returns what stands for activations in a model."""
    found = list[Fused | FusedFunction]()
    for module in model.modules():
        if isinstance(module, Fused):
            found.append(module)
        found += [each for each in vars(module).values() if isinstance(each, FusedFunction)]
    return found


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
    """Points what stands for activations to the layers that replace theirs (``new_of`` is {old module: new
    module}). Returns all replacements: where the new layer has no activation, the original returns."""
    changed = dict(new_of)
    inside = {part: old for old in new_of for part in old.modules()}
    for fused in fused_in(model):
        if (old := inside.get(fused.layer)) is None:
            continue
        target = next((part for part in changed[old].modules() if takes(part, "activation")), None)
        if target is not None:
            fused._held = fused.original, target
        elif isinstance(fused, FusedFunction):
            fused.put(fused.original)
        else:
            changed[fused] = fused.original.train(fused.training)
    return changed
