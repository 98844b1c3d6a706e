"""What an operator on a SparseTensor runs.

Implementations are looked up in ``__torch_function__``: there an operator still is what was written
(torch.mm, conv2d), autograd has not taken it apart yet, and the implementation brings its own backward. What
is missing there arrives in ``__torch_dispatch__``, below autograd, as torch's basic operators: those that
move, copy or write a tensor keep the format, the others compute densely, with torch's own gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only

from ..errors import Error
from ..ops.registry import Implementation, Output, Registry, parameters
from ..ops.transforms import transformed
from . import leaves, lists, parts, structural
from .sparse_tensor import SparseTensor, bind, densified, format_of, is_sparse, registry_of
from .structural import written

_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


def function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What __torch_function__ returns."""
    if func is Tensor.__setitem__ and _by_mask(*args):
        func, kwargs = Tensor.masked_fill_, {}
    parts.refuse_writes(func, args, kwargs)
    if func is Tensor.__iter__:
        return iter(args[0].unbind(0))
    if torch._C._get_tracing_state() is not None:  # torch.jit.save of one ends the process
        remedy = "use torch.export.export(strict=False), or a SparseLinear"
        raise Error("torch.jit.trace", "dense tensors", "a SparseTensor", remedy)
    found = implementation(func, args, kwargs, None, None)
    # torch.func can call no backward of its: there torch takes the operator apart, and says so
    if found is not None and (torch.compiler.is_compiling() or not transformed()):
        return found.run.apply(*positional(found, args, kwargs))
    if func in _RECURRENT:
        # below autograd they are one operator, whose backward wants what only its own kernel leaves behind
        tensors = _tensors(args)
        formats = [format_of(each).name for each in tensors]
        registry_of(tensors).fall_back(f"torch.{func.__name__}", formats)
        args = tree_map_only(SparseTensor, lambda each: each.to_dense(), tuple(args))
    with torch._C.DisableTorchFunctionSubclass():
        made = func(*args, **kwargs)
        if torch.compiler.is_compiling():
            return made
        leaves.keep_format(args[0] if func is Tensor.requires_grad.__set__ else made)  # type: ignore[attr-defined]
        return parts.marked(made, args)


def implementation(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    outputs: Sequence[Output] | None,
    registry: Registry | None,
) -> Implementation | None:
    """Returns what is registered for a call, or None. Without ``registry`` the first tensor that has one
    decides."""
    tensors = _tensors(args) + _tensors(tuple(kwargs.values()))
    if registry is None:
        registry = registry_of(tensors)
    formats = [format_of(each) for each in tensors]
    return registry.operator(func, formats, outputs, tensors)


def positional(found: Implementation, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Returns the arguments of a call in their order; those by name that are the default are left out at the
    end, since torch's own functions pass all of theirs on."""
    if not kwargs:
        return list(args)
    left, ordered = dict(kwargs), list(args)
    known = parameters(found.operator)
    for name, default in known[len(args) :]:
        if not left:
            break
        ordered.append(left.pop(name, default))
    if left:
        got = ", ".join(left)
        raise Error(found.run.__name__, "arguments of the operator", got, "pass them by position")
    while len(ordered) > len(args) and _is_default(ordered[-1], known[len(ordered) - 1][1]):
        ordered.pop()
    return ordered


def operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What __torch_dispatch__ returns."""
    if torch.is_inference_mode_enabled() and _is_view_of_outside(func, args):
        # to autograd it is none of the tensors that this mode makes
        with torch.inference_mode(False), torch.no_grad():
            return operator(func, args, kwargs)
    handler = structural.handler(func) or lists.handler(func)
    if handler is not None:
        made = handler(func, args, kwargs)
        if made is not NotImplemented:
            return made
    tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
    if func._schema.is_mutable and any(is_sparse(each) for each in written(func, args, kwargs)):
        got = "a SparseTensor, which keeps its format"
        raise Error(
            str(func),
            "an operator that writes into dense tensors",
            got,
            "use the one that returns a new tensor",
        )
    formats = [format_of(each).name for each in tensors]
    registry_of(tensors).fall_back(str(func.overloadpacket), formats)
    with torch.no_grad():
        args, kwargs = tree_map_only(SparseTensor, densified, (args, kwargs))
        return func(*args, **kwargs)


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (
        type(value) is type(default) and not isinstance(value, Tensor) and value == default
    )


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for each in values:
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, (list, tuple)):
            found += [inner for inner in each if isinstance(inner, Tensor)]
    return found


def _by_mask(target: Any, where: Any, value: Any) -> bool:
    """Whether target[where] = value is masked_fill_, which writes elements and no copy."""
    is_mask = isinstance(where, Tensor) and where.dtype == torch.bool and where.shape == target.shape
    return is_sparse(target) and is_mask and (not isinstance(value, Tensor) or value.dim() == 0)


def _is_view_of_outside(func: Any, args: tuple[Any, ...]) -> bool:
    """Returns whether an operator makes a view of a tensor from outside of inference mode."""
    schema = func._schema
    is_view = not schema.is_mutable and any(each.alias_info is not None for each in schema.returns)
    return is_view and isinstance(args[0], Tensor) and not args[0].is_inference()


bind(function, operator, structural.assign)
