"""Others' attention over kept blocks, on the operands of a cell of the group `attention`: torch's
flex_attention, cudnn-frontend's block-sparse attention and FlashInfer's, where they are installed.

Each maker returns the calls that are timed, or raises what says why the peer cannot take part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

if TYPE_CHECKING:
    from .attention_group import Operands

#: Bytes of FlashInfer's workspace, as its documentation advises.
FLASHINFER_WORKSPACE = 128 << 20


class Peer(NamedTuple):
    """``forward()`` returns out [1, heads, tokens, head_dim]. ``step(dout)`` runs the forward and the
    backward pass and returns dq; None where the peer has no backward pass."""

    forward: Callable[[], Tensor]
    step: Callable[[Tensor], Tensor] | None


def flex(operands: Operands) -> Peer:
    """Returns torch's flex_attention, compiled, on the same lists as whole blocks."""
    pattern = operands.pattern
    nothing = torch.zeros_like(pattern.counts), torch.zeros_like(pattern.indices)
    mask = BlockMask.from_kv_blocks(
        *nothing, pattern.counts, pattern.indices, BLOCK_SIZE=operands.cell.block,
        seq_lengths=(operands.cell.tokens, operands.cell.tokens),
    )  # fmt: skip
    compiled = torch.compile(flex_attention, fullgraph=True)
    q, k, v = operands.inputs

    def forward() -> Tensor:
        out: Tensor = compiled(q, k, v, block_mask=mask)
        return out

    return Peer(forward, lambda dout: torch.autograd.grad(forward(), operands.inputs, dout)[0])


def cudnn(operands: Operands) -> Peer:
    """Returns cudnn-frontend's block-sparse attention (CuTe DSL, sm90), forward and backward."""
    from cudnn.block_sparse_attention import api

    q, k, v = (x.detach() for x in operands.inputs)
    lists = {
        "q2k_block_index": operands.pattern.indices.expand(1, q.shape[1], -1, -1).contiguous(),
        "q2k_block_nums": operands.pattern.counts.expand(1, q.shape[1], -1).contiguous(),
        "sparse_block_size": operands.cell.block,
    }

    def forward() -> Tensor:
        out: Tensor = api.block_sparse_attention_forward(q, k, v, **lists)["o_tensor"]
        return out

    def step(dout: Tensor) -> Tensor:
        made = api.block_sparse_attention_forward(q, k, v, **lists)
        gradients = api.block_sparse_attention_backward(
            dout, q, k, v, made["o_tensor"], made["lse_tensor"], **lists
        )
        dq: Tensor = gradients["dq_tensor"]
        return dq

    return Peer(forward, step)


def flashinfer(operands: Operands, backend: str) -> Peer:
    """Returns FlashInfer's block-sparse attention with a map for each head; it has no backward pass.

    ``backend``: "fa3" or "cake" (its kernel for Hopper: blocks of 64, 64 kept in a row at most).
    """
    from flashinfer.sparse import VariableBlockSparseAttentionWrapper

    q, k, v = (x.detach()[0] for x in operands.inputs)
    kept, block = operands.kept[0], operands.cell.block
    wrapper = VariableBlockSparseAttentionWrapper(
        torch.empty(FLASHINFER_WORKSPACE, dtype=torch.uint8, device=q.device), backend=backend
    )
    rows, columns = (
        torch.full((kept.shape[0], blocks), block, dtype=torch.int32, device=q.device)
        for blocks in kept.shape[1:]
    )
    wrapper.plan(
        kept, rows, columns, q.shape[0], k.shape[0], q.shape[-1], q_data_type=q.dtype, kv_data_type=q.dtype
    )

    rows_alone = torch.empty(q.shape[0] * q.shape[1], 1, q.shape[-1], dtype=q.dtype, device=q.device)

    def forward() -> Tensor:
        wrapper.run(q, k, v, out=rows_alone)  # "cake" allocates nothing under capture
        return rows_alone.view(operands.inputs[0].shape)

    return Peer(forward, None)


PEERS: dict[str, Callable[[Any], Peer]] = {
    "flex": flex,
    "cudnn": cudnn,
    "flashinfer_fa3": lambda operands: flashinfer(operands, "fa3"),
    "flashinfer_cake": lambda operands: flashinfer(operands, "cake"),
}
