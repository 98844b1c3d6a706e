"""Runs operators on SparseTensors.

Implementations are looked up in ``__torch_function__``: there an operator is still the one in the program
(torch.mm, conv2d), autograd has not decomposed it yet, and the implementation brings its own backward.
Operators without an implementation arrive in ``__torch_dispatch__``, below autograd, as torch's basic
operators: those that move, copy or write a tensor keep the format, all others compute densely, with torch's
own gradients.
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
    """Implements __torch_function__."""
    if func is Tensor.__setitem__ and _by_mask(*args):
        func, kwargs = Tensor.masked_fill_, {}
    parts.refuse_writes(func, args, kwargs)
    if func is Tensor.__iter__:
        return iter(args[0].unbind(0))
    if torch._C._get_tracing_state() is not None:  # torch.jit.save of a SparseTensor aborts the process
        remedy = "use torch.export.export(strict=False), or a SparseLinear"
        raise Error("torch.jit.trace", "dense tensors", "a SparseTensor", remedy)
    chosen = implementation(func, args, kwargs, None, None)
    # torch.func cannot call the implementation's backward: there torch decomposes the operator
    if chosen is not None and (torch.compiler.is_compiling() or not transformed()):
        return chosen.run.apply(*positional(chosen, args, kwargs))
    if func in _RECURRENT:
        # below autograd they are one operator, whose backward needs tensors that only its own kernel saves
        tensors = _tensors(args)
        formats = [format_of(tensor).name for tensor in tensors]
        registry_of(tensors).fall_back(f"torch.{func.__name__}", formats)
        args = tree_map_only(SparseTensor, lambda tensor: tensor.to_dense(), tuple(args))
    with torch._C.DisableTorchFunctionSubclass():
        result = func(*args, **kwargs)
        if torch.compiler.is_compiling():
            return result
        leaves.keep_format(args[0] if func is Tensor.requires_grad.__set__ else result)  # type: ignore[attr-defined]
        return parts.marked(result, args)


def implementation(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    outputs: Sequence[Output] | None,
    registry: Registry | None,
) -> Implementation | None:
    """Returns the implementation that is registered for a call, or None. Without ``registry``, that of the
    first tensor that has one is used."""
    tensors = _tensors(args) + _tensors(tuple(kwargs.values()))
    if registry is None:
        registry = registry_of(tensors)
    formats = [format_of(tensor) for tensor in tensors]
    return registry.operator(func, formats, outputs, tensors)


def positional(implementation: Implementation, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Returns the arguments of a call as positional ones. Keyword arguments that equal their default are left
    out at the end, because torch's own functions pass all of theirs on."""
    if not kwargs:
        return list(args)
    keywords, ordered = dict(kwargs), list(args)
    signature = parameters(implementation.operator)
    for name, default in signature[len(args) :]:
        if not keywords:
            break
        ordered.append(keywords.pop(name, default))
    if keywords:
        got = ", ".join(keywords)
        raise Error(implementation.run.__name__, "arguments of the operator", got, "pass them by position")
    while len(ordered) > len(args) and _is_default(ordered[-1], signature[len(ordered) - 1][1]):
        ordered.pop()
    return ordered


def operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Implements __torch_dispatch__."""
    if torch.is_inference_mode_enabled() and _is_view_of_outside(func, args):
        # otherwise autograd would treat the view as an inference tensor
        with torch.inference_mode(False), torch.no_grad():
            return operator(func, args, kwargs)
    handler = structural.handler(func) or lists.handler(func)
    if handler is not None:
        result = handler(func, args, kwargs)
        if result is not NotImplemented:
            return result
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    if func._schema.is_mutable and any(is_sparse(value) for value in written(func, args, kwargs)):
        got = "a SparseTensor, which keeps its format"
        raise Error(
            str(func),
            "an operator that writes into dense tensors",
            got,
            "use the one that returns a new tensor",
        )
    formats = [format_of(value).name for value in tensors]
    registry_of(tensors).fall_back(str(func.overloadpacket), formats)
    with torch.no_grad():
        args, kwargs = tree_map_only(SparseTensor, densified, (args, kwargs))
        return func(*args, **kwargs)


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (
        type(value) is type(default) and not isinstance(value, Tensor) and value == default
    )


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += [inner for inner in value if isinstance(inner, Tensor)]
    return tensors


def _by_mask(target: Any, where: Any, value: Any) -> bool:
    """Returns whether target[where] = value is a masked_fill_, which writes the elements themselves."""
    is_mask = isinstance(where, Tensor) and where.dtype == torch.bool and where.shape == target.shape
    return is_sparse(target) and is_mask and (not isinstance(value, Tensor) or value.dim() == 0)


def _is_view_of_outside(func: Any, args: tuple[Any, ...]) -> bool:
    """Returns whether an operator makes a view of a tensor from outside of inference mode."""
    schema = func._schema
    is_view = not schema.is_mutable and any(returned.alias_info is not None for returned in schema.returns)
    return is_view and isinstance(args[0], Tensor) and not args[0].is_inference()


bind(function, operator, structural.assign)
