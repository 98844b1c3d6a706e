"""Attention over kept blocks: the operators, their fake kernels and their gradients."""

from .gradients import attend as attend
from .product import Call as Call
from .product import lists_of_map as lists_of_map
from .product import transpose as transpose
