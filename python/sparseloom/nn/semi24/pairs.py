"""Which two of each four features stay: the largest, or two drawn by a counter-based generator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...ops import semi24

#: The six pairs of four, four bits each, the first one lowest: 0b0011 keeps the first two. A number, because
#: a table would be copied to the device in each call, for which the host waits.
_PAIRS = 0b1100_1010_0110_1001_0101_0011
_LOW = 0xFFFFFFFF


def largest(h: Tensor, prune: str = "magnitude") -> Tensor:
    """Returns which elements of h [..., features] stay, bool: in each four consecutive features of a token
    the two of the largest magnitude; with a transposable ``prune`` at most two in each four tokens too."""
    return semi24.mask(h.detach().reshape(-1, h.shape[-1]).contiguous(), prune).view(h.shape)


def overflow(h: Tensor, kept: Tensor, count: int) -> Tensor:
    """Returns the features int64 [4 * count] of the ``count`` groups that would lose most magnitude, summed
    over tokens; features beyond the last stand for a ragged group's padding, and are clamped to it."""
    features = h.shape[-1]
    lost = h.detach().abs().masked_fill(kept, 0).reshape(-1, features).sum(0, dtype=torch.float32)
    groups = F.pad(lost, (0, -features % 4)).unflatten(0, (-1, 4)).sum(1).topk(count).indices
    places = groups[:, None] * 4 + torch.arange(4, device=h.device)
    return places.flatten().clamp(max=max(0, features - 1))


def seed(device: torch.device) -> Tensor:
    """Draws a seed int64 [] from the device's default generator. Checkpoints restore its state, and CUDA
    graphs advance it, so that a recomputed call draws the same pairs and a replayed one others."""
    return torch.randint(0, 2**31, (), dtype=torch.int64, device=device)


def drawn(shape: torch.Size, seed: Tensor) -> Tensor:
    """Returns a bool mask of that shape with two of each four consecutive features, each of the six pairs
    equally likely and a function of the seed and the group's number alone."""
    features = shape[-1]
    count = shape.numel() // max(1, features) * (-(-features // 4))
    word = torch.arange(count, dtype=torch.int64, device=seed.device)
    word = (word ^ (word >> 32) * 0x632BE5AB) & _LOW
    for factor in (0x7FEB352D, 0x846CA68B):  # two rounds of 32 bits, the seed between and after them
        word = ((word + seed) & _LOW) ^ (word >> 16)
        word = _product(word ^ (word >> 15), factor)
    word = word ^ (word >> 16)
    pair = torch.full_like(word, _PAIRS) >> 4 * ((word * 6) >> 32)
    bits = (pair[:, None] >> torch.arange(4, device=seed.device)) & 1
    return bits.bool().view(*shape[:-1], -1)[..., :features]


def _product(word: Tensor, factor: int) -> Tensor:
    """Returns word * factor modulo 2^32 of numbers below 2^32, without leaving int64."""
    low = (word & 0xFFFF) * factor
    high = ((word >> 16) * (factor & 0xFFFF)) << 16
    return (low + high) & _LOW
