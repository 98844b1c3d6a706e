"""Reorders the channels of a model, without changing what it computes, so that 2:4 or block pruning keeps
more of its weights."""

from .._rooms import Room
from .chains import Chain
from .permute import permute_channels_
from .result import Permuted

__all__ = ["Chain", "Permuted", "permute_channels_"]

Room.of(__name__)
