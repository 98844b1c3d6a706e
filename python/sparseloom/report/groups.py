"""Groups equal layers, so that the report of a deep model has one entry per kind of layer."""

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
    layers_of: dict[tuple[Any, ...], list[LayerReport]] = {}
    for layer in layers:
        if layer.sparse:
            layers_of.setdefault(_key(layer), []).append(layer)
    groups = [
        Group([layer.name or "model" for layer in members], _joined(members))
        for members in layers_of.values()
    ]
    return groups, [layer for layer in layers if not layer.sparse]


def _key(layer: LayerReport) -> tuple[Any, ...]:
    """Returns a key that is equal for layers shown as one group. Times and notes are not part of it."""
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
        ratios=_ratios(layers),
        note=_notes(layers),
        pattern=None,
    )


def _medians(times: list[Times | None]) -> Times | None:
    measured = [layer_times for layer_times in times if layer_times is not None]
    if not measured:
        return None
    return {direction: median(of_layer[direction] for of_layer in measured) for direction in measured[0]}


def _ratios(layers: list[LayerReport]) -> Ratios:
    """Returns the quotients of the medians over the layers, with the medians of their spreads around them."""
    times, dense_times = (
        _medians([layer.times for layer in layers]),
        _medians([layer.dense_times for layer in layers]),
    )
    joined = {}
    for direction in layers[0].ratios:
        spreads = [layer.ratios[direction] for layer in layers]
        middle, p20, p80 = (median(getattr(each, at) for each in spreads) for at in ("median", "p20", "p80"))
        if times and dense_times and direction in times and direction in dense_times:
            middle = dense_times[direction] / times[direction]
        joined[direction] = Spread(middle, p20, p80).around(middle)
    return joined


def _notes(layers: list[LayerReport]) -> str:
    """Returns each note once, with the first layer that has it and the number of layers."""
    noted: dict[str, list[str]] = {}
    for layer in layers:
        if layer.note:
            noted.setdefault(layer.note, []).append(layer.name)
    lines = []
    for note, names in noted.items():
        count = "all" if len(names) == len(layers) else f"{len(names)} of {len(layers)}: {names[0]}"
        lines.append(f"{note} ({count}{', ..' if 1 < len(names) < len(layers) else ''})")
    return "; ".join(lines)
