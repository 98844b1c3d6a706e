"""The network of `sparseloom experiment vit`: a plain vision transformer for images of 32 x 32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cifar import CLASSES, SIDE


@dataclass(frozen=True)
class Size:
    """Width, number of blocks and of heads, and the side of a patch in pixels."""

    width: int = 192
    depth: int = 9
    heads: int = 3
    patch: int = 4

    @property
    def tokens(self) -> int:
        """Patches of an image."""
        return (SIDE // self.patch) ** 2


TINY = Size()
#: The layers that become sparse, as superblock chooses them: attention's output and both of the MLP.
SPARSE = r"blocks\.\d+\.(proj|fc1|fc2)"


class Block(nn.Module):
    """Attention and an MLP of four times the width, each behind a norm and beside a residual."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [images, tokens, width] to the same shape."""
        images, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(images, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(images, tokens, width)
        x = x + self.proj(mixed)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    """Patches, learned positions that start as sines of their rows and columns, blocks, and the mean of all
    tokens: without a class token an image has 64 of them, a whole tile."""

    def __init__(self, size: Size = TINY) -> None:
        super().__init__()
        self.size = size
        self.embed = nn.Linear(3 * size.patch**2, size.width)
        self.positions = nn.Parameter(_sines(size))
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.depth)))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [images, 3, 32, 32] to logits [images, 10]."""
        side, patch = SIDE // self.size.patch, self.size.patch
        cells = x.reshape(len(x), 3, side, patch, side, patch).permute(0, 2, 4, 1, 3, 5)
        x = self.embed(cells.reshape(len(x), side * side, -1))
        # in the dtype of autocast, which the residuals then have
        x = self.blocks(x + self.positions.to(x.dtype))
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits

    def hidden(self) -> list[Any]:
        """Returns the layers that SPARSE names, as they are now."""
        return [layer for block in self.blocks for layer in (block.proj, block.fc1, block.fc2)]


def _sines(size: Size) -> Tensor:
    """Returns [tokens, width]: a quarter of the width each for sine and cosine of row and column."""
    side = SIDE // size.patch
    places = torch.arange(side).float()
    waves = places[:, None] / 100 ** (torch.arange(size.width // 4) / (size.width // 4))
    one = torch.cat([waves.sin(), waves.cos()], 1)
    rows, columns = one[:, None].expand(-1, side, -1), one[None].expand(side, -1, -1)
    return torch.cat([rows, columns], -1).reshape(size.tokens, -1)
