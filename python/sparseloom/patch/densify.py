"""densify_ makes the sparse layers of a model dense again, in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .._arguments import named_arguments
from .._checks import as_optimizers
from ..errors import Error
from ..nn import MaskedLinear
from ..nn.held.convert import Activation
from ..nn.held.parametrized import values_are_computed
from ..nn.held.sparse_weight import SparseModule, SparseWeight, joined, sparse_modules
from ..nn.masked.linear import masked_layers
from .announce import announce
from .exchange import Exchange
from .forms import Form, Site, form_of
from .hooks import carry_hooks
from .masters import change_of_master
from .optimizer import Swap, leave
from .result import Patched, Skip
from .sparsify import change_of, unwrapped
from .survey import parameter_count, regex_of, require_patchable

_NO_MATCH = "no pattern matches"


@named_arguments
def densify_(
    model: nn.Module, names: str = ".*", *, optimizer: Optimizer | Sequence[Optimizer] | None = None
) -> Patched:
    """Undoes sparsify_: sparse and masked layers become the dense modules that they were made from, with zero
    where nothing was stored or a mask prunes; attention that use_pattern changed becomes torch's again. See
    sparsify_ for the rest.

    A layer with an activation of its own becomes a Sequential of both; one that sparsify_ fused goes back to
    its place. Gates are multiplied into the weight as in evaluation, and leave the optimizer. ``names`` is a
    regex that is matched whole with the layers' names. Raises Error, with the reason, when no matching layer
    can become dense: 8-bit layers stay, for example.
    """
    model = unwrapped(model)
    require_patchable("densify_", model)
    optimizers = as_optimizers("densify_", optimizer)
    regex = regex_of("densify_", names)
    count_before, modules = parameter_count(model), _with_names(model)
    result, exchange = Patched(became="dense"), Exchange(model)
    torchs = 0
    with exchange.whole(optimizers):
        for module, all_names in modules.items():
            if not any(regex.fullmatch(name) for name in all_names):
                result.skipped += [Skip(n, type(module).__name__, _NO_MATCH) for n in all_names]
                continue
            if "" in all_names:
                raise Error(
                    "densify_",
                    "a model that holds sparse layers",
                    "the sparse layer itself",
                    "use layer.to_dense()",
                )
            if not isinstance(module, MaskedLinear) and (reason := _undensifiable(module)):
                result.skipped += [Skip(name, type(module).__name__, reason) for name in all_names]
                continue
            dense = module.to_dense()
            carry_hooks(module, dense)
            exchange.modules.append((module, dense))
            torchs += not isinstance(module, MaskedLinear) and not module.sparse_weights()  # use_pattern's
            if isinstance(module, MaskedLinear):
                exchange.swaps.append(_unmasking(module, dense.weight, all_names[0]))
                change = change_of_master(all_names, type(dense).__name__, module)
                result.changed.append(replace(change, parameters=change.parameters[::-1]))
                continue
            for weight in module.sparse_weights().values():
                site, names_of_weight = (
                    _site(dense, weight.dense),
                    [joined(n, weight.part) for n in all_names],
                )
                if isinstance(bias := weight.owner.bias, nn.Parameter):
                    site.set_bias(bias)  # the sparse layer's own, so that optimizers need not change it
                exchange.swaps.append(_unpacking(site, weight, all_names[0]))
                result.changed.append(change_of(names_of_weight, site.kind, weight, bias, shrinks=False))
        if torchs:
            result.notes.append(f"{torchs} attentions without a sparse projection are torch's again")
        elif not result.changed:
            raise _nothing(names, result.skipped)
        exchange.put()
        result.notes += exchange.settle(optimizers)
        leave(_gone(exchange), optimizers)
        if any(change.layout == "semi24" for change in result.changed):
            result.notes.append("weights that were 2:4 stay frozen: weight.requires_grad_() lets them train")
        result.parameters = count_before, parameter_count(model)
        announce(result)
    return result


def _nothing(names: str, skipped: list[Skip]) -> Error:
    """Returns the Error for a call that changes no layer."""
    expected = f"a block-sparse layer for {names!r}, or another sparse or masked one"
    if not skipped:
        return Error("densify_", expected, "a model without any", "sparsify_ makes layers sparse")
    refused = [skip for skip in skipped if skip.reason != _NO_MATCH]
    got = ", ".join(f"{skip.name} ({skip.reason})" for skip in (refused or skipped)[:5])
    remedy = "name one that can change" if refused else "names are matched whole: name one of these"
    return Error("densify_", expected, f"only {got}", remedy)


def _gone(exchange: Exchange) -> list[nn.Parameter]:
    """Returns the Parameters without a replacement, such as those of gates."""
    remaining = {id(parameter) for parameter in exchange.model.parameters()} | {
        id(swap.old) for swap in exchange.swaps
    }
    return [each for old, _ in exchange.modules for each in old.parameters() if id(each) not in remaining]


def _with_names(model: nn.Module) -> dict[Any, list[str]]:
    """Returns the outermost sparse modules of a model and its masked layers, each with all its names."""
    names_of: dict[Any, list[str]] = {}
    for name, module in sparse_modules(model):
        names_of.setdefault(module, []).append(name)
    return names_of | masked_layers(model)


def _undensifiable(module: SparseModule) -> str:
    """Returns why a sparse module cannot become dense; "" when it can."""
    for weight in module.sparse_weights().values():
        if weight.scaled:
            return "it is quantized, and rounding cannot be undone: to_dense() gives the rounded weights"
        if values_are_computed(weight.owner):
            return "its values are parametrized, normed or pruned: remove that first"
        if getattr(weight.owner, "edges", None) is not None:
            return "it has an edge bias, which no dense convolution has: set its edges = None to drop that"
    return ""


class _AnyForm(Form):
    """The form of a user's own dense module, of a kind that sparsify_ does not support."""

    def matches(self, module: nn.Module) -> bool:
        return True


def _site(dense: nn.Module, weight: str) -> Site:
    """Returns the site of the weight of that name in a module that ``to_dense`` returned."""
    if isinstance(dense, nn.Sequential) and len(dense) == 2 and isinstance(dense[1], Activation):
        dense = dense[0]
    return Site(form_of(dense) or _AnyForm(), dense, weight)


def _unmasking(layer: MaskedLinear, new: nn.Parameter, name: str) -> Swap:
    old = layer.get_parameter("weight")
    vars(new).update(vars(old))
    return Swap(name, old, new, layer.masked)


def _unpacking(site: Site, weight: SparseWeight, name: str) -> Swap:
    old, new = weight.values, site.parameter
    assert isinstance(old, nn.Parameter)
    vars(new).update(vars(old))

    def carry(like_values: Tensor) -> Tensor:
        return site.form.stored(weight.unpacked(like_values), new)

    return Swap(name, old, new, carry)
