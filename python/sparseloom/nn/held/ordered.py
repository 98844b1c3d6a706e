"""Ordered: the base class of 2:4 layers, float and 8-bit."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ...ops import semi24
from ..in_layout.with_layout import WithLayout
from .written import Written


class Ordered(WithLayout):
    """A layer of layout "semi24". The buffer ``metadata``, which is not saved, has the positions in the order
    of the GPU's tensor cores; a layer makes it whenever it is made, moved or loaded."""

    positions: Tensor
    metadata: Tensor | None
    derived = ("metadata",)
    #: Whether the values have 8 bits, which use another order.
    eight_bit: ClassVar[bool] = False
    _ordered: Written | None = None  # the positions that metadata was made of

    def _order(self) -> None:
        """Registers the buffer. Call it once the layer has its positions."""
        self.register_buffer("metadata", None, persistent=False)
        self.refresh_()

    def refresh_(self) -> None:
        """Recomputes ``metadata`` from the positions. The layer does so itself when it is moved or loaded.
        After a write to the positions, eager calls ignore the old metadata; compiled code does not notice."""
        known = None if self._emptied else semi24.order(self.positions, self.in_features, self.eight_bit)
        self.metadata = known
        self._ordered = Written([self.positions])

    def _metadata(self, positions: Tensor) -> Tensor | None:
        """Returns the metadata, or None if the positions have changed since it was made."""
        metadata: Any = self._buffers["metadata"]
        if metadata is None or torch.compiler.is_compiling():
            return metadata  # type: ignore[no-any-return]
        made_of = self._ordered
        return metadata if made_of is not None and made_of.still([positions]) else None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ordered": None}
