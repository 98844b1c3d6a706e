"""Ordered: what 2:4 layers have in common, whatever the bits of their values."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ...ops import semi24
from ..in_layout.with_layout import WithLayout


class Ordered(WithLayout):
    """A layer of layout "semi24". The buffer ``metadata``, which is not saved, has the positions in the order
    of the GPU's tensor cores; a layer makes it whenever it is made, moved or loaded."""

    positions: Tensor
    metadata: Tensor | None
    derived = ("metadata",)
    #: Whether the values have 8 bits, for which the order is another one.
    eight_bit: ClassVar[bool] = False
    _ordered: tuple[int, int]  # the positions that metadata was made of, and their version

    def _order(self) -> None:
        """Makes the buffer; to be called once the positions are there."""
        self.register_buffer("metadata", None, persistent=False)
        self.refresh_()

    def refresh_(self) -> None:
        """Makes ``metadata`` of the positions as they are now. The layer does so itself when it is moved or
        loaded. After a write to the positions eager calls do without; compiled code does not see it."""
        self.metadata = semi24.order(self.positions, self.in_features, self.eight_bit)
        self._ordered = _state_of(self.positions)

    def _metadata(self, positions: Tensor) -> Tensor | None:
        """Returns the metadata, or None where the positions are others than it was made of."""
        metadata: Any = self._buffers["metadata"]
        if metadata is None or torch.compiler.is_compiling() or self._ordered == _state_of(positions):
            return metadata  # type: ignore[no-any-return]
        return None


def _state_of(positions: Tensor) -> tuple[int, int]:
    """Returns what changes when a tensor is exchanged or written."""
    return id(positions), 0 if positions.is_inference() else positions._version
