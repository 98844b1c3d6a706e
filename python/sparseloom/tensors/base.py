"""Checks the arguments of a SparseTensor: layout, stored values and shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import layouts
from ..errors import Error
from ..layouts import Layout
from ..ops.registry import Registry

OP = "SparseTensor"


def checked(index: Any, stored: Any, shape: Sequence[int] | None, registry: Any) -> tuple[int, ...]:
    """Returns the tensor's shape. Raises Error unless a SparseTensor can be made of the arguments."""
    if not isinstance(index, Layout):
        remedy = "pass Csr.from_dense(weight), for example, or call SparseTensor.from_dense"
        raise Error(OP, "a sparseloom.layouts.Layout as index", type(index).__name__, remedy)
    if not isinstance(stored, Tensor):
        remedy = "pass what the layout's pack returns"
        raise Error(OP, "a tensor as stored", type(stored).__name__, remedy)
    require_registry(OP, registry)
    if shape is None:
        return index.rows, index.cols
    sizes = isinstance(shape, Sequence) and all(hasattr(size, "__index__") for size in shape)
    if not sizes or not fits(index, shape):
        described = list(shape) if isinstance(shape, Sequence) else repr(shape)
        got = f"a layout of [{index.rows}, {index.cols}]"
        raise Error(OP, f"a matrix of the elements of {described}", got, "pass the tensor's own shape")
    return tuple(shape)


def require_registry(op: str, registry: Any) -> None:
    """Raises Error for anything but a Registry or None."""
    if not isinstance(registry, (Registry, type(None))):
        raise Error(op, "a sparseloom.ops.Registry, or None", repr(registry), "leave it out")


def fits(index: Layout, shape: Sequence[int]) -> bool:
    """Returns whether a layout's matrix can be a tensor of that shape."""
    if len(shape) == 2:
        return tuple(shape) == (index.rows, index.cols)
    return torch.Size(shape).numel() == index.rows * index.cols


def as_matrix(dense: Tensor) -> Tensor:
    """Returns a tensor as [product of the others, last size], as a linear layer sees its input."""
    # reshape(-1, 0) would be ambiguous
    return dense.flatten(0, -2) if dense.dim() > 1 else dense.reshape(1, -1)


def layout_of(layout: str | type[Layout]) -> type[Layout]:
    """Returns the class of a layout given by name or class. Raises Error for anything else."""
    cls = layouts.get(layout) if isinstance(layout, str) else layout
    if not (isinstance(cls, type) and issubclass(cls, Layout)):
        raise Error(OP, "a layout's name or its class", repr(layout), "see sparseloom.layouts")
    return cls


def same_index(one: Layout, other: Layout) -> bool:
    """Returns whether two layouts have the same index, made of the same tensor objects."""
    own_parts, other_parts = one.tensors(), other.tensors()
    return (
        type(one) is type(other)
        and (one.rows, one.cols) == (other.rows, other.cols)
        and one.options() == other.options()
        and all(own_parts[name] is other_parts[name] for name in own_parts)
    )
