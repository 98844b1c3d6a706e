"""torch's BlockMask as an AttentionPattern.

A BlockMask has lists of whole blocks, lists of partial blocks, and a function for the elements of the partial
ones. Kernels here know no functions, so the function is recognised by what it does: it is evaluated on every
element of the partial blocks and compared with what causal order, a set of keys (as padding leaves them),
and documents (runs of tokens) give, alone or together with causal order. Any other function is refused, a
window by elements with the generator of the blocks that hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..errors import Error
from . import lists
from .pattern import AttentionPattern

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_KEPT_AS = "_sparseloom_pattern"
_BLOCKS_AT_ONCE = 64  # of 128 x 128 elements: 8 MB for each of four int64 indices


def pattern_of(mask: BlockMask) -> AttentionPattern:
    """Returns the pattern of a BlockMask, which keeps it. Raises Error for an unknown mask function."""
    known = getattr(mask, _KEPT_AS, None)
    if known is not None:
        return known  # type: ignore[no-any-return]
    if torch.compiler.is_compiling():
        remedy = "call AttentionPattern.from_block_mask before, and pass its result"
        raise Error("attention", "a BlockMask whose function was read before", "torch.compile", remedy)
    made = _read(mask)
    setattr(mask, _KEPT_AS, made)
    return made


class _Rule(NamedTuple):
    """What a mask function may be: causal order and documents [batch, tokens], or neither."""

    causal: bool
    q_documents: Tensor | None = None
    kv_documents: Tensor | None = None

    def keeps(self, batch: Tensor, q: Tensor, k: Tensor, tokens: tuple[int, int]) -> Tensor:
        kept = k <= q + (tokens[1] - tokens[0]) if self.causal else torch.ones_like(q, dtype=torch.bool)
        if self.q_documents is not None and self.kv_documents is not None:
            kept = kept & (self.q_documents[batch, q] == self.kv_documents[batch, k])
        return kept


def _read(mask: BlockMask) -> AttentionPattern:
    tokens: tuple[int, int] = mask.seq_lengths
    sides: tuple[int, int] = mask.BLOCK_SIZE
    blocks = tuple(-(-n // side) for n, side in zip(tokens, sides, strict=True))
    partial = _map(mask.kv_num_blocks, mask.kv_indices, blocks[1])
    whole = torch.zeros_like(partial)
    if mask.full_kv_num_blocks is not None:
        whole = _map(mask.full_kv_num_blocks, mask.full_kv_indices, blocks[1])
    function = mask.mask_mod
    found = next((rule for rule in _rules(function, partial, tokens) if _fits(rule, mask, partial)), None)
    if found is None or (found.causal and _beyond_the_diagonal(whole, sides, tokens)):
        raise _refusal(mask, partial)
    marked = 1 if found.q_documents is None else 2
    codes = torch.where(whole, 1, partial * marked).to(torch.uint8)
    codes, block = lists.cut(codes, sides)
    codes = codes[..., : -(-tokens[0] // block[0]), : -(-tokens[1] // block[1])]
    counts, indices = lists.of_map(codes)
    device = mask.kv_indices.device
    made = AttentionPattern(
        counts, indices, block, kv_blocks=codes.shape[-1], causal=found.causal,
        q_documents=found.q_documents, kv_documents=found.kv_documents,
    )  # fmt: skip
    return made.to(device)


class _Window(NamedTuple):
    """The keys from ``before`` tokens before a query to ``after`` behind it, as sliding windows keep them."""

    before: int
    after: int

    def keeps(self, batch: Tensor, q: Tensor, k: Tensor, tokens: tuple[int, int]) -> Tensor:
        return (q - k <= self.before) & (k - q <= self.after)


def _refusal(mask: BlockMask, partial: Tensor) -> Error:
    """Returns the Error for a function that the kernels do not compute; it names a window as one."""
    name = getattr(mask.mask_mod, "__qualname__", type(mask.mask_mod).__name__)
    got = f"{name} on the partial blocks"
    remedy = "keep whole blocks alone (AttentionPattern.from_map), or use flex_attention for this one"
    tokens, last = mask.seq_lengths, mask.seq_lengths[0] - 1
    keys = _ask(mask.mask_mod, 0, 0, torch.tensor([last]), torch.arange(tokens[1])).nonzero()
    before = last - int(keys[0]) if len(keys) else 0
    for after in (0, before):
        if before > 0 and _fits(_Window(before, after), mask, partial):
            got = f"{name}, a window of {before} tokens by elements"
            order = "" if after else ", causal=True"
            whole = f"patterns.sliding_window({tokens[0]}, {before}, kv_tokens={tokens[1]}{order})"
            remedy = f"{whole} keeps the whole blocks that hold it; or use flex_attention"
            break
    expected = "a mask function of causal order, a set of keys, documents, or two of them"
    return Error("attention", expected, got, remedy)


def _map(counts: Tensor, indices: Any, blocks: int) -> Tensor:
    leading = (None,) * (3 - counts.dim())
    return lists.to_map(counts.cpu()[leading], indices.cpu()[leading], blocks) != 0


def _rules(function: Any, partial: Tensor, tokens: tuple[int, int]) -> Iterator[_Rule]:
    """Yields candidates, the simplest first, made from what the function says of a few elements."""
    yield _Rule(False)
    yield _Rule(True)
    batches = range(partial.shape[0])
    last = tokens[0] - 1
    # A set of keys: those that the last query keeps, which sees all of them in causal order, too.
    rows = torch.stack([_ask(function, b, 0, torch.tensor([last]), torch.arange(tokens[1])) for b in batches])
    kv = (~rows).int()
    keys = torch.zeros(len(rows), tokens[0], dtype=torch.int32), kv
    yield _Rule(False, *keys)
    yield _Rule(True, *keys)
    if tokens[0] == tokens[1]:
        # Documents: runs of tokens, of which each keeps the one before it.
        here = torch.arange(1, tokens[0])
        joined = torch.stack([_ask(function, b, 0, here, here - 1) for b in batches])
        runs = torch.nn.functional.pad((~joined).int().cumsum(-1, dtype=torch.int32), (1, 0))
        yield _Rule(False, runs, runs)
        yield _Rule(True, runs, runs)


def _fits(rule: _Rule | _Window, mask: BlockMask, partial: Tensor) -> bool:
    """Compares a rule with the mask function on every element of the partial blocks."""
    tokens, sides = mask.seq_lengths, mask.BLOCK_SIZE
    found = partial.nonzero()
    within_q, within_k = torch.arange(sides[0])[:, None], torch.arange(sides[1])[None]
    for part in found.split(_BLOCKS_AT_ONCE):
        b, h, i, j = (part[:, column, None, None] for column in range(4))
        q, k = i * sides[0] + within_q, j * sides[1] + within_k
        b, h, q, k = (each.flatten() for each in torch.broadcast_tensors(b, h, q, k))
        inside = (q < tokens[0]) & (k < tokens[1])
        b, h, q, k = b[inside], h[inside], q[inside], k[inside]
        if not torch.equal(_ask(mask.mask_mod, b, h, q, k), rule.keeps(b, q, k, tokens)):
            return False
    return True


def _ask(function: Any, b: int | Tensor, h: int | Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Returns what the function says of elements, on the CPU; it runs on its own tensors' device."""
    parts = torch.broadcast_tensors(torch.as_tensor(b), torch.as_tensor(h), q, k)
    try:
        said = torch.vmap(function)(*parts)
    except RuntimeError:  # it reads tensors on a GPU
        if not torch.cuda.is_available():
            raise
        said = torch.vmap(function)(*(part.cuda() for part in parts))
    return said.cpu().expand(parts[2].shape)  # type: ignore[no-any-return]


def _beyond_the_diagonal(whole: Tensor, sides: tuple[int, int], tokens: tuple[int, int]) -> bool:
    """Returns whether causal order would cut a block that the mask keeps whole."""
    first_query = torch.arange(whole.shape[-2])[:, None] * sides[0]
    last_key = (torch.arange(1, whole.shape[-1] + 1)[None] * sides[1]).clamp(max=tokens[1]) - 1
    return bool((whole & (last_key > first_query + tokens[1] - tokens[0])).any())
