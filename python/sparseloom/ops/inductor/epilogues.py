"""fold moves what follows products of sparse weights in a joint graph into their epilogues: a bias, an
activation, a residual, and in the backward part the activation's gradient."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import fx

from .. import autograd, operators
from ..operators import ACTIVATIONS, PLAN_CHOOSES
from .elementwise import activations_of, alike, gradient_at, is_elementwise, value

_aten = torch.ops.aten
#: Views of all elements, which elementwise operators may be moved across. Layers that must stay as they are
#: (``apart``) put others behind their results.
_PERMUTE, _RESHAPES = _aten.permute.default, (_aten.view.default, _aten._unsafe_view.default)
_MATMULS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.convolution.default)
_NONE = ACTIVATIONS[None]
#: What AOTAutograd makes of an operator that may write to an operand (main_grad).
_FUNCTIONAL = torch.ops.higher_order.auto_functionalized_v2


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
    operators.overload("nmg_linear"): _Takes(bias=True),
    operators.overload("bsr_scaled_linear"): _Takes(activation=True),
    operators.overload("semi24_scaled_linear"): _Takes(activation=True),
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
            if node.target is _FUNCTIONAL and node.args[0] is operators.linear_backward:
                _with_gradient(node, saved)


def _may_change(product: fx.Node) -> bool:
    arguments = _arguments(product)
    # A kernel that was forced by name may refuse what the plan's own choice takes.
    return arguments["row"] == PLAN_CHOOSES and _device(product) in ("cpu", "cuda")


def _with_bias(product: fx.Node) -> fx.Node:
    """Moves the addition of a vector to a bare product into it. Returns the product."""
    arguments = _arguments(product)
    if not _PRODUCTS[product.target].bias or arguments["bias"] is not None or not _is_bare(arguments):
        return product
    for total, bias in _sums(product):
        shape = value(bias).shape
        fits = len(shape) == 1 and shape[0] == value(product).shape[-1] and _kind(bias) == _kind(product)
        if fits and alike(total, product) and len(product.users) == 1:
            new = _put(total, product, {**arguments, "bias": bias})
            _replace(total, new)
            return new
    return product


def _activated(product: fx.Node, saved: dict[fx.Node, str]) -> fx.Node:
    """Moves an activation behind a bare product into it. Returns the product."""
    arguments, target = _arguments(product), product.target
    if not _PRODUCTS[target].activation or not _is_bare(arguments):
        return product
    aliases = _aliases(product)
    found = [
        (node, name, alias)
        for alias in aliases
        for node, name in activations_of(alias)
        if any(_is_stored_for(user) for seen in _aliases(node) for user in seen.users)
    ]
    alone = [each for each in found if _only(product, each[0], aliases)]
    if alone:
        result, name, alias = max(alone)  # the last: relu, then its square
        new = _put(product, product, {**arguments, "activation": ACTIVATIONS[name]})
        if target is operators.linear and name == "relu":
            saved[new] = name
        _replace(result, _viewed(new, aliases[alias], result))
        return new
    if not found or target is not operators.linear:
        return product
    result, name, alias = min(found)
    if _device(product) == "cpu" and name not in autograd.CPU_FUSES:
        return product
    both = _put(product, product, {**arguments, "activation": ACTIVATIONS[name]}, operators.linear_train)
    both.meta["val"] = (product.meta["val"], product.meta["val"])
    y, z = _part(both, 0, product), _part(both, 1, product)
    saved[z] = name
    _replace(result, _viewed(y, aliases[alias], result))
    _replace(product, z)
    return both


def _with_residual(product: fx.Node) -> None:
    """Moves the addition of another tensor of the result's shape into a product. On a GPU only where no loop
    of Inductor's reads the sum, which adds on its way: a product that adds before a norm costs ViT-B 5 % of
    its inference and BERT 1 % (H200)."""
    arguments, target = _arguments(product), product.target
    with_input = target is operators.linear_train
    if not _PRODUCTS[target].residual or arguments["residual"] is not None:
        return
    if with_input and _device(product) == "cpu":  # the operator refuses it there
        return
    parts = {each.args[1]: each for each in product.users} if with_input else {0: product}
    if (y := parts.get(0)) is None:  # nobody reads it
        return
    aliases, z = _aliases(y), parts.get(1)
    for alias, views in aliases.items():
        for total, residual in _sums(alias):
            fits = residual not in aliases and alike(residual, alias) and alike(total, alias)
            if not fits or any(len(each.users) > 1 for each in (y, *views)):
                continue
            if z is not None and any(each < total for each in z.users):  # the product moves behind them
                continue
            if _device(y) == "cuda" and not _is_stored(total):
                continue
            if (addend := _unviewed(residual, views, total)) is None:
                continue
            new = _put(total, product, {**arguments, "residual": addend})
            if z is not None:
                _replace(z, _part(new, 1, z))
            _replace(total, _viewed(_part(new, 0, y) if with_input else new, views, total))
            return


def _with_gradient(backward: fx.Node, saved: dict[fx.Node, str]) -> None:
    """Moves the gradient of an activation in front of a backward operator into it."""
    given: dict[str, Any] = dict(backward.kwargs)
    dz = given["dy"]
    if given["activation"] != _NONE or list(dz.users) != [backward]:
        return
    gradient = gradient_at(dz, saved)
    if gradient is None or not _in_rows(value(gradient.dy)):
        return
    if _device(dz) == "cpu" and gradient.activation not in autograd.CPU_FUSES:
        return
    code = ACTIVATIONS[gradient.activation]
    backward.kwargs = {**given, "dy": gradient.dy, "saved": gradient.saved, "activation": code}
    _renew_operands(backward)
    _remove(dz)


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Returns all arguments of an operator's call by name."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((each.name for each in schema), node.args, strict=False)) | dict(node.kwargs)
    return {each.name: given.get(each.name, each.default_value) for each in schema}


def _is_bare(arguments: dict[str, Any]) -> bool:
    return arguments["activation"] == _NONE and arguments.get("residual") is None


def _device(node: fx.Node) -> str:
    first = node.meta["val"]
    return str((first[0] if isinstance(first, tuple) else first).device.type)


def _kind(node: fx.Node) -> tuple[torch.dtype, torch.device]:
    return value(node).dtype, value(node).device


def _aliases(root: fx.Node) -> dict[fx.Node, tuple[fx.Node, ...]]:
    """Returns the root and all views of all its elements, each with the views that lead there."""
    found: dict[fx.Node, tuple[fx.Node, ...]] = {root: ()}
    pending = [root]
    while pending:
        node = pending.pop()
        for user in node.users:
            if user.target is _PERMUTE or user.target in _RESHAPES:
                found[user] = (*found[node], user)
                pending.append(user)
    return found


def _sums(node: fx.Node) -> Iterable[tuple[fx.Node, fx.Node]]:
    """Yields the nodes that add another node to one, and the other."""
    for user in list(node.users):
        if user.target is _aten.add.Tensor and not user.kwargs:
            a, b = user.args
            other = b if a is node else a
            if isinstance(other, fx.Node) and other is not node:
                yield user, other


def _is_stored(node: fx.Node) -> bool:
    """Returns whether all that read a node, or a view of it, read it from memory."""
    views = _aliases(node)
    return all(user in views or _is_stored_for(user) for each in views for user in each.users)


def _is_stored_for(user: fx.Node) -> bool:
    """Returns whether a node reads its operands from memory: no loop of Inductor's can compute them."""
    if user.op == "output" or user.target is _FUNCTIONAL or user.target in _MATMULS:
        return True
    return isinstance(user.target, torch._ops.OpOverload) and user.target.namespace == "sparseloom"


