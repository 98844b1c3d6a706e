"""The model that is measured: blocks of a Llama without its rotary embedding, whose MLPs are sparse."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparseloom.patch import BlockSparse, sparsify_


@dataclass(frozen=True)
class Sizes:
    """The sizes of a stack, and the tokens that each GPU has.

    Args:
        width: features between blocks, a multiple of 4 * head.
        hidden: features inside the MLPs.
        layers: the number of blocks.
        samples: sequences of a batch.
        tokens: tokens of a sequence.
        block: the side of the sparse weights' blocks.
        density: the share of the blocks that exist.
        head: features of an attention head; four query heads share keys and values.
    """

    width: int = 4096
    hidden: int = 14336
    layers: int = 4
    samples: int = 4
    tokens: int = 2048
    block: int = 64
    density: float = 0.2
    head: int = 128

    @property
    def batch(self) -> int:
        """The tokens of a batch."""
        return self.samples * self.tokens


class Mlp(nn.Module):
    """A gated MLP without biases."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.down_proj = nn.Linear(sizes.hidden, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [..., width] to the same."""
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class Block(nn.Module):
    """Causal attention with grouped queries, and an MLP, each after a norm and beside a residual path."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, self.head = sizes.width, sizes.head
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(width, width // 4, bias=False) for _ in range(2))
        self.mlp = Mlp(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [samples, tokens, width] to the same."""
        normed = self.attention_norm(x)
        q, k, v = (
            layer(normed).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(mixed.transpose(1, 2).flatten(-2))
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y


class Stack(nn.Module):
    """Blocks one after the other."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [samples, tokens, width] to the same."""
        for block in self.blocks:
            x = block(x)
        return x


def made(
    sizes: Sizes, device: torch.device, dtype: torch.dtype, sparse: bool, mlp: bool = False
) -> nn.Module:
    """Returns a stack, or one MLP, with the same weights on all ranks; the MLPs are sparse or dense."""
    torch.manual_seed(0)
    with device:
        model = Mlp(sizes) if mlp else Stack(sizes)
    model = model.to(dtype)
    if sparse:
        pattern = BlockSparse(sizes.block, sizes.density, "random", seed=0)
        sparsify_(model, {r"(.*\.)?(gate|up|down)_proj": pattern})
    return model
