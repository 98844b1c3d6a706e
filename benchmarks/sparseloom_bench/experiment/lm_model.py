"""A byte-level GPT: pre-norm blocks with rotary positions and a GELU MLP, some 25 million parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BYTES = 256


class Size(NamedTuple):
    """The sizes of a model. The default has 25.4 million parameters."""

    width: int = 512
    depth: int = 8
    heads: int = 8
    context: int = 512


class Block(nn.Module):
    """One block: attention and an MLP of four times the width, each behind a norm and added."""

    #: What stands in the place of ``up``, the activation and ``down``.
    feed_forward: nn.Module | None

    def __init__(self, size: Size, dropout: float, activation: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        self.activation = None if activation is None else activation()  # None is GELU
        self.feed_forward = None
        width = size.width
        self.heads, self.dropout = size.heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Maps x [batch, tokens, width] to the same shape; ``cos`` and ``sin`` [tokens, head / 2]."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = (each.transpose(1, 2) for each in qkv.unbind(2))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self._dropped(self.proj(heads.transpose(1, 2).flatten(2)))
        return x + self._dropped(self._hidden(self.norm2(x)))

    def _hidden(self, x: Tensor) -> Tensor:
        if self.feed_forward is not None:
            y: Tensor = self.feed_forward(x)
            return y
        h = self.up(x)
        return self.down(F.gelu(h) if self.activation is None else self.activation(h))  # type: ignore[no-any-return]

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pairs of features by their positions (Su et al. 2021)."""
    first, second = x.chunk(2, -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class _Sizes(Protocol):
    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def context(self) -> int: ...


def angles(size: _Sizes) -> tuple[Tensor, Tensor]:
    """Returns what ``rotated`` multiplies with: cosines and sines [context, head / 2]."""
    half = size.width // size.heads // 2
    found = torch.outer(torch.arange(size.context), 10000.0 ** (-torch.arange(half) / half))
    return found.cos(), found.sin()


class Gpt(nn.Module):
    """Predicts the next byte; the embedding is the classifier too."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self, size: Size, dropout: float = 0.1, activation: Callable[[], nn.Module] | None = None
    ) -> None:
        super().__init__()
        self.size = size
        self.embedding = nn.Embedding(BYTES, size.width)
        blocks = [Block(size, dropout, activation) for _ in range(size.depth)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(size.width)
        for name, each in zip(("cos", "sin"), angles(size), strict=True):
            self.register_buffer(name, each, persistent=False)
        self.apply(_drawn)
        for block in blocks:
            for layer in (block.proj, block.down):
                nn.init.normal_(layer.weight, std=0.02 / (2 * size.depth) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps bytes [batch, tokens] to logits [batch, tokens, 256]."""
        x = self.embedding(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.linear(self.norm(x), self.embedding.weight)


def _drawn(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
