"""The gradient of the operator block_attention, registered with torch.

Other products are called inside an autograd.Function, because an autograd kernel costs every eager call
several microseconds (ops/operators.py). An attention takes a hundred times as long, and an operator with a
gradient of its own is what selective checkpoints name and what a graph keeps whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import operators
from ..once import differentiable_once
from .product import BACKWARD, Call, transpose


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *rest = inputs
    call = Call(*rest)
    ctx.set_materialize_grads(False)  # so that a gradient of lse is None where nobody used lse
    lists = call.counts, call.indices, call.key_counts, call.key_indices
    tokens = call.q_starts, call.kv_starts, call.q_documents, call.kv_documents
    ctx.save_for_backward(q, k, v, *output, *lists, *tokens)
    ctx.options = call.q_block, call.kv_block, call.causal, call.scale
    ctx.longest, ctx.strict = (call.max_q, call.max_kv), call.strict


@differentiable_once("attention")
def _gradients(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, counts, indices, key_counts, key_indices, *tokens = ctx.saved_tensors
    (q_starts, kv_starts, *documents), (max_q, max_kv) = tokens, ctx.longest
    nothing = (None,) * (len(Call._fields))
    if dout is None and dlse is None:
        return None, None, None, *nothing
    if key_counts is None:
        keys = max_kv if q_starts is not None else k.shape[2]
        key_counts, key_indices = transpose(counts, indices, -(-keys // ctx.options[1]))
    dout = torch.zeros_like(out) if dout is None else dout
    dlse = None if dlse is None else dlse.contiguous()
    gradients = operators.run(
        BACKWARD, dout, dlse, q, k, v, out, lse, counts, indices, key_counts, key_indices, *ctx.options,
        q_starts, kv_starts, max_q, max_kv, *documents, torch.are_deterministic_algorithms_enabled(),
        operators.PLAN_CHOOSES, ctx.strict,
    )  # fmt: skip
    needed = zip(gradients, ctx.needs_input_grad[:3], strict=True)
    return *(gradient if need else None for gradient, need in needed), *nothing


torch.library.register_autograd("sparseloom::block_attention", _gradients, setup_context=_save)
