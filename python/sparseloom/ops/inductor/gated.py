"""join_gated makes one kernel of a gated linear unit, act(x W^T) * (x V^T), where nothing keeps its
products."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .. import operators
from ..operators import ACTIVATIONS, PLAN_CHOOSES
from ..plans import DTYPES
from .edit import NONE, arguments_of, is_stored, like, renew_operands, replace
from .elementwise import activations_of, alike, is_elementwise, value

_MULTIPLIES = torch.ops.aten.mul.Tensor
#: The smallest digest of blocks that stay; those below it are of blocks that move (sparseloom/plan.h).
_STAYS = -1


def join_gated(graph: fx.Graph) -> None:
    """Puts the operator bsr_linear_glu in the place of two products of one x and their gate. It does so on
    GPUs that have a kernel for it, where the plan expects no loss. A training step keeps both products for
    its gradients, and stays as it is. There Inductor makes one loop of the gate, and one of its
    gradients."""
    for node in list(graph.nodes):
        if node.target is _MULTIPLIES and not node.kwargs:
            first, second = node.args
            if not _joined(node, first, second):
                _joined(node, second, first)


def _joined(unit: fx.Node, gate: object, factors: object) -> bool:
    """Replaces ``unit``, gate * factors, if it is a gated linear unit. Returns whether it is one."""
    if not isinstance(gate, fx.Node) or not isinstance(factors, fx.Node) or gate is factors:
        return False
    if not alike(gate, factors) or not alike(unit, factors) or not _is_read_once(factors, unit):
        return False
    found = _product_of(gate, unit)
    second = arguments_of(factors)
    if found is None or second["activation"] != NONE or not is_stored(unit):
        return False
    product, activation = found
    first = arguments_of(product)
    same = all(first[each] == second[each] for each in ("x", "out_features", "strict"))
    biases = (first["bias"] is None) == (second["bias"] is None)
    if not same or not biases or not _pays(first, second, activation):
        return False
    given = [first["x"], first["values"], first["index"], second["values"], second["index"]]
    given += [first["out_features"], first["bias"], second["bias"], activation, PLAN_CHOOSES, first["strict"]]
    with unit.graph.inserting_before(unit):
        new = like(unit, unit.graph.call_function(operators.overload("bsr_linear_glu"), tuple(given)))
    renew_operands(new)
    replace(unit, new)
    return True


def _product_of(gate: fx.Node, unit: fx.Node) -> tuple[fx.Node, int] | None:
    """Returns the product whose activation ``gate`` is, and the activation's code, if nothing but ``unit``
    reads the gate, and nothing but the gate the product."""
    if _is_read_once(gate, unit):
        return gate, arguments_of(gate)["activation"]
    products, inside, pending = set[fx.Node](), {gate}, [gate]
    while pending:
        for node in pending.pop().all_input_nodes:
            if node.target is operators.linear:
                products.add(node)
            elif node not in inside and node.all_input_nodes:  # constants have none
                inside.add(node)
                pending.append(node)
    if len(products) != 1 or not all(map(is_elementwise, inside)):
        return None
    (product,) = products
    name = next((name for each, name in activations_of(product) if each is gate), None)
    readers = {user for node in (product, *inside) for user in node.users}
    if name is None or not readers <= {*inside, unit} or list(gate.users) != [unit]:
        return None
    return (product, ACTIVATIONS[name]) if _is_plain(product, bare=True) else None


def _is_read_once(product: fx.Node, unit: fx.Node) -> bool:
    return product.target is operators.linear and list(product.users) == [unit] and _is_plain(product)


def _is_plain(product: fx.Node, bare: bool = False) -> bool:
    given = arguments_of(product)
    plain = given["residual"] is None and given["row"] == PLAN_CHOOSES and given["digest"] >= _STAYS
    return plain and (given["activation"] == NONE or not bare)


def _pays(first: dict[str, Any], second: dict[str, Any], activation: int) -> bool:
    x, values, others = (value(each) for each in (first["x"], first["values"], second["values"]))
    if not x.is_cuda or x.dtype not in DTYPES or values.shape[1:] != others.shape[1:]:
        return False
    sizes = (first["out_features"], x.shape[-1], *values.shape[1:], values.shape[0], others.shape[0])
    *known, tokens = (_number(each) for each in (*sizes, x.shape[:-1].numel()))
    if tokens is None or any(each is None for each in known):
        return False
    has_bias, device = first["bias"] is not None, x.device.index or 0
    ratio = operators.call("glu_ratio", known, DTYPES[x.dtype], tokens, device, has_bias, activation)
    return bool(ratio <= 1)


def _number(size: Any) -> int | None:
    """Returns a size, or what one that varies was in the traced call; None if that is not known."""
    return size if isinstance(size, int) else getattr(getattr(size, "node", None), "hint", None)
