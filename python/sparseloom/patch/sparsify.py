"""sparsify_ and densify_ make the chosen layers of a model block-sparse in place, and dense again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from .._optimizers import as_optimizers
from ..errors import Error
from ..nn import BlockSparseConv1x1, BlockSparseLinear, BlockSparseMultiheadAttention
from ..nn.convert import Activation
from ..nn.dense_entries import packed_layer
from ..nn.parametrized import values_are_computed
from .announce import announce
from .choose import Choice, choose
from .config import BlockSparse
from .fast_path import update_fast_paths
from .holders import describe_holders
from .optimizer import Swap, apply
from .result import Change, Patched, Skip
from .sites import SPARSE, Site, kind_of, made_sparse, names_of, sites_of, unpack
from .survey import parameter_count, require_patchable


def sparsify_(
    model: nn.Module,
    patterns: Mapping[str, BlockSparse],
    strict: bool = False,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
) -> Patched:
    """Replaces the linear layers whose names match by block-sparse ones that hold the chosen blocks of their
    weights.

    It takes nn.Linear, transformers' Conv1D, 1x1 convolutions, and the projections of nn.MultiheadAttention
    (matched by its own name, or as name.in_proj and name.out_proj). A module that is used in several places
    is replaced in all of them; biases stay the same Parameters; random numbers are drawn only by
    select="random".

    Args:
        patterns: {regex: BlockSparse(...)}; names are matched whole (re.fullmatch), and the first pattern
            that matches counts.
        strict: raises Error instead of skipping a matched layer, and forbids the new layers to run dense or
            reference kernels.
        optimizer: one or several that hold the model's parameters: they get the new ones, with the state of
            the kept blocks. Any other optimizer that holds a replaced Parameter raises Error at its next
            step.

    Returns what changed, and every linear layer that did not with the reason, and prints it: to the log at
    INFO, or to stderr in a program that configured no logging. Raises Error, with the model untouched, when a
    pattern matches nothing or only layers that cannot change (tied, too small, ...), for a model under
    DistributedDataParallel or fully_shard, and for a choice by magnitude on the meta device.
    """
    model = _unwrapped(model)
    require_patchable("sparsify_", model)
    optimizers = as_optimizers("sparsify_", optimizer)
    before = parameter_count(model)
    choices, skipped = choose(model, patterns, strict)
    made = prepare(choices, strict)
    for old, new in made.modules:
        replace(model, old, new)
    update_fast_paths(model)
    result = Patched(made.changed, skipped, notes=apply(made.swaps, optimizers))
    result.notes += describe_holders(model, [new for _, new in made.modules])
    result.parameters = before, parameter_count(model)
    announce(result)
    return result


@dataclass
class Prepared:
    """What takes the places of the chosen modules, while the model is still untouched."""

    # (the dense one, the sparse one)
    modules: list[tuple[nn.Module, nn.Module]] = field(default_factory=list)
    swaps: list[Swap] = field(default_factory=list)
    changed: list[Change] = field(default_factory=list)


def prepare(choices: list[Choice], strict: bool = False) -> Prepared:
    """Makes the sparse modules for the choices. ``strict`` is what the layers' attribute becomes."""
    prepared = Prepared()
    for module, mine in _by_module(choices):
        patterns = {choice.site.weight: choice.pattern for choice in mine}
        made, layers = made_sparse(module, mine[0].site.kind, patterns)
        for choice in mine:
            layer = layers[choice.site.weight]
            layer.strict = strict
            prepared.swaps.append(_packing(choice.site, layer))
            prepared.changed.append(_change(choice.site.names, choice.site.kind, layer, shrinks=True))
        prepared.modules.append((module, made))
    return prepared


