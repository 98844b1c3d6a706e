"""The function sparseloom.attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import torch
from torch import Tensor

from .._arguments import named_arguments
from .._checks import require_bool
from ..errors import Error, unsupported_layout
from ..ops.attention import Call, attend
from ..ops.operators import row_of
from ..ops.transforms import transformed
from ..pattern import Pattern
from . import lists
from .pattern import AttentionPattern

#: What a call takes as its pattern; "Any" stands for torch's BlockMask, whose import takes a second.
Kept: TypeAlias = "AttentionPattern | Tensor | tuple[Tensor, ...] | Pattern | Any"


class Asked(NamedTuple):
    """What a call of attention is to compute."""

    q: Tensor
    k: Tensor
    v: Tensor
    pattern: AttentionPattern
    causal: bool
    scale: float | None
    ragged: bool  # whether it has cu_seqlens


#: What a report puts before every call: it looks at the call, and its result, if not None, is the call's.
_before: Callable[[Asked], Tensor | None] | None = None


@contextmanager
def before_calls(function: Callable[[Asked], Tensor | None]) -> Iterator[None]:
    """Calls the function before each attention without lse in the body; its result, if not None, is the
    attention's."""
    global _before
    outer, _before = _before, function
    try:
        yield
    finally:
        _before = outer


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: Kept, *, causal: bool = ..., scale: float | None = ...,
    cu_seqlens: Tensor | tuple[Tensor, Tensor] | None = ..., return_lse: Literal[False] = ...,
    base2: bool = ..., strict: bool = ..., kernel: str = ...,
) -> Tensor: ...  # fmt: skip
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: Kept, *, causal: bool = ..., scale: float | None = ...,
    cu_seqlens: Tensor | tuple[Tensor, Tensor] | None = ..., return_lse: Literal[True],
    base2: bool = ..., strict: bool = ..., kernel: str = ...,
) -> tuple[Tensor, Tensor]: ...  # fmt: skip
@named_arguments
def attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: Kept, *, causal: bool = False, scale: float | None = None,
    cu_seqlens: Tensor | tuple[Tensor, Tensor] | None = None, return_lse: bool = False, base2: bool = False,
    strict: bool = False, kernel: str = "",
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Returns softmax(scale q k^T) v over the kept blocks, differentiable once in q, k and v.

    Args:
        q: [batch, heads, tokens, head size], as in torch's scaled_dot_product_attention, of any strides; with
            ``cu_seqlens`` [tokens, heads, head size].
        k, v: the same with their own number of tokens, and as many heads or a divisor of them.
        pattern: an AttentionPattern; a bool map [batch or 1, heads or 1, q blocks, kv blocks], whose blocks
            of 64, 128 or a multiple follow from the tokens; (counts, indices), or (counts, indices,
            partial counts, partial indices), with square blocks; torch's BlockMask; or a sparseloom.Pattern.
            Anything but an AttentionPattern is converted in each call.
        causal: query i of m keeps the keys up to i + n - m of n, so the last query sees all, as in
            FlashAttention. torch's is_causal lets the first query see the first key alone, which differs
            where n is not m.
        scale: 1 / sqrt(head size) if None.
        cu_seqlens: int32 [batch + 1], the running sum of the lengths from 0, of sequences that follow each
            other in q, k and v; a pair for q and for k. Blocks are counted from each sequence's start. On a
            GPU it is not read on the host: no sequence may be longer than the pattern.
        return_lse: returns (out, lse), float32 [batch, heads, tokens] or [heads, tokens]: the natural
            logarithm of the sum of exp(scale q k^T), differentiable, for ``merge``; with ``base2`` in base 2.
        strict: forbids the reference kernel.
        kernel: the name of a kernel, for both directions; "": the plan's choice.

    A query without a key gets zeros and an lse of -inf. With autocast q, k and v are converted to its dtype.
    Results and gradients have the same bits in every run. Raises Error where shapes, dtypes or blocks do not
    fit, and within torch.func.
    """
    if not (type(causal) is type(return_lse) is type(base2) is type(strict) is bool):
        flags = {"causal": causal, "return_lse": return_lse, "base2": base2, "strict": strict}
        for flag, value in flags.items():
            require_bool("attention", flag, value)
    if not torch.compiler.is_compiling() and transformed():
        remedy = "use scaled_dot_product_attention with the expanded mask there"
        raise Error("attention", "a call outside of torch.func and forward mode", "one inside", remedy)
    starts = _starts(cu_seqlens)
    _require(q, k, v, ragged=starts is not None)
    q, k, v = _autocast(q, k, v)
    kept = _pattern(pattern, q, k, starts is not None).to(q.device)
    if _before is not None and not return_lse:
        asked = Asked(q, k, v, kept, causal or kept.causal, scale, starts is not None)
        if (instead := _before(asked)) is not None:
            return instead
    watched = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    call = _call(kept, q, k, causal or kept.causal, scale, starts, watched, row_of(kernel), strict)
    out, lse = attend(q, k, v, call)
    if not return_lse:
        return out
    return out, lse / math.log(2) if base2 else lse


def _call(
    kept: AttentionPattern, q: Tensor, k: Tensor, causal: bool, scale: float | None,
    starts: tuple[Tensor, Tensor] | None, watched: bool, row: int, strict: bool,
) -> Call:  # fmt: skip
    q_block, kv_block = kept.block
    q_blocks, longest = kept.counts.shape[-1], (0, 0)
    if starts is None:
        kv_blocks = -(-k.shape[2] // kv_block)
        _require_blocks(kept, -(-q.shape[2] // q_block), kv_blocks)
    else:
        # No sequence is longer than all tokens.
        kv_blocks = -(-k.shape[0] // kv_block) if kept.kv_blocks is None else kept.kv_blocks
        longest = q_blocks * q_block, kv_blocks * kv_block
    # Else the backward pass makes them: a graph could not see that the lists were written to.
    keeps = watched and not kept.dynamic and not torch.compiler.is_compiling()
    key_counts, key_indices = kept.keys(kv_blocks) if keeps else (None, None)
    q_starts, kv_starts = starts or (None, None)
    q_documents, kv_documents = _documents(kept, q, starts is not None)
    # of no elements: the operator says what it takes
    scale = 1 / math.sqrt(max(1, q.shape[-1])) if scale is None else float(scale)
    return Call(
        kept.counts, kept.indices, q_block, kv_block, causal, scale, key_counts, key_indices,
        q_starts, kv_starts, *longest, q_documents, kv_documents, row, strict,
    )  # fmt: skip


def _pattern(pattern: Kept, q: Tensor, k: Tensor, ragged: bool) -> AttentionPattern:
    if isinstance(pattern, AttentionPattern):
        return pattern
    if isinstance(pattern, Pattern):
        return AttentionPattern.from_pattern(pattern)
    if isinstance(pattern, Tensor):
        if ragged:
            raise Error(
                "attention",
                "an AttentionPattern beside cu_seqlens",
                "a map",
                "make it with AttentionPattern.from_map(map, block)",
            )
        if pattern.dim() < 2:
            raise Error(
                "attention",
                "a map [.., q blocks, kv blocks]",
                str(list(pattern.shape)),
                "add dimensions of 1 in front",
            )
        tokens = ("queries", q.shape[2], pattern.shape[-2]), ("keys", k.shape[2], pattern.shape[-1])
        q_block, kv_block = (lists.side_of(*each) for each in tokens)
        codes, kept = AttentionPattern.from_map, pattern
        if max(q_block, kv_block) > 128:  # cutting the last block may give more blocks than there are tokens
            made = codes(kept, (q_block, kv_block))
            blocks = [-(-n // side) for n, side in zip((q.shape[2], k.shape[2]), made.block, strict=True)]
            return codes(made.map()[..., : blocks[0], : blocks[1]], made.block)
        return codes(kept, (q_block, kv_block))
    if hasattr(pattern, "mask_block_cnt") or (isinstance(pattern, (tuple, list)) and len(pattern) in (2, 4)):
        if ragged:
            raise Error(
                "attention",
                "an AttentionPattern beside cu_seqlens",
                "lists",
                "make it with AttentionPattern.from_lists",
            )
        return _of_lists(pattern, q, k)
    if type(pattern).__name__ == "BlockMask":
        mask: Any = pattern
        return AttentionPattern.from_block_mask(mask)
    remedy = "pass an AttentionPattern, a bool map, (counts, indices), a BlockMask or a Pattern"
    raise Error("attention", "a pattern of blocks", type(pattern).__name__, remedy)


def _of_lists(given: Any, q: Tensor, k: Tensor) -> AttentionPattern:
    if hasattr(given, "mask_block_cnt"):  # FlashAttention-4's tuple has the partial ones first
        partial = given.mask_block_cnt, given.mask_block_idx
        whole = given.full_block_cnt, given.full_block_idx
        given = partial if whole[0] is None else (*whole, *partial)
    counts, indices, partial_counts, partial_indices = (*given, None, None)[:4]
    side = lists.side_of("queries", q.shape[2], counts.shape[-1])
    return AttentionPattern.from_lists(
        counts, indices, partial_counts, partial_indices, side, kv_blocks=-(-k.shape[2] // side)
    )


def _require(q: Tensor, k: Tensor, v: Tensor, ragged: bool) -> None:
    dims, shape = (3, "[tokens, heads, head size]") if ragged else (4, "[batch, heads, tokens, head size]")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise Error("attention", f"{name} as a tensor", type(tensor).__name__, "pass a torch.Tensor")
        if tensor.layout != torch.strided or tensor.is_nested:
            raise unsupported_layout("attention", name, "nested" if tensor.is_nested else str(tensor.layout))
        if tensor.dim() != dims:
            remedy = "leave cu_seqlens out for a batch" if ragged else "pass cu_seqlens, or add dimensions"
            raise Error("attention", f"{name} {shape}", str(list(tensor.shape)), remedy)


def _require_blocks(kept: AttentionPattern, q_blocks: int, kv_blocks: int) -> None:
    has = kept.counts.shape[-1], kept.kv_blocks
    if has[0] != q_blocks or has[1] not in (None, kv_blocks):
        expected = f"a pattern of {q_blocks} x {kv_blocks} blocks of {kept.block[0]} x {kept.block[1]}"
        got = f"{has[0]} x {'any' if has[1] is None else has[1]}"
        raise Error("attention", expected, got, "make the pattern for these tokens, or pass its block")


def _starts(cu_seqlens: Any) -> tuple[Tensor, Tensor] | None:
    if cu_seqlens is None:
        return None
    pair = (cu_seqlens, cu_seqlens) if isinstance(cu_seqlens, Tensor) else tuple(cu_seqlens)
    for starts in pair:
        fits = isinstance(starts, Tensor) and starts.dtype == torch.int32 and starts.dim() == 1
        if len(pair) != 2 or not fits or starts.shape[0] < 1:
            got = type(starts).__name__ if not isinstance(starts, Tensor) else f"{starts.dtype}"
            remedy = "pass one tensor, or a pair for q and k"
            raise Error("attention", "cu_seqlens as int32 [batch + 1]", got, remedy)
    return pair[0].contiguous(), pair[1].contiguous()


def _documents(kept: AttentionPattern, q: Tensor, ragged: bool) -> tuple[Tensor | None, Tensor | None]:
    if kept.q_documents is None or kept.kv_documents is None:
        return None, None
    if ragged:
        return kept.q_documents.reshape(-1), kept.kv_documents.reshape(-1)
    batch = q.shape[0]
    # Documents of queries may go on to the end of the last block (where_keys).
    pair = kept.q_documents[:, : q.shape[2]], kept.kv_documents
    q_documents, kv_documents = (
        (each.expand(batch, -1) if each.shape[0] == 1 else each).contiguous() for each in pair
    )
    return q_documents, kv_documents


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Returns q, k and v in the dtype of an active autocast; float64 stays, as in torch's own casts."""
    device = tensors[0].device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t if t.dtype == torch.float64 else t.to(dtype) for t in tensors)
