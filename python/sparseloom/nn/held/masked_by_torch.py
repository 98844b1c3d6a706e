"""Weights that torch.ao.pruning masks by a parametrization, until squash_mask is called."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from ...errors import Error

#: Where torch.ao.pruning has its parametrization, which multiplies a weight with a mask.
_MASKS = "torch.ao.pruning.sparsifier.utils"
_REMEDY = "prepare the sparsifier with a sparse_block_shape that divides it"


def masked(module: nn.Module, weight: str = "weight") -> Any:
    """Returns the parametrization of a Parameter that torch.ao.pruning has masked, before squash_mask; else
    None."""
    utils = sys.modules.get(_MASKS)  # a mask exists only where its module was imported
    if utils is None or not parametrize.is_parametrized(module, weight):
        return None
    steps = module.parametrizations[weight]  # type: ignore[union-attr,index]
    masks = all(isinstance(step, utils.FakeSparsity) for step in steps)  # type: ignore[union-attr]
    return steps if masks else None


def too_large(steps: Any) -> tuple[str, str] | None:
    """Returns what a mask of another shape than its weight is, and the remedy; None where all fit. The
    sparsifiers of torch make masks of whole blocks."""
    size = steps.original.shape
    for step in steps:
        if step.mask.shape != size:
            return f"mask is {_times(step.mask.shape)} for a weight of {_times(size)}", _REMEDY
    return None


def weight_of(op: str, dense: nn.Module) -> Tensor:
    """Returns the weight of a dense layer, masked. Raises Error for a mask of another shape."""
    steps = masked(dense)
    found = None if steps is None else too_large(steps)
    if found is not None:
        raise Error(op, "a weight that its mask fits", f"one whose {found[0]}", found[1])
    return dense.weight  # type: ignore[return-value]


def _times(shape: Any) -> str:
    return " x ".join(map(str, shape))
