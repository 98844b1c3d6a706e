"""LayoutWeight: the SparseWeight of a SparseLinear."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import Error
from ..held.sparse_weight import SparseWeight


class LayoutWeight(SparseWeight):
    """A weight in a layout of ``sparseloom.layouts``; its index is the owner's ``layout``. It does not have
    the properties of SparseWeight that describe blocks."""

    @property
    def shape(self) -> tuple[int, int]:
        """(out features, in features)."""
        return self.owner.out_features, self.owner.in_features

    @property
    def content_hash(self) -> int:
        """A hash of the index, the same in every process."""
        digest = hashlib.sha256(repr(self.owner.layout.describe()).encode())
        for name, part in self.owner.layout.tensors().items():
            digest.update(f"{name} {part.dtype} {list(part.shape)}".encode())
            digest.update(part.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return int.from_bytes(digest.digest()[:7], "little")

    @property
    def density(self) -> float:
        """The values over the elements of W; padding counts as stored."""
        rows, cols = self.shape
        return self.values.numel() / (rows * cols) if rows * cols else 0.0

    @property
    def index_entries(self) -> tuple[str, ...]:
        """The names of the index in the owner's state dict."""
        return tuple(self.owner.layout.tensors())

    @property
    def index_buffers(self) -> tuple[str, ...]:
        """The names of the owner's buffers that hold the index, and what is derived from it."""
        return (*self.index_entries, *getattr(self.owner, "derived", ()))

    @property
    def index_bytes(self) -> int:
        """The bytes of the index in a file."""
        return sum(part.nbytes for part in self.owner.layout.tensors().values())

    @property
    def directions(self) -> tuple[str, ...]:
        """The products that the owner computes, as plans name them."""
        return self.owner.layout.directions  # type: ignore[no-any-return]

    def unpacked(self, like_values: Tensor) -> Tensor:
        """Returns a tensor of the values' shape in the places of the values."""
        dense: Tensor = self.owner.layout.to_dense(like_values)
        return dense

    def packed(self, like_dense: Tensor) -> Tensor:
        """Returns the stored elements of a tensor [out features, in features] in the shape of the values."""
        packed: Tensor = self.owner.layout.pack(like_dense.detach())
        return packed

    def stored_as(self) -> dict[str, Any]:
        """Returns the metadata that ``save`` writes for the weight."""
        description: dict[str, Any] = self.owner.layout.describe()
        return description

    def is_stored_as(self, description: Mapping[str, Any]) -> bool:
        counts = self.owner.layout.counts
        own, its = self.stored_as(), dict(description)
        return all(own.get(name) == its.get(name) for name in (own.keys() | its.keys()) - set(counts))

    def require_readable(self, tensors: Mapping[str, Any], prefix: str, computed: Tensor | None) -> None:
        """Raises Error unless the entries under ``prefix`` are values and an index of this layout that agree.
        Makes W twice."""
        parts = {name: tensors.get(prefix + name) for name in self.index_entries}
        values: Any = tensors.get(prefix + "values") if computed is None else computed
        for name, entry in {"values": values, **parts}.items():
            if not isinstance(entry, Tensor) or entry.layout != torch.strided:
                expected = f"{', '.join(['values', *parts])} together, as strided tensors"
                got = f"no {name}" if entry is None else f"{name} of {type(entry).__name__}"
                raise Error("load", expected, got, "save the whole state_dict of the layer")
        self.owner.layout.of_entries(parts).require_consistent("load", values)
