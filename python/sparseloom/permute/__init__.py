"""Reorders the channels of a model, without changing what it computes, so that 2:4 pruning keeps more of its
weights."""

from .chains import Chain
from .permute import Permuted, permute_channels_

__all__ = ["Chain", "Permuted", "permute_channels_"]
