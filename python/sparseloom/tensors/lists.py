"""Operators on lists of tensors, SparseTensors among them: torch's _foreach_ and _fused_ functions, by which
an optimizer updates all Parameters in one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .sparse_tensor import is_sparse, packed
from .structural import Handler, clear_padding

#: What a _foreach_ operator is called for one tensor, where that is another name.
_NAMES = {
    "norm": "linalg.vector_norm",
    "maximum": "clamp_min",
    "maximum_": "clamp_min_",
    "minimum": "clamp_max",
    "minimum_": "clamp_max_",
}


def handler(func: Any) -> Handler | None:
    """Returns what computes an operator on lists; None for any other operator."""
    name = func._schema.name
    if name.startswith("aten::_foreach_"):
        return _one_by_one
    updates = name.startswith("aten::_fused_") and func._schema.is_mutable
    return _fused if updates and str(func._schema.arguments[0].type) == "List[Tensor]" else None


def _one_by_one(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the operator on one tensor after the other, each in its format."""
    schema = func._schema
    name = schema.name.removeprefix("aten::_foreach_")
    run: Any = Tensor if name.endswith("_") else torch
    for each in _NAMES.get(name, name).split("."):
        run = getattr(run, each, None)
    if run is None or "out" in kwargs:
        return NotImplemented
    named = dict(kwargs)
    if name.removesuffix("_") in ("addcdiv", "addcmul") and len(args) > 3:  # of one tensor by keyword alone
        args, named["value"] = args[:3], args[3].tolist() if isinstance(args[3], Tensor) else args[3]
    lists = [each for each in args if isinstance(each, (list, tuple))]
    made = []
    for i in range(len(lists[0])):
        single = {key: _of(each, i) for key, each in named.items()}
        made.append(run(*(_of(each, i) for each in args), **single))
    return None if schema.is_mutable else made


def _of(value: Any, i: int) -> Any:
    return value[i] if isinstance(value, (list, tuple)) else value


def _fused(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Updates what is stored of each Parameter. A state that is dense, or of another index, is read and
    written at the Parameter's stored places."""
    lists = [list(each) if isinstance(each, (list, tuple)) else each for each in args]
    updated: list[tuple[Tensor, Tensor, Any]] = []
    for i, target in enumerate(lists[0]):
        if is_sparse(target):
            for each in lists:
                if isinstance(each, list) and i < len(each) and each[i].shape == target.shape:
                    whole, each[i] = each[i], packed(each[i], target.layout_index)
                    updated.append((whole, each[i], target))
    func(*lists, **kwargs)
    for whole, stored, target in updated:
        clear_padding(target.layout_index, stored)
        if not (is_sparse(whole) and stored is whole.stored):  # type: ignore[attr-defined]
            whole.copy_(target.layout_index.to_dense(stored).reshape(target.shape))