def _only(root: fx.Node, last: fx.Node, aliases: Iterable[fx.Node]) -> bool:
    """Returns whether a node's result serves nothing but to compute ``last``."""
    serves = {last: True}

    def only(node: fx.Node) -> bool:
        if node not in serves:
            inside = node < last and (node in aliases or is_elementwise(node))
            serves[node] = inside and bool(node.users) and all(only(user) for user in node.users)
        return serves[node]

    return all(only(user) for user in root.users)


def _put(place: fx.Node, old: fx.Node, arguments: dict[str, Any], target: Any = None) -> fx.Node:
    """Inserts a call before ``place``: the operator of ``old``, or ``target``, with other arguments."""
    called: Any = old.target if target is None else target
    with place.graph.inserting_before(place):
        new = _like(old, place.graph.call_function(called, tuple(arguments.values())))
    _renew_operands(new)
    return new


def _part(both: fx.Node, number: int, old: fx.Node) -> fx.Node:
    """Returns one of an operator's results; ``old`` is what it replaces."""
    with both.graph.inserting_after(both):
        return _like(old, both.graph.call_function(operator.getitem, (both, number)))


def _viewed(node: fx.Node, views: tuple[fx.Node, ...], place: fx.Node) -> fx.Node:
    """Returns a node seen by these views, which are made anew before ``place``."""
    with place.graph.inserting_before(place):
        for view in views:
            node = _like(view, place.graph.call_function(view.target, (node, *view.args[1:])))  # type: ignore[arg-type]
    return node


