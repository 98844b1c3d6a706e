"""WithIndex: the base class of every layer that owns a packed index, trained or quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import ops
from ...pattern import Pattern
from . import state
from .cut import Cut
from .parametrized import Parametrizable

if TYPE_CHECKING:
    from .siblings import Siblings


class WithIndex(Parametrizable):
    """A layer whose weight exists in the blocks of its pattern.

    The buffer ``packed_index`` holds the index by block rows and by block columns (ops.Index). It is not
    saved: the state dict has ``crow`` int32 [block rows + 1] and ``col`` int32 [blocks], from which the rest
    is derived.
    """

    in_features: int
    out_features: int
    block: tuple[int, int]
    values: Tensor
    packed_index: Tensor
    _pattern: Pattern
    _blocks: int
    _digest: int
    _index: ops.Index | None
    #: torch's version counter of the index when the layer last wrote it; -1 where there is none.
    _writes: int = -1
    #: The part of the weight that the layer holds under tensor parallelism; see nn.held.cut.
    _cut: Cut | None = None
    #: The layers that read the same x, whose products are merged with this one's.
    _siblings: Siblings | None = None

    @property
    def index(self) -> ops.Index:
        """The index of both directions, as the operators take it."""
        packed: Any = self._buffers["packed_index"]
        # We cache the index while the buffer is the same object: making it takes a tenth of a small product's
        # host overhead. Compiled code does not read the cache: an eager call between steps would set it, and
        # the whole model would be compiled again with guards on it.
        compiling = torch.compiler.is_compiling()
        index: ops.Index | None = None if compiling else self._index
        if self._writes >= 0 and not compiling and packed._version != self._writes:
            self._mend()
        if index is not None and index.packed is packed:
            return index
        bm, bn = self.block
        index = ops.Index(packed, self._blocks, self.out_features, self.in_features, bm, bn, self._digest)
        if not compiling:
            self._index = index
            state.remember(self)
        return index

    @property
    def crow(self) -> Tensor:
        """int32 [block rows + 1]: block row r has the values crow[r] .. crow[r + 1] - 1. A view of
        ``packed_index``. Assigning both ``crow`` and ``col`` gives the layer another pattern, of as many
        blocks."""
        return self.index.crow

    @property
    def col(self) -> Tensor:
        """int32 [blocks]: the block column of each block. A view of ``packed_index``."""
        return self.index.col

    @property
    def density(self) -> float:
        """The number of present blocks over that of all blocks of the grid."""
        return self._pattern.density

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the values of one block."""
        return self.block

    def _index_of(self, pattern: Pattern) -> ops.Index:
        """Returns the index of a pattern, on the CPU."""
        return state.build_index(pattern)

    def _set_index(self, pattern: Pattern, device: torch.device) -> None:
        """Makes ``pattern`` the layer's pattern: writes the index and leaves the values alone."""
        index = self._index_of(pattern)
        self.register_buffer(state.INDEX_BUFFER, index.packed.to(device), persistent=False)
        self._pattern, self._blocks, self._digest, self._index = pattern, index.blocks, index.digest, None
        state.remember(self, changed=True)

    def _mend(self) -> None:
        """Is called after something else has written to the index."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Does what nn.Module's does, and takes ``crow`` and ``col``, which are no buffers."""
        if name in state.INDEX_ENTRIES:
            state.assign(self, name, value)
        else:
            super().__setattr__(name, value)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # Copies: as views they would be two tensors in one memory, which safetensors and accelerate refuse
        # or leave out.
        index = self.index
        destination[prefix + "crow"], destination[prefix + "col"] = index.crow.clone(), index.col.clone()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the kept index, so that a copy makes its own, and siblings: their owner restores them in
        its copies, and a layer copied alone has none."""
        return {**self.__dict__, "_index": None, "_siblings": None}
