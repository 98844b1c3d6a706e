"""sparsify_ makes the chosen layers of a model sparse, in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._arguments import named_arguments
from .._checks import as_optimizers, require_bool
from .._progress import Bar
from ..errors import Error
from ..nn import MaskedLinear
from ..nn.held.dense_copy import require_setting
from ..nn.held.fusions import Fusions
from ..nn.held.moments import told_untrained
from ..nn.held.sparse_weight import SparseWeight
from .announce import announce
from .choose import Choice, choose
from .exchange import Exchange
from .forms import Site
from .fuse import Behind, New, fuse_, takes_activation
from .kept import magnitude_of, with_kept
from .masters import change_of_master, run_of
from .merge import merge_
from .optimizer import Swap
from .recipe import Recipe
from .result import Change, Patched
from .survey import parameter_count, require_patchable

_OP = "sparsify_"
#: Layout -> the name of its layers in reports.
_KINDS = {
    "bsr": "block-sparse",
    "semi24": "2:4",
    "csr": "CSR",
    "coo": "COO",
    "bitmap": "bitmap",
    "nm": "n:m",
    "nmg": "n:m:g",
    "tiles": "tiles",
    "masked": "masked",
}


@named_arguments
def sparsify_(
    model: nn.Module,
    patterns: Mapping[Any, Recipe] | Recipe,
    *,
    strict: bool = False,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    dense_copy: bool | Literal["auto"] = False,
    fuse: bool = True,
) -> Patched:
    """Replaces the linear layers whose names match by sparse ones: block-sparse layers that hold the chosen
    blocks of their weights, or 2:4 layers.

    It takes nn.Linear, transformers' Conv1D, and convolutions and transposed convolutions without groups.
    It also takes the projections of nn.MultiheadAttention, by its own name or as name.in_proj and
    name.out_proj. Of nn.LSTM and nn.GRU it takes the weights, by the module's name or as name.ih_l0,
    name.hh_l0 and so on; all gates are one weight. A module that is used in several places is replaced in all
    of them. Biases stay the same Parameters. Only select="random" draws random numbers.

    Args:
        patterns: {key: BlockSparse(...) or another recipe}. A key is a name, a regular expression or a
            compiled one, matched whole with the names (re.fullmatch), or a class of modules; the first that
            matches counts. A recipe alone is for all linear layers: nn.Linear, transformers' Conv1D and the
            projections of nn.MultiheadAttention.
        strict: raises Error instead of skipping a matched layer, and becomes the attribute ``strict`` of the
            new layers, of every kind: a call that would run a dense or reference kernel raises Error. Layers
            that train under a mask hand it on when they are packed.
        optimizer: one or several that hold the model's parameters: they get the new ones, with the state of
            the kept elements. Any other optimizer that holds a replaced Parameter raises Error at its next
            step.
        dense_copy: what the attribute of new block-sparse and 2:4 layers, convolutions too, becomes: whether
            calls, and backward passes of frozen values, may multiply with a dense copy of the weight (see
            BlockSparseLinear.dense_copy). Not with ``strict``, and not for layers that keep none: those of
            other layouts, and recurrent ones.
        fuse: lets a new layer apply the activation that follows it (ReLU, GELU, SiLU or squared ReLU, of
            any package, or a function that the module around holds as an attribute), where the forward
            around both proves that nothing else sees what lies between. The activation's place then has a
            module, or function, that returns its input. Layers that a method trains keep
            theirs. Block-sparse layers that the module around them calls with the same x, one after the other
            (q, k and v of an attention), then multiply with it in one product of their stacked weights, while
            that module's forward runs. torch.compile moves what follows any product into it, where nothing is
            lost; ``fuse=False`` forbids that too, as the attribute ``fuse`` of the new layers does.

    ``run`` of the result is the ``sparsify.Run`` of the methods that were asked for, else None. It takes its
    steps with those of the ``optimizer`` given; without one call its ``step()`` after each step of the
    optimizer, or ``attach`` it to one. ``method`` is the same, and raises Error where there is none.

    Returns what changed, and every linear layer that did not with the reason, and prints it: to the log at
    INFO, or to stderr in a program that configured no logging. Raises Error, with the model untouched, when a
    pattern matches nothing, or only layers that cannot change (tied, too small, ...). So do a weight that
    Semi24() takes for 2:4 and that is not, a model under DistributedDataParallel or fully_shard, and a choice
    by magnitude on the meta device.
    """
    how: dict[str, Any] = {"strict": strict, "optimizer": optimizer, "dense_copy": dense_copy, "fuse": fuse}
    return patched(unwrapped(model), patterns, **how, told=True)


def patched(
    model: nn.Module,
    patterns: Mapping[Any, Recipe] | Recipe,
    *,
    strict: bool,
    optimizer: Optimizer | Sequence[Optimizer] | None,
    dense_copy: bool | Literal["auto"],
    fuse: bool,
    told: bool = False,
) -> Patched:
    """Does what sparsify_ does; ``told`` says whether it announces the result."""
    require_patchable("sparsify_", model)
    optimizers = as_optimizers("sparsify_", optimizer)
    require_bool("sparsify_", "strict", strict)
    require_setting("sparsify_", dense_copy, strict)
    require_bool("sparsify_", "fuse", fuse)
    count_before = parameter_count(model)
    choices, skipped = choose(model, patterns, strict)
    if dense_copy:
        _require_copyable(choices)
    exchange = Exchange(model)
    with exchange.whole(optimizers):
        changes, layers = prepare(exchange, choices, strict, dense_copy)
        exchange.put()
        if fuse:
            changes = fused(exchange, choices, layers, changes)
        else:
            _keep_apart(layers)
        result = Patched(changes, skipped, became=kinds_of(changes), notes=exchange.settle(optimizers))
        driven = [
            (choice.site.name, layer, trained[1], trained[0])
            for choice, layer in zip(choices, layers, strict=True)
            if (trained := choice.recipe.trained()) is not None
        ]
        if driven:
            wholes = [
                None if choice.recipe.trained() is None else magnitude_of(choice.site) for choice in choices
            ]
            result.run = run_of(driven, None if optimizer is None else optimizers)
            result.run.attach_itself()
            _tell_first_masks(result, choices, layers, wholes)
        result.notes += untrained(result.changed, model, optimizers)
        result.parameters = count_before, parameter_count(model)
        if told:
            announce(result)
    return result


def _keep_apart(layers: Sequence[Any]) -> None:
    for layer in layers:
        if hasattr(layer, "fuse"):  # recurrent weights are no layers of their own
            layer.fuse = False


def untrained(changes: Sequence[Change], model: nn.Module, optimizers: Sequence[Optimizer]) -> list[str]:
    """Returns a note if an optimizer will train a model whose 2:4 layers do not train."""
    count = sum(change.layout == "semi24" for change in changes)
    if not count or not optimizers or not model.training:
        return []
    told_untrained.update(optimizers)
    layers = "1 layer" if count == 1 else f"{count} layers"
    return [f"the values of {layers} in 2:4 do not train: the optimizer changes their biases alone"]


def _tell_first_masks(
    result: Patched, choices: list[Choice], layers: list[Any], magnitudes: list[float | None]
) -> None:
    """Updates the changes of masked layers with the first masks, which the method chose for the run."""
    now = {
        tuple(choice.site.names): with_kept(
            change_of_master(choice.site.names, choice.site.kind, layer), magnitude, layer
        )
        for choice, layer, magnitude in zip(choices, layers, magnitudes, strict=True)
        if isinstance(layer, MaskedLinear)
    }
    result.changed = [
        replace(now.get(change.names, change), unfused=change.unfused) for change in result.changed
    ]


def prepare(
    exchange: Exchange,
    choices: list[Choice],
    strict: bool = False,
    dense_copy: bool | Literal["auto"] = False,
    has_values: bool = True,
) -> tuple[list[Change], list[Any]]:
    """Makes the sparse modules for the choices, and returns the changes, and the layers in the choices'
    order. ``strict`` and ``dense_copy`` are what the layers' attributes become; ``has_values`` says that the
    weights are the model's own, and not read from a file afterwards."""
    changes, made_of = list[Change](), dict[int, Any]()
    with Bar(_OP) as bar:
        for module, module_choices in bar.over(_by_module(choices), lambda each: each[1][0].site.name):
            chosen = {choice.site.weight: choice.chosen for choice in module_choices}
            sparse_module, layers = module_choices[0].site.form.sparse(module, chosen, strict, dense_copy)
            for choice in module_choices:
                layer = made_of[id(choice)] = layers[choice.site.weight]
                if isinstance(layer, MaskedLinear):  # it trains the dense Parameter
                    change = change_of_master(choice.site.names, choice.site.kind, layer)
                else:
                    (weight,) = layer.sparse_weights().values()
                    exchange.swaps.append(_packing(choice.site, weight))
                    change = change_of(choice.site.names, choice.site.kind, weight, layer.bias, shrinks=True)
                changes.append(with_kept(change, magnitude_of(choice.site) if has_values else None, layer))
            exchange.modules.append((module, sparse_module))
    return changes, [made_of[id(choice)] for choice in choices]


