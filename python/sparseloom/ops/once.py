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
    """Gives gradients on, as results of what they were computed of; their derivative is an Error."""

    @staticmethod
    def forward(ctx: Any, op: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.op = op
        return tuple(each.detach() for each in tensors[:count])  # not views, which zero_grad could not detach

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        remedy = "multiply with the dense twin (to_dense) where a gradient is differentiated again"
        raise Error(
            ctx.op, "a gradient that nobody needs to differentiate twice", "a second backward", remedy
        )


def differentiable_once(op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a Function's backward one whose results refuse a second differentiation with an Error that names
    ``op``; so do batched gradients where it cannot compute them.

    torch's own once_differentiable lets a second one pass where the incoming gradient needs none, as that of
    a sum: what it lacked was missing without a word, and so it was where torch.autograd.grad was asked for
    the gradients of Parameters alone.
    """

    def wrap(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def refusing(ctx: Any, *gradients: Any) -> Any:
            return once(op, backward, ctx, *gradients)

        return refusing

    return wrap


def once(op: str, backward: Callable[..., Any], ctx: Any, *gradients: Any) -> Any:
    """Returns what a Function's ``backward`` returns for these gradients, as results that refuse a second
    differentiation: see ``differentiable_once``."""
    if torch.compiler.is_compiling():
        return backward(ctx, *gradients)
    try:
        with torch.no_grad():
            found = backward(ctx, *gradients)
    except RuntimeError as error:
        given = [each for each in gradients if isinstance(each, Tensor)]
        if isinstance(error, Error) or not any(gradient_batched(each) for each in given):
            raise
        remedy = "call torch.autograd.grad for each gradient"
        raise Error(op, "one gradient at a time", "is_grads_batched=True", remedy) from error
    if not torch.is_grad_enabled():
        return found
    given = [each for each in gradients if isinstance(each, Tensor)]
    made = found if isinstance(found, tuple) else (found,)
    outputs = [each for each in made if isinstance(each, Tensor)]
    known = [each for each in (*given, *_saved(ctx)) if each.requires_grad]
    some = torch.zeros((), requires_grad=True)  # what depends on nothing else refuses, too
    refusing = iter(_Refused.apply(op, len(outputs), *outputs, *known, some))
    made = tuple(next(refusing) if isinstance(each, Tensor) else each for each in made)
    return made if isinstance(found, tuple) else made[0]


def _saved(ctx: Any) -> list[Tensor]:
    try:
        return [each for each in ctx.saved_tensors if isinstance(each, Tensor)]
    except RuntimeError:  # a checkpoint gives them once
        return []
