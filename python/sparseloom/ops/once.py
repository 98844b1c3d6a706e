"""Backward passes that have no derivative of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import Error
from .transforms import gradient_batched


class _Refused(torch.autograd.Function):
    """Returns gradients as outputs that depend on their sources; their derivative raises Error."""

    @staticmethod
    def forward(ctx: Any, op: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.op = op
        # detached, because zero_grad could not detach views
        return tuple(tensor.detach() for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        remedy = "multiply with the dense twin (to_dense) where a gradient is differentiated again"
        raise Error(
            ctx.op, "a gradient that nobody needs to differentiate twice", "a second backward", remedy
        )


def differentiable_once(op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a Function's backward: its results raise an Error that names ``op`` when they are
    differentiated a second time, and so do batched gradients that it cannot compute.

    torch's own once_differentiable lets a second differentiation pass if the incoming gradient needs none, as
    that of a sum, or if torch.autograd.grad is called for Parameters only: parts of the result would then be
    missing without an error.
    """

    def wrap(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def refusing(ctx: Any, *gradients: Any) -> Any:
            return once(op, backward, ctx, *gradients)

        return refusing

    return wrap


def once(op: str, backward: Callable[..., Any], ctx: Any, *gradients: Any) -> Any:
    """Calls a Function's ``backward``; its results raise Error when they are differentiated again: see
    ``differentiable_once``."""
    if torch.compiler.is_compiling():
        return backward(ctx, *gradients)
    try:
        with torch.no_grad():
            result = backward(ctx, *gradients)
    except RuntimeError as error:
        incoming = [tensor for tensor in gradients if isinstance(tensor, Tensor)]
        if isinstance(error, Error) or not any(gradient_batched(tensor) for tensor in incoming):
            raise
        remedy = "call torch.autograd.grad for each gradient"
        raise Error(op, "one gradient at a time", "is_grads_batched=True", remedy) from error
    if not torch.is_grad_enabled():
        return result
    incoming = [tensor for tensor in gradients if isinstance(tensor, Tensor)]
    grads = result if isinstance(result, tuple) else (result,)
    outputs = [tensor for tensor in grads if isinstance(tensor, Tensor)]
    sources = [tensor for tensor in (*incoming, *_saved(ctx)) if tensor.requires_grad]
    dummy = torch.zeros((), requires_grad=True)  # so that results without other sources refuse, too
    refusing = iter(_Refused.apply(op, len(outputs), *outputs, *sources, dummy))
    grads = tuple(next(refusing) if isinstance(tensor, Tensor) else tensor for tensor in grads)
    return grads if isinstance(result, tuple) else grads[0]


def _saved(ctx: Any) -> list[Tensor]:
    try:
        return [tensor for tensor in ctx.saved_tensors if isinstance(tensor, Tensor)]
    except RuntimeError:  # under torch.utils.checkpoint they can be read only once
        return []
