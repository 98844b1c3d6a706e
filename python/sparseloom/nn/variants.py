"""Sparse layers that replace other modules with a matrix product: transformers' Conv1D, and 1x1
convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..layouts import Layout
from .held.options import WithOptions
from .held.pruned_entries import accept_pruned
from .held.sparse_weight import SparseWeight, held, held_descriptions
from .held.weight import BlockSparseWeight
from .in_layout.linear import SparseLinear
from .linear import BlockSparseLinear
from .semi24.linear import Semi24Linear


class BlockSparseTransformersConv1D(BlockSparseLinear):
    """Replaces transformers.pytorch_utils.Conv1D, a linear layer whose dense weight is stored as [in, out].

    It differs from BlockSparseLinear in the dense form that it converts to and reads from checkpoints.
    """

    def dense_matrix(self, weight: Tensor) -> Tensor:
        """Returns the stored form [in, out] as [out, in]."""
        return weight.t()

    @property
    def dense_shape(self) -> tuple[int, int]:
        """The shape of the stored form, [in, out]."""
        return self.in_features, self.out_features

    def to_dense(self) -> nn.Module:
        """Returns a Conv1D with the same values in their places and zero elsewhere (copied)."""
        return _conv1d(super().to_dense())


#: The former name, in programs and pickles; it is too similar to nn.Conv1d, a convolution.
BlockSparseConv1D = BlockSparseTransformersConv1D


class Semi24Conv1D(Semi24Linear):
    """Replaces transformers.pytorch_utils.Conv1D by a 2:4 layer, as BlockSparseTransformersConv1D does by
    a block-sparse one."""

    def dense_matrix(self, weight: Tensor) -> Tensor:
        """Returns the stored form [in, out] as [out, in]."""
        return weight.t()

    @property
    def dense_shape(self) -> tuple[int, int]:
        """The shape of the stored form, [in, out]."""
        return self.in_features, self.out_features

    def to_dense(self) -> nn.Module:
        """Returns a Conv1D with the same values in their places and zero elsewhere (copied)."""
        return _conv1d(super().to_dense())


class SparseConv1D(SparseLinear):
    """Replaces transformers.pytorch_utils.Conv1D by a layer of any layout. The layout's matrix is [out
    features, in features], as in SparseLinear; only the dense form that it converts to and reads from
    checkpoints is [in, out]."""

    def dense_matrix(self, weight: Tensor) -> Tensor:
        """Returns the stored form [in, out] as [out, in]."""
        return weight.t()

    @property
    def dense_shape(self) -> tuple[int, int]:
        """The shape of the stored form, [in, out]."""
        return self.in_features, self.out_features

    def placed(self, weight: Tensor) -> tuple[Layout, Tensor] | None:
        """As SparseLinear.placed, of the stored form."""
        return super().placed(weight if weight.layout == torch.strided else weight.t())

    def to_dense(self) -> nn.Module:
        """Returns a Conv1D with the same values in their places and zero elsewhere (copied)."""
        return _conv1d(super().to_dense())


def _conv1d(linear: nn.Module) -> nn.Module:
    """Returns the Conv1D that computes what an nn.Linear does; it takes the bias, and a copy of the
    weight."""
    from transformers.pytorch_utils import Conv1D  # imported here: the dense module came from there

    if isinstance(linear, nn.Sequential):  # with the activation behind it
        return nn.Sequential(_conv1d(linear[0]), linear[1]).train(linear.training)
    assert isinstance(linear, nn.Linear)
    with torch.device("meta"):
        dense: nn.Module = Conv1D(linear.out_features, linear.in_features)
    dense.weight = nn.Parameter(linear.weight.detach().t().contiguous(), linear.weight.requires_grad)
    bias = linear.bias
    dense.bias = (
        bias
        if bias is not None
        else nn.Parameter(linear.weight.new_zeros(linear.out_features), requires_grad=False)
    )
    return dense.train(linear.training)


class BlockSparseConv1x1(WithOptions):
    """A convolution with kernel size 1: a sparse linear layer over the channels at every position.

    x is [batch, channels, *positions] or [channels, *positions], with ``dimensions`` position axes; a stride
    of n takes every n-th position. Entries of a dense checkpoint (weight [out, in, 1, ...], bias) are packed
    when they are loaded.
    """

    def __init__(
        self, linear: BlockSparseLinear | Semi24Linear, dimensions: int, stride: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.linear = linear
        self.dimensions, self.stride = dimensions, tuple(stride)
        self.register_load_state_dict_pre_hook(_conv_entries)

    @property
    def in_channels(self) -> int:
        """The channels of x."""
        return self.linear.in_features

    @property
    def out_channels(self) -> int:
        """The channels of the result."""
        return self.linear.out_features

    @property
    def weight(self) -> BlockSparseWeight:
        """As BlockSparseLinear.weight, with the shape of the convolution's weight [out, in, 1, ...]."""
        return BlockSparseWeight.of(
            self.linear, (self.out_channels, self.in_channels, *(1,) * self.dimensions)
        )

    @property
    def bias(self) -> nn.Parameter | None:
        """The bias of the layer inside."""
        return self.linear.bias

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Maps [..., in channels, *positions] to [..., out channels, *positions / stride], and adds the
        ``residual`` of that shape."""
        if any(step != 1 for step in self.stride):
            steps: tuple[Any, ...] = (..., *(slice(None, None, step) for step in self.stride))
            x = x[steps]
        channel = -1 - self.dimensions
        added = () if residual is None else (residual.movedim(channel, -1),)
        return self.linear(x.movedim(channel, -1), *added).movedim(-1, channel)

    def to_dense(self) -> nn.Module:
        """Returns the convolution with the same values in their places and zero elsewhere (copied)."""
        linear = self.linear.to_dense()
        activation = [linear[1]] if isinstance(linear, nn.Sequential) else []  # the activation
        linear = linear[0] if isinstance(linear, nn.Sequential) else linear
        assert isinstance(linear, nn.Linear)
        cls = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[self.dimensions - 1]
        stride: Any = self.stride
        dense = cls(
            self.in_channels, self.out_channels, 1, stride, bias=linear.bias is not None, device="meta"
        )
        weight = linear.weight.detach().reshape(self.out_channels, self.in_channels, *(1,) * self.dimensions)
        dense.weight = nn.Parameter(weight, linear.weight.requires_grad)
        dense.bias = linear.bias
        return (nn.Sequential(dense, *activation) if activation else dense).train(self.training)

    def sparse_weights(self) -> dict[str, SparseWeight]:
        """Returns the weight of the layer inside."""
        return held(self, {"linear": ("weight", "")})

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns the data that rebuild the layer inside; see SparseModule."""
        return held_descriptions(self, ["linear"])

    def extra_repr(self) -> str:
        return f"dimensions={self.dimensions}, stride={self.stride}"


def _conv_entries(module: nn.Module, tensors: dict[str, Any], prefix: str, *_: Any) -> None:
    """Renames the dense entries of a convolution to those of the layer inside."""
    accept_pruned(tensors, prefix)
    weight = tensors.pop(prefix + "weight", None)
    if isinstance(weight, Tensor):
        # save_pretrained writes the stored values under the convolution's name
        packed = any(f"{prefix}linear.{index}" in tensors for index in ("crow", "positions"))
        tensors[f"{prefix}linear.weight"] = weight.flatten(1) if weight.dim() > 2 and not packed else weight
        if prefix + "bias" in tensors:
            tensors[f"{prefix}linear.bias"] = tensors.pop(prefix + "bias")
