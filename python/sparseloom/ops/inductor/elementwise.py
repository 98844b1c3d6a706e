"""Recognises activations and their gradients in a graph of elementwise operators, by their values.

Inductor's joint graphs have no activations any more, but what each release of torch decomposes them into;
and models write formulas of their own. So what an elementwise part of a graph computes is computed here, in
float64, at numbers where functions differ. In a graph of elementwise operators there is nothing else to know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from heapq import heappop, heappush
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.utils._python_dispatch import _disable_current_modes

from ..autograd import activate, activation_gradient
from ..operators import ACTIVATIONS

_aten, _CONVERT = torch.ops.aten, torch.ops.prims.convert_element_type.default
_WIDE = (torch.float32, torch.float64)
_CONSTANTS = (_aten.full.default, _aten.scalar_tensor.default)
#: The most operators that are followed behind a product: the longest formula and its gradient have 20 each.
_MOST = 96
#: Tolerance relative to max(1, |expected|): constants may be rounded to fp32. The two forms of GELU differ by
#: 2^-11.
_ROUNDING = 2**-20


class _Known(NamedTuple):
    """The numbers z, a dy for each, and act(z) and dy act'(z) of every activation by name."""

    z: Tensor
    dy: Tensor
    results: dict[str, Tensor]
    gradients: dict[str, Tensor]


@cache
def _known() -> _Known:
    dense = torch.arange(-768, 769, dtype=torch.float64, device="cpu") / 64  # where activations bend
    large = torch.tensor([10.0**power for power in (-30, -8, -3, 2, 3, 4, 5, 6, 12, 30)], device="cpu")
    z = torch.cat([dense, large.double(), -large.double(), large.double()[:1] * torch.nan])
    dy = torch.cos(torch.arange(len(z), dtype=torch.float64, device="cpu"))
    names = [name for name in ACTIVATIONS if name is not None]
    return _Known(
        z, dy, {name: activate(z, name) for name in names},
        {name: activation_gradient(dy, z, name) for name in names},
    )  # fmt: skip


def value(node: fx.Node) -> Tensor:
    """Returns the fake tensor of a node; one on meta with no elements for a node without."""
    found = node.meta.get("val")
    return found if isinstance(found, Tensor) else torch.empty(0, device="meta")


def alike(a: fx.Node, b: fx.Node) -> bool:
    """Returns whether two results have one shape, dtype and device, for certain."""
    x, y = value(a), value(b)
    same_kind = x.dtype == y.dtype and x.device == y.device and x.dim() == y.dim()
    return same_kind and statically_known_true(sym_eq(tuple(x.shape), tuple(y.shape)))


def is_elementwise(node: fx.Node) -> bool:
    """Returns whether each element of a node's result depends on one of each operand alone."""
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and torch.Tag.pointwise in node.target.tags
        and torch.Tag.nondeterministic_seeded not in node.target.tags
        and not node.target._schema.is_mutable
        and "dtype" not in node.kwargs
    )


def activations_of(root: fx.Node) -> Iterator[tuple[fx.Node, str]]:
    """Yields the nodes that compute an activation of ``root``, element by element and in its dtype, with its
    name, in the graph's order."""
    with torch.no_grad(), _disable_current_modes():
        known = _known()
        values, waiting = {root: known.z}, list[fx.Node]()
        for user in root.users:
            heappush(waiting, user)
        while waiting and len(values) < _MOST:
            node = heappop(waiting)
            if node in values or not is_elementwise(node) or not _compute(node, values, value(root).dtype):
                continue
            if alike(node, root):
                name = next((name for name, each in known.results.items() if _is(values[node], each)), "")
                if name:
                    yield node, name
            for user in node.users:
                heappush(waiting, user)


class Gradient(NamedTuple):
    """A node that computes ``dy`` act'(``saved``)."""

    dy: fx.Node
    saved: fx.Node
    activation: str


def gradient_at(dz: fx.Node, candidates: Mapping[fx.Node, str]) -> Gradient | None:
    """Returns what an elementwise part that ends with ``dz`` computes, if it is an activation's gradient;
    ``candidates``: nodes that are an activation's input (relu's: its result, too) -> its name."""
    between = dict[fx.Node, bool]()  # whether a node depends on a candidate, elementwise
    found = dict[fx.Node, None]()

    def depends(node: fx.Node) -> bool:
        if node in candidates:
            found[node] = None
            return True
        if node not in between:
            between[node] = False
            if is_elementwise(node) and len(between) < _MOST:
                depending = [depends(each) for each in node.all_input_nodes]  # all of them: there may be two
                between[node] = any(depending)
        return between[node]

    if not depends(dz) or len(found) != 1:
        return None
    (saved,) = found
    part = sorted(node for node, depending in between.items() if depending)
    inside = {saved, *part}
    outside = {
        _unconverted(each, value(saved).dtype)
        for node in part
        for each in node.all_input_nodes
        if each not in inside and _constant(each) is None
    }
    if len(outside) != 1 or not all(alike(each, saved) for each in (*outside, dz)):
        return None
    (dy,) = outside
    with torch.no_grad(), _disable_current_modes():
        known = _known()
        values = {saved: known.z, dy: known.dy}
        if not all(_compute(node, values, value(saved).dtype) for node in part):
            return None
        name = candidates[saved]
        return Gradient(dy, saved, name) if _is(values[dz], known.gradients[name]) else None


def _unconverted(node: fx.Node, dtype: torch.dtype) -> fx.Node:
    """Returns the node of that dtype that a node only widens; itself if there is none."""
    widens = node.target is _CONVERT and node.args[1] in _WIDE and value(node.args[0]).dtype == dtype  # type: ignore[arg-type]
    return node.args[0] if widens else node  # type: ignore[return-value]


def _constant(node: fx.Node) -> Tensor | None:
    """Returns the number that a node fills its result with, whatever its shape."""
    if node.op != "call_function" or node.target not in _CONSTANTS:
        return None
    number = node.args[-1]
    if not isinstance(number, (bool, int, float)):
        return None
    kind = torch.bool if isinstance(number, bool) else torch.float64
    return torch.tensor(number, dtype=kind, device="cpu")


def _compute(node: fx.Node, values: dict[fx.Node, Tensor], dtype: torch.dtype) -> bool:
    """Adds a node's value. Returns whether it could: all operands are known, and nothing is rounded to a
    dtype that holds less than ``dtype``, the product's."""
    operands = {each: values.get(_unconverted(each, dtype), _constant(each)) for each in node.all_input_nodes}
    if any(each is None for each in operands.values()):
        return False
    if node.target is _CONVERT:
        kept = node.args[1] in (dtype, *_WIDE) and not (dtype == torch.float64 and node.args[1] != dtype)
        if kept:
            values[node] = operands[node.args[0]]  # type: ignore[index, assignment]
        return kept
    args, kwargs = fx.map_arg((node.args, node.kwargs), operands.__getitem__)  # type: ignore[arg-type]
    result = node.target(*args, **kwargs)  # type: ignore[operator]
    if not isinstance(result, Tensor):
        return False
    values[node] = result
    return True


def _is(got: Tensor, expected: Tensor) -> bool:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    close = (got - expected).abs() <= _ROUNDING * expected.abs().clamp(min=1)
    return bool((close | (got.isnan() & expected.isnan())).all())
