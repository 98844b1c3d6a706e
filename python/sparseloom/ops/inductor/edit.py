"""What the passes over joint graphs share: the arguments of our operators, the views of a result, who reads
it, and calls put in the place of others."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from ..._home import NAMESPACE
from ..operators import ACTIVATIONS
from .elementwise import is_elementwise, value

_aten = torch.ops.aten
#: Views of all elements, which elementwise operators may be moved across. Layers that must stay as they are
#: (``apart``) put others behind their results.
_PERMUTE, _RESHAPES = _aten.permute.default, (_aten.view.default, _aten._unsafe_view.default)
_MATMULS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.convolution.default)
NONE = ACTIVATIONS[None]
#: What AOTAutograd makes of an operator that may write to an operand (main_grad).
FUNCTIONAL = torch.ops.higher_order.auto_functionalized_v2


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Returns all arguments of an operator's call by name."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = dict(zip((each.name for each in schema), node.args, strict=False)) | dict(node.kwargs)
    return {each.name: given.get(each.name, each.default_value) for each in schema}


def is_bare(arguments: dict[str, Any]) -> bool:
    return arguments["activation"] == NONE and arguments.get("residual") is None


def device_of(node: fx.Node) -> str:
    first = node.meta["val"]
    return str((first[0] if isinstance(first, tuple) else first).device.type)


def kind(node: fx.Node) -> tuple[torch.dtype, torch.device]:
    return value(node).dtype, value(node).device


def aliases_of(root: fx.Node) -> dict[fx.Node, tuple[fx.Node, ...]]:
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


def sums(node: fx.Node) -> Iterable[tuple[fx.Node, fx.Node]]:
    """Yields the nodes that add another node to one, and the other."""
    for user in list(node.users):
        if user.target is _aten.add.Tensor and not user.kwargs:
            a, b = user.args
            other = b if a is node else a
            if isinstance(other, fx.Node) and other is not node:
                yield user, other


def is_stored(node: fx.Node) -> bool:
    """Returns whether all that read a node, or a view of it, read it from memory."""
    views = aliases_of(node)
    return all(user in views or is_stored_for(user) for each in views for user in each.users)


def is_stored_for(user: fx.Node) -> bool:
    """Returns whether a node reads its operands from memory: no loop of Inductor's can compute them."""
    if user.op == "output" or user.target is FUNCTIONAL or user.target in _MATMULS:
        return True
    return isinstance(user.target, torch._ops.OpOverload) and user.target.namespace == NAMESPACE


def only(root: fx.Node, last: fx.Node, aliases: Iterable[fx.Node]) -> bool:
    """Returns whether a node's result serves nothing but to compute ``last``."""
    serves = {last: True}

    def only(node: fx.Node) -> bool:
        if node not in serves:
            inside = node < last and (node in aliases or is_elementwise(node))
            serves[node] = inside and bool(node.users) and all(only(user) for user in node.users)
        return serves[node]

    return all(only(user) for user in root.users)


def put(place: fx.Node, old: fx.Node, arguments: dict[str, Any], target: Any = None) -> fx.Node:
    """Inserts a call before ``place``: the operator of ``old``, or ``target``, with other arguments."""
    called: Any = old.target if target is None else target
    with place.graph.inserting_before(place):
        new = like(old, place.graph.call_function(called, tuple(arguments.values())))
    renew_operands(new)
    return new


def part(both: fx.Node, number: int, old: fx.Node) -> fx.Node:
    """Returns one of an operator's results; ``old`` is what it replaces."""
    with both.graph.inserting_after(both):
        return like(old, both.graph.call_function(operator.getitem, (both, number)))


def viewed(node: fx.Node, views: tuple[fx.Node, ...], place: fx.Node) -> fx.Node:
    """Returns a node seen by these views, which are made anew before ``place``."""
    with place.graph.inserting_before(place):
        for view in views:
            node = like(view, place.graph.call_function(view.target, (node, *view.args[1:])))  # type: ignore[arg-type]
    return node


def unviewed(node: fx.Node, views: tuple[fx.Node, ...], place: fx.Node) -> fx.Node | None:
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
    if not in_rows(fake):
        return None
    for (target, sizes), view in zip(steps, reversed(views), strict=True):
        with place.graph.inserting_before(place):
            fake = target(value(node), sizes)
            node = like(view, place.graph.call_function(target, (node, sizes)))
            node.meta["val"] = fake
    return node


def in_rows(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor's features lie one beside the other; the operators copy any other. Inductor
    makes the loop that computes it write it so: see autograd.in_rows."""
    return tensor.dim() > 0 and isinstance(tensor.stride(-1), int) and tensor.stride(-1) == 1


def like(old: fx.Node, new: fx.Node) -> fx.Node:
    """Gives a node what the partitioner and Inductor know of another one. Returns it."""
    new.meta = dict(old.meta)
    return new


def renew_operands(node: fx.Node) -> None:
    """Corrects what Inductor keeps of an operator's operands, whose strides it restores."""
    if "eager_input_vals" in node.meta:
        operands = node.args, node.kwargs
        node.meta["eager_input_vals"] = fx.map_arg(operands, lambda each: each.meta.get("val"))


def replace(old: fx.Node, new: fx.Node) -> None:
    """Puts a node in another's place, and removes what served only the old one."""
    old.replace_all_uses_with(new)
    remove(old)


def remove(node: fx.Node) -> None:
    """Removes a node that nobody reads, and what served it alone."""
    pending = {node}
    while pending:
        last = max(pending)  # its users come behind it, and are gone by now
        pending.remove(last)
        ours = _is_pure_of_ours(last) or last.target is _PERMUTE or last.target in _RESHAPES
        if not last.users and (ours or is_elementwise(last)):
            pending.update(last.all_input_nodes)
            last.graph.erase_node(last)


def _is_pure_of_ours(node: fx.Node) -> bool:
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and target.namespace == NAMESPACE
        and not target._schema.is_mutable
    )
