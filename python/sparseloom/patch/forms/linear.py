"""nn.Linear becomes a BlockSparseLinear."""

from __future__ import annotations

from torch import nn

from .form import Form


class LinearForm(Form):
    """nn.Linear, and subclasses that keep its forward."""

    in_any_layout = True

    def matches(self, module: nn.Module) -> bool:
        return isinstance(module, nn.Linear)

    def kind(self, module: nn.Module) -> str:
        return "Linear"

    def own_forward(self, module: nn.Module) -> type[nn.Module]:
        return nn.Linear
