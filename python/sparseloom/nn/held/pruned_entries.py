"""Reads state dict entries of weights that torch's pruning and weight norms compute from other entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import Error

_SAVE = "and save the state_dict again"


def accept_pruned(tensors: dict[str, Any], prefix: str, name: str = "weight") -> None:
    """Computes the Parameter ``name`` under ``prefix`` from the entries that stand for it and replaces them:
    weight_orig and weight_mask, as torch.nn.utils.prune writes them, or weight_g and weight_v of
    torch.nn.utils.weight_norm. Raises Error for entries that do not determine the weight: those of a spectral
    norm or a parametrization, whose mask or class the file does not have."""
    at = prefix + name
    parts = {end: tensors.get(f"{at}_{end}") for end in ("orig", "mask", "g", "v")}
    orig, mask = parts["orig"], parts["mask"]
    if isinstance(orig, Tensor) and isinstance(mask, Tensor):
        if mask.shape != orig.shape:
            expected, got = f"{at}_mask {list(orig.shape)}, as {at}_orig", str(list(mask.shape))
            raise Error("load", expected, got, "take an undamaged copy")
        tensors[at] = orig.detach() * mask.to(orig.dtype)
        del tensors[f"{at}_orig"], tensors[f"{at}_mask"]
    elif isinstance(orig, Tensor):
        remedy = f"call torch.nn.utils.remove_spectral_norm(module, {name!r}) {_SAVE}"
        raise Error("load", f"{at}, or {at}_orig with {at}_mask", f"{at}_orig alone", remedy)
    elif isinstance(parts["g"], Tensor) and isinstance(parts["v"], Tensor):
        g, v = parts["g"], parts["v"]
        along = [i for i in range(min(g.dim(), v.dim())) if g.shape[i] != 1]
        whole = g.dim() == v.dim() and len(along) <= 1 and all(g.shape[i] == v.shape[i] for i in along)
        if g.numel() != 1 and not whole:
            expected = f"{at}_g with one norm, or those of an axis of {at}_v {list(v.shape)}"
            raise Error("load", expected, str(list(g.shape)), "take an undamaged copy")
        tensors[at] = _normed(parts["g"].detach(), parts["v"].detach())
        del tensors[f"{at}_g"], tensors[f"{at}_v"]
    computed = f"{prefix}parametrizations.{name}."
    if (entry := next((key for key in tensors if key.startswith(computed)), None)) is not None:
        remedy = (
            f"call torch.nn.utils.parametrize.remove_parametrizations(module, {name!r}), or squash_mask() of "
            f"the sparsifier of torch.ao.pruning, which alone has the mask, {_SAVE}"
        )
        raise Error("load", f"{at}, as the module multiplies with it", entry, remedy)


def _normed(g: Tensor, v: Tensor) -> Tensor:
    """Returns v scaled to the norms g [1, .., n, .., 1]: one norm for each index of that axis, or one."""
    axis = next((i for i, size in enumerate(g.shape) if size != 1), None)
    dims = [i for i in range(v.dim()) if i != axis]
    return v * (g / torch.linalg.vector_norm(v, 2, dims, True))  # Tensor.norm takes two dimensions at most
