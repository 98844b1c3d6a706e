"""Whether two modules hold the same bits."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def same(mine: nn.Module, other: nn.Module) -> bool:
    """Returns whether their state dicts have the same entries: names, dtypes, devices, shapes and bits."""
    left, right = mine.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(_equal(left[name], right[name]) for name in left)


def _equal(one: Tensor, other: Tensor) -> bool:
    alike = one.dtype is other.dtype and one.device == other.device and one.shape == other.shape
    return alike and torch.equal(*(each.flatten().contiguous().view(torch.uint8) for each in (one, other)))
