"""Reports on one block-sparse convolution: its kernels, and its times compared to its dense twin."""

from __future__ import annotations

import torch
from torch import Tensor

from ..nn.conv.base import ConvModule
from ..nn.held.sparse_weight import SparseWeight
from .layers import drawn, listed, name_kernels, product_dtype, timed
from .result import LayerReport


def described(name: str, layer: ConvModule, weight: SparseWeight, seen: Tensor | None) -> LayerReport:
    """Returns the layer's report without the times; ``seen``: the largest input, on meta."""
    entry, dtype = listed(name, layer, weight), product_dtype(weight.values)
    entry.shape, entry.note = (*weight.shape, *layer.kernel_size), ""
    entry.dtype = str(dtype).removeprefix("torch.")
    if seen is None or not seen.numel():
        entry.note = "not reached by the example input"
    elif weight.values.is_meta:
        entry.note = "on meta: nothing to measure"
    else:
        entry.x_shape = tuple(seen.shape)
        plans = {direction: layer.plan(entry.x_shape, direction, dtype) for direction in weight.directions}
        name_kernels(entry, plans)
    return entry


def measure(entry: LayerReport, layer: ConvModule, seen: Tensor | None, seconds: float) -> None:
    """Measures the times on random data in the memory format of ``seen``, if the layer can be timed."""
    if seen is None or not entry.kernels:
        return
    if layer.edges is not None:
        entry.note = "not timed alone: a layer with an edge bias has no dense twin"
        return
    values = layer.values
    x = torch.empty_like(seen, device=values.device, dtype=values.dtype).copy_(drawn(*seen.shape))
    twin = layer.to_dense()
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        twin = twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    trained = [parameter for parameter in twin.parameters() if parameter.requires_grad]
    entry.times, entry.dense_times, entry.ratios = timed(layer, twin, trained, x, seconds)
    if entry.slower:
        entry.note = f"slower than dense: {', '.join(entry.slower)}"


def see(layer: ConvModule, x: Tensor, seen: dict[ConvModule, Tensor]) -> None:
    """Keeps the shape and memory format of the largest input of a layer."""
    if x.dim() == layer.dimensions + 1:
        x = x.unsqueeze(0)
    if layer not in seen or x.numel() > seen[layer].numel():
        seen[layer] = torch.empty_like(x, device="meta")