def fused(
    exchange: Exchange,
    choices: list[Choice],
    layers: list[Any],
    changes: list[Change],
    fusions: Fusions | None = None,
) -> list[Change]:
    """Fuses the activations after layers that ``prepare`` made and the exchange has put, and merges the
    products of layers that read the same x: wherever possible, or as ``fusions`` says. Returns the changes
    with the outcome."""
    sparse_of = dict(exchange.modules)
    new = [
        New(sparse_of[choice.site.module], layer, _keeps_activation(choice, layer))
        for choice, layer in zip(choices, layers, strict=True)
        if takes_activation(sparse_of[choice.site.module], layer)
        and (fusions is None or any(name in fusions.fused for name in choice.site.names))
    ]
    outcome_of = {
        id(new_layer.layer): behind for new_layer, behind in zip(new, fuse_(exchange.model, new), strict=True)
    }
    outcomes = [outcome_of.get(id(layer), Behind()) for layer in layers]
    merged_names = {
        id(layer): tuple(other for other in group.names if other != name)
        for group in merge_(exchange.model, None if fusions is None else fusions.merged)
        for name, layer in zip(group.names, group.layers, strict=True)
    }
    return [
        replace(
            change, activation=outcome.fused, unfused=outcome.reason, merged=merged_names.get(id(layer), ())
        )
        for change, outcome, layer in zip(changes, outcomes, layers, strict=True)
    ]


