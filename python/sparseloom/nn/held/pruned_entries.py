"""Reads the entries of weights that torch's pruning, norms and parametrizations compute from others."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...errors import Error

_SAVE = "and save the state_dict again"


def accept_pruned(tensors: dict[str, Any], prefix: str, name: str = "weight") -> None:
    """Replaces the entries that stand for a Parameter ``name`` under ``prefix`` by the weight that they give:
    weight_orig and weight_mask, as torch.nn.utils.prune writes them, and weight_g and weight_v of
    torch.nn.utils.weight_norm. Raises Error for entries that do not say the weight: those of a spectral norm
    or a parametrization, whose mask or class the file does not have."""
    at = prefix + name
    found = {end: tensors.get(f"{at}_{end}") for end in ("orig", "mask", "g", "v")}
    if isinstance(found["orig"], Tensor) and isinstance(found["mask"], Tensor):
        tensors[at] = found["orig"].detach() * found["mask"].to(found["orig"].dtype)
        del tensors[f"{at}_orig"], tensors[f"{at}_mask"]
    elif isinstance(found["orig"], Tensor):
        remedy = f"call torch.nn.utils.remove_spectral_norm(module, {name!r}) {_SAVE}"
        raise Error("load", f"{at}, or {at}_orig with {at}_mask", f"{at}_orig alone", remedy)
    elif isinstance(found["g"], Tensor) and isinstance(found["v"], Tensor):
        tensors[at] = _normed(found["g"].detach(), found["v"].detach())
        del tensors[f"{at}_g"], tensors[f"{at}_v"]
    computed = f"{prefix}parametrizations.{name}."
    if (entry := next((key for key in tensors if key.startswith(computed)), None)) is not None:
        remedy = (
            f"call torch.nn.utils.parametrize.remove_parametrizations(module, {name!r}), or squash_mask() of "
            f"the sparsifier of torch.ao.pruning, which alone has the mask, {_SAVE}"
        )
        raise Error("load", f"{at}, as the module multiplies with it", entry, remedy)


def _normed(g: Tensor, v: Tensor) -> Tensor:
    """Returns v with the norms g [1, .., n, .., 1], one for each index of that axis, or one for all."""
    axis = next((i for i, size in enumerate(g.shape) if size != 1), None)
    others = [i for i in range(v.dim()) if i != axis]
    return v * (g / v.norm(dim=others, keepdim=True))
