"""Parts of a SparseTensor: read-only dense copies."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only

from ..errors import Error
from .sparse_tensor import SparseTensor, is_sparse

#: Methods whose names end in "_", but that write no element.
_NO_WRITES = {"requires_grad_", "detach_", "share_memory_", "rename_"}
_OPERATORS = "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"
_IN_PLACE = {f"__i{name}__" for name in _OPERATORS}


class Part(Tensor):
    """A row or another view of a SparseTensor: a dense copy of its elements, with the gradient of a view.
    Results computed from it are plain tensors. A write into it, or into a view of it, raises Error, because
    the SparseTensor would not change."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return SparseTensor.__torch_function__(func, types, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return copy.deepcopy(_plain(self), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)


def refuse_writes(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises Error for a call that writes into a part of a SparseTensor."""
    name = getattr(func, "__name__", "")
    targets = [kwargs.get("out")]
    writes = name.endswith("_") and not name.endswith("__") and name not in _NO_WRITES
    if writes or name == "__setitem__" or name in _IN_PLACE or kwargs.get("inplace") is True:
        targets += [*args[:1], kwargs.get("input"), kwargs.get("tensor")]  # as nn.functional and nn.init say
    for target in tree_flatten(targets)[0]:
        if isinstance(target, Part) or (name == "__setitem__" and is_sparse(target)):
            got = "one to a part, which is a dense copy"
            remedy = "write into to_dense(), and make a SparseTensor of that; or into part.clone()"
            raise Error("SparseTensor", "a write to all of it", got, remedy)


def marked(results: Any, args: Sequence[Any]) -> Any:
    """Returns the results of an operator, as Parts where they are views of a SparseTensor or of a Part."""
    parts = [part for part in args if isinstance(part, Part)]
    storages = [part.untyped_storage().data_ptr() for part in parts]

    def mark(tensor: Tensor) -> Tensor:
        if type(tensor) is not Tensor:
            return tensor
        is_part = tensor._is_view() and is_sparse(tensor._base)
        if is_part or (storages and tensor.untyped_storage().data_ptr() in storages):
            return tensor.as_subclass(Part)
        return tensor

    return tree_map_only(Tensor, mark, results)


def _plain(part: Part) -> Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return part.as_subclass(Tensor)
