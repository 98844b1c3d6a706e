"""Layers with block-sparse weights."""

from .linear import BlockSparseLinear

__all__ = ["BlockSparseLinear"]
