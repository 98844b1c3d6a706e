"""Patterns of attention: which blocks of keys each block of queries meets. Numbers are tokens unless an
argument says otherwise, and a block is kept if any of its pairs is. ``|`` joins two patterns.

Each has ``kv_tokens``, as many as queries if None, ``block``, 64, 128 or a pair, and ``causal``, which leaves
out the blocks beyond the diagonal and makes calls causal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import pattern as weight_patterns
from .._arguments import named_arguments
from .._checks import whole
from ..errors import Error
from ..pattern import Block, block_shape
from . import lists
from .pattern import AttentionPattern


@named_arguments
def full(
    tokens: int, *, kv_tokens: int | None = None, block: Block = 128, causal: bool = False
) -> AttentionPattern:
    """Takes all blocks."""
    grid = _Grid(tokens, kv_tokens, block)
    return grid.pattern(torch.ones(grid.blocks, dtype=torch.bool), causal)


@named_arguments
def sliding_window(
    tokens: int, window: int, *, kv_tokens: int | None = None, block: Block = 128, causal: bool = False
) -> AttentionPattern:
    """Takes the blocks with keys at most ``window`` before, or after, some query."""
    grid = _Grid(tokens, kv_tokens, block)
    return grid.pattern(grid.distance() <= whole("attention", "window", window), causal)


@named_arguments
def dilated(
    tokens: int, window: int, dilation: int, *, kv_tokens: int | None = None, block: Block = 128,
    causal: bool = False,
) -> AttentionPattern:  # fmt: skip
    """Takes a sliding window of blocks with gaps (Beltagy et al. 2020): of the blocks within ``window``, each
    ``dilation``-th, counted in blocks from the query's own."""
    grid = _Grid(tokens, kv_tokens, block)
    steps = (grid.own()[:, None] - grid.columns[None]).abs()
    near = grid.distance() <= whole("attention", "window", window)
    return grid.pattern(near & (steps % whole("attention", "dilation", dilation, 1) == 0), causal)


@named_arguments
def global_tokens(
    tokens: int, count: int, *, kv_tokens: int | None = None, block: Block = 128, causal: bool = False
) -> AttentionPattern:
    """Takes the blocks of the first ``count`` tokens, which see all and are seen by all, and the diagonal."""
    grid = _Grid(tokens, kv_tokens, block)
    count = whole("attention", "count", count)
    first = grid.rows[:, None] * grid.block[0] < count
    seen = grid.columns[None] * grid.block[1] < count
    return grid.pattern(first | seen | (grid.distance() <= 0), causal)


@named_arguments
def strided(
    tokens: int, stride: int, *, kv_tokens: int | None = None, block: Block = 128, causal: bool = False
) -> AttentionPattern:
    """Takes the strided pattern of sparse transformers (Child et al. 2019), both heads in one: blocks less
    than ``stride`` apart, or a multiple of it. ``stride`` counts blocks."""
    rows, cols = tokens, tokens if kv_tokens is None else kv_tokens
    made = weight_patterns.strided(rows, cols, block, stride, causal)
    return AttentionPattern.from_pattern(made, causal=causal)


@named_arguments
def fixed(
    tokens: int, stride: int, summary: int = 1, *, kv_tokens: int | None = None, block: Block = 128,
    causal: bool = False,
) -> AttentionPattern:  # fmt: skip
    """Takes the fixed pattern of sparse transformers (Child et al. 2019), both heads in one: the blocks of
    one box of ``stride`` blocks, and the last ``summary`` blocks of every box."""
    rows, cols = tokens, tokens if kv_tokens is None else kv_tokens
    made = weight_patterns.fixed(rows, cols, block, stride, summary, causal)
    return AttentionPattern.from_pattern(made, causal=causal)


