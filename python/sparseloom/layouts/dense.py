"""Dense and MaskedDense: all elements in their places, without and with a mask."""

from __future__ import annotations

from torch import Tensor

from .._arguments import named_arguments
from .._checks import require_mask
from .layout import Layout
from .registry import register


@register
class Dense(Layout):
    """All elements of W: the values are W [rows, cols]. As a format it stands for torch's own tensors."""

    name = "dense"
    plain = True

    @classmethod
    @named_arguments
    def from_dense(cls, weight: Tensor) -> Dense:  # type: ignore[override]
        return cls(*weight.shape)

    @property
    def padded(self) -> bool:
        return False

    def pack(self, dense: Tensor) -> Tensor:
        return dense

    def to_dense(self, values: Tensor) -> Tensor:
        return values


@register
class MaskedDense(Layout):
    """All elements of W [rows, cols] as values, zero where ``mask``, bool of W's shape, is False: computes
    the same as a sparse layout, without saving memory or time."""

    name = "masked_dense"
    exact = True
    mask: Tensor

    @classmethod
    @named_arguments
    def from_dense(cls, weight: Tensor, mask: Tensor | None = None) -> MaskedDense:  # type: ignore[override]
        """Keeps the elements that ``mask`` names; without one, those that are not zero. Raises Error for a
        mask of another shape or dtype."""
        mask = weight.detach() != 0 if mask is None else mask
        require_mask(cls.name, mask, weight.shape)
        return cls(*weight.shape, mask=mask)

    @classmethod
    @named_arguments
    def from_mask(cls, weight: Tensor, mask: Tensor) -> MaskedDense:
        return cls.from_dense(weight, mask=mask)

    def pack(self, dense: Tensor) -> Tensor:
        return dense.masked_fill(~self.mask, 0)

    def to_dense(self, values: Tensor) -> Tensor:
        return values.masked_fill(~self.mask, 0)
