"""Attention over kept blocks: the operators, their fake kernels and their gradients."""

from . import gradients as gradients
from .product import Call as Call
from .product import attend as attend
from .product import transpose as transpose
