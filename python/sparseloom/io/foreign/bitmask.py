"""compressed-tensors' sparse-bitmask and sparse-24-bitmask, by the layouts that its version 0.9.4 writes.

A weight [rows, cols] of a layer is stored as ``layer.bitmask``, uint8 [rows, ceil(cols / 8)], where bit i of
byte j is set if element 8 j + i of the row is stored; ``layer.compressed``, the stored elements row by row,
[stored] or, in 2:4, [rows, cols / 2]; ``layer.shape``, int64 [2], in 2:4 [2, 1]; and, not in 2:4,
``layer.row_offsets``, int64 [rows], the place in ``compressed`` where each row begins.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...errors import Error

#: Names of the formats, as config.json has them.
BITMASK, BITMASK24 = "sparse-bitmask", "sparse-24-bitmask"
_PARTS = ("bitmask", "compressed", "shape", "row_offsets")
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_REMEDY = "take an undamaged checkpoint"


def layers_in(tensors: Mapping[str, object]) -> list[str]:
    """Returns the names of the layers that have a bitmask."""
    return [name.removesuffix(".bitmask") for name in tensors if name.endswith(".bitmask")]


def decode(tensors: dict[str, Tensor], layer: str) -> tuple[Tensor, bool]:
    """Takes the entries of a layer, and returns its weight [rows, cols] and whether they are those of 2:4.
    Raises Error for entries that contradict each other, before a tensor of the weight's size is made."""
    parts = {part: tensors.pop(f"{layer}.{part}", None) for part in _PARTS}
    bitmask, compressed, shape, offsets = (parts[part] for part in _PARTS)
    if bitmask is None or compressed is None or shape is None:
        missing = next(part for part in _PARTS if parts[part] is None)
        raise Error("load", f"{layer}.{missing} beside {layer}.bitmask", "none", _REMEDY)
    if shape.numel() != 2 or shape.dtype not in _WHOLE or bool((shape < 0).any()):
        got = f"{list(shape.shape)} of {shape.dtype}"
        raise Error("load", f"{layer}.shape to be two sizes", got, _REMEDY)
    rows, cols = (int(size) for size in shape.flatten().tolist())
    if bitmask.dtype != torch.uint8 or tuple(bitmask.shape) != (rows, -(-cols // 8)):
        got = f"{list(bitmask.shape)} of {bitmask.dtype}"
        raise Error("load", f"{layer}.bitmask [{rows}, {-(-cols // 8)}] of torch.uint8", got, _REMEDY)
    is_24 = compressed.dim() == 2
    mask = _unpacked(bitmask)
    if bool(mask[:, cols:].any()):
        raise Error("load", f"no bit of {layer}.bitmask beyond {cols} columns", "some", _REMEDY)
    mask = mask[:, :cols]
    counts = mask.sum(1)
    _require_counts(layer, counts, compressed, offsets, cols, is_24)
    weight = torch.zeros(rows, cols, dtype=compressed.dtype)
    _bits(weight).masked_scatter_(mask, _bits(compressed.flatten()))
    return weight, is_24


def scaled(tensors: dict[str, Tensor], layer: str, weight: Tensor) -> Tensor:
    """Multiplies a float8 weight with ``layer.weight_scale``: one number, one for each row, or one for each
    row and group of columns. The scale of inputs, which only a float8 product needs, goes."""
    scale = tensors.pop(f"{layer}.weight_scale", None)
    tensors.pop(f"{layer}.input_scale", None)
    if scale is None:
        return weight
    rows, cols = weight.shape
    groups = scale.shape[-1] if scale.dim() == 2 else 1
    is_one = scale.numel() == 1
    fits = is_one or (scale.dim() == 2 and len(scale) == rows and groups and cols % groups == 0)
    if not fits or not scale.is_floating_point():
        got = f"{list(scale.shape)} of {scale.dtype}"
        raise Error("load", f"{layer}.weight_scale of {rows} rows and groups of {cols} columns", got, _REMEDY)
    exact = weight.to(torch.float32).unflatten(1, (1 if is_one else groups, -1))
    factors = scale.float().reshape(1, 1, 1) if is_one else scale.float()[:, :, None]
    return (exact * factors).flatten(1).to(scale.dtype)


def _unpacked(bitmask: Tensor) -> Tensor:
    """Returns the bits [rows, 8 * bytes] as bool: eight at a time, by a table of all bytes."""
    table = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
    eights = table.to(torch.uint8).contiguous().view(torch.int64).flatten()
    return (
        eights.index_select(0, bitmask.flatten().int())
        .view(torch.bool)
        .view(len(bitmask), 8 * bitmask.shape[1])
    )


def _require_counts(
    layer: str, counts: Tensor, compressed: Tensor, offsets: Tensor | None, cols: int, is_24: bool
) -> None:
    stored = int(counts.sum())
    if compressed.numel() != stored:
        got = f"{compressed.numel()} in {layer}.compressed"
        raise Error("load", f"{stored} elements, as {layer}.bitmask has bits", got, _REMEDY)
    if is_24:
        uneven = counts != cols // 2
        if tuple(compressed.shape) != (len(counts), cols // 2) or bool(uneven.any()):
            got = f"{list(compressed.shape)}, and bits of a row from {_range(counts)}"
            raise Error("load", f"{layer}.compressed [{len(counts)}, {cols // 2}]", got, _REMEDY)
    elif offsets is not None and not torch.equal(offsets.flatten().long(), counts.cumsum(0) - counts):
        raise Error("load", f"{layer}.row_offsets to add up the bits of {layer}.bitmask", "others", _REMEDY)


def _range(counts: Tensor) -> str:
    return f"{int(counts.min())} to {int(counts.max())}" if len(counts) else "none"


def encode(layer: str, weight: Tensor, is_24: bool) -> dict[str, Tensor]:
    """Returns the entries of a weight [rows, cols]. Raises Error for one that is not 2:4 where 2:4 is asked
    for."""
    rows, cols = weight.shape
    mask = weight != 0
    if is_24:
        mask = _two_of_four(layer, mask)
    padded = torch.nn.functional.pad(mask, (0, -cols % 8)).unflatten(1, (-1, 8)).to(torch.uint8)
    bitmask = (padded << torch.arange(8, dtype=torch.uint8)).sum(2, dtype=torch.uint8)
    compressed = _bits(weight)[mask].view(weight.dtype)
    shape = torch.tensor([rows, cols])
    entries = {f"{layer}.bitmask": bitmask}
    if is_24:
        return entries | {
            f"{layer}.compressed": compressed.view(rows, cols // 2),
            f"{layer}.shape": shape.view(2, 1),
        }
    counts = mask.sum(1)
    offsets = counts.cumsum(0) - counts
    return entries | {
        f"{layer}.compressed": compressed,
        f"{layer}.shape": shape,
        f"{layer}.row_offsets": offsets,
    }


def _two_of_four(layer: str, mask: Tensor) -> Tensor:
    """Returns two places of each group of four, all that are set among them."""
    if mask.shape[1] % 4:
        got = f"{mask.shape[1]} of {layer}"
        raise Error("save", "in features in groups of 4", got, "save as sparse-bitmask")
    groups = mask.unflatten(1, (-1, 4))
    full = groups.sum(2) > 2
    if bool(full.any()):
        row, group = full.nonzero()[0].tolist()
        got = f"more in row {row}, columns {4 * group} to {4 * group + 3} of {layer}"
        raise Error("save", "at most 2 of 4 elements that are not zero", got, "save as sparse-bitmask")
    first = groups.to(torch.int8).argsort(dim=2, descending=True, stable=True)[:, :, :2]
    return torch.zeros_like(groups).scatter_(2, first, True).flatten(1)


def _bits(tensor: Tensor) -> Tensor:
    """Views elements as whole numbers, so that float8 can be indexed, and every bit stays."""
    return tensor.view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    )
