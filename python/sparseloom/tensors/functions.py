"""sparsified_op: a torch function whose results and gradients become sparse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from .._arguments import named_arguments
from ..errors import Error
from ..layouts.products import watched
from ..ops import registry as _registry
from ..ops.registry import Registry
from ..sparsify import DENSE
from .base import require_registry
from .dispatch import implementation, positional
from .sparse_tensor import SparseTensor
from .sparsifying import Format, Graded, sparsified

_OP = "sparsified_op"


class SparsifiedOp:
    """The function that ``sparsified_op`` returns."""

    def __init__(
        self,
        op: Callable[..., Any],
        out: tuple[Format, ...],
        grad: tuple[Format, ...],
        registry: Registry | None,
        strict: bool,
    ) -> None:
        self.op, self.out, self.grad, self.registry, self.strict = op, out, grad, registry, strict
        self.step = 0
        self.__name__ = f"sparsified_{_registry.name_of(op)}"

    def __repr__(self) -> str:
        return f"<sparsified {_registry.name_of(self.op)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _registry.strict() if self.strict else nullcontext():
            results = self._results(args, kwargs)
            single = not isinstance(results, (tuple, list))
            tensors = (results,) if single else tuple(results)
            if len(tensors) != len(self.out) or not all(isinstance(tensor, Tensor) for tensor in tensors):
                got = f"{len(tensors)} results of {_registry.name_of(self.op)}"
                got += "".join(
                    f", a {type(tensor).__name__}" for tensor in tensors if not isinstance(tensor, Tensor)
                )
                raise Error(
                    _OP, f"{len(self.out)} tensors, one for each out_fmt", got, "pass a format for each"
                )
            step = None
            if not torch.compiler.is_compiling():  # the number would be a constant of compiled code
                step, self.step = self.step, self.step + 1
            formed = [
                formatted(tensor, out, grad, self.registry, step)
                for tensor, out, grad in zip(tensors, self.out, self.grad, strict=True)
            ]
        return formed[0] if single else type(results)(formed)

    def _results(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outputs = [(type(out.inline), out.temporary) for out in self.out]
        chosen = implementation(self.op, args, kwargs, outputs, self.registry)
        if chosen is None:
            with nullcontext() if self.registry is None else self.registry.active():
                return self.op(*args, **kwargs)
        arguments = positional(chosen, args, kwargs)
        if not chosen.sparsifies:
            return chosen.run.apply(*arguments)
        return chosen.run.apply(*arguments, tuple(out.inline for out in self.out))


@named_arguments
def sparsified_op(
    op: Callable[..., Any],
    out_fmt: Sequence[Any],
    grad_out_fmt: Sequence[Any] | None = None,
    *,
    registry: Registry | None = None,
    strict: bool = False,
) -> SparsifiedOp:
    """Returns a function that calls ``op`` and makes its results sparse, and the gradients of these.

    Args:
        op: any torch function that returns a tensor or a tuple of tensors.
        out_fmt: for each result (inline sparsifier, temporary format, external sparsifier, final format);
            formats are layouts, as classes or names. Where an implementation is registered for the operator,
            its inputs and (inline sparsifier, temporary format), it computes the two in one.
        grad_out_fmt: the same for the gradient of each result, before it enters the operator's backward;
            ``sparsify.DENSE``, the default, leaves it as it is.
        registry: where implementations are looked up; None stands for the one in use at each call.
        strict: raises Error where an implementation is missing, instead of computing densely.

    Elements that a sparsifier removes have derivative zero. Raises Error for anything that is not a format.
    """
    if not callable(op):
        raise Error(_OP, "a torch function", repr(op), "pass torch.add, for example")
    require_registry(_OP, registry)
    for argument, formats in (
        ("out_fmt", out_fmt),
        ("grad_out_fmt", [] if grad_out_fmt is None else grad_out_fmt),
    ):
        if not isinstance(formats, (tuple, list)):
            raise Error(
                _OP, f"a list as {argument}", repr(formats), "pass one format of four for each result"
            )
    out = tuple(Format.of(spec) for spec in out_fmt)
    grad = tuple(Format.of(spec) for spec in ([DENSE] * len(out) if grad_out_fmt is None else grad_out_fmt))
    if len(grad) != len(out):
        got = f"{len(grad)} for {len(out)} results"
        raise Error(_OP, "a gradient's format for each result", got, "pass sparsify.DENSE for a dense one")
    return SparsifiedOp(op, out, grad, registry, strict)


def formatted(
    tensor: Tensor, out: Format, grad: Format, registry: Registry | None, step: int | None
) -> Tensor:
    """Returns a result in the format ``out``; its gradient takes the format ``grad``. Raises Error under
    torch.func and torch.jit.trace, which cannot differentiate or record a sparsifier."""
    gradient = not grad.is_dense and torch.is_grad_enabled()
    if not torch.compiler.is_compiling() and watched() and (gradient or not out.is_dense):
        remedy = "call backward() there, and torch.export.export(strict=False) for files"
        raise Error(_OP, "a call outside of torch.func and torch.jit", "a sparse result or gradient", remedy)
    if not grad.is_dense and tensor.requires_grad:
        tensor = Graded.apply(tensor, grad, registry, step)
    if isinstance(tensor, SparseTensor) and tensor.format is out.temporary:  # the inline sparsifier has run
        return sparsified(tensor, out.external, out.final, registry, step=step)
    return out.on(tensor, registry, step=step)