def _keeps_activation(choice: Choice, layer: Any) -> str:
    if isinstance(layer, MaskedLinear):
        return "it trains under a mask"
    return "" if choice.recipe.trained() is None else "a method moves its blocks"


def _require_copyable(choices: list[Choice]) -> None:
    reasons = {choice.site.name: choice.chosen.no_copy(choice.site) for choice in choices}
    if refused := [f"{name}: {reason}" for name, reason in reasons.items() if reason]:
        expected, remedy = "layers that can keep a dense copy (dense_copy)", "set it on the others afterwards"
        raise Error("sparsify_", expected, "; ".join(refused[:5]), f"leave it out, and {remedy}")


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the module that torch.compile wraps, so that names have no _orig_mod. The wrapper compiles
    again by itself."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def _by_module(choices: list[Choice]) -> list[tuple[nn.Module, list[Choice]]]:
    grouped: dict[int, tuple[nn.Module, list[Choice]]] = {}
    for choice in choices:
        grouped.setdefault(id(choice.site.module), (choice.site.module, []))[1].append(choice)
    return list(grouped.values())


def _packing(site: Site, weight: SparseWeight) -> Swap:
    old, new = site.parameter, weight.values
    assert isinstance(new, nn.Parameter)
    if not is_traceable_wrapper_subclass(old):  # such a class keeps its inner tensors there
        vars(new).update(vars(old))  # keeps the marks that users and frameworks put on Parameters

    def carry(like_weight: Tensor) -> Tensor:
        return weight.packed(site.matrix(like_weight))

    return Swap(site.name, old, new, carry)


def change_of(
    names: Sequence[str], kind: str, weight: SparseWeight, bias: Tensor | None, shrinks: bool
) -> Change:
    """Returns the report of a weight that became sparse (``shrinks``) or dense."""
    bias_size = 0 if bias is None else bias.numel()
    rows, cols = weight.shape
    block, blocks = (weight.block, weight.pattern.blocks) if weight.layout == "bsr" else (None, 0)
    dense, sparse = rows * cols * weight.taps + bias_size, weight.values.numel() + bias_size
    counts = (dense, sparse) if shrinks else (sparse, dense)
    return Change(tuple(names), kind, (rows, cols), block, weight.density, blocks, counts, weight.layout)


def kinds_of(changes: Sequence[Change]) -> str:
    """Returns the kinds of the new layers, as text."""
    kinds = dict.fromkeys(_KINDS.get(change.layout, change.layout) for change in changes)
    return " and ".join(kinds) or "block-sparse"
