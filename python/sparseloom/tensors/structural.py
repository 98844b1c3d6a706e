"""The basic operators that keep a SparseTensor's format: they move, copy or write it, or are elementwise and
map zero to zero. They touch only the stored values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from ..errors import Error
from ..layouts import Layout
from .base import fits, same_index
from .sparse_tensor import SparseTensor, densified, is_sparse, packed

aten = torch.ops.aten
Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def handler(func: Any) -> Handler | None:
    """Returns the handler of an operator on SparseTensors, which may return NotImplemented; None for an
    operator that does not keep the format."""
    known = _HANDLERS.get(func)
    if known is None and func._schema.is_mutable and (torch.Tag.pointwise in func.tags or func in _WRITES):
        return _write
    return known


def written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    targets = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            targets.append(args[position] if position < len(args) else kwargs.get(argument.name))
    return tree_flatten(targets)[0]


def _like(tensor: Any, stored: Tensor) -> Any:
    return SparseTensor(tensor.layout_index, stored, tensor.shape, tensor.registry)


def _each(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Applies an operator on one tensor to the stored values."""
    if not is_sparse(args[0]) or kwargs.get("out") is not None:
        return NotImplemented
    return _like(args[0], func(args[0].stored, *args[1:], **kwargs))


def _moved(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Converts the dtype of the stored values, and moves them and the index to another device."""
    source = args[0]
    stored = func(source.stored, *args[1:], **kwargs)
    index_on_meta = any(part.is_meta for part in source.layout_index.tensors().values())
    if index_on_meta and not stored.is_meta:
        remedy = "load_state_dict(assign=True) takes a checkpoint's index, too"
        raise Error(f"SparseTensor to {stored.device}", "an index in memory", "one on meta", remedy)
    parts = {name: part.to(stored.device) for name, part in source.layout_index.tensors().items()}
    index = source.layout_index if stored.device == source.device else source.layout_index.with_tensors(parts)
    return SparseTensor(index, stored, source.shape, source.registry)


def _viewed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns another shape of the same elements in the same order, if the layout's matrix fits it."""
    source, sizes = args[0], list(args[1])
    if -1 in sizes:
        sizes[sizes.index(-1)] = source.numel() // max(1, -math.prod(sizes))
    if math.prod(sizes) != source.numel() or not fits(source.layout_index, sizes):
        return NotImplemented
    return SparseTensor(source.layout_index, source.stored, sizes, source.registry)


def _scaled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Multiplies with a finite number, or divides by one that is not zero: a zero stays zero."""
    number = args[1]
    if not is_sparse(args[0]) or isinstance(number, Tensor) or not math.isfinite(number):
        return _both(func, args, kwargs) if func is aten.mul.Tensor else NotImplemented
    if func is aten.div.Tensor and number == 0:
        return NotImplemented
    return _each(func, args, kwargs)


def _both(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Adds, subtracts or multiplies the stored values of two tensors with the same index."""
    one, other = args
    if not (is_sparse(one) and is_sparse(other)) or one.shape != other.shape:
        return NotImplemented
    if not same_index(one.layout_index, other.layout_index):
        return NotImplemented
    return _like(one, func(one.stored, other.stored, **kwargs))


def _write(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Writes into the stored values; all other elements stay zero. Other operands are read at the stored
    elements. Results of dense operands only are not written into ``out=``, because they are dense."""
    target = kwargs.get("out", args[0])
    if not is_sparse(target) or len(written(func, args, kwargs)) > 1:
        return NotImplemented
    if "out" in kwargs and not any(is_sparse(argument) for argument in args):
        return NotImplemented

    def at_stored(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        expanded = value if value.shape == target.shape else torch.broadcast_to(value, target.shape)
        return packed(expanded, target.layout_index)

    func(*map(at_stored, args), **{name: at_stored(value) for name, value in kwargs.items()})
    clear_padding(target.layout_index, target.stored)
    return target


def _copied(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copies another tensor into the stored values. Raises Error for a SparseTensor with elements at other
    places, as in a checkpoint of another index: they would be lost."""
    target, source = args[:2]
    if is_sparse(target) and is_sparse(source) and _loses(source, target):
        index = source.layout_index
        expected = f"elements where {target.format.name} of {target.stored.numel()} values stores some"
        got = f"others, of {index.name} with {source.stored.numel()} values"
        remedy = "load_state_dict(assign=True) takes the index, too; copy to_dense() to leave the others out"
        raise Error("SparseTensor.copy_", expected, got, remedy)
    return _write(func, args, kwargs)


def assign(target: Any, value: Any) -> None:
    """Implements ``target.data = value``: takes the values of a SparseTensor with an equal index, and copies
    any other tensor to the stored elements. Raises Error for another shape, dtype or device."""
    tensors = [tensor for tensor in (target, value) if isinstance(tensor, Tensor)]
    kinds = [(list(tensor.shape), tensor.dtype, tensor.device) for tensor in tensors]
    if len(kinds) < 2 or kinds[0] != kinds[1]:
        shape, dtype, device = kinds[0]
        got = "{} of {} on {}".format(*kinds[1]) if len(kinds) > 1 else type(value).__name__
        remedy = "make an nn.Parameter of the new tensor, or call .to() on the module"
        raise Error("SparseTensor.data", f"{shape} of {dtype} on {device}", got, remedy)
    if is_sparse(value) and _equal(value.layout_index, target.layout_index):
        target.stored = value.stored.detach()
        return
    with torch.no_grad():
        target.detach().copy_(value.detach())


def _loses(source: Any, target: Any) -> bool:
    """Returns whether an element of ``source`` is not stored in ``target``. False without a check for tensors
    without memory, and while a CUDA graph is captured, which cannot wait for the answer."""
    target_index, source_index = target.layout_index, source.layout_index
    parts = [source.stored, *target_index.tensors().values(), *source_index.tensors().values()]
    if same_index(target_index, source_index):
        return False
    if any(type(part) is not Tensor or part.is_meta for part in parts):
        return False
    if source.stored.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    if source.shape != target.shape or _equal(target_index, source_index):
        return False
    dense = densified(source)
    stored = target_index.pack(dense.reshape(target_index.rows, target_index.cols).to(target.device))
    return int(dense.count_nonzero()) > int(stored.count_nonzero())


def _equal(one: Layout, other: Layout) -> bool:
    """Returns whether two layouts store the same elements in the same order."""
    own_parts, other_parts = one.tensors(), other.tensors()
    return (
        type(one) is type(other)
        and one.options() == other.options()
        and all(
            own_parts[name].shape == other_parts[name].shape
            and torch.equal(own_parts[name].to(other_parts[name].device), other_parts[name])
            for name in own_parts
        )
    )


def clear_padding(index: Layout, stored: Tensor) -> None:
    """Zeroes the padding again, into which an operator may have written 0 + 1 or 0 / 0."""
    if index.padded and not stored.is_meta:
        stored_places = index.pack(stored.new_ones(index.rows, index.cols))
        stored.masked_fill_(stored_places == 0, 0)


def _unscaled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Unscales and checks the stored values of gradients, for torch's GradScaler."""
    return func([grad.stored if is_sparse(grad) else grad for grad in args[0]], *args[1:], **kwargs)


def _filled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns a tensor with the same index and other values."""
    if kwargs.get("layout") not in (None, torch.strided):
        return NotImplemented
    return _moved(func, args, {**kwargs, "memory_format": None})


def _strided(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns a tensor with the same index for new values, if the size is the same: autograd calls this
    before it copies the first gradient of a leaf."""
    source, size = args[0], args[1]
    if tuple(size) != tuple(source.shape):
        return NotImplemented
    return _filled(aten.empty_like.default, (source,), kwargs)


#: Operators that write elementwise, besides those that torch tags as pointwise.
_WRITES = {
    *(aten.masked_fill_.Scalar, aten.masked_fill_.Tensor),
    *(aten.normal_.default, aten.uniform_.default, aten.exponential_.default, aten.bernoulli_.float),
    *(aten.random_.default, aten.random_.to, getattr(aten.random_, "from")),
}
_ZERO_STAYS = (
    *(aten.neg, aten.abs, aten.relu, aten.sqrt, aten.sin, aten.tanh, aten.sign, aten.square, aten.gelu),
    *(aten.silu, aten.leaky_relu, aten.trunc, aten.round, aten.nan_to_num),
)
_HANDLERS: dict[Any, Handler] = {
    aten.detach.default: _each,
    aten.alias.default: _each,
    aten.clone.default: _each,
    aten._to_copy.default: _moved,
    aten.zeros_like.default: _filled,
    aten.empty_like.default: _filled,
    aten.new_empty_strided.default: _strided,
    aten.view.default: _viewed,
    aten._unsafe_view.default: _viewed,
    aten._reshape_alias.default: _viewed,
    aten.mul.Tensor: _scaled,
    aten.div.Tensor: _scaled,
    aten.mul.Scalar: _scaled,
    aten.add.Tensor: _both,
    aten.sub.Tensor: _both,
    aten.copy_.default: _copied,
    aten.zero_.default: _write,
    aten.fill_.Scalar: _write,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscaled,
    **{each.default: _each for each in _ZERO_STAYS},
}
