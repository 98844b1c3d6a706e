"""Entries of a state dict that stand for a pruned weight: those of torch.nn.utils.prune (SparseML writes the
same), torchao's superblock, nn_pruning, STen, and tensors in sparse layouts of torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import Error
from ...layouts.torchs import BLOCKS, is_sparse_matrix, strided, values_of
from ...nn.held.pruned_entries import accept_pruned
from ...nn.held.torch_blocks import blocks_of
from ...nn.semi24.semi_structured import from_torch, is_torchs
from ...pattern import Pattern

#: What is made has at most so many elements, and 1024 times those that are stored.
LARGEST = 2**24
#: How the folders of its checkpoints are named: share of tiles that go, side of a tile.
_NAMED = re.compile(r"sp(?P<sparsity>[01]?\.\d+)(?:-ts(?P<tile>\d+))?")


class Said(NamedTuple):
    """The share of tiles that go, and the side of a tile, as far as anything says them."""

    sparsity: float | None
    tile: int | None


def said(place: str, arguments: object) -> dict[str, Said]:
    """Returns what superblock's arguments, saved in its checkpoints, or the names of its folders say, for
    layers that are "linear", "conv1x1" and "conv"."""
    named = _NAMED.search(place)
    kinds = {}
    for kind in ("linear", "conv1x1", "conv"):
        sparsity = getattr(arguments, f"sparsity_{kind}", named and named["sparsity"])
        said_tile = getattr(arguments, f"sp_{kind}_tile_size", getattr(arguments, "bsr", None))
        tile = said_tile or (named and named["tile"])
        kinds[kind] = Said(float(sparsity) if sparsity else None, int(tile) if tile else None)
    return kinds


def pruned(tensors: dict[str, Any]) -> None:
    """Multiplies weights with their masks: X_orig and X_mask."""
    for key in [key for key in tensors if key.endswith("_orig") and f"{key[:-5]}_mask" in tensors]:
        prefix, _, name = key.removesuffix("_orig").rpartition(".")
        accept_pruned(tensors, f"{prefix}." if prefix else "", name)


def unwrapped(value: Any) -> tuple[Any, str | Pattern | None]:
    """Returns an entry as a dense tensor, and what its format says of its structure: "semi24", the pattern of
    its blocks, or None."""
    if hasattr(value, "wrapped_tensor"):  # STen: the tensor itself is a dummy of another shape
        wrapped = value.wrapped_tensor
        if is_sparse_matrix(wrapped):
            return unwrapped(wrapped)[0], None
        return (wrapped.to_dense() if hasattr(wrapped, "to_dense") else wrapped), None
    if is_torchs(value):
        layout, values = from_torch(value)
        return layout.to_dense(values), "semi24"
    if is_sparse_matrix(value):
        _require_dense_fits(value)
    if isinstance(value, Tensor) and value.layout in BLOCKS:
        crow, col, values = blocks_of("load", value)
        rows, cols = value.shape
        block = values.shape[1], values.shape[2]
        is_ours = all(side in (8, 16, 32, 64, 128) for side in block)
        pattern = Pattern.from_index(crow.cpu(), col.cpu(), rows, cols, block) if is_ours else None
        return strided(value.detach(), "load"), pattern
    return (strided(value.detach(), "load") if is_sparse_matrix(value) else value), None


def _require_dense_fits(tensor: Tensor) -> None:
    """Raises Error for a matrix that would be much larger than what is stored of it: an index of a few bytes
    can claim any shape."""
    rows, cols = tensor.shape
    if rows * cols > 1024 * values_of(tensor).numel() + LARGEST:
        got = f"{values_of(tensor).numel()} of {rows} x {cols}"
        raise Error("load", "more elements than one in 1024", got, "take an undamaged copy")


def supermasked(tensors: dict[str, Any], kinds: Mapping[str, Said]) -> None:
    """Multiplies superblock's weights with the masks that their scores give: the lowest scores' tiles go. A
    weight that has tiles of zeros was multiplied already, by sparsify_offline."""
    for key in [key for key in tensors if key.endswith(".scores")]:
        layer = key.removesuffix(".scores")
        weight = tensors.get(f"{layer}.weight")
        if weight is None or weight.dim() not in (2, 4):
            continue
        scores = tensors.pop(key)
        shift, scale = (tensors.pop(f"{layer}.{part}", None) for part in ("shift", "scale"))  # before 0.10
        is_1x1 = weight.dim() > 2 and all(size == 1 for size in weight.shape[2:])
        sparsity, tile = kinds["linear" if weight.dim() == 2 else "conv1x1" if is_1x1 else "conv"]
        side = _tile(layer, weight, scores, tile)
        if _has_empty_tile(weight, side):
            continue
        if sparsity is None:
            remedy = "name its folder sp0.90-ts32, or call sparsify_offline() on its layers and save again"
            raise Error(
                "load", f"the sparsity of {layer}, which no entry says", "no args in the file", remedy
            )
        if not 0 <= sparsity <= 1 or scores.isnan().any():
            got = f"{sparsity}" + (", and NaN among the scores" if scores.isnan().any() else "")
            raise Error("load", f"a share of {layer}'s tiles and scores of all", got, "check its arguments")
        sparsity = min(sparsity, 1 - 1 / scores.numel())
        kth = 1 + round(sparsity * (scores.numel() - 1))
        kept = scores >= scores.flatten().kthvalue(kth).values
        weight = weight if scale is None or shift is None else weight * scale + shift
        tensors[f"{layer}.weight"] = weight * _spread(kept, side, weight)


def _tile(layer: str, weight: Tensor, scores: Tensor, tile: int | None) -> int:
    """Returns the side of a tile: the one that is said, or the least power of 2 that fits."""

    def fits(side: int) -> bool:
        sizes = zip(weight.shape, scores.shape, strict=True)
        return all(max(1, -(-size // side)) == count for size, count in sizes)

    if scores.dim() == weight.dim() and scores.numel():
        sides = [2**i for i in range(12)] if tile is None else [tile]
        if found := [side for side in sides if fits(side)]:
            return found[0]
    got = f"{list(scores.shape)} for {list(weight.shape)}"
    raise Error("load", f"{layer}.scores with one score a tile", got, "take an undamaged checkpoint")


def _spread(of_tiles: Tensor, tile: int, weight: Tensor) -> Tensor:
    for axis, size in enumerate(weight.shape):
        of_tiles = of_tiles.repeat_interleave(tile, axis).narrow(axis, 0, size)
    return of_tiles


def _has_empty_tile(weight: Tensor, tile: int) -> bool:
    flat = weight.flatten(1) if weight.dim() > 2 else weight
    rows, cols = flat.shape
    padded = torch.nn.functional.pad(flat != 0, (0, -cols % tile, 0, -rows % tile))
    return not bool(padded.unflatten(1, (-1, tile)).unflatten(0, (-1, tile)).any(3).any(1).all())


def with_pruned_heads(tensors: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Puts zeros where transformers before 5, and nn_pruning with it, left out attention heads of BERT and
    its kind: config.pruned_heads lists them by layer. Raises Error for lists that do not fit the weights."""
    pruned_heads = config.get("pruned_heads") or {}
    if config.get("layer_norm_type") == "no_norm":
        got, remedy = "layer_norm_type no_norm", "transformers has no such layer: use nn_pruning's"
        raise Error("load", "layer norms", got, remedy)
    heads: Any = config.get("num_attention_heads")
    hidden: Any = config.get("hidden_size")
    if not pruned_heads:
        return
    whole = all(type(number) is int and number > 0 for number in (heads, hidden))
    if not isinstance(pruned_heads, Mapping) or not whole or hidden % heads:
        got = f"{pruned_heads!r}"[:80] + f" of {heads!r} heads in {hidden!r} features"[:80]
        raise Error("load", "config.json with pruned_heads by layer", got, "check config.json")
    size = hidden // heads
    for layer, gone in pruned_heads.items():
        count = size * (heads - len(_lists(layer, gone, heads)))
        around = rf"(.*\.)?layer\.{re.escape(str(layer))}\.attention\."
        own = re.compile(around + r"(self\.(query|key|value)|output\.dense)\.")
        for name in [name for name in tensors if own.match(name)]:
            axis = 1 if ".output.dense." in name else 0
            tensor = tensors[name]
            if tensor.dim() <= axis:
                continue  # the bias behind has one element for each feature of the model
            if tensor.shape[axis] != count:
                got = f"{list(tensor.shape)}"
                raise Error("load", f"{name} with {count} features of heads", got, "check config.json")
            kept = _kept(set(gone), heads, size)
            shape = list(tensor.shape)
            shape[axis] = heads * size
            tensors[name] = tensor.new_zeros(shape).index_copy_(axis, kept, tensor)


def _lists(layer: str, gone: object, heads: int) -> set[int]:
    if not isinstance(gone, list) or any(type(head) is not int or not 0 <= head < heads for head in gone):
        got = f"{gone!r}"[:80]
        raise Error("load", f"pruned_heads of layer {layer} below {heads}", got, "check config.json")
    return set(gone)


def _kept(gone: set[int], heads: int, size: int) -> Tensor:
    alive = torch.tensor([head for head in range(heads) if head not in gone], dtype=torch.int64)
    return (alive[:, None] * size + torch.arange(size)).flatten()
