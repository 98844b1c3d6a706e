"""Padding of ragged edges: elements that blocks and groups store outside of the matrix stay zero, whatever
an optimizer or an in-place write does to the values.

No product reads it, but norms count it, a NaN in it would reach results, and loads refuse it. It is cleared
after each optimizer step, and before a state dict gives the values away.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from .cut import held
from .written import Written

#: Layers with padding.
_ragged: WeakSet[nn.Module] = WeakSet()
_Masks = list[tuple[Tensor, tuple[Any, ...]]]
#: Layer -> (shape and device of the values and the index that its masks were made for, the masks).
_masks: WeakKeyDictionary[nn.Module, tuple[Any, Written, _Masks]] = WeakKeyDictionary()
_hooked = False


def watch(layer: Any) -> None:
    """Keeps the padding of a layer zero from now on, where it has any."""
    global _hooked
    if not _is_ragged(layer):
        return
    _ragged.add(layer)
    if not _hooked:
        register_optimizer_step_post_hook(_after_step)
        _hooked = True


def clear(layer: Any) -> None:
    """Writes zero into the padding of a layer's values. Autograd does not see it: no product has read what
    changes."""
    values = layer._parameters.get("values")
    if layer not in _ragged or values is None or values.is_meta or values.is_inference():
        return
    if getattr(layer, "_emptied", False):  # its index is not there yet
        return
    part = held(layer, values) if getattr(layer, "_cut", None) is not None else values
    if type(part) in (Tensor, nn.Parameter):
        for selected, region in _masks_of(layer, part):
            padding = part.data[region]
            if selected.dtype == torch.bool:
                padding.masked_fill_(selected, 0)
            else:
                padding.index_fill_(0, selected, 0)


def _after_step(optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
    if torch.compiler.is_compiling():
        return
    # All ragged layers: fused kernels do not increment the version of the tensors that they write.
    for layer in list(_ragged):
        clear(layer)


def _is_ragged(layer: Any) -> bool:
    layout = getattr(layer, "_template", None)
    if layout is not None:
        return bool(layout.padded)
    (bm, bn), rows, cols = layer.block, layer.out_features, layer.in_features
    return bool(rows % bm or cols % bn)


def _masks_of(layer: Any, values: Tensor) -> _Masks:
    """Returns pairs (selection, slices): the padding is ``values[slices]`` where the selection says so, a
    bool mask or indices of the first dimension. They are made anew after the index has changed."""
    index = [layer._buffers[name] for name in next(iter(layer.sparse_weights().values())).index_buffers]
    key = values.shape, values.device
    cached = _masks.get(layer)
    served = cached is not None and cached[0] == key and cached[1].still(index)
    if not served or getattr(layer, "dynamic", False):
        layout = getattr(layer, "_template", None)
        masks = _of_blocks(layer, values) if layout is None else _of_layout(layer, values)
        if _is_captured(values):  # the memory is the graph's
            return masks
        cached = _masks[layer] = key, Written(index), masks
    assert cached is not None
    return cached[2]


def _is_captured(values: Tensor) -> bool:
    return values.is_cuda and torch.cuda.is_current_stream_capturing()


def _of_blocks(layer: Any, values: Tensor) -> _Masks:
    """Selects the blocks of the last block row and the last block column: by index, so that only these blocks
    cost time; by a mask of all blocks where the host must not wait (a dynamic topology, or graph capture)."""
    (bm, bn), rows, cols, index = layer.block, layer.out_features, layer.in_features, layer.index
    below = torch.arange(len(values), device=values.device) >= index.crow[-2:-1]
    right = index.col == -(-cols // bn) - 1
    edges: _Masks = []
    if rows % bm:
        edges.append((below, (..., slice(rows % bm, None), slice(None))))
    if cols % bn:
        edges.append((right, (..., slice(cols % bn, None))))
    if layer.dynamic or _is_captured(values):
        return [(mask.view(-1, *[1] * (values.dim() - 1)), region) for mask, region in edges]
    return [(mask.nonzero().flatten(), region) for mask, region in edges]


def _of_layout(layer: Any, values: Tensor) -> _Masks:
    layout = layer.layout
    if not layout.padded or not values.numel():
        return []
    numbers = torch.arange(1, values.numel() + 1, dtype=torch.float64, device=values.device)
    numbers = numbers.view(values.shape)
    return [(layout.pack(layout.to_dense(numbers)) != numbers, (...,))]
