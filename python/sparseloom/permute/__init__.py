"""Reorders the channels of a model, without changing what it computes, so that 2:4 pruning keeps more of its
weights."""

from .._rooms import Room
from .chains import Chain
from .permute import Permuted, permute_channels_

__all__ = ["Chain", "Permuted", "permute_channels_"]

Room.of(__name__)