def densify_(
    model: nn.Module, names: str = ".*", optimizer: Optimizer | Sequence[Optimizer] | None = None
) -> Patched:
    """Undoes sparsify_: block-sparse layers become what they were made from, with zero where there was no
    block. See sparsify_ for the rest.

    A layer with a fused activation becomes a Sequential of both. ``names`` is a regex that is matched whole
    with the layers' names. Raises Error when no block-sparse layer matches.
    """
    model = _unwrapped(model)
    require_patchable("densify_", model)
    optimizers = as_optimizers("densify_", optimizer)
    try:
        wanted = re.compile(names)
    except (re.error, TypeError) as error:
        raise Error(
            "densify_", "names as a regular expression", f"{names!r} ({error})", "escape dots and brackets"
        ) from error
    before = parameter_count(model)
    result, swaps, changed = Patched(became="dense"), list[Swap](), list[nn.Module]()
    for module, all_names in sparse_modules(model).items():
        if not any(wanted.fullmatch(name) for name in all_names):
            result.skipped += [Skip(name, type(module).__name__, "no pattern matches") for name in all_names]
            continue
        if "" in all_names:
            raise Error(
                "densify_",
                "a model that holds sparse layers",
                "the sparse layer itself",
                "use layer.to_dense()",
            )
        if any(values_are_computed(part) for part in module.modules() if isinstance(part, BlockSparseLinear)):
            reason = "its values are parametrized, normed or pruned: remove that first"
            result.skipped += [Skip(name, type(module).__name__, reason) for name in all_names]
            continue
        dense = module.to_dense()  # type: ignore[operator]
        assert isinstance(dense, nn.Module)
        for site, layer in _pairs(module, dense):
            _same_bias(site, layer)
            swaps.append(_unpacking(site, layer, all_names[0]))
            result.changed.append(
                _change([names_of(site, name) for name in all_names], site.kind, layer, shrinks=False)
            )
        replace(model, module, dense)
        changed.append(dense)
    if not result.changed:
        raise Error(
            "densify_",
            f"a block-sparse layer for {names!r}",
            "none",
            f"they are {[s.name for s in result.skipped][:5]}",
        )
    update_fast_paths(model)
    result.notes += apply(swaps, optimizers) + describe_holders(model, changed)
    result.parameters = before, parameter_count(model)
    announce(result)
    return result


def sparse_modules(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Returns the outermost block-sparse modules of a model, each with all its names."""
    found: dict[nn.Module, list[str]] = {}
    inside: set[nn.Module] = set()
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, SPARSE) and module not in inside:
            found.setdefault(module, []).append(name)
            inside.update(part for part in module.modules() if part is not module)
    return found


def replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Puts ``new`` wherever ``old`` is a child."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                setattr(parent, name, new)


def _unwrapped(model: nn.Module) -> nn.Module:
    """Returns the module that torch.compile wraps, so that names have no _orig_mod. The wrapper compiles
    again by itself."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def _by_module(choices: list[Choice]) -> list[tuple[nn.Module, list[Choice]]]:
    grouped: dict[int, tuple[nn.Module, list[Choice]]] = {}
    for choice in choices:
        grouped.setdefault(id(choice.site.module), (choice.site.module, []))[1].append(choice)
    return list(grouped.values())


def _packing(site: Site, layer: BlockSparseLinear) -> Swap:
    old = site.parameter
    vars(layer.values).update(vars(old))  # keeps the marks that users and frameworks put on Parameters

    def carry(like_weight: Tensor) -> Tensor:
        return packed_layer(BlockSparseLinear, site.matrix(like_weight), layer.pattern).values.detach()

    return Swap(site.name, old, layer.values, carry)


def _unpacking(site: Site, layer: BlockSparseLinear, name: str) -> Swap:
    new = site.parameter
    vars(new).update(vars(layer.values))

    def carry(like_values: Tensor) -> Tensor:
        matrix = unpack(layer, like_values)
        return site.matrix(matrix).contiguous() if site.kind == "Conv1D" else matrix.reshape(new.shape)

    return Swap(name, layer.values, new, carry)


def _pairs(sparse: nn.Module, dense: nn.Module) -> list[tuple[Site, BlockSparseLinear]]:
    """Returns the dense module's weights with the sparse layers that they came from."""
    if isinstance(dense, nn.Sequential) and isinstance(dense[1], Activation):
        dense = dense[0]
    kind = kind_of(dense)
    assert kind is not None
    parts: list[nn.Module] = [sparse]
    if isinstance(sparse, BlockSparseMultiheadAttention):
        parts = [sparse.in_proj, sparse.out_proj]
    elif isinstance(sparse, BlockSparseConv1x1):
        parts = [sparse.linear]
    pairs = zip(sites_of(dense, kind), parts, strict=True)
    return [(site, layer) for site, layer in pairs if isinstance(layer, BlockSparseLinear)]


def _same_bias(site: Site, layer: BlockSparseLinear) -> None:
    """Gives the dense module the sparse layer's own bias Parameter, so that optimizers need not change it."""
    if layer.bias is None:
        return
    if site.weight == "in_proj_weight":
        site.module.in_proj_bias = layer.bias
    else:
        holder = site.module.out_proj if site.weight == "out_proj.weight" else site.module
        assert isinstance(holder, nn.Module)
        holder.bias = layer.bias


def _change(names: Sequence[str], kind: str, layer: BlockSparseLinear, shrinks: bool) -> Change:
    bias = 0 if layer.bias is None else layer.bias.numel()
    dense, sparse = layer.in_features * layer.out_features + bias, layer.values.numel() + bias
    counts = (dense, sparse) if shrinks else (sparse, dense)
    shape = layer.out_features, layer.in_features
    return Change(tuple(names), kind, shape, layer.block, layer.density, layer.pattern.blocks, counts)
