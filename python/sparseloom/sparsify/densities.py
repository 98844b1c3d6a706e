"""Densities of the layers of a model for one budget: by their shapes, or by the loss that pruning costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._arguments import named_arguments
from .._checks import not_negative, share
from ..errors import Error
from ..ops.scores import block_scores
from ..pattern import Block, block_shape
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
    scan: Mapping[str, Mapping[float, float]], sizes: Mapping[str, int], density: float
) -> dict[str, float]:
    """Returns a density for each weight of a ``sensitivity`` scan, so that together they keep at most the
    share ``density`` of ``sizes`` (elements or blocks of each).

    All start dense; in each turn the weight with the least loss per element saved goes one step sparser.
    Raises Error if even the sparsest densities of the scan keep more.
    """
    steps = {name: [(1.0, 0.0), *sorted(scan[name].items(), reverse=True)] for name in scan}
    at = dict.fromkeys(scan, 0)

    def kept() -> float:
        return sum(steps[name][at[name]][0] * sizes[name] for name in scan)

    while kept() > density * sum(sizes[name] for name in scan) * (1 + 1e-9):
        best, lowest_price = "", math.inf
        for name, i in at.items():
            if i + 1 < len(steps[name]):
                (density_now, loss), (density_next, loss_next) = steps[name][i : i + 2]
                price = (loss_next - loss) / max(1e-12, (density_now - density_next) * sizes[name])
                if price < lowest_price:
                    best, lowest_price = name, price
        if not best:
            lowest = kept() / max(1, sum(sizes[name] for name in scan))
            raise Error(_OP, f"a density of at least {lowest:.3g}", repr(density), "scan sparser densities")
        at[best] += 1
    return {name: steps[name][i][0] for name, i in at.items()}


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
