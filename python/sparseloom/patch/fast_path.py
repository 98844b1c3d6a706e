"""Turns off the fused operators to which torch.nn.TransformerEncoder hands its layers' dense weights in
evaluation, while the encoder holds sparse layers."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from ..nn.held.sparse_weight import sparse_modules
from ..nn.masked.linear import masked_layers

_SAVED = "_sparseloom_nested_tensor"


def update_fast_paths(model: nn.Module) -> None:
    """Turns torch's fused path off in encoders that hold sparse or masked layers, and on again in those that
    hold none any more."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0 if _holds_sparse(module) else _fused_activation(module)
        elif isinstance(module, nn.TransformerEncoder):
            if _holds_sparse(module):
                if not hasattr(module, _SAVED):
                    setattr(module, _SAVED, module.use_nested_tensor)
                module.use_nested_tensor = False
            elif hasattr(module, _SAVED):
                module.use_nested_tensor = getattr(module, _SAVED)
                delattr(module, _SAVED)


def _holds_sparse(module: nn.Module) -> bool:
    return any(sparse_modules(module)) or bool(masked_layers(module))


def _fused_activation(layer: nn.TransformerEncoderLayer) -> int:
    """Returns the number that torch's fused operator has for the layer's activation; 0 turns the path off."""
    activation = layer.activation
    if activation is F.relu or isinstance(activation, nn.ReLU):
        return 1
    return 2 if activation is F.gelu or isinstance(activation, nn.GELU) else 0