def _unviewed(node: fx.Node, views: tuple[fx.Node, ...], place: fx.Node) -> fx.Node | None:
    """Returns a node by the inverse of these views, made before ``place``; None where there is none, or the
    operator would have to copy it."""
    steps, fake = list[tuple[Any, list[int]]](), value(node)
    for view in reversed(views):
        target, sizes = view.target, view.args[1]
        if target is _PERMUTE:
            places = [each % len(sizes) for each in sizes]  # type: ignore[union-attr, operator, arg-type]
            sizes = [places.index(i) for i in range(len(places))]
        else:
            target, shape = _aten.view.default, value(view.args[0]).shape  # type: ignore[arg-type]
            sizes = [each if isinstance(each, int) else -1 for each in shape]
        try:
            fake = target(fake, sizes)  # type: ignore[operator, misc]
        except RuntimeError:  # two sizes are not known, or strides forbid the view
            return None
        steps.append((target, sizes))  # type: ignore[arg-type]
    if not _in_rows(fake):
        return None
    for (target, sizes), view in zip(steps, reversed(views), strict=True):
        with place.graph.inserting_before(place):
            fake = target(value(node), sizes)
            node = _like(view, place.graph.call_function(target, (node, sizes)))
            node.meta["val"] = fake
    return node


def _in_rows(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor's features lie one beside the other; the operators copy any other. Inductor
    makes the loop that computes it write it so: see autograd.in_rows."""
    return tensor.dim() > 0 and isinstance(tensor.stride(-1), int) and tensor.stride(-1) == 1


def _like(old: fx.Node, new: fx.Node) -> fx.Node:
    """Gives a node what the partitioner and Inductor know of another one. Returns it."""
    new.meta = dict(old.meta)
    return new


def _renew_operands(node: fx.Node) -> None:
    """Corrects what Inductor keeps of an operator's operands, whose strides it restores."""
    if "eager_input_vals" in node.meta:
        operands = node.args, node.kwargs
        node.meta["eager_input_vals"] = fx.map_arg(operands, lambda each: each.meta.get("val"))


def _replace(old: fx.Node, new: fx.Node) -> None:
    """Puts a node in another's place, and removes what served only the old one."""
    old.replace_all_uses_with(new)
    _remove(old)


def _remove(node: fx.Node) -> None:
    """Removes a node that nobody reads, and what served it alone."""
    pending = {node}
    while pending:
        last = max(pending)  # its users come behind it, and are gone by now
        pending.remove(last)
        ours = last.target in _PRODUCTS or last.target is _PERMUTE or last.target in _RESHAPES
        if not last.users and (ours or is_elementwise(last)):
            pending.update(last.all_input_nodes)
            last.graph.erase_node(last)
