"""Provides the list of cases and the tolerance rule, shared by the tests, the benchmarks and the support
table."""

from .cases import (
    BLOCK_SIDES,
    DEVICES,
    Case,
    Inputs,
    cases,
    dense_product,
    exact_product,
    kernels_for,
    sparse_product,
    tf32_switch,
)
from .tolerance import TileCheck, check_product, check_tiles, packed, require_product

__all__ = [
    "BLOCK_SIDES",
    "DEVICES",
    "Case",
    "Inputs",
    "TileCheck",
    "cases",
    "check_product",
    "check_tiles",
    "dense_product",
    "exact_product",
    "kernels_for",
    "packed",
    "require_product",
    "sparse_product",
    "tf32_switch",
]
