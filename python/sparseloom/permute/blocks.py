"""Searches for the order of channels with which block pruning by magnitude keeps most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..pattern import block_count

#: Rows of the matrix of gains at once: all of them would take gigabytes for 16,384 channels.
_ROWS = 1024
#: What a swap has to gain, of what a channel keeps on average: less is lost in rounding.
LEAST = 1e-4


class Part(NamedTuple):
    """A weight along whose one axis channels move: ``sums`` [lines, channels] of |w| over the blocks of the
    other axis, the side of its blocks along the channels, and how many blocks it keeps."""

    sums: Tensor
    side: int
    keep: int

    @staticmethod
    def of(copies: Tensor, block: tuple[int, int], density: float) -> Part:
        """Returns that of a weight [copies, features of the other axis, channels], which reads each channel
        ``copies`` times; ``block`` is (features of the other axis, channels)."""
        count, others, channels = copies.shape
        keep = block_count("permute_channels_", count * others, channels, block, density)
        return Part(_lines(copies.abs().float().cpu(), block[0]).flatten(0, 1), block[1], keep)

    def blocks(self, order: Tensor) -> Tensor:
        """Returns the sums [lines, blocks] of |w| in each block, for channels in an order."""
        return _lines(self.sums[:, order].t()[None], self.side)[0].t()

    def kept(self, order: Tensor) -> float:
        """Returns the sum of |w| that the best blocks have."""
        return float(self.blocks(order).double().flatten().topk(self.keep).values.sum())


def _lines(values: Tensor, side: int) -> Tensor:
    """Sums [n, rows, columns] over each ``side`` rows."""
    count, rows, cols = values.shape
    padded = torch.zeros(count, -(-rows // side) * side, cols, dtype=torch.float32, device="cpu")
    padded[:, :rows] = values
    return padded.view(count, -1, side, cols).sum(2)


def block_order(parts: Sequence[Part], heads: int, rounds: int, tell: Callable[[str], None]) -> Tensor:
    """Returns an order of the channels of each head with which the parts together keep more, int64 [heads,
    channels of a head], counted from the head's first.

    Each round chooses the best blocks, then swaps pairs of channels that gain with these; both never lose.
    0 rounds go on until no swap gains.
    """
    channels = parts[0].sums.shape[1]
    order = torch.arange(channels, device="cpu")
    head = order // (channels // heads)
    done = 0
    while channels and (not rounds or done < rounds):
        shares = [_shares(part, order) for part in parts]
        gain, partner = _best_swaps(shares, [part.side for part in parts], head)
        swaps = _apart(gain, partner, LEAST * sum(part.kept(order) for part in parts) / channels)
        done += 1
        tell(f"round {done}, {len(swaps)} swaps")
        if not swaps:
            break
        first, second = (torch.tensor(each, device="cpu") for each in zip(*swaps, strict=True))
        order[first], order[second] = order[second], order[first]
    size = channels // heads
    return order.view(heads, size) - torch.arange(heads, device="cpu")[:, None] * size


def _shares(part: Part, order: Tensor) -> Tensor:
    """Returns what the channel at each place has in the kept blocks of each group of places: float32
    [places, groups]."""
    blocks = part.blocks(order)
    mask = torch.zeros(blocks.numel(), dtype=torch.float32, device="cpu")
    mask[blocks.flatten().topk(part.keep).indices] = 1
    return part.sums[:, order].t() @ mask.view_as(blocks)


def _best_swaps(shares: list[Tensor], sides: list[int], head: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the largest gain of a swap of each place with another one of its head, and that one."""
    places = torch.arange(len(head), device="cpu")
    groups = [places // side for side in sides]
    own = sum(each[places, group] for each, group in zip(shares, groups, strict=True))
    assert isinstance(own, Tensor)
    gains, partners = [], []
    for some in places.split(_ROWS):
        gain = -own[some][:, None] - own[None]
        for each, group in zip(shares, groups, strict=True):
            gain += each[some][:, group]  # a channel of `some` at every other place
            gain += each[:, group[some]].t()  # and the one there at its place
        alike = (head[some][:, None] != head[None]) | (groups[0][some][:, None] == groups[0][None])
        gain.masked_fill_(alike, 0.0)
        best = gain.max(1)
        gains.append(best.values)
        partners.append(best.indices)
    return torch.cat(gains), torch.cat(partners)


def _apart(gain: Tensor, partner: Tensor, least: float) -> list[tuple[int, int]]:
    """Returns swaps that gain more than ``least`` and share no place, the best first: each changes what the
    two of it have alone, so that gains add up."""
    taken: set[int] = set()
    swaps = []
    gains, partners = gain.tolist(), partner.tolist()
    for place in gain.argsort(descending=True).tolist():
        if gains[place] <= least:
            break
        if place not in taken and partners[place] not in taken:
            taken |= {place, partners[place]}
            swaps.append((place, partners[place]))
    return swaps
