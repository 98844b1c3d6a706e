"""Densities of the layers of a model for one budget: by their shapes, or by the loss that pruning costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._arguments import named_arguments
from .._checks import not_negative, share, whole
from ..errors import Error
from ..ops import make_index, plan
from ..ops.scores import block_scores
from ..pattern import Block, Pattern, block_shape
from .grid import expanded
from .select import top

_OP = "densities"


@named_arguments
def erdos_renyi(shapes: Mapping[str, tuple[int, int]], density: float, block: Block = 32) -> dict[str, float]:
    """Returns densities proportional to (block rows + block columns) / (block rows * block columns), so that
    all layers together keep the share ``density`` of their blocks (the Erdos-Renyi kernel of SET and RigL).

    ``shapes`` is {name: (out features, in features)}. A layer that would need more than all its blocks
    becomes dense, and the others share what is left. Raises Error for a density outside [0, 1].
    """
    sides = block_shape(_OP, block)
    if not 0 <= share(_OP, density) <= 1:
        raise Error(_OP, "density in [0, 1]", repr(density), "pass the share of blocks to keep: density=0.25")
    grids = {name: (-(-rows // sides[0]), -(-cols // sides[1])) for name, (rows, cols) in shapes.items()}
    cells = {name: rows * cols for name, (rows, cols) in grids.items()}
    dense: set[str] = set()
    while True:
        perimeters = {name: sum(grid) for name, grid in grids.items() if name not in dense and cells[name]}
        blocks_left = density * sum(cells.values()) - sum(cells[name] for name in dense)
        scale = blocks_left / sum(perimeters.values()) if perimeters else 0.0
        densities = {name: scale * total / cells[name] for name, total in perimeters.items()}
        full = {name for name, value in densities.items() if value > 1}
        if not full:
            return {name: 1.0 if name in dense else max(0.0, densities.get(name, 0.0)) for name in shapes}
        dense |= full


@named_arguments
def sensitivity(
    weights: Mapping[str, Tensor],
    evaluate: Callable[[], float],
    block: Block = 32,
    densities: Sequence[float] = (0.5, 0.3, 0.2, 0.1, 0.05),
    norm: str = "l2",
    mask: Callable[[Tensor, float], Tensor] | None = None,
) -> dict[str, dict[float, float]]:
    """Returns {name: {density: increase of the loss}} of pruning one weight [out, in] at a time by block
    magnitude; ``block=1`` prunes single elements. ``evaluate`` returns the loss of the model that has the
    weights; they are as before afterwards. ``mask(weight, density)`` chooses in place of magnitudes, bool
    [out, in]; of layout "tiles", ``lambda w, d: layouts.Tiles.from_dense(w, d).mask()``.
    """
    sides, loss_before = block_shape(_OP, block), float(evaluate())
    scan: dict[str, dict[float, float]] = {}
    for name, weight in weights.items():
        original = weight.detach().clone()
        scan[name] = {}
        try:
            for density in densities:
                if mask is None:
                    scores = block_scores(original, sides, norm)
                    chosen = top(scores, math.floor(density * scores.numel() + 0.5)).to(original.device)
                    rows, cols = original.shape
                    kept = expanded(chosen, sides, (rows, cols))
                else:
                    kept = mask(original, float(density))
                with torch.no_grad():
                    weight.copy_(original.masked_fill(~kept, 0))
                scan[name][float(density)] = float(evaluate()) - loss_before
        finally:
            with torch.no_grad():
                weight.copy_(original)
    return scan


@named_arguments
def proposed(
    scan: Mapping[str, Mapping[float, float]],
    sizes: Mapping[str, int | Mapping[float, float]],
    density: float,
) -> dict[str, float]:
    """Returns a density for each weight of a ``sensitivity`` scan, so that together they keep at most the
    share ``density`` of ``sizes``: elements, blocks or bytes of each weight; or, as {density: microseconds}
    with that of 1.0, what ``times`` returns: then ``density`` is the share of dense's time.

    All start dense; in each turn the weight that loses least for what it saves becomes sparser, by as many
    steps of the scan as make that least. Raises Error if even the cheapest densities of the scan cost more.
    """
    steps = {name: [(1.0, 0.0), *sorted(scan[name].items(), reverse=True)] for name in scan}
    costs = {name: _costs(name, sizes[name], [each for each, _ in steps[name]]) for name in scan}
    at = dict.fromkeys(scan, 0)
    dense = sum(costs[name][0] for name in scan)

    def left() -> float:
        return sum(costs[name][at[name]] for name in scan)

    while left() > density * dense * (1 + 1e-9):
        best, lowest_price = ("", 0), math.inf
        for name, now in at.items():
            for then in range(now + 1, len(steps[name])):
                saved = costs[name][now] - costs[name][then]
                price = (steps[name][then][1] - steps[name][now][1]) / saved if saved > 0 else math.inf
                if price < lowest_price:
                    best, lowest_price = (name, then), price
        if not best[0]:
            lowest = left() / max(dense, 1e-12)
            raise Error(_OP, f"a density of at least {lowest:.3g}", repr(density), "scan sparser densities")
        at[best[0]] = best[1]
    return {name: steps[name][i][0] for name, i in at.items()}


def _costs(name: str, size: int | Mapping[float, float], densities: Sequence[float]) -> list[float]:
    """Returns what a weight costs at these densities."""
    if not isinstance(size, Mapping):
        return [each * size for each in densities]
    missing = [each for each in densities if each not in size]
    if missing:
        got = f"none at {', '.join(f'{each:g}' for each in missing)}"
        raise Error(_OP, f"the cost of {name} at each density of the scan, and at 1.0", got, "see times()")
    return [float(size[each]) for each in densities]


@named_arguments
def times(
    weights: Mapping[str, Tensor],
    tokens: int,
    layout: Callable[[Tensor, float], Any],
    densities: Sequence[float] = (0.5, 0.3, 0.2, 0.1, 0.05),
) -> dict[str, dict[float, float]]:
    """Returns {name: {density: microseconds}} of a forward product of ``tokens`` rows with each weight [out,
    in], on its device and in its dtype, as the plans predict it; 1.0 is torch's product of the dense weight.

    ``layout(weight, density)`` returns the layout, for example ``lambda w, d: layouts.Tiles.from_dense(w,
    d)``. A product that the plan expects to be slower than dense's counts as much as dense's: leave that
    layer dense. Raises Error for a number of tokens below 1, and where a plan does not know dense's time.
    """
    tokens = whole(_OP, "tokens", tokens, 1)
    found: dict[str, dict[float, float]] = {}
    for name, weight in weights.items():
        rows, cols = weight.shape
        side = 128  # of dense's time the blocks say the sizes alone
        all_blocks = torch.ones(-(-rows // side), -(-cols // side), dtype=torch.bool)
        index = make_index(*Pattern(rows, cols, (side, side), all_blocks).index(), rows, cols, side)
        of_dense = plan(index, "forward", weight.dtype, tokens, device=weight.device)["dense_copy_us"]
        if of_dense is None:
            got = f"{name}: none for {weight.dtype} on {weight.device}"
            raise Error(_OP, "a plan that knows the time of a dense product", got, "pass sizes in its place")
        found[name] = {1.0: of_dense}
        for density in densities:
            made = layout(weight.detach(), float(density))
            us = made.plan(tokens, "forward", weight.dtype, False)["predicted_us"]
            found[name][float(density)] = min(us, of_dense)
    return found


@named_arguments
def rates(model: nn.Module, lr: float, power: float = 1.0) -> list[dict[str, Any]]:
    """Returns groups of an optimizer with learning rates by density: ``lr / density**power`` for the values
    of a sparse layer, as SMET's authors scale them (Xiao et al. 2026, arXiv 2606.00888), and ``lr`` for all
    other Parameters that train.

    Densities are those of now; a mask (of an nn.MaskedLinear) does not count. ``power`` .5 keeps the change
    of an output that adds as many independent changes as it has inputs. Raises Error for a negative number.
    """
    not_negative(_OP, "lr", lr, "1e-3")
    not_negative(_OP, "power", power)
    found: dict[int, float] = {}
    for module in model.modules():
        speaks: Any = getattr(module, "sparse_weights", dict)
        for weight in speaks().values():
            found[id(weight.values)] = weight.density
    groups: dict[float, dict[str, Any]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            density = found.get(id(parameter)) or 1.0  # without a block there is nothing to scale
            groups.setdefault(density, {"params": [], "lr": lr / density**power})["params"].append(parameter)
    return list(groups.values())
