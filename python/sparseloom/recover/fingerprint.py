"""Fingerprints of what decides a flow: the same in every process, other ones for other contents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten

from ..pattern import Pattern

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def digest(parts: Iterable[object]) -> str:
    """Returns a SHA-256 over the parts: tensors and patterns by contents, functions and classes by name (and
    code), any other object by its class and its attributes; no address takes part."""
    summed = hashlib.sha256()
    for part in parts:
        for piece in _pieces(part, ()):
            summed.update(piece)
            summed.update(b"\0")
    return summed.hexdigest()


def digest_of_data(batches: Sequence[Any]) -> str:
    """Returns the digest of the batches' tensors and other leaves that print the same in every process."""
    leaves = []
    for batch in batches:
        leaves += [
            leaf if isinstance(leaf, (Tensor, int, float, str, bool)) else type(leaf).__name__
            for leaf in tree_flatten(batch)[0]
        ]
    return digest(leaves)


def digest_of_model(model: nn.Module) -> str:
    """Returns the digest of the modules' names and classes, and of all that the model would save."""
    classes = {name: type(module) for name, module in model.named_modules()}
    return digest([classes, model.state_dict()])


def _pieces(part: Any, around: tuple[int, ...]) -> Iterator[Any]:
    """Yields bytes. ``around`` are the ids of the objects that hold the part, one of which it may be."""
    if isinstance(part, _PLAIN):
        yield repr(part).encode()
        return
    yield _name(part if isinstance(part, type) or hasattr(part, "__qualname__") else type(part)).encode()
    if isinstance(part, type) or id(part) in around:
        return
    if isinstance(part, Tensor) and not is_traceable_wrapper_subclass(part):
        yield from _of_tensor(part.detach())
        return
    inside = _inside(part)
    yield str(len(inside)).encode()
    for inner in inside:
        yield from _pieces(inner, (*around, id(part)))


def _of_tensor(tensor: Tensor) -> Iterator[Any]:
    yield f"{tensor.dtype} {list(tensor.shape)}".encode()
    plain = tensor if tensor.layout == torch.strided else tensor.to_dense()
    yield plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _inside(part: Any) -> list[Any]:
    """Returns what an object is made of."""
    if is_traceable_wrapper_subclass(part):
        names, more = part.__tensor_flatten__()
        return [*(getattr(part, name) for name in names), more]
    if isinstance(part, Pattern):
        return [part.rows, part.cols, part.block, part.mask]
    if isinstance(part, Mapping):
        return [each for pair in part.items() for each in pair]
    if isinstance(part, (list, tuple)):
        return list(part)
    if isinstance(part, (set, frozenset)):
        return sorted(digest([each]) for each in part)
    if isinstance(part, CodeType):
        return [part.co_code, part.co_names, part.co_consts]
    if isinstance(part, torch.Generator):
        return [part.get_state()]
    if hasattr(part, "tobytes"):  # of numpy
        return [str(part.dtype), part.shape, part.tobytes()]
    if isinstance(part, ModuleType):
        return [part.__name__]
    if hasattr(part, "__qualname__"):  # a function; one of C has no code
        return [getattr(part, "__code__", None), getattr(part, "__defaults__", None)]
    if hasattr(part, "func"):  # functools.partial
        return [part.func, part.args, part.keywords]
    slots = [name for cls in type(part).__mro__ for name in _slots(cls)]
    return [vars(part) if hasattr(part, "__dict__") else None, {n: getattr(part, n, None) for n in slots}]


def _slots(cls: type) -> Sequence[str]:
    found = vars(cls).get("__slots__", ())
    return [name for name in ([found] if isinstance(found, str) else found) if not name.startswith("__")]


def _name(part: Any) -> str:
    return f"{getattr(part, '__module__', '')}.{part.__qualname__}"
