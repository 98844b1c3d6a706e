"""Detects weights that are computed from outside of a module: by hooks, norms, pruning, parametrizations, and
the function modes of nncf."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrize

from ...nn.held.masked_by_torch import masked, too_large

#: Class of a forward pre-hook of torch.nn.utils -> what it does, and what makes its result permanent.
_NORMS = {
    "WeightNorm": ("normalises", "torch.nn.utils.remove_weight_norm"),
    "SpectralNorm": ("normalises", "torch.nn.utils.remove_spectral_norm"),
}
#: The child in which nncf keeps the functions that a wrapped model's forward runs on weights and inputs.
_NNCF = "__nncf_hooks"


def computed(module: nn.Module) -> str:
    """Returns what computes a weight of a module and how to make its result permanent; "" if nothing does, or
    if torch.ao.pruning masks it: we take that weight masked."""
    for hook in module._forward_pre_hooks.values():
        kind = type(hook)
        name = getattr(hook, "_tensor_name", None) or getattr(hook, "name", "weight")
        if kind.__module__ == "torch.nn.utils.prune":
            remove = f"torch.nn.utils.prune.remove(module, {name!r})"
            return f"torch.nn.utils.prune masks its {name}: call {remove} first"
        if kind.__module__.startswith("torch.nn.utils.") and kind.__name__ in _NORMS:
            does, remove = _NORMS[kind.__name__]
            return f"a hook {does} its {name}: call {remove}(module, {name!r}) first"
    if not parametrize.is_parametrized(module):
        return ""
    for name in module.parametrizations:  # type: ignore[union-attr]
        steps = masked(module, name)
        if steps is None:
            call = f"torch.nn.utils.parametrize.remove_parametrizations(module, {name!r})"
            return f"it is parametrized: call {call} first"
        found = too_large(steps)
        if found is not None:
            return f"its {found[0]}, with which torch cannot compute either: {found[1]}"
    return ""


def computed_by_nncf(model: nn.Module) -> bool:
    """Returns whether nncf runs functions on weights and inputs of a model, by the names of its modules. A
    sparse layer would not have them, and its masks would be lost."""
    storages = [storage for module in model.modules() if (storage := module._modules.get(_NNCF)) is not None]
    return any(
        next(hooks.children(), None) is not None for storage in storages for hooks in storage.children()
    )
