"""nn.LSTM and nn.GRU become a BlockSparseLSTM and a BlockSparseGRU, whose weights are layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ...nn.recurrent.layers import BlockSparseGRU, BlockSparseLSTM
from ...nn.recurrent.weights import BlockSparseGates, names_of
from .form import Form, Layers, Site


class RecurrentForm(Form):
    """nn.LSTM and nn.GRU, of any options. Their number of weights is that of their layers."""

    layers = Layers(BlockSparseGates, None)
    has_steps = True

    def matches(self, module: nn.Module) -> bool:
        return isinstance(module, (nn.LSTM, nn.GRU))

    def kind(self, module: nn.Module) -> str:
        return "LSTM" if isinstance(module, nn.LSTM) else "GRU"

    def parts(self) -> Mapping[str, str]:
        return {}

    def part(self, weight: str) -> str:
        return weight.removeprefix("weight_")

    def sites(self, module: nn.Module) -> list[Site]:
        assert isinstance(module, (nn.LSTM, nn.GRU))
        names = names_of(module.num_layers, module.bidirectional, module.proj_size > 0)
        return [Site(self, module, f"weight_{name}") for name in names]

    def bias(self, weight: str) -> str:
        return weight.replace("weight_", "bias_", 1)

    def own_forward(self, module: nn.Module) -> type[nn.Module]:
        return nn.LSTM if isinstance(module, nn.LSTM) else nn.GRU

    def cannot_move(self, by_gradient: bool) -> str:
        refusal = "the steps of a recurrent layer tell no gradient of absent blocks: choose methods.set_"
        return refusal if by_gradient else ""

    def made(self, module: nn.Module, layers: Mapping[str, Any]) -> nn.Module:
        assert isinstance(module, (nn.LSTM, nn.GRU))
        became = {"LSTM": BlockSparseLSTM, "GRU": BlockSparseGRU}[self.kind(module)]
        return became.holding(module, dict(layers))
