"""What the weights of convolutions multiply: the windows of their inputs, one for each output position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor


def windows_of(module: Any, x: Tensor) -> Iterator[Tensor]:
    """Yields for each sample of x [batch, in, *sizes] the windows [*positions, in x taps] that the weight
    [out, in x taps] of a convolution, or of a transposed one, multiplies."""
    dims = len(module.kernel_size)
    for sample in x if x.dim() == dims + 2 else [x]:
        if module.transposed:
            windows = _unfolded(_spread(module, sample), module.kernel_size, (1,) * dims, module.dilation)
            windows = windows.flip(tuple(range(-dims, 0)))
        else:
            mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
            padded = F.pad(sample[None], module._reversed_padding_repeated_twice, mode)[0]
            windows = _unfolded(padded, module.kernel_size, module.stride, module.dilation)
        yield windows.movedim(0, dims).flatten(dims)


def way_of(module: Any) -> tuple[object, ...]:
    """Returns what decides the windows of an input: convolutions of one way see the same."""
    names = ("kernel_size", "stride", "padding", "dilation", "padding_mode", "transposed", "output_padding")
    return tuple(getattr(module, name) for name in names)


def _unfolded(
    x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> Tensor:
    """Returns [in, *positions, *kernel] of x [in, *sizes], a view."""
    for axis, (taps, step, gap) in enumerate(zip(kernel, stride, dilation, strict=True), 1):
        x = x.unfold(axis, gap * (taps - 1) + 1, step)[..., ::gap]
    return x


def _spread(module: Any, sample: Tensor) -> Tensor:
    """Returns the input of the convolution of stride 1 that a transposed one is: zeros between its elements
    and around them."""
    sizes, strides = sample.shape[1:], module.stride
    longer = [step * (size - 1) + 1 for size, step in zip(sizes, strides, strict=True)]
    spread = sample.new_zeros([len(sample), *longer])
    places = (slice(None), *(slice(None, None, step) for step in strides))
    spread[places] = sample
    around: list[int] = []
    for taps, gap, cut, more in zip(
        module.kernel_size, module.dilation, module.padding, module.output_padding, strict=True
    ):
        side = gap * (taps - 1) - cut
        around = [side, side + more, *around]
    return F.pad(spread, around)
