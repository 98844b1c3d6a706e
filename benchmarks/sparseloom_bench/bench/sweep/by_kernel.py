"""Multiplies with a weight of a layout on the CPU by a candidate of its plan. A layer runs what the plan
chose: only a sweep that asks what the others would have taken names one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sparseloom.layouts import Layout
from sparseloom.ops import bitmap, csr, nm


def product(
    layout: Layout, direction: str, x: Tensor, dy: Tensor, values: Tensor, kernel: str = ""
) -> Tensor:
    """Returns x W^T, dY W, or dY^T X at the stored elements; "" is the plan's choice."""
    multiply = {"csr": _csr, "bitmap": _bitmap, "nmg": _nmg}[layout.name]
    return multiply(layout, direction, x, dy, values, kernel)


def _csr(layout: Any, direction: str, x: Tensor, dy: Tensor, values: Tensor, kernel: str) -> Tensor:
    crow, col = layout.csr()
    if direction == "forward":
        return csr.linear(x, values, crow, col, None, kernel=kernel)
    if direction == "dx":
        return csr.dx(dy, values, crow, col, layout.cols, kernel=kernel)
    return csr.dw(dy, x, crow, col, kernel=kernel)


def _bitmap(layout: Any, direction: str, x: Tensor, dy: Tensor, values: Tensor, kernel: str) -> Tensor:
    index = layout.bits, layout.bounds()
    if direction == "forward":
        return bitmap.linear(x, values, *index, None, kernel=kernel)
    if direction == "dx":
        return bitmap.dx(dy, values, *index, layout.cols, kernel=kernel)
    return bitmap.dw(dy, x, *index, layout.stored, kernel=kernel)


def _nmg(layout: Any, direction: str, x: Tensor, dy: Tensor, values: Tensor, kernel: str) -> Tensor:
    sizes = layout.rows, layout.cols, layout.n, layout.m, layout.g
    if direction == "forward":
        return nm.linear(x, values, layout.order, None, *sizes, row=kernel)
    if direction == "dx":
        return nm.dx(dy, values, layout.order, *sizes, row=kernel)
    return nm.dw(dy, x, layout.order, *sizes, row=kernel)
