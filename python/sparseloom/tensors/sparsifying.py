"""sparsified: applies a sparsifier to a tensor and converts its format, with the gradient of kept
elements."""

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
#: Packages whose classes are never sparsifiers.
_NO_SPARSIFIERS = {"builtins", "numpy", "torch"}


class Format(NamedTuple):
    """How a result or a gradient becomes sparse: the inline sparsifier, which is part of its computation,
    makes the temporary format; the external one, which sees the whole tensor, makes the final format."""

    inline: Any
    temporary: type[Layout]
    external: Any
    final: type[Layout]

    @classmethod
    def of(cls, given: Sequence[Any]) -> Format:
        """Returns the Format of a list of four, with layouts by name or class. Raises Error for others."""
        if not isinstance(given, (tuple, list)) or len(given) != 4:
            remedy = "(KeepAll(), Dense, ScalarFraction(.9), Csr), or sparsify.DENSE"
            raise Error(_OP, "inline sparsifier, format, external sparsifier, format", repr(given), remedy)
        for sparsifier in (given[0], given[2]):
            require_sparsifier(_OP, sparsifier)
        return cls(given[0], layout_of(given[1]), given[2], layout_of(given[3]))

    @property
    def is_dense(self) -> bool:
        """Whether it leaves a dense tensor unchanged."""
        return (
            all(_keeps_all(sparsifier) for sparsifier in (self.inline, self.external)) and self.final is Dense
        )

    def on(self, tensor: Tensor, registry: Registry | None, **context: Any) -> Tensor:
        """Returns the tensor in the final format; ``context`` are further arguments of the Context."""
        inline = sparsified(tensor, self.inline, self.temporary, registry, **context)
        return sparsified(inline, self.external, self.final, registry, **context)


def require_sparsifier(op: str, given: Any) -> None:
    """Raises Error for what cannot be a sparsifier: a class without its arguments, a layout, or an object of
    one of Python's or torch's own classes. Any other class may still be registered before its first use."""
    foreign = type(given).__module__.partition(".")[0] in _NO_SPARSIFIERS
    if isinstance(given, type) or foreign or callable(getattr(given, "from_dense", None)):
        expected = "a sparsifier with its arguments"
        raise Error(op, expected, repr(given), "pass KeepAll() or ScalarFraction(.9), for example")


def sparsified(
    tensor: Tensor, sparsifier: Any, target: type[Layout], registry: Registry | None = None, **known: Any
) -> Tensor:
    """Returns the elements that a sparsifier keeps, in the format ``target``: a SparseTensor, or a plain
    tensor for Dense.

    The function registered for the sparsifier, the tensor's format and the target is called
    (``sparsify.register``); without one, the sparsifier's mask decides. Kept elements have derivative one,
    removed ones zero. ``known`` are further arguments of the Context. Raises Error if there is neither a
    function nor a mask, and if the target cannot store the kept elements.
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
            result = function(sparsifier, context)
        else:
            mask = _mask(sparsifier, context)
            values = matrix.masked_fill(~mask, 0)
            if target is Dense:
                ctx.mask = mask
                return values.view(tensor.shape)
            index = _index(sparsifier, matrix, mask, target)
            result = SparseTensor(index, index.pack(values))
            ctx.mask = None if target.exact else mask
        if target is Dense and type(result) is Tensor:
            ctx.mask = as_matrix(result) != 0
            return result.reshape(tensor.shape).clone()
        index = result.layout_index if isinstance(result, SparseTensor) else result
        if not isinstance(index, target) or (index.rows, index.cols) != tuple(matrix.shape):
            expected = f"{target.__name__} of {list(matrix.shape)}, or a SparseTensor in it"
            remedy = "return what the function is registered for"
            raise Error(type(sparsifier).__name__, expected, repr(result), remedy)
        stored = result.stored.detach() if isinstance(result, SparseTensor) else index.pack(matrix)
        ctx.index = index
        return SparseTensor(index, stored, tensor.shape, None if registry is DEFAULT else registry)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.index is not None:
            gradient_kept = ctx.index.to_dense(packed(gradient, ctx.index))
        else:
            gradient_kept = as_matrix(gradient.to_dense() if is_sparse(gradient) else gradient)
        if ctx.mask is not None:
            gradient_kept = gradient_kept.masked_fill(~ctx.mask, 0)
        return gradient_kept.reshape(gradient.shape), None, None, None, None, None


class Graded(torch.autograd.Function):
    """The identity; the gradient is converted to a format."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, into: Format, registry: Registry | None, step: int | None
    ) -> Tensor:
        # A backward pass may run in another thread, with another registry in use.
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
