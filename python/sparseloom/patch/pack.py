"""pack_ ends methods: what trains under a mask becomes block-sparse, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .._checks import as_optimizers
from ..errors import Error
from ..nn.gated import gated_layers
from ..nn.held.sparse_weight import SparseWeight, sparse_layers
from ..nn.held.watch import Watch
from ..nn.masked.linear import masked_layers
from .announce import announce
from .exchange import Exchange
from .optimizer import Swap, leave
from .result import Patched
from .sparsify import change_of, kinds_of, untrained, unwrapped
from .survey import parameter_count, require_patchable

if TYPE_CHECKING:
    from ..sparsify import Run

_OP = "pack_"


def pack_(model: nn.Module, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> Patched:
    """Ends the methods of a model: every nn.MaskedLinear becomes a BlockSparseLinear of its kept blocks, or
    of single elements a layer of the layout that ``InLayout`` named, every nn.GatedBlockSparseLinear one of
    its open blocks, and layers whose blocks moved stay where they are, so that plans may look at their
    patterns again.

    Kept weights stay bitwise what they were; only gates between 0 and 1 (Spartan before its end, L0) are
    multiplied in. ``optimizer`` is as in ``sparsify_``; trained scores leave it. Call no ``method.step()``
    afterwards. Returns what changed. Raises Error where the model has nothing to pack.
    """
    model = unwrapped(model)
    require_patchable(_OP, model)
    optimizers = as_optimizers(_OP, optimizer)
    masked, gated = masked_layers(model), gated_layers(model)
    moving = _driven(model)
    if not masked and not gated and not moving:
        remedy = "sparsify_ with BlockSparse(method=...) makes them"
        raise Error(_OP, "layers that a method trains", "none", remedy)
    if any("" in names for names in [*masked.values(), *gated.values()]):
        raise Error(_OP, "a model that holds masked layers", "the layer itself", "use layer.pack()")
    for run in _runs([*masked, *moving]):
        run.warn_of_unused()
    before, exchange, result = parameter_count(model), Exchange(model), Patched()
    with exchange.whole(optimizers, written=moving):
        for layer, names in masked.items():
            packed = layer.pack_elements() if layer.block == (1, 1) else layer.pack()
            _exchange(exchange, result, layer, packed, layer.get_parameter("weight"), names, None)
        for each, names in gated.items():
            (stored,) = each.sparse_weights().values()
            _exchange(exchange, result, each, each.pack(), stored.owner.values, names, stored)
        exchange.put()
        result.notes = exchange.settle(optimizers)
        held = [*(layer.gate for layer in masked), *(each.gate for each in gated)]
        leave([each for gate in held if gate is not None for each in gate.parameters()], optimizers)
        for owner in moving:
            _release(owner, optimizers)
        if moving:
            told = ", ".join(
                f"{names[0]} (density {owner.pattern.density:.3g})" for owner, names in moving.items()
            )
            layers = "1 layer keeps" if len(moving) == 1 else f"{len(moving)} layers keep"
            result.notes.append(f"{layers} the blocks that they have moved to: {told}")
        result.became = kinds_of(result.changed)
        result.notes += untrained(result.changed, model, optimizers)
        result.parameters = before, parameter_count(model)
    announce(result)
    return result


def _carry(weight: SparseWeight, stored: SparseWeight | None) -> Callable[[Tensor], Tensor]:
    """``stored``: how the old Parameter lies; None for a dense one."""

    def carry(like_weight: Tensor) -> Tensor:
        return weight.packed(like_weight if stored is None else stored.unpacked(like_weight))

    return carry


def _exchange(
    exchange: Exchange,
    result: Patched,
    old: nn.Module,
    new: Any,
    weight: nn.Parameter,
    names: list[str],
    stored: SparseWeight | None,
) -> None:
    """Notes that ``new`` is to take the place of ``old``, and its values that of ``weight``."""
    (packed,) = new.sparse_weights().values()
    vars(new.values).update(vars(weight))
    exchange.modules.append((old, new))
    exchange.swaps.append(Swap(names[0], weight, new.values, _carry(packed, stored)))
    result.changed.append(change_of(names, type(old).__name__, packed, new.bias, shrinks=True))


def _driven(model: nn.Module) -> dict[Any, list[str]]:
    """Returns the modules whose stored blocks a method moves, each with the names of its weight."""
    found: dict[Any, list[str]] = {}
    for layer in sparse_layers(model):
        if any(isinstance(hook, Watch) for hook in layer.weight.owner._forward_hooks.values()):
            found.setdefault(layer.weight.owner, []).append(layer.matched)
    return found


def _runs(layers: Iterable[nn.Module]) -> list[Run]:
    """Returns the runs that drive these layers."""
    hooks = [hook for layer in layers for hook in layer._forward_hooks.values()]
    helds = [hook.held for hook in hooks if isinstance(hook, Watch) and hook.held is not None]
    return list({id(held.run): held.run for held in helds}.values())


def _release(owner: Any, optimizers: Sequence[Optimizer]) -> None:
    for key, hook in list(owner._forward_hooks.items()):
        if isinstance(hook, Watch):
            del owner._forward_hooks[key]
    if getattr(owner, "capacity", None) is None:
        owner.fix_topology_()
    else:
        owner.fix_topology_(optimizer=optimizers)
