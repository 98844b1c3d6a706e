"""Densities of the layers of a model for one budget: by their shapes, or by what pruning them costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from .._checks import share
from ..errors import Error
from ..ops.scores import block_scores
from ..pattern import Block, block_shape
from .grid import expanded
from .select import top

_OP = "densities"


def erdos_renyi(shapes: Mapping[str, tuple[int, int]], density: float, block: Block = 32) -> dict[str, float]:
    """Returns densities proportional to (block rows + block columns) / (block rows * block columns), so that
    all layers together keep the share ``density`` of their blocks (the Erdos-Renyi kernel of SET and RigL).

    ``shapes`` is {name: (out features, in features)}. A layer that would need more than all its blocks
    becomes dense, and the others share what is left. Raises Error for a density outside [0, 1].
    """
    sides = block_shape(_OP, block)
    if not 0 <= share(_OP, density) <= 1:
        raise Error(_OP, "density in [0, 1]", repr(density), "density is the share of blocks that stay")
    grids = {name: (-(-rows // sides[0]), -(-cols // sides[1])) for name, (rows, cols) in shapes.items()}
    cells = {name: rows * cols for name, (rows, cols) in grids.items()}
    dense: set[str] = set()
    while True:
        others = {name: sum(grid) for name, grid in grids.items() if name not in dense and cells[name]}
        left = density * sum(cells.values()) - sum(cells[name] for name in dense)
        scale = left / sum(others.values()) if others else 0.0
        found = {name: scale * total / cells[name] for name, total in others.items()}
        full = {name for name, value in found.items() if value > 1}
        if not full:
            return {name: 1.0 if name in dense else max(0.0, found.get(name, 0.0)) for name in shapes}
        dense |= full


def sensitivity(
    weights: Mapping[str, Tensor],
    evaluate: Callable[[], float],
    block: Block = 32,
    densities: Sequence[float] = (0.5, 0.3, 0.2, 0.1, 0.05),
    norm: str = "l2",
) -> dict[str, dict[float, float]]:
    """Returns {name: {density: increase of the loss}} of pruning one weight [out, in] at a time by block
    magnitude; ``block=1`` prunes single elements. ``evaluate`` returns the loss of the model that has the
    weights; they are as before afterwards.
    """
    sides, before = block_shape(_OP, block), float(evaluate())
    scan: dict[str, dict[float, float]] = {}
    for name, weight in weights.items():
        kept = weight.detach().clone()
        scan[name] = {}
        try:
            for density in densities:
                scores = block_scores(kept, sides, norm)
                chosen = top(scores, math.floor(density * scores.numel() + 0.5)).to(kept.device)
                rows, cols = kept.shape
                with torch.no_grad():
                    weight.copy_(kept.masked_fill(~expanded(chosen, sides, (rows, cols)), 0))
                scan[name][float(density)] = float(evaluate()) - before
        finally:
            with torch.no_grad():
                weight.copy_(kept)
    return scan


def proposed(
    scan: Mapping[str, Mapping[float, float]], sizes: Mapping[str, int], density: float
) -> dict[str, float]:
    """Returns a density for each weight of a ``sensitivity`` scan, so that together they keep at most the
    share ``density`` of ``sizes`` (elements or blocks of each).

    All start dense; in each turn the weight goes one step sparser that costs least loss per element saved.
    Raises Error where even the sparsest densities of the scan keep more.
    """
    steps = {name: [(1.0, 0.0), *sorted(scan[name].items(), reverse=True)] for name in scan}
    at = dict.fromkeys(scan, 0)

    def kept() -> float:
        return sum(steps[name][at[name]][0] * sizes[name] for name in scan)

    while kept() > density * sum(sizes[name] for name in scan) * (1 + 1e-9):
        best, least = "", math.inf
        for name, i in at.items():
            if i + 1 < len(steps[name]):
                (now, loss), (then, more) = steps[name][i : i + 2]
                price = (more - loss) / max(1e-12, (now - then) * sizes[name])
                if price < least:
                    best, least = name, price
        if not best:
            lowest = kept() / max(1, sum(sizes[name] for name in scan))
            raise Error(_OP, f"a density of at least {lowest:.3g}", repr(density), "scan sparser densities")
        at[best] += 1
    return {name: steps[name][i][0] for name, i in at.items()}
