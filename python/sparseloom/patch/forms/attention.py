"""nn.MultiheadAttention becomes a BlockSparseMultiheadAttention, whose projections are layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ...nn import BlockSparseMultiheadAttention, MaskedLinear
from ...nn.attention import PROJECTIONS
from .form import Form, Layers


class AttentionForm(Form):
    """nn.MultiheadAttention with one embed_dim for query, key and value."""

    layers = Layers(masked=MaskedLinear)
    is_linear = True

    def matches(self, module: nn.Module) -> bool:
        return isinstance(module, nn.MultiheadAttention)

    def kind(self, module: nn.Module) -> str:
        return "MultiheadAttention"

    def parts(self) -> Mapping[str, str]:
        return dict(PROJECTIONS.values())

    def bias(self, weight: str) -> str:
        return "in_proj_bias" if weight == "in_proj_weight" else super().bias(weight)

    def own_forward(self, module: nn.Module) -> type[nn.Module]:
        return nn.MultiheadAttention

    def refusal_of_kind(self, module: nn.Module) -> str:
        one_size = module._qkv_same_embed_dim
        return "" if one_size else "keys or values of another size than embed_dim keep weights apart"

    def made(self, module: nn.Module, layers: Mapping[str, Any]) -> nn.Module:
        assert isinstance(module, nn.MultiheadAttention)
        in_proj, out_proj = (layers.get(weight) for weight in self.parts())
        return BlockSparseMultiheadAttention(module, in_proj, out_proj)
