"""sparsified: one sparsifier on one tensor, from its format to another, with the gradient of what stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import Error
from ..layouts import Dense, Layout
from ..ops.registry import DEFAULT, Registry
from ..sparsify import Context, ElementSparsifier, SameFormat
from .base import as_matrix, layout_of
from .sparse_tensor import SparseTensor, densified, format_of, is_sparse, packed, registry_of

_OP = "sparsified"
#: Packages of whose classes no object is a sparsifier.
_NO_SPARSIFIERS = {"builtins", "numpy", "torch"}


class Format(NamedTuple):
    """How a result or a gradient becomes sparse: the inline sparsifier, with which it is computed, into the
    temporary format, and the external one, which sees all of it, into the final format."""

    inline: Any
    temporary: type[Layout]
    external: Any
    final: type[Layout]

    @classmethod
    def of(cls, given: Sequence[Any]) -> Format:
        """Returns the four that were given, with layouts by name or class. Raises Error for anything else."""
        if not isinstance(given, (tuple, list)) or len(given) != 4:
            remedy = "(KeepAll(), Dense, ScalarFraction(.9), Csr), or sparsify.DENSE"
            raise Error(_OP, "inline sparsifier, format, external sparsifier, format", repr(given), remedy)
        for each in (given[0], given[2]):
            require_sparsifier(_OP, each)
        return cls(given[0], layout_of(given[1]), given[2], layout_of(given[3]))

    @property
    def is_dense(self) -> bool:
        """Whether it leaves a dense tensor as it is."""
        return all(_keeps_all(each) for each in (self.inline, self.external)) and self.final is Dense

    def on(self, tensor: Tensor, registry: Registry | None, **known: Any) -> Tensor:
        """Returns the tensor in the final format; ``known`` is what the Context knows."""
        inline = sparsified(tensor, self.inline, self.temporary, registry, **known)
        return sparsified(inline, self.external, self.final, registry, **known)


def require_sparsifier(op: str, given: Any) -> None:
    """Raises Error for what cannot be a sparsifier: a class without its arguments, a layout, and an object of
    a class of Python's or torch's own. Any other class may be registered until the first use."""
    foreign = type(given).__module__.partition(".")[0] in _NO_SPARSIFIERS
    if isinstance(given, type) or foreign or callable(getattr(given, "from_dense", None)):
        expected = "a sparsifier with its arguments"
        raise Error(op, expected, repr(given), "pass KeepAll() or ScalarFraction(.9), for example")


def sparsified(
    tensor: Tensor, sparsifier: Any, target: type[Layout], registry: Registry | None = None, **known: Any
) -> Tensor:
    """Returns what a sparsifier leaves of a tensor, in the format ``target``: a SparseTensor, or a plain
    tensor for Dense.

    What was registered for the sparsifier, the tensor's format and the target decides
    (``sparsify.register``); else the sparsifier's mask. An element that stays has the derivative one, one
    that goes the derivative zero. ``known`` are arguments of the Context beside the weight. Raises Error
    where neither is there, and where the target cannot store what stays.
    """
    source = format_of(tensor)
    registry = registry_of([tensor]) if registry is None else registry
    function = registry.sparsifier(type(sparsifier), source, target)
    if function is None and source is target and (_keeps_all(sparsifier) or _is_same(sparsifier, tensor)):
        return tensor
    return _Sparsified.apply(tensor, sparsifier, target, registry, function, known)


class _Sparsified(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        sparsifier: Any,
        target: type[Layout],
        registry: Registry,
        function: Callable[..., Any] | None,
        known: dict[str, Any],
    ) -> Tensor:
        dense = densified(tensor) if isinstance(tensor, SparseTensor) else tensor.detach()
        matrix = as_matrix(dense)
        context = Context(matrix, **known)
        ctx.index = ctx.mask = None
        if function is not None:
            made = function(sparsifier, context)
        else:
            mask = _mask(sparsifier, context)
            kept = matrix.masked_fill(~mask, 0)
            if target is Dense:
                ctx.mask = mask
                return kept.view(tensor.shape)
            index = _index(sparsifier, matrix, mask, target)
            made = SparseTensor(index, index.pack(kept))
            ctx.mask = None if target.exact else mask
        if target is Dense and type(made) is Tensor:
            ctx.mask = as_matrix(made) != 0
            return made.reshape(tensor.shape).clone()
        index = made.layout_index if isinstance(made, SparseTensor) else made
        if not isinstance(index, target) or (index.rows, index.cols) != tuple(matrix.shape):
            expected = f"{target.__name__} of {list(matrix.shape)}, or a SparseTensor in it"
            remedy = "return what the function is registered for"
            raise Error(type(sparsifier).__name__, expected, repr(made), remedy)
        stored = made.stored.detach() if isinstance(made, SparseTensor) else index.pack(matrix)
        ctx.index = index
        return SparseTensor(index, stored, tensor.shape, None if registry is DEFAULT else registry)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.index is not None:
            kept = ctx.index.to_dense(packed(gradient, ctx.index))
        else:
            kept = as_matrix(gradient.to_dense() if is_sparse(gradient) else gradient)
        if ctx.mask is not None:
            kept = kept.masked_fill(~ctx.mask, 0)
        return kept.reshape(gradient.shape), None, None, None, None, None


class Graded(torch.autograd.Function):
    """The tensor itself, whose gradient takes a format."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, into: Format, registry: Registry | None, step: int | None
    ) -> Tensor:
        # A backward pass may run in another thread, where the registry in use is another one.
        ctx.registry = registry_of([tensor]) if registry is None else registry
        ctx.into, ctx.step = into, step
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.into.on(gradient, ctx.registry, step=ctx.step), None, None, None


def _index(sparsifier: Any, matrix: Tensor, mask: Tensor, target: type[Layout]) -> Layout:
    try:
        return target.from_mask(matrix, mask)
    except TypeError as error:
        expected = f"a layout that {type(sparsifier).__name__}'s mask can fill"
        raise Error(_OP, expected, str(error), "register its way with sparsify.register") from error


def _mask(sparsifier: Any, context: Context) -> Tensor:
    """Returns the mask of a sparsifier of elements."""
    if isinstance(sparsifier, ElementSparsifier):
        return sparsifier.select(context)
    remedy = "derive it from sparsify.ElementSparsifier, or register a way with sparsify.register"
    raise Error(_OP, "a sparsifier with a mask or a registered way", repr(sparsifier), remedy)


def _keeps_all(sparsifier: Any) -> bool:
    return bool(getattr(sparsifier, "keeps_all", False))


def _is_same(sparsifier: Any, tensor: Tensor) -> bool:
    return isinstance(sparsifier, SameFormat) and sparsifier.mask is None and is_sparse(tensor)
