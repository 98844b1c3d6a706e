"""Semi24TrainingConv2d: an nn.Conv2d that trains a dense weight and multiplies with 2:4 of it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import Error
from ...ops.devices import require_one_device
from .. import arguments
from .semi24 import Semi24Training

_OP = "Semi24TrainingConv2d"


def by_taps(like_weight: Tensor) -> Tensor:
    """Returns [..., in_channels, taps] as [..., taps x in_channels], zero for channels up to a multiple of
    four: what is 2:4 of a convolution."""
    return F.pad(like_weight.transpose(-1, -2), (0, -like_weight.shape[-2] % 4)).flatten(-2)


def of_taps(matrix: Tensor, in_channels: int) -> Tensor:
    """Returns [..., in_channels, taps]: undoes ``by_taps``."""
    split = matrix.unflatten(-1, (-1, -(-in_channels // 4) * 4))
    return split[..., :in_channels].transpose(-1, -2)


class Semi24TrainingConv2d(Semi24Training):
    """Does what Semi24Training does for an nn.Conv2d of one group. Of each four consecutive input channels of
    an output channel and tap two take part, as devices with 2:4 convolutions require it.

    ``weight`` is the Parameter of ``dense`` [out_channels, in_channels, kernel height, kernel width].
    ``mask`` is bool [out_channels, taps x in_channels], taps first and channels padded to a multiple of four.
    ``multiply = "semi24"`` multiplies with the unfolded input, which takes ``taps`` times the memory of x;
    "auto" does so for kernels of one tap alone, and calls the dense convolution with W * mask otherwise.
    ``to_dense`` gives an nn.Conv2d with zeros; there is no packed one. Raises Error for more groups.

    Args:
        dense: the convolution. Parameters stay the same.
        prune, mask, share, decay, soft: as in Semi24Training.
    """

    def __init__(self, dense: nn.Conv2d, *, mask: Tensor | None = None, **rule: Any) -> None:
        if not isinstance(dense, nn.Conv2d) or dense.groups != 1:
            got = f"{dense.groups} groups" if isinstance(dense, nn.Conv2d) else type(dense).__name__
            raise Error(_OP, "an nn.Conv2d of one group", got, "leave it dense")
        weight = dense.get_parameter("weight")
        taps, padded = dense.kernel_size[0] * dense.kernel_size[1], -(-dense.in_channels // 4) * 4
        super().__init__(taps * padded, dense.out_channels, False, device="meta", dtype=weight.dtype, **rule)
        self.in_channels, self.out_channels = dense.in_channels, dense.out_channels
        self.kernel_size: Any
        self.kernel_size, self.stride, self.dilation = dense.kernel_size, dense.stride, dense.dilation
        self.padding, self.padding_mode = dense.padding, dense.padding_mode
        self._pads: list[int] = list(dense._reversed_padding_repeated_twice)
        self._hold(weight, mask)
        self.bias: Any = dense.bias
        self.train(dense.training)

    @classmethod
    def over(
        cls, dense: nn.Module, weight: nn.Parameter, mask: Tensor | None, **rule: Any
    ) -> Semi24TrainingConv2d:
        assert isinstance(dense, nn.Conv2d)  # its form says so
        if mask is not None:  # in the order of the weight's elements
            mask = by_taps(mask.reshape(*weight.shape[:2], -1))
        layer = cls(dense, mask=mask, **rule)
        layer.bias = None
        return layer

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Maps x [batch, in_channels, height, width], or without a batch, as nn.Conv2d does, and adds
        the ``residual``, of the result's shape and dtype. Raises Error when x or ``residual`` does not
        fit."""
        if (
            x.__class__ is not Tensor
            and (node := arguments.recorded_by_fx(self, x, residual=residual)) is not None
        ):
            return node  # type: ignore[no-any-return]
        arguments.require_tensor(x)
        if self.mask.device != x.device:
            require_one_device("conv2d", {"x": x, "mask": self.mask})
        x, weight, bias, _ = arguments.prologue(x, self._effective(), self.bias)
        if x.dim() not in (3, 4) or x.shape[-3] != self.in_channels or x.dtype != weight.dtype:
            expected = f"x [..., {self.in_channels}, height, width] of {weight.dtype}"
            got = f"{list(x.shape)} of {x.dtype}"
            raise Error("conv2d", expected, got, "convert x, or give it the channels of the layer")
        padding: Any = self.padding
        if self.padding_mode != "zeros" and any(self._pads):
            x, padding = F.pad(x, self._pads, mode=self.padding_mode), 0
        if self._by_kernels(x, x.numel() // max(1, self.in_channels)):
            return arguments.added(self._unfolded(x, weight, bias, padding), residual)
        y = F.conv2d(x, weight.permute(0, 3, 1, 2), bias, self.stride, padding, self.dilation)
        return arguments.added(y, residual)

    def _by_kernels(self, x: Tensor, tokens: int) -> bool:
        one_tap = self.kernel_size == (1, 1)
        return (one_tap or self.multiply == "semi24") and super()._by_kernels(x, tokens)

    def _unfolded(self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Any) -> Tensor:
        """Returns the convolution as one product with the unfolded x, whose columns are taps and padded
        channels."""
        batched = x if x.dim() == 4 else x[None]
        if padding != 0 and any(self._pads):  # "same" pads an even kernel on one side more
            batched = F.pad(batched, self._pads)
        height, width = (
            (size - dilation * (taps - 1) - 1) // stride + 1
            for size, taps, dilation, stride in zip(
                batched.shape[2:], self.kernel_size, self.dilation, self.stride, strict=True
            )
        )
        taps = self.kernel_size[0] * self.kernel_size[1]
        unfolded = F.unfold(batched, self.kernel_size, self.dilation, 0, self.stride)
        columns = unfolded.unflatten(1, (self.in_channels, taps)).permute(0, 3, 2, 1)
        rest = -self.in_channels % 4
        rows = F.pad(columns, (0, rest)).reshape(-1, self.in_features)
        y = self._product(rows, F.pad(weight, (0, rest)).flatten(1), bias)
        y = y.unflatten(0, (batched.shape[0], height, width)).permute(0, 3, 1, 2)
        return y if x.dim() == 4 else y[0]

    def _ordered(self, weight: Tensor) -> Tensor:
        return weight.permute(0, 2, 3, 1)

    def _of_weight(self, mask: Tensor) -> Tensor:
        shape = (*self.kernel_size, -(-self.in_channels // 4) * 4)
        return mask.unflatten(1, shape)[..., : self.in_channels]

    def matrix(self, like_weight: Tensor) -> Tensor:
        """Returns a tensor of the weight's shape as [out_channels, taps x padded channels]."""
        return by_taps(like_weight.flatten(2))

    @torch.no_grad()
    def effective(self) -> Tensor:
        """Returns the weight that is multiplied with, in the shape of ``weight``."""
        return super().effective().permute(0, 3, 1, 2).contiguous()

    @torch.no_grad()
    def to_dense(self) -> nn.Conv2d:  # type: ignore[override]
        """Returns an nn.Conv2d with the weight that evaluation multiplies with, zero where the mask prunes
        (copied). The bias is the same Parameter."""
        how: Any = self.kernel_size, self.stride, self.padding, self.dilation, 1, False, self.padding_mode
        like: Any = {"device": "meta", "dtype": self.weight.dtype}
        dense = nn.Conv2d(self.in_channels, self.out_channels, *how, **like)
        dense.weight = nn.Parameter(self.effective(), self.weight.requires_grad)
        dense.bias = self.bias
        return dense.train(self.training)

    def stored_as(self) -> dict[str, Any]:
        """Returns the metadata that ``save`` writes for the layer, with the sizes of its convolution."""
        return {
            **super().stored_as(),
            "in_features": self.in_channels,
            "out_features": self.out_channels,
        }

    def extra_repr(self) -> str:
        sizes = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        how = f"stride={self.stride}, padding={self.padding}, bias={self.bias is not None}"
        return f"{sizes}, {how}, prune={self.prune}" + (", soft=True" if self.soft else "")

    def pack_elements(self) -> Any:
        """Raises Error: no kernel runs a packed 2:4 convolution."""
        remedy = "call densify_, or save(format='dense'): the zeros stay"
        raise Error(_OP, "a layer with a packed kind", "a convolution", remedy)

    def masked(self, like_weight: Tensor) -> Tensor:
        """Returns a tensor of the weight's shape, such as its gradient, zero where evaluation prunes."""
        return like_weight.detach().masked_fill(~self._mask_of_parameter(), 0)

    def _mask_of_parameter(self) -> Tensor:
        return self._of_weight(self.mask).permute(0, 3, 1, 2)