@named_arguments
def radial(frames: int, frame_tokens: int, *, block: Block = 128, causal: bool = False) -> AttentionPattern:
    """Takes, for video, fewer blocks the farther two frames lie apart (Li et al. 2025, Radial Attention).

    Frames at a distance of 1 see each other whole. From there on the band of tokens around a token's own
    place in the frame halves where the distance doubles; where the band is narrower than a block, the same
    share of pairs of frames is left out instead.
    """
    grid = _Grid(frames * frame_tokens, None, block)
    q, k = grid.rows * grid.block[0], grid.columns * grid.block[1]
    # A block is judged by each frame that it touches: its first and its last token.
    kept = torch.zeros(grid.blocks, dtype=torch.bool)
    for q_at in (q, q + grid.block[0] - 1):
        for k_at in (k, k + grid.block[1] - 1):
            apart = (q_at[:, None] // frame_tokens - k_at[None] // frame_tokens).abs()
            halvings = torch.log2(apart.clamp(min=1).float()).floor()
            band = frame_tokens / 2**halvings
            place = (q_at[:, None] % frame_tokens - k_at[None] % frame_tokens).abs()
            every = (max(grid.block) / band).clamp(min=1).ceil()
            kept |= (place <= band.clamp(min=max(grid.block)) - 1) & (apart % every == 0)
            kept |= apart <= 1
    return grid.pattern(kept, causal)


@named_arguments
def documents(ids: Tensor, *, block: Block = 128, causal: bool = False) -> AttentionPattern:
    """Takes the pairs of tokens of one document, exactly: blocks with several documents are cut inside.

    ``ids``: the document of each token, [tokens] or [batch, tokens]. The ids are read on the host if they are
    on a CPU, and otherwise not.
    """
    if not isinstance(ids, Tensor) or ids.dim() not in (1, 2) or ids.is_floating_point():
        remedy = "pass the number of each token's document"
        raise Error("attention", "ids [tokens] or [batch, tokens] of integers", str(ids)[:80], remedy)
    ids = ids.int().reshape(-1, ids.shape[-1])
    grid = _Grid(ids.shape[-1], None, block)
    # The least and the largest id of each block: it is whole if both sides have one and the same document.
    low, high = zip(*(_bounds(ids, side, blocks) for side, blocks in grid.sides()), strict=True)
    disjoint = (high[0][..., None] < low[1][..., None, :]) | (low[0][..., None] > high[1][..., None, :])
    one = (low[0] == high[0])[..., None] & (low[1] == high[1])[..., None, :]
    kept = ~disjoint
    if causal:
        kept = kept & grid.before_the_diagonal().to(ids.device)
    codes = torch.where(kept, torch.where(one, 1, 2), 0).to(torch.uint8)[:, None]
    return AttentionPattern(
        *lists.of_map(codes), grid.block, kv_blocks=grid.blocks[1], q_documents=ids, kv_documents=ids,
        causal=causal,
    )  # fmt: skip


def _bounds(ids: Tensor, side: int, blocks: int) -> tuple[Tensor, Tensor]:
    """Returns the least and the largest id of each block: [batch, blocks] each."""
    missing = blocks * side - ids.shape[-1]
    padded = torch.cat([ids, ids[:, -1:].expand(-1, missing)], -1) if missing else ids
    in_blocks = padded.reshape(len(ids), blocks, side)
    return in_blocks.amin(-1), in_blocks.amax(-1)


def _count(name: str, value: int) -> int:
    # Compiled code has sizes that are symbols.
    return value if torch.compiler.is_compiling() else whole("attention", name, value, 1)


class _Grid:
    """The blocks of queries and keys of a pattern, and how far they lie apart."""

    def __init__(self, tokens: int, kv_tokens: int | None, block: Block) -> None:
        self.block = block_shape("attention", block)
        self.tokens = _count("tokens", tokens)
        self.kv_tokens = self.tokens if kv_tokens is None else _count("kv_tokens", kv_tokens)
        self.blocks = -(-self.tokens // self.block[0]), -(-self.kv_tokens // self.block[1])
        self.rows, self.columns = (torch.arange(n) for n in self.blocks)

    def sides(self) -> list[tuple[int, int]]:
        return list(zip(self.block, self.blocks, strict=True))

    def distance(self) -> Tensor:
        """Returns the least distance of a query and a key of two blocks, where the last query and the last
        key lie beside each other, as in causal calls; 0 where they overlap."""
        first_q = self.rows[:, None] * self.block[0] + self.kv_tokens - self.tokens
        last_q = first_q + self.block[0] - 1
        first_k = self.columns[None] * self.block[1]
        last_k = first_k + self.block[1] - 1
        return torch.maximum(first_q - last_k, first_k - last_q).clamp(min=0)

    def own(self) -> Tensor:
        """Returns the block of keys beside each block of queries."""
        return (self.rows * self.block[0] + self.kv_tokens - self.tokens) // self.block[1]

    def before_the_diagonal(self) -> Tensor:
        last_q = ((self.rows + 1) * self.block[0]).clamp(max=self.tokens) - 1 + self.kv_tokens - self.tokens
        return self.columns[None] * self.block[1] <= last_q[:, None]

    def pattern(self, kept: Tensor, causal: bool) -> AttentionPattern:
        kept = kept & self.before_the_diagonal() if causal else kept
        return AttentionPattern.from_map(kept, self.block, causal=causal)
