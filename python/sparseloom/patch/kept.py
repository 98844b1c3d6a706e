"""Computes how much of a dense weight a sparse layer kept."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..nn import MaskedLinear
from ..nn.semi24.semi_structured import is_torchs
from .forms import Site
from .result import Change

#: fp64 sums of the same numbers in different orders differ by less.
_ROUNDING = 1e-9


def magnitude_of(site: Site) -> float | None:
    """Returns the sum of |w| of a weight that is still dense; None where it has no values."""
    if site.parameter.is_meta:
        return None
    return magnitude(site.value)


def with_kept(change: Change, whole: float | None, layer: Any) -> Change:
    """Returns the change with the share of the weight's sum of |w|, ``whole``, that the layer stores, and the
    number of stored blocks that are all zero."""
    if whole is None:
        return change
    masked = isinstance(layer, MaskedLinear)
    with torch.no_grad():
        values = layer.effective() if masked else next(iter(layer.sparse_weights().values())).values
        if not math.isfinite(whole):
            return change
        stored = magnitude(values)
        share = stored / whole if whole else 1.0
        in_blocks = change.block is not None and not masked and change.blocks > 0
        zero = int((values[: change.blocks].flatten(1) == 0).all(1).sum()) if in_blocks else 0
    return replace(change, kept=1.0 if share > 1 - _ROUNDING else share, zero_blocks=zero)


def magnitude(tensor: Tensor) -> float:
    """Returns the sum of |w| of a weight in any layout."""
    if is_torchs(tensor):
        tensor = tensor.packed.flatten()[: tensor.numel() // 2]
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return float(torch.linalg.vector_norm(tensor.detach(), 1, dtype=torch.float64))
