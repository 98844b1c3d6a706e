"""The gradient of the operator block_attention: registered with torch for compiled code and for whoever calls
the operator, and inside an autograd Function for eager calls, to which the registered one adds some 50 us."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..._home import NAMESPACE
from .. import operators
from ..once import differentiable_once
from ..verbs import Map, mapped
from .product import ATTENTION, BACKWARD, Call, transpose


def attend(q: Tensor, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor]:
    """Returns out and lse, differentiable once in q, k and v."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        out, lse = operators.run(ATTENTION, q, k, v, *call)
        return out, lse
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        out, lse = mapped(q, _Attention(call), k, v)
        return out, lse
    return _below_autograd(q, k, v, call)


def _below_autograd(q: Tensor, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor]:
    with torch._C._AutoDispatchBelowAutograd():
        out, lse = operators.run(ATTENTION, q, k, v, *call)
    return out, lse


class _Attention(Map):
    """An attention as autograd calls it."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def run(self, ctx: Any, q: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        k, v = others
        output = _below_autograd(q, k, v, self.call)
        _save(ctx, (q, k, v, *self.call), output)
        ctx.places = 0, 2, 3  # of q, k and v among the Function's inputs
        return output

    def gradients(self, ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        dq, dk, dv = _gradients(ctx, *gradients)
        return dq, dk, dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *rest = inputs
    call = Call(*rest)
    ctx.set_materialize_grads(False)  # so that a gradient of lse is None where nobody used lse
    lists = call.counts, call.indices, call.key_counts, call.key_indices
    tokens = call.q_starts, call.kv_starts, call.q_documents, call.kv_documents
    ctx.save_for_backward(q, k, v, *output, *lists, *tokens)
    ctx.options = call.q_block, call.kv_block, call.causal, call.scale
    ctx.longest, ctx.places = (call.max_q, call.max_kv), (0, 1, 2)
    ctx.choice = call.row, call.strict


@differentiable_once("attention")
def _gradients(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, counts, indices, key_counts, key_indices, *tokens = ctx.saved_tensors
    (q_starts, kv_starts, *documents), (max_q, max_kv) = tokens, ctx.longest
    if dout is None and dlse is None:
        return None, None, None
    if key_counts is None:
        keys = max_kv if q_starts is not None else k.shape[2]
        key_counts, key_indices = transpose(counts, indices, -(-keys // ctx.options[1]))
    dout = torch.zeros_like(out) if dout is None else dout
    dlse = None if dlse is None else dlse.contiguous()
    gradients = operators.run(
        BACKWARD, dout, dlse, q, k, v, out, lse, counts, indices, key_counts, key_indices, *ctx.options,
        q_starts, kv_starts, max_q, max_kv, *documents, *ctx.choice,
    )  # fmt: skip
    needed = zip(gradients, ctx.places, strict=True)
    return tuple(gradient if ctx.needs_input_grad[place] else None for gradient, place in needed)


def _registered(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    return *_gradients(ctx, *gradients), *(None for _ in Call._fields)


torch.library.register_autograd(f"{NAMESPACE}::block_attention", _registered, setup_context=_save)
