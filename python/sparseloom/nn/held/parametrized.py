"""Handles values that are computed: torch's parametrizations, weight norms and pruning put a layer's
Parameter under other names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ...errors import Error
from . import moments
from .onnx import NotForOnnx
from .options import WithOptions


class Parametrizations(nn.ModuleDict):
    """Replaces the nn.ModuleDict that torch.nn.utils.parametrize gives a layer. That one takes no entry named
    ``values``, which is its own method; here ``values`` is the entry, as ``parametrizations.weight`` is in
    other layers."""

    def add_module(self, name: str, module: nn.Module | None) -> None:
        if name == "values":
            self._modules[name] = module  # type: ignore[assignment]
        else:
            super().add_module(name, module)

    @property
    def values(self) -> Any:  # type: ignore[override]
        entry = self._modules.get("values")
        method: Callable[[], Any] = super().values
        return method if entry is None else entry


class Parametrizable(WithOptions, NotForOnnx):
    """A layer with ``values`` that torch.nn.utils.parametrize takes, as ``weight`` of other layers."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Does what nn.Module's does, but gives torch.nn.utils.parametrize a container that accepts a module
        named ``values``."""
        if name == "parametrizations" and type(value) is nn.ModuleDict and not value:
            value = Parametrizations()
        super().__setattr__(name, value)

    def __prepare_scriptable__(self) -> None:
        """Raises Error: torch.jit.script asks for this, and reads no product of a layer."""
        remedy = "use torch.jit.trace, or torch.export.export"
        raise Error("torch.jit.script", "a model without sparse layers", type(self).__name__, remedy)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Does what nn.Module's does, and registers ``values`` for the checks of optimizer state."""
        super().register_parameter(name, param)
        if name == "values":
            moments.watch(self)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        moments.watch(self)


def values_are_computed(layer: nn.Module) -> bool:
    """Returns whether something other than a Parameter or buffer of the layer holds ``values``."""
    return "values" not in layer._parameters and "values" not in layer._buffers


def require_own_values(op: str, layer: nn.Module) -> None:
    """Raises Error where ``values`` are computed, because writes to them would be lost."""
    if values_are_computed(layer):
        remedy = "remove the parametrization, norm or pruning first"
        raise Error(op, "values that are the layer's own Parameter", "computed ones", remedy)
