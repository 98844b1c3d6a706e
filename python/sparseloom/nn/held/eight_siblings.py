"""EightBitSiblings: 8-bit layers that read the same x round it once, and multiply with it once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .siblings import Siblings, _autocast, _Results, _version, stacked_pattern

if TYPE_CHECKING:
    from ..quantized import QuantizedBlockSparseLinear

#: The most bytes of values that a group keeps a second time.
_MOST = 2**21
_TENSORS = ("values", "w_scale", "bias", "x_scale", "packed_index")
_FLAGS = ("activation", "strict", "kernel", "use_fast_accum", "fuse")


class EightBitSiblings(Siblings):
    """Siblings in 8 bits, on CPUs. A layer of their stacked weights, whose outputs are those of each to the
    bit, rounds x and multiplies once.

    It keeps a copy of their values, at most 2 MiB, which no call of few tokens could pay for anew; it is made
    again after any of them, or a flag of a layer, has changed. Layers with a factor of their own for x, and
    those of more values, multiply by themselves; so does compiled code.
    """

    layers: tuple[QuantizedBlockSparseLinear, ...]  # type: ignore[assignment]
    whole: QuantizedBlockSparseLinear | None = None
    flags: list[Any] | None = None
    made_of: Sequence[tuple[dict[str, Any], str, Any, int]] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "whole": None, "flags": None, "made_of": ()}

    def settle(self) -> None:
        """Does nothing: each call looks at the tensors that it would stack."""

    def dissolve(self) -> None:
        super().dissolve()
        self.whole, self.flags, self.made_of = None, None, ()

    def _multiplied(self, x: Tensor) -> _Results | None:
        if torch.compiler.is_compiling() or not x.is_cpu or not (whole := self._stacked()):
            return None
        sizes = [each.out_features for each in self.layers]
        parts: tuple[Tensor, ...] = torch.unsafe_split_with_sizes(whole(x), sizes, -1)  # type: ignore[attr-defined]
        return _Results(x, _version(x), torch.is_grad_enabled(), _autocast(x), parts)

    def _stacked(self) -> QuantizedBlockSparseLinear | None:
        """Returns the layer of the stacked weights; None where there can be none."""
        flags = [getattr(layer, name) for layer in self.layers for name in _FLAGS]
        same = flags == self.flags and all(
            buffers[name] is tensor and (version < 0 or tensor._version == version)
            for buffers, name, tensor, version in self.made_of
        )
        if not same:
            self.flags = flags
            found = ((layer._buffers, name) for layer in self.layers for name in _TENSORS)
            self.made_of = [
                (buffers, name, tensor := buffers[name], -1 if tensor is None else _version(tensor))
                for buffers, name in found
            ]
            self.whole = self._made()
        return self.whole

    @torch.no_grad()
    def _made(self) -> QuantizedBlockSparseLinear | None:
        layers, first = self.layers, self.layers[0]
        alike = all(
            layer.values.is_cpu
            and layer.x_scale is None
            and layer.values.dtype is first.values.dtype is torch.int8
            and (layer.bias is None) == (first.bias is None)
            and (layer.bias is None or first.bias is None or layer.bias.dtype is first.bias.dtype)
            and all(getattr(layer, name) == getattr(first, name) for name in _FLAGS)
            for layer in layers
        )
        if not alike or not first.fuse or sum(layer.values.numel() for layer in layers) > _MOST:
            return None
        bias = first.bias
        whole = type(first)(
            stacked_pattern(tuple(layer.pattern for layer in layers)), torch.int8, bias=bias is not None,
            activation=first.activation, bias_dtype=None if bias is None else bias.dtype,
        )  # fmt: skip
        whole.values.copy_(torch.cat([layer.values for layer in layers]))
        whole.w_scale.copy_(torch.cat([layer.w_scale for layer in layers]))
        if whole.bias is not None:
            whole.bias.copy_(torch.cat([layer.bias for layer in layers if layer.bias is not None]))
        for name in ("strict", "kernel", "use_fast_accum"):
            setattr(whole, name, getattr(first, name))
        return whole
