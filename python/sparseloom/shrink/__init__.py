"""shrink_ takes out of a model what pruning has emptied: units of feed-forward layers, attention heads,
channels of convolutions, experts. What stays is an ordinary, narrower model."""

from .._rooms import Room
from .result import Shrunk, Width
from .shrink import shrink_

__all__ = ["Shrunk", "Width", "shrink_"]

Room.of(__name__)
