"""pack_ ends methods: what trains under a mask becomes block-sparse, in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .._optimizers import as_optimizers
from ..errors import Error
from ..nn.sparse_weight import SparseWeight, sparse_layers
from ..nn.watch import Watch
from .announce import announce
from .exchange import Exchange
from .masters import packed_modules
from .optimizer import Swap
from .result import Patched
from .sparsify import change_of, unwrapped
from .survey import parameter_count, require_patchable

_OP = "pack_"


def pack_(model: nn.Module, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> Patched:
    """Ends the methods of a model: every nn.MaskedLinear becomes a BlockSparseLinear of its kept blocks, or
    of single elements a layer of the layout that ``InLayout`` named, and layers whose blocks moved stay where
    they are, so that plans may look at their patterns again.

    Kept weights stay bitwise what they were; only gates between 0 and 1 (Spartan before its end, L0) are
    multiplied in. ``optimizer`` is as in ``sparsify_``; trained scores leave it. Call no ``method.step()``
    afterwards. Returns what changed. Raises Error where the model has nothing to pack.
    """
    model = unwrapped(model)
    require_patchable(_OP, model)
    optimizers = as_optimizers(_OP, optimizer)
    masked = packed_modules(model)
    moving = [layer.weight.owner for layer in sparse_layers(model) if _driven(layer.weight.owner)]
    if not masked and not moving:
        remedy = "sparsify_ with BlockSparse(method=...) makes them"
        raise Error(_OP, "layers that a method trains", "none", remedy)
    if any("" in names for names in masked.values()):
        raise Error(_OP, "a model that holds masked layers", "the layer itself", "use layer.pack()")
    before, exchange, result = parameter_count(model), Exchange(model), Patched()
    for layer, names in masked.items():
        packed = layer.pack_elements() if layer.block == (1, 1) else layer.pack()
        (weight,) = packed.sparse_weights().values()
        exchange.modules.append((layer, packed))
        new: nn.Parameter = packed.values
        old = layer.get_parameter("weight")
        vars(new).update(vars(old))
        exchange.swaps.append(Swap(names[0], old, new, _carry(weight)))
        if layer.gate is not None:
            _leave(list(layer.gate.parameters()), optimizers)
        result.changed.append(change_of(names, "MaskedLinear", weight, packed.bias, shrinks=True))
    exchange.put()
    result.notes = exchange.settle(optimizers)
    for owner in moving:
        _release(owner, optimizers)
    if moving:
        result.notes.append(f"{len(moving)} with stored blocks keep the ones that they have moved to")
    result.parameters = before, parameter_count(model)
    announce(result)
    return result


def _carry(weight: SparseWeight) -> Callable[[Tensor], Tensor]:
    def carry(like_weight: Tensor) -> Tensor:
        return weight.packed(like_weight)

    return carry


def _driven(owner: nn.Module) -> bool:
    return any(isinstance(hook, Watch) for hook in owner._forward_hooks.values())


def _release(owner: Any, optimizers: Sequence[Optimizer]) -> None:
    for key, hook in list(owner._forward_hooks.items()):
        if isinstance(hook, Watch):
            del owner._forward_hooks[key]
    if getattr(owner, "capacity", None) is None:
        owner.fix_topology_()
    else:
        owner.fix_topology_(optimizer=optimizers)


def _leave(scores: list[nn.Parameter], optimizers: Sequence[Optimizer]) -> None:
    """Takes parameters out of the optimizers; a group that held nothing else stays, empty."""
    ids = {id(each) for each in scores}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [each for each in group["params"] if id(each) not in ids]
        for each in scores:
            optimizer.state.pop(each, None)
