"""The network of `sparseloom experiment lm`: a byte-level decoder with RoPE, RMSNorm and SwiGLU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .lm_model import BYTES, angles, rotated


class Shape(NamedTuple):
    """The sizes of a network; ``hidden`` is that of the MLP."""

    width: int = 512
    depth: int = 8
    heads: int = 8
    hidden: int = 1408
    context: int = 512


#: The linear layers of a block, by what recipes name them: {part: regex}.
LAYERS = {"mlp": r"blocks\.\d+\.(up|down)", "attention": r"blocks\.\d+\.(qkv|proj)"}
#: The deviation of a weight is this over the root of its stored inputs: .02 of 512, as GPT-2's.
GAIN = 0.02 * 512**0.5


def swiglu(x: Tensor) -> Tensor:
    """Maps gates and values [..., 2 * hidden] to [..., hidden]."""
    gate, value = x.chunk(2, -1)
    return F.silu(gate) * value


class Block(nn.Module):
    """Attention and a SwiGLU MLP, each behind a norm and added; no layer has a bias."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.heads = shape.width, shape.heads
        self.norm1, self.norm2 = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width, False), nn.Linear(width, width, False)
        # gates and values by one product
        self.up = nn.Linear(width, 2 * shape.hidden, False)
        self.down = nn.Linear(shape.hidden, width, False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Maps x [batch, tokens, width] to the same shape; ``cos`` and ``sin`` [tokens, head / 2]."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = (each.transpose(1, 2) for each in qkv.unbind(2))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(heads.transpose(1, 2).flatten(2))
        y: Tensor = x + self.down(swiglu(self.up(self.norm2(x))))
        return y


class Decoder(nn.Module):
    """Predicts the next byte; the embedding is the classifier too."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(BYTES, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm = nn.RMSNorm(shape.width, 1e-6)
        #: The blocks as programs for the shape of a training step; none are compiled by default.
        self.compiled: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = []
        for name, each in zip(("cos", "sin"), angles(shape), strict=True):
            self.register_buffer(name, each, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps bytes [batch, tokens] to logits [batch, tokens, 256]."""
        x = self.embedding(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        programs = self.compiled if self.training else []
        blocks: Iterable[Callable[[Tensor, Tensor, Tensor], Tensor]] = programs or self.blocks
        for block in blocks:
            x = block(x, cos, sin)
        return F.linear(self.norm(x), self.embedding.weight)

    @torch.no_grad()
    def draw(self) -> None:
        """Draws the weights anew, all arms by one rule: normal, with GAIN over the root of the inputs that an
        output has on average; those that are added, over the root of their number too."""
        nn.init.normal_(self.embedding.weight, std=0.02)
        added = (2 * self.shape.depth) ** -0.5
        for block in self.blocks:
            for name in ("qkv", "proj", "up", "down"):
                layer = getattr(block, name)
                values = next(layer.parameters())
                # a mask that moves, or is whole at first, counts as it is now
                inputs = layer.in_features * getattr(layer, "density", 1.0)
                deviation = GAIN / max(1.0, inputs) ** 0.5 * (added if name in ("proj", "down") else 1.0)
                nn.init.normal_(values, std=deviation)
