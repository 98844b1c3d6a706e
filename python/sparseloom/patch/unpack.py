"""unpack_ undoes pack_: sparse layers train a dense weight under the mask of what they store, in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._arguments import named_arguments
from .._checks import as_optimizers
from ..errors import Error
from ..layouts import Layout
from ..layouts.csr import Csr
from ..nn import BlockSparseLinear, MaskedLinear, Semi24Linear, Semi24Training, SparseLinear
from ..nn.held.convert import with_activation
from ..nn.held.parametrized import values_are_computed
from ..nn.held.sparse_weight import sparse_modules
from ..nn.linears import in_blocks
from .announce import announce
from .exchange import Exchange
from .hooks import carry_hooks
from .masters import change_of_master
from .optimizer import Swap
from .result import Patched, Skip
from .sparsify import unwrapped
from .survey import parameter_count, regex_of, require_patchable

_OP = "unpack_"
#: The kinds that have a masked twin. Their subclasses compute something else.
_KINDS = (BlockSparseLinear, Semi24Linear, SparseLinear)


@named_arguments
def unpack_(
    model: nn.Module, names: str = ".*", *, optimizer: Optimizer | Sequence[Optimizer] | None = None
) -> Patched:
    """Makes nn.MaskedLinear layers of sparse linear ones: dense weights that train under the mask of what was
    stored, with zero elsewhere. ``pack_`` makes them sparse again, in the layout they had. Values that
    require no gradient stay so, but for those of 2:4, which never do.

    It is for layouts whose values do not train (2:4), or train faster in a dense product (single elements on
    a GPU), and for adapters that are merged under the mask. A fused activation goes back to its place. Values
    that did not train do so afterwards. ``names`` is a regex that is matched whole with the layers' names,
    ``optimizer`` as in ``sparsify_``. Returns what changed. Raises Error when no layer could change.
    """
    model = unwrapped(model)
    require_patchable(_OP, model)
    optimizers = as_optimizers(_OP, optimizer)
    regex = regex_of(_OP, names)
    names_of: dict[nn.Module, list[str]] = {}
    for name, module in sparse_modules(model):
        names_of.setdefault(module, []).append(name)
    result, exchange = Patched(became="masked"), Exchange(model)
    count_before = parameter_count(model)
    with exchange.whole(optimizers):
        for module, all_names in names_of.items():
            if not any(regex.fullmatch(name) for name in all_names):
                continue
            if reason := _refusal(module, all_names):
                result.skipped += [Skip(name, type(module).__name__, reason) for name in all_names]
                continue
            layer = _masked(module)
            carry_hooks(module, layer)
            exchange.modules.append((module, with_activation(layer, module)))
            exchange.swaps.append(_swap(module, layer, all_names[0]))
            result.changed.append(change_of_master(all_names, type(module).__name__, layer))
        if not result.changed:
            reasons = ", ".join(f"{skip.name} ({skip.reason})" for skip in result.skipped[:5])
            remedy = "names are matched whole; sparsify_ and prune_ make layers sparse"
            raise Error(_OP, f"a sparse linear layer for {names!r}", reasons or "none", remedy)
        exchange.put()
        result.notes += exchange.settle(optimizers)
        result.parameters = count_before, parameter_count(model)
        announce(result)
    return result


def _refusal(module: nn.Module, names: list[str]) -> str:
    """Returns why a sparse module cannot become a masked layer; "" when it can."""
    if "" in names:
        return "it is the model itself: put it into an nn.Sequential"
    if type(module) not in _KINDS:
        return "its kind has no masked layer"
    if values_are_computed(module):
        return "its values are parametrized, normed or pruned: remove that first"
    if getattr(module, "capacity", None) is not None:
        return "it has room for more blocks: call fix_topology_ first"
    return ""


@torch.no_grad()
def _masked(module: Any) -> MaskedLinear:
    """Returns the masked layer of a sparse one; its bias is the same Parameter."""
    values, options = module.values.detach(), dict[str, Any]()
    layout: type[Layout] = Csr  # which blocks leave unused
    if in_blocks(module):
        block, mask = module.block, module.pattern
    else:
        block, layout = (1, 1), type(module.layout)
        mask = module.layout.to_dense(torch.ones_like(values)) != 0
        options = {key: getattr(module.layout, key) for key in ("n", "m", "g") if hasattr(module.layout, key)}
    if isinstance(module, Semi24Linear):
        assert isinstance(mask, Tensor)
        return _as_before(module, _training24(module, mask), values)
    made = MaskedLinear(
        module.in_features, module.out_features, False, block=block, mask=mask, options=options,
        device="meta", dtype=values.dtype, layout=layout,
    )  # fmt: skip
    made.mask = (mask if isinstance(mask, Tensor) else mask.mask).to(values.device)
    return _as_before(module, made, values)


def _training24(module: Semi24Linear, mask: Tensor) -> MaskedLinear:
    """Returns the layer whose products 2:4 kernels run, under the mask of what was stored."""
    like = module.values
    weight = nn.Parameter(like.new_empty(module.out_features, module.in_features), False)
    return Semi24Training.over(module, weight, mask, prune="magnitude", share=0.0)


def _as_before(module: Any, made: MaskedLinear, values: Tensor) -> MaskedLinear:
    (weight,) = module.sparse_weights().values()
    trains = module.values.requires_grad or isinstance(module, Semi24Linear)  # whose values never do
    made.weight = nn.Parameter(weight.unpacked(values).clone(), trains)
    vars(made.weight).update(vars(module.values))
    made.bias = module.bias
    made.strict, made.fuse = module.strict, module.fuse
    made.dense_copy = getattr(module, "dense_copy", False)
    return made.train(module.training)


def _swap(module: Any, layer: MaskedLinear, name: str) -> Swap:
    (weight,) = module.sparse_weights().values()
    return Swap(name, module.values, layer.weight, weight.unpacked)
