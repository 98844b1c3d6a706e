"""AttentionPattern: which blocks of keys each block of queries meets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._arguments import named_arguments
from .._checks import require_bool
from ..errors import Error
from ..ops.attention import transpose
from ..pattern import Block, Pattern, block_shape
from . import lists

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


class AttentionPattern:
    """Lists of blocks for ``sparseloom.attention``, in the form of FlashAttention-4, cuDNN and VSA.

    Args:
        counts: int32 [batch or 1, heads or 1, q blocks], or fewer leading dimensions.
        indices: int32 [.., q blocks, capacity]: of each list the first ``counts`` are read, ascending.
        block: 64, 128 or a pair of them: queries and keys of one block.
        kv_blocks: the number of blocks of keys; None: that of the call's keys.
        q_documents, kv_documents: int32 [batch or 1, tokens], or [tokens]; in the blocks that a list marks as
            partial (by adding ``PARTIAL``) a key is kept if its document is the query's.
        causal: as in ``sparseloom.attention``.
        dynamic: the lists are written in place between calls. The lists of keys, which a backward pass needs,
            are then made in each backward pass and never kept.

    The lists of keys are made once, on the lists' device and without a host read. Nothing reads lists on a
    GPU on the host, so a CUDA graph may capture calls and change the pattern.
    """

    PARTIAL = lists.PARTIAL

    def __init__(
        self, counts: Tensor, indices: Tensor, block: Block = 128, *, kv_blocks: int | None = None,
        q_documents: Tensor | None = None, kv_documents: Tensor | None = None, causal: bool = False,
        dynamic: bool = False,
    ) -> None:  # fmt: skip
        require_bool("attention", "causal", causal)
        require_bool("attention", "dynamic", dynamic)
        self.block = block_shape("attention", block)
        for side in self.block:
            if side not in lists.SIDES:
                remedy = "AttentionPattern.from_map cuts larger blocks"
                raise Error("attention", "blocks of 64 or 128 tokens", str(side), remedy)
        self.counts, self.indices = _leading(counts, 3), _leading(indices, 4)
        if self.counts.shape != self.indices.shape[:3]:
            got = f"{list(counts.shape)} and {list(indices.shape)}"
            remedy = "give each list of indices its count"
            raise Error("attention", "counts [.., q blocks] and indices [.., q blocks, n]", got, remedy)
        if (q_documents is None) != (kv_documents is None):
            raise Error("attention", "documents of queries and of keys", "one of them", "pass both")
        self.q_documents = None if q_documents is None else _leading(q_documents, 2)
        self.kv_documents = None if kv_documents is None else _leading(kv_documents, 2)
        self.kv_blocks, self.causal, self.dynamic = kv_blocks, causal, dynamic
        self._keys: tuple[tuple[int, int, int], Tensor, Tensor] | None = None
        self._moved: tuple[tuple[int, int], AttentionPattern] | None = None

    @classmethod
    @named_arguments
    def from_map(cls, kept: Tensor, block: Block = 128, **options: Any) -> AttentionPattern:
        """Takes a bool map [batch or 1, heads or 1, q blocks, kv blocks], or with fewer leading dimensions.
        A map on a GPU is not read on the host. Blocks of a multiple of 128 are cut."""
        if not isinstance(kept, Tensor) or kept.dtype != torch.bool or not 2 <= kept.dim() <= 4:
            got = f"{kept.dtype} {list(kept.shape)}" if isinstance(kept, Tensor) else type(kept).__name__
            remedy = "compare scores with a threshold, or use .bool()"
            raise Error("attention", "a bool map [.., q blocks, kv blocks]", got, remedy)
        codes, block = lists.cut(_map4(kept), block_shape("attention", block))
        return cls(*lists.of_map(codes), block, kv_blocks=codes.shape[-1], **options)

    @classmethod
    @named_arguments
    def from_lists(
        cls, counts: Tensor, indices: Tensor, partial_counts: Tensor | None = None,
        partial_indices: Tensor | None = None, block: Block = 128, *, kv_blocks: int | None = None,
        **options: Any,
    ) -> AttentionPattern:  # fmt: skip
        """Takes lists of whole blocks and, beside them, lists of partial ones (FlashAttention-4's full and
        mask blocks). Partial blocks are those on the diagonal of a causal call, or with two documents."""
        if partial_counts is None or partial_indices is None:
            return cls(counts, indices, block, kv_blocks=kv_blocks, **options)
        if kv_blocks is None:
            raise Error("attention", "kv_blocks beside partial lists", "None", "pass the blocks of keys")
        whole = lists.to_map(_leading(counts, 3), _leading(indices, 4), kv_blocks)
        partial = lists.to_map(_leading(partial_counts, 3), _leading(partial_indices, 4), kv_blocks)
        marked = 2 if options.get("q_documents") is not None else 1
        codes = torch.where(whole != 0, 1, (partial != 0) * marked).to(torch.uint8)
        return cls(*lists.of_map(codes), block, kv_blocks=kv_blocks, **options)

    @classmethod
    @named_arguments
    def from_pattern(cls, pattern: Pattern, **options: Any) -> AttentionPattern:
        """Takes a ``sparseloom.Pattern``: its rows are queries, its columns keys."""
        return cls.from_map(pattern.mask, pattern.block, **options)

    @classmethod
    @named_arguments
    def from_block_mask(cls, mask: BlockMask) -> AttentionPattern:
        """Takes torch's BlockMask: see ``block_mask.py`` for the mask functions that it knows. It is read on
        the host once; the result is kept with the mask."""
        from .block_mask import pattern_of

        return pattern_of(mask)

    @property
    def device(self) -> torch.device:
        """Where the lists are."""
        return self.counts.device

    def map(self, kv_blocks: int | None = None) -> Tensor:
        """Returns the bool map [batch or 1, heads or 1, q blocks, kv blocks] of kept blocks."""
        return lists.to_map(self.counts, self.indices, self._blocks(kv_blocks)) != 0

    @property
    def density(self) -> float:
        """The kept blocks over all; partial and causal blocks count as whole ones. Reads the counts."""
        return int(self.counts.sum()) / max(1, self.counts.numel() * self._blocks(None))

    def keys(self, kv_blocks: int) -> tuple[Tensor, Tensor]:
        """Returns the lists of keys: for each block of keys the blocks of queries that meet it. They are made
        again where the lists were written to since."""
        stamp = kv_blocks, _writes(self.counts), _writes(self.indices)
        if self._keys is not None and self._keys[0] == stamp and not self.dynamic:
            return self._keys[1:]
        made = transpose(self.counts, self.indices, kv_blocks)
        # Memory of a graph that is being captured holds nothing before the graph runs.
        if not (self.dynamic or (self.counts.is_cuda and torch.cuda.is_current_stream_capturing())):
            self._keys = stamp, *made
        return made

    def to(self, device: torch.device | str) -> AttentionPattern:
        """Returns the pattern on a device; itself, if it is there, and otherwise a copy, which it keeps."""
        target = torch.device(device)
        if _is_at(self.device, target):
            return self
        if torch.compiler.is_compiling():
            return self._mapped(lambda tensor: tensor.to(target))
        stamp = _writes(self.counts), _writes(self.indices)
        if self._moved is None or self._moved[0] != stamp or not _is_at(self._moved[1].device, target):
            self._moved = stamp, self._mapped(lambda tensor: tensor.to(target))
        return self._moved[1]

    def where_keys(self, kept: Tensor) -> AttentionPattern:
        """Returns the pattern that keeps, in its blocks, the keys for which ``kept`` is true: a padding mask,
        bool [batch or 1, keys]."""
        if self.q_documents is not None:
            remedy = "give the keys to be left out a document of their own"
            raise Error("attention", "a pattern without documents", "one with them", remedy)
        if kept.dtype != torch.bool or kept.dim() != 2:
            got = f"{kept.dtype} {list(kept.shape)}"
            raise Error("attention", "a bool mask [batch, keys]", got, "use .bool()")
        tokens = self.counts.shape[-1] * self.block[0]
        return AttentionPattern(
            self.counts, self.indices | self.PARTIAL, self.block, kv_blocks=self.kv_blocks,
            q_documents=kept.new_zeros((1, tokens), dtype=torch.int32), kv_documents=(~kept).int(),
            causal=self.causal,
        )  # fmt: skip

    def __or__(self, other: AttentionPattern) -> AttentionPattern:
        """Returns the pattern with the blocks of both, which have no documents and the same blocks."""
        if not isinstance(other, AttentionPattern):
            return NotImplemented
        documents = self.q_documents is not None or other.q_documents is not None
        if documents or self.block != other.block:
            got = "documents" if documents else f"{self.block} and {other.block}"
            remedy = "join their maps, and make one pattern of the result"
            raise Error("attention", "two patterns of the same blocks without documents", got, remedy)
        kept = self.map() | other.map()
        return AttentionPattern.from_map(kept, self.block, causal=self.causal or other.causal)

    def __repr__(self) -> str:
        batch, heads, blocks = self.counts.shape
        grid = f"{blocks} x {'?' if self.kv_blocks is None else self.kv_blocks} blocks of {self.block}"
        return f"AttentionPattern(batch={batch}, heads={heads}, {grid}, device={self.device})"

    def _blocks(self, kv_blocks: int | None) -> int:
        blocks = self.kv_blocks if kv_blocks is None else kv_blocks
        if blocks is None:
            raise Error("attention", "a pattern that knows its blocks of keys", "None", "pass kv_blocks=")
        return blocks

    def _mapped(self, function: Any) -> AttentionPattern:
        """Returns a pattern whose tensors went through a function, as nn.Module._apply has one."""
        documents = [None if d is None else function(d) for d in (self.q_documents, self.kv_documents)]
        return AttentionPattern(
            function(self.counts), function(self.indices), self.block, kv_blocks=self.kv_blocks,
            q_documents=documents[0], kv_documents=documents[1], causal=self.causal, dynamic=self.dynamic,
        )  # fmt: skip


def _leading(tensor: Tensor, dims: int) -> Tensor:
    """Returns a contiguous int32 tensor with leading dimensions of 1. Raises Error for other dtypes."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in (torch.int32, torch.int64):
        got = str(tensor.dtype) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise Error("attention", "lists and documents as int32 tensors", got, "use .int()")
    if tensor.dim() > dims:
        raise Error(
            "attention", f"at most {dims} dimensions", str(list(tensor.shape)), "leave out dimensions of 1"
        )
    return tensor.to(torch.int32).contiguous()[(None,) * (dims - tensor.dim())]


def _is_at(here: torch.device, target: torch.device) -> bool:
    return here.type == target.type and target.index in (None, here.index)


def _writes(tensor: Tensor) -> int:
    """Returns torch's count of writes, which tensors made in inference mode lack."""
    return -1 if tensor.is_inference() else tensor._version


def _map4(kept: Tensor) -> Tensor:
    return kept[(None,) * (4 - kept.dim())]
