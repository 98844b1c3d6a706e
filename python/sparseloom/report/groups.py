"""Joins equal layers, so that a report of a deep model is as long as the model is varied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ..timing.rounds import Spread
from .result import LayerReport, Ratios, Times


@dataclass(frozen=True)
class Group:
    """Layers of the same kind, shape, block or layout, density, tokens, dtype and kernels."""

    names: list[str]  # in the model's order
    entry: LayerReport  # times and ratios: medians over the layers; bytes: their sum


def grouped(layers: list[LayerReport]) -> tuple[list[Group], list[LayerReport]]:
    """Returns the groups of sparse layers, in the order of their first layers, and the other layers."""
    found: dict[tuple[Any, ...], list[LayerReport]] = {}
    for layer in layers:
        if layer.sparse:
            found.setdefault(_key(layer), []).append(layer)
    groups = [Group([layer.name or "model" for layer in each], _joined(each)) for each in found.values()]
    return groups, [layer for layer in layers if not layer.sparse]


def _key(layer: LayerReport) -> tuple[Any, ...]:
    """Equal for layers that are shown as one. Times and notes differ between equal layers."""
    density = None if layer.density is None else f"{layer.density:.3g}"
    size = (
        layer.kind,
        layer.shape,
        layer.block,
        layer.layout,
        density,
        layer.tokens,
        layer.x_shape,
        layer.dtype,
    )
    measured = layer.times is None or tuple(layer.times)
    return (*size, tuple(layer.kernels.items()), measured)


def _joined(layers: list[LayerReport]) -> LayerReport:
    first = layers[0]
    if len(layers) == 1:
        return first
    return replace(
        first,
        bytes=sum(layer.bytes for layer in layers),
        dense_bytes=sum(layer.dense_bytes for layer in layers),
        copy_bytes=sum(layer.copy_bytes for layer in layers),
        times=_medians([layer.times for layer in layers]),
        dense_times=_medians([layer.dense_times for layer in layers]),
        ratios=_ratios([layer.ratios for layer in layers]),
        note=_notes(layers),
        pattern=None,
    )


def _medians(times: list[Times | None]) -> Times | None:
    known = [each for each in times if each is not None]
    return {direction: median(each[direction] for each in known) for direction in known[0]} if known else None


def _ratios(ratios: list[Ratios]) -> Ratios:
    return {
        direction: Spread(
            *(median(getattr(each[direction], at) for each in ratios) for at in ("median", "p20", "p80"))
        )
        for direction in ratios[0]
    }


def _notes(layers: list[LayerReport]) -> str:
    """Each note once, with the first layer that has it and how many others do."""
    noted: dict[str, list[str]] = {}
    for layer in layers:
        if layer.note:
            noted.setdefault(layer.note, []).append(layer.name)
    told = []
    for note, names in noted.items():
        where = "all" if len(names) == len(layers) else f"{len(names)} of {len(layers)}: {names[0]}"
        told.append(f"{note} ({where}{', ..' if 1 < len(names) < len(layers) else ''})")
    return "; ".join(told)
