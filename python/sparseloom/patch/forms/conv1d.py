"""transformers' Conv1D, a linear layer that stores its weight as [in, out], becomes a
BlockSparseTransformersConv1D, Semi24Conv1D or SparseConv1D."""

from __future__ import annotations

import sys

from torch import Tensor, nn

from ...nn.variants import BlockSparseTransformersConv1D, Semi24Conv1D, SparseConv1D
from .form import Form, Layers


class Conv1DForm(Form):
    """transformers.pytorch_utils.Conv1D."""

    layers = Layers(BlockSparseTransformersConv1D, Semi24Conv1D)
    in_any_layout = SparseConv1D
    is_linear = True

    def matches(self, module: nn.Module) -> bool:
        # a Conv1D exists only where its module was imported
        transformers = sys.modules.get("transformers.pytorch_utils")
        return transformers is not None and isinstance(module, transformers.Conv1D)

    def kind(self, module: nn.Module) -> str:
        return "Conv1D"

    def matrix(self, like_weight: Tensor) -> Tensor:
        return like_weight.t()

    def stored(self, matrix: Tensor, weight: Tensor) -> Tensor:
        return matrix.t().contiguous()
