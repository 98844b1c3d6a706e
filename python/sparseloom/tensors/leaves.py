"""Gives the gradient of a leaf the leaf's format, whichever operators produced it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..ops.verbs import mapped
from .base import same_index
from .sparse_tensor import FromDense, SparseTensor, is_sparse


class _InFormat:
    """A hook of a leaf: packs the gradient, which is dense after operators that compute densely, into the
    leaf's format. It does not reference the leaf, because torch could not swap the leaf then."""

    def __init__(self, leaf: SparseTensor) -> None:
        self.index, self.registry = leaf.layout_index, leaf.registry

    def __call__(self, gradient: Tensor) -> Tensor | None:
        if is_sparse(gradient):
            if same_index(gradient.layout_index, self.index):  # type: ignore[attr-defined]
                return None
            gradient = gradient.to_dense()
        return mapped(gradient, FromDense(self.index, self.registry))


def keep_format(tensor: Any) -> None:
    """Registers the hook if the tensor is a SparseTensor that has become a leaf with a gradient."""
    if is_sparse(tensor):
        with torch._C.DisableTorchFunctionSubclass():
            if not tensor.requires_grad or tensor.keeps_format:
                return
            # is_leaf raises for a view that was made of a leaf under no_grad
            if not (tensor._is_view() and tensor._base.requires_grad) and tensor.is_leaf:
                tensor.register_hook(_InFormat(tensor))
                tensor.keeps_format = True
