"""nn.Linear becomes a BlockSparseLinear."""

from __future__ import annotations

from torch import nn

from ...nn import MaskedLinear, Semi24Training, SparseLinear
from .form import Form, Layers


class LinearForm(Form):
    """nn.Linear, and subclasses that keep its forward."""

    in_any_layout = SparseLinear
    is_linear = True
    layers = Layers(masked=MaskedLinear)

    def matches(self, module: nn.Module) -> bool:
        return isinstance(module, nn.Linear)

    def kind(self, module: nn.Module) -> str:
        return "Linear"

    def own_forward(self, module: nn.Module) -> type[nn.Module]:
        return nn.Linear

    def semi24_training(self, module: nn.Module) -> type[Semi24Training]:
        return Semi24Training
