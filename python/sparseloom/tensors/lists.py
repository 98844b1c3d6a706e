"""Operators on lists of tensors with SparseTensors: torch's _foreach_ and _fused_ functions, with which an
optimizer updates all Parameters in one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .sparse_tensor import is_sparse, packed
from .structural import Handler, clear_padding

#: Name of a _foreach_ operator -> that of the operator on one tensor, where they differ.
_NAMES = {
    "norm": "linalg.vector_norm",
    "maximum": "clamp_min",
    "maximum_": "clamp_min_",
    "minimum": "clamp_max",
    "minimum_": "clamp_max_",
}


def handler(func: Any) -> Handler | None:
    """Returns the handler of an operator on lists; None for any other operator."""
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
    for part in _NAMES.get(name, name).split("."):
        run = getattr(run, part, None)
    if run is None or "out" in kwargs:
        return NotImplemented
    named = dict(kwargs)
    if name.removesuffix("_") in ("addcdiv", "addcmul") and len(args) > 3:  # keyword-only for a single tensor
        args, named["value"] = args[:3], args[3].tolist() if isinstance(args[3], Tensor) else args[3]
    lists = [part for part in args if isinstance(part, (list, tuple))]
    results = []
    for i in range(len(lists[0])):
        single = {key: _of(part, i) for key, part in named.items()}
        results.append(run(*(_of(part, i) for part in args), **single))
    return None if schema.is_mutable else results


def _of(value: Any, i: int) -> Any:
    return value[i] if isinstance(value, (list, tuple)) else value


def _fused(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Updates the stored values of each Parameter. State that is dense, or has another index, is read and
    written at the Parameter's stored elements."""
    lists = [list(argument) if isinstance(argument, (list, tuple)) else argument for argument in args]
    updated: list[tuple[Tensor, Tensor, Any]] = []
    for i, target in enumerate(lists[0]):
        if is_sparse(target):
            for argument in lists:
                if isinstance(argument, list) and i < len(argument) and argument[i].shape == target.shape:
                    original, argument[i] = argument[i], packed(argument[i], target.layout_index)
                    updated.append((original, argument[i], target))
    func(*lists, **kwargs)
    for original, stored, target in updated:
        clear_padding(target.layout_index, stored)
        if not (is_sparse(original) and stored is original.stored):  # type: ignore[attr-defined]
            original.copy_(target.layout_index.to_dense(stored).reshape(target.shape))
