"""Budgets: densities for the layers of a model, from the statistics of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .._arguments import named_arguments
from .._checks import share
from ..errors import Error
from .statistics import Statistics


@named_arguments
def owl(
    density: float, *, outlier: float = 5.0, spread: float = 0.08
) -> Callable[[Mapping[str, Statistics]], dict[str, float]]:
    """Returns a budget that keeps more of layers with many outliers (OWL, Yin et al. 2023, arXiv 2310.05175).

    A layer's outliers are the elements whose |w| times the norm of the input exceeds ``outlier`` times the
    layer's mean. Densities lie within ``spread`` of ``density``, which is their mean over the elements.

    Raises Error unless density - spread and density + spread lie in [0, 1].
    """
    if not 0 <= share("owl", density) - share("owl", spread, "spread") <= density + spread <= 1:
        got = f"density={density} and spread={spread}"
        raise Error("owl", "density - spread and density + spread in [0, 1]", got, "pass a smaller spread")

    def budget(known: Mapping[str, Statistics]) -> dict[str, float]:
        ratios = {name: _outliers(statistics, outlier) for name, statistics in known.items()}
        sizes = {name: statistics.weight.numel() for name, statistics in known.items()}
        low, high, whole = min(ratios.values()), max(ratios.values()), sum(sizes.values())
        scaled = {name: (ratio - low) / (high - low) if high > low else 0.5 for name, ratio in ratios.items()}
        mean = sum(scaled[name] * sizes[name] for name in scaled) / whole
        # each within one spread of the density: the mean lies inside of [0, 1], and so do the distances
        return {name: density + spread * (value - mean) for name, value in scaled.items()}

    return budget


def _outliers(known: Statistics, outlier: float) -> float:
    assert known.squares is not None
    scores = known.weight.abs().float() * known.squares.sqrt().float().to(known.weight.device)
    return float((scores > outlier * scores.mean()).double().mean())
