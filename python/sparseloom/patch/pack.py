"""pack_ ends methods: layers that train under a mask become sparse, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .._arguments import named_arguments
from .._checks import as_optimizers
from ..errors import Error
from ..nn.gated import gated_layers
from ..nn.held.sparse_weight import SparseWeight, sparse_layers
from ..nn.held.watch import Watch
from ..nn.masked.conv24 import Semi24TrainingConv2d
from ..nn.masked.linear import masked_layers
from .announce import announce
from .exchange import Exchange
from .fuse import Behind, New, fuse_, takes_activation
from .hooks import carry_hooks
from .kept import magnitude, with_kept
from .merge import merge_
from .optimizer import Swap, leave
from .result import Change, Patched
from .sparsify import change_of, kinds_of, untrained, unwrapped
from .survey import parameter_count, regex_of, require_patchable

if TYPE_CHECKING:
    from ..sparsify import Run

_OP = "pack_"


@named_arguments
def pack_(
    model: nn.Module, optimizer: Optimizer | Sequence[Optimizer] | None = None, *, names: str = ".*"
) -> Patched:
    """Ends the methods of a model. Every MaskedLinear becomes a BlockSparseLinear of its kept blocks; one of
    single elements becomes a layer of the layout that ``InLayout`` named. Every GatedBlockSparseLinear
    becomes a BlockSparseLinear of its open blocks. Layers whose blocks moved stay, and their plans follow the
    blocks again.

    Kept weights stay bitwise what they were; only gates between 0 and 1 (Spartan before its end, L0) are
    multiplied in. Activations behind the new layers are fused, and products of one x merged, as sparsify_
    does, except where a layer's ``fuse`` is False. ``optimizer`` is as in ``sparsify_``; trained scores leave
    it. Call no ``method.step()`` afterwards. ``names`` is a regex that is matched whole with the layers'
    names. Hooks of the old layers stay with the new ones. Returns what changed. Raises Error where the model
    has nothing to pack.
    """
    model = unwrapped(model)
    require_patchable(_OP, model)
    optimizers, regex = as_optimizers(_OP, optimizer), regex_of(_OP, names)

    def named(found: Mapping[Any, list[str]]) -> dict[Any, list[str]]:
        return {layer: names for layer, names in found.items() if any(map(regex.fullmatch, names))}

    masked, gated = named(masked_layers(model)), named(gated_layers(model))
    stay = [layer for layer in masked if isinstance(layer, Semi24TrainingConv2d)]
    unpacked = [masked.pop(layer)[0] for layer in stay]
    moving = named(_driven(model))
    if not masked and not gated and not moving:
        remedy = "sparsify_ with BlockSparse(method=...) makes them"
        if unpacked:
            remedy = "densify_, or save(format='dense'): the zeros stay"
        got = f"only 2:4 convolutions ({', '.join(unpacked[:5])})" if unpacked else "none"
        raise Error(_OP, "layers that a method trains and that have a packed kind", got, remedy)
    if any("" in each for each in [*masked.values(), *gated.values()]):
        raise Error(_OP, "a model that holds masked layers", "the layer itself", "use layer.pack()")
    for run in _runs([*masked, *moving]):
        run.warn_of_unused()
    count_before, exchange, result = parameter_count(model), Exchange(model), Patched()
    with exchange.whole(optimizers, written=moving):
        for layer, all_names in masked.items():
            packed = layer.pack_elements() if layer.block == (1, 1) else layer.pack()
            _exchange(exchange, result, layer, packed, layer.get_parameter("weight"), all_names, None)
        for module, all_names in gated.items():
            (stored,) = module.sparse_weights().values()
            _exchange(exchange, result, module, module.pack(), stored.owner.values, all_names, stored)
        exchange.put()
        for owner in moving:
            _release(owner, optimizers)
        result.changed = _fused(exchange, list(moving), result.changed)
        result.notes = exchange.settle(optimizers)  # after that: it describes what is fused
        gates = [*(layer.gate for layer in masked), *(module.gate for module in gated)]
        scores = [parameter for gate in gates if gate is not None for parameter in gate.parameters()]
        leave(scores, optimizers)
        if moving:
            moved = ", ".join(
                f"{each[0]} (density {owner.pattern.density:.3g})" for owner, each in moving.items()
            )
            layers = "1 layer keeps" if len(moving) == 1 else f"{len(moving)} layers keep"
            result.notes.append(f"{layers} the blocks that they have moved to: {moved}")
        if unpacked:
            result.notes.append(
                f"2:4 convolutions have no packed layer, densify_ keeps zeros: {', '.join(unpacked[:5])}"
            )
        result.became = kinds_of(result.changed)
        result.notes += untrained(result.changed, model, optimizers)
        result.parameters = count_before, parameter_count(model)
        announce(result)
    return result


def _carry(weight: SparseWeight, stored: SparseWeight | None) -> Callable[[Tensor], Tensor]:
    """Returns ``Swap.carry``. ``stored``: the old sparse weight; None if the old Parameter is dense."""

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
    """Adds the replacement of ``old`` by ``new``, and of ``weight`` by its values, to the exchange."""
    (packed,) = new.sparse_weights().values()
    vars(new.values).update(vars(weight))
    carry_hooks(old, new)
    exchange.modules.append((old, new))
    exchange.swaps.append(Swap(names[0], weight, new.values, _carry(packed, stored)))
    change = change_of(names, type(old).__name__, packed, new.bias, shrinks=True)
    result.changed.append(with_kept(change, None if weight.is_meta else magnitude(weight), new))


def _fused(exchange: Exchange, moving: Sequence[Any], changes: Sequence[Change]) -> list[Change]:
    """Fuses and merges the packed layers and those whose blocks moved; returns the changes with the
    outcome."""
    packed = [new for _, new in exchange.modules if takes_activation(new, new)]
    stayed = [layer for layer in moving if takes_activation(layer, layer) and layer.activation is None]
    layers = [New(layer, layer) for layer in [*packed, *stayed] if layer.fuse]
    behind = {id(new.layer): each for new, each in zip(layers, fuse_(exchange.model, layers), strict=True)}
    merge_(exchange.model)
    outcomes = [behind.get(id(new), Behind()) for _, new in exchange.modules[: len(changes)]]
    return [
        replace(change, activation=outcome.fused, unfused=outcome.reason)
        for change, outcome in zip(changes, outcomes, strict=True)
    ]


def _driven(model: nn.Module) -> dict[Any, list[str]]:
    """Returns the modules whose stored blocks a method moves, each with the names of its weight."""
    names_of: dict[Any, list[str]] = {}
    for layer in sparse_layers(model):
        if any(isinstance(hook, Watch) for hook in layer.weight.owner._forward_hooks.values()):
            names_of.setdefault(layer.weight.owner, []).append(layer.matched)
    return names_of


def _runs(layers: Iterable[nn.Module]) -> list[Run]:
    """Returns the runs that drive these layers."""
    hooks = [hook for layer in layers for hook in layer._forward_hooks.values()]
    held_weights = [hook.held for hook in hooks if isinstance(hook, Watch) and hook.held is not None]
    return list({id(weight.run): weight.run for weight in held_weights}.values())


def _release(owner: Any, optimizers: Sequence[Optimizer]) -> None:
    for key, hook in list(owner._forward_hooks.items()):
        if isinstance(hook, Watch):
            del owner._forward_hooks[key]
    if getattr(owner, "capacity", None) is None:
        owner.fix_topology_()
    else:
        owner.fix_topology_(optimizer=optimizers)
