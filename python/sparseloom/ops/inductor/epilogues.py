"""fold moves what follows products of sparse weights in a joint graph into their epilogues: a bias, an
activation, a residual, and in the backward part the activation's gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import fx

from .. import autograd, operators
from ..operators import ACTIVATIONS, PLAN_CHOOSES
from .edit import (
    FUNCTIONAL,
    NONE,
    aliases_of,
    arguments_of,
    device_of,
    in_rows,
    is_bare,
    is_stored,
    is_stored_for,
    kind,
    only,
    part,
    put,
    remove,
    renew_operands,
    replace,
    sums,
    unviewed,
    viewed,
)
from .elementwise import activations_of, alike, gradient_at, value


class _Takes(NamedTuple):
    """What the epilogue of an operator takes without a pass of its own behind the kernel."""

    bias: bool = False
    activation: bool = False
    residual: bool = False


_ALL = _Takes(bias=True, activation=True, residual=True)
_PRODUCTS = {
    operators.linear: _ALL,
    operators.linear_train: _Takes(residual=True),
    operators.overload("semi24_linear"): _ALL,
    operators.overload("csr_linear"): _ALL,
    operators.overload("bitmap_linear"): _ALL,
    operators.overload("nmg_linear"): _Takes(bias=True),
    operators.overload("bsr_scaled_linear"): _Takes(activation=True),
    operators.overload("semi24_scaled_linear"): _Takes(activation=True),
    operators.overload("bitmap_scaled_linear"): _Takes(activation=True),
    # Hopper's kernel of convolutions adds a residual in a pass behind, which Inductor's loops do better.
    operators.overload("bsr_conv"): _Takes(activation=True),
}


def fold(graph: fx.Graph) -> None:
    """Moves into the epilogues of products what can be moved; leaves the graph as it is where nothing can.

    An activation moves where its result has to be stored anyway; Inductor's loops compute any other one while
    they read its input. Nothing else may read that, except where the operator can give out both: block-sparse
    products on a GPU. On the CPU a training step keeps the activations that Layer leaves to Inductor there,
    for the same reason.
    """
    saved = dict[fx.Node, str]()  # what backward operators may read -> its activation
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _PRODUCTS and _may_change(node):
            product = _with_bias(node)
            _with_residual(_activated(product, saved))
    if saved:
        for node in list(graph.nodes):
            if node.target is FUNCTIONAL and node.args[0] is operators.linear_backward:
                _with_gradient(node, saved)


def _may_change(product: fx.Node) -> bool:
    arguments = arguments_of(product)
    # A kernel that was forced by name may refuse what the plan's own choice takes.
    return arguments["row"] == PLAN_CHOOSES and device_of(product) in ("cpu", "cuda")


def _with_bias(product: fx.Node) -> fx.Node:
    """Moves the addition of a vector to a bare product into it. Returns the product."""
    arguments = arguments_of(product)
    if not _PRODUCTS[product.target].bias or arguments["bias"] is not None or not is_bare(arguments):
        return product
    for total, bias in sums(product):
        shape = value(bias).shape
        fits = len(shape) == 1 and shape[0] == value(product).shape[-1] and kind(bias) == kind(product)
        if fits and alike(total, product) and len(product.users) == 1:
            new = put(total, product, {**arguments, "bias": bias})
            replace(total, new)
            return new
    return product


def _activated(product: fx.Node, saved: dict[fx.Node, str]) -> fx.Node:
    """Moves an activation behind a bare product into it. Returns the product."""
    arguments, target = arguments_of(product), product.target
    if not _PRODUCTS[target].activation or not is_bare(arguments):
        return product
    aliases = aliases_of(product)
    found = [
        (node, name, alias)
        for alias in aliases
        for node, name in activations_of(alias)
        if any(is_stored_for(user) for seen in aliases_of(node) for user in seen.users)
    ]
    alone = [each for each in found if only(product, each[0], aliases)]
    if alone:
        result, name, alias = max(alone)  # the last: relu, then its square
        new = put(product, product, {**arguments, "activation": ACTIVATIONS[name]})
        if target is operators.linear and name == "relu":
            saved[new] = name
        replace(result, viewed(new, aliases[alias], result))
        return new
    if not found or target is not operators.linear:
        return product
    result, name, alias = min(found)
    if device_of(product) == "cpu" and name not in autograd.CPU_FUSES:
        return product
    both = put(product, product, {**arguments, "activation": ACTIVATIONS[name]}, operators.linear_train)
    both.meta["val"] = (product.meta["val"], product.meta["val"])
    y, z = part(both, 0, product), part(both, 1, product)
    saved[z] = name
    replace(result, viewed(y, aliases[alias], result))
    replace(product, z)
    return both


def _with_residual(product: fx.Node) -> None:
    """Moves the addition of another tensor of the result's shape into a product. On a GPU only where no loop
    of Inductor's reads the sum, which adds on its way: a product that adds before a norm costs ViT-B 5 % of
    its inference and BERT 1 % (H200)."""
    arguments, target = arguments_of(product), product.target
    with_input = target is operators.linear_train
    if not _PRODUCTS[target].residual or arguments["residual"] is not None:
        return
    if with_input and device_of(product) == "cpu":  # the operator refuses it there
        return
    parts = {each.args[1]: each for each in product.users} if with_input else {0: product}
    if (y := parts.get(0)) is None:  # nobody reads it
        return
    aliases, z = aliases_of(y), parts.get(1)
    for alias, views in aliases.items():
        for total, residual in sums(alias):
            fits = residual not in aliases and alike(residual, alias) and alike(total, alias)
            if not fits or any(len(each.users) > 1 for each in (y, *views)):
                continue
            if z is not None and any(each < total for each in z.users):  # the product moves behind them
                continue
            if device_of(y) == "cuda" and not is_stored(total):
                continue
            if (addend := unviewed(residual, views, total)) is None:
                continue
            new = put(total, product, {**arguments, "residual": addend})
            if z is not None:
                replace(z, part(new, 1, z))
            replace(total, viewed(part(new, 0, y) if with_input else new, views, total))
            return


def _with_gradient(backward: fx.Node, saved: dict[fx.Node, str]) -> None:
    """Moves the gradient of an activation in front of a backward operator into it."""
    given: dict[str, Any] = dict(backward.kwargs)
    dz = given["dy"]
    if given["activation"] != NONE or list(dz.users) != [backward]:
        return
    gradient = gradient_at(dz, saved)
    if gradient is None or not in_rows(value(gradient.dy)):
        return
    if device_of(dz) == "cpu" and gradient.activation not in autograd.CPU_FUSES:
        return
    code = ACTIVATIONS[gradient.activation]
    backward.kwargs = {**given, "dy": gradient.dy, "saved": gradient.saved, "activation": code}
    renew_operands(backward)
    remove(dz)
