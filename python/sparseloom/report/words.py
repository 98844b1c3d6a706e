"""Texts that the printed report and its page share: times, spreads, sizes, totals and the legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .result import LayerReport, ModelReport, Report, Totals

DIRECTIONS = ("forward", "backward")


def time_words(entry: LayerReport | ModelReport, direction: str) -> str:
    """Returns microseconds, dense twin -> sparse: ratio (spread); "" where nothing was measured."""
    times, dense_times = entry.times, entry.dense_times
    if times is None or direction not in times:
        return ""
    if dense_times is None or direction not in dense_times:
        return f"{times[direction]:,.0f} us"
    words = f"{dense_times[direction]:,.0f} -> {times[direction]:,.0f} us: {entry.speedups[direction]:.2f}x"
    ratio = entry.ratios.get(direction)
    return words if ratio is None else words + ratio.words


def host_words(model: ModelReport) -> str:
    """Says that the GPU waits for the host, if it does."""
    if not model.host_bound:
        return ""
    if model.idle_share is not None:
        words = f"the GPU idles for {100 * model.idle_share:.0f} % of an eager forward call"
    else:
        words = f"launching takes {100 * (model.launch_share or 0):.0f} % of an eager forward call"
    return f'host-bound: {words}; compile the model (mode="reduce-overhead"), or replay a CUDA graph'


class Unit(NamedTuple):
    """A unit of time for a table, and what microseconds are multiplied by."""

    name: str
    factor: float


def unit_of(entries: Sequence[LayerReport | ModelReport]) -> Unit:
    """Returns milliseconds where a time of the table is 100 ms or more, else microseconds."""
    times = [
        us for entry in entries for each in (entry.times, entry.dense_times) for us in (each or {}).values()
    ]
    return Unit("ms", 1e-3) if max(times, default=0.0) >= 1e5 else Unit("us", 1.0)


def duration(us: float) -> str:
    """Returns a time in the unit that it is read in."""
    for limit, factor, unit in ((1e3, 1.0, "us"), (1e6, 1e-3, "ms")):
        if us < limit:
            return f"{us * factor:.3g} {unit}"
    return f"{us * 1e-6:.3g} s"


def headline(report: Report) -> str:
    """Returns what was found: how fast a call is beside dense, and how many layers are sparse."""
    sparse = [layer for layer in report.layers if layer.sparse]
    if not sparse:
        return "No layer of this model is sparse: advise(model, x) says which ones would gain."
    slower = sum(bool(layer.slower) for layer in sparse)
    counts = f"{len(sparse)} of {len(report.layers)} layers {'is' if len(sparse) == 1 else 'are'} sparse"
    counts += f", {slower} of them slower than dense." if slower else "."
    return f"{_call_words(report.model)} {counts}".strip()


_CALLS = {
    "forward": "A forward call", "compiled": "A compiled call", "exported": "An exported call",
    "graph": "A replayed graph",
}  # fmt: skip


def _call_words(model: ModelReport | None) -> str:
    if model is None or not model.times or not model.dense_times or "forward" not in model.speedups:
        return "The whole model was not measured against dense:"
    way = min(model.speedups.keys() - {"backward"}, key=lambda each: model.times[each])  # type: ignore[index]
    ours, dense, ratio = model.times[way], model.dense_times[way], model.speedups[way]
    call = _CALLS[way]
    times = f"{call} takes {duration(ours)}"
    if way in model.undecided:
        return f"{times}, dense {duration(dense)}: no difference was shown."
    if ratio >= 1:
        return f"{times}, {ratio:.2f} times as fast as dense ({duration(dense)})."
    return f"{times}, {1 / ratio:.2f} times as long as dense ({duration(dense)})."


def kernel_words(layer: LayerReport, direction: str) -> str:
    """Returns the kernels of a direction; of both where they are not the same."""
    products = ("forward",) if direction in ("forward", "") else ("dx", "dw")
    kernels = {product: layer.kernels[product] for product in products if product in layer.kernels}
    if len(set(kernels.values())) < 2:
        return next(iter(kernels.values()), "")
    return ", ".join(kernels.values())


def quality_words(stages: Mapping[str, float]) -> str:
    """Returns the evaluations of the model that are known, in their order."""
    return ", ".join(f"{stage} {value:.4g}" for stage, value in stages.items())


def even_words(even: float | None) -> str:
    """Returns a break-even density."""
    return "never" if even is None else f"{even:.2f}"


def parameter_words(totals: Totals) -> str:
    """Returns the parameters, dense twin -> sparse, and the shares in sparse layers and left out."""
    # trained scores are extra parameters, so the difference may be negative
    left_out = max(0.0, 1 - totals.parameters / max(1, totals.dense_parameters))
    counts = _from(_count(totals.dense_parameters), _count(totals.parameters))
    masked = f", {100 * totals.masked / max(1, totals.dense_parameters):.0f} % masked until pack_"
    return (
        f"{counts}; {100 * totals.sparse_share:.0f} % of them in sparse layers, "
        f"{100 * left_out:.0f} % left out{masked if totals.masked else ''}"
    )


def byte_words(entry: LayerReport | Totals) -> str:
    """Returns bytes, dense twin -> sparse, and those of dense copies beside."""
    words = _from(size(entry.dense_bytes), size(entry.bytes))
    return words + (f", dense copies {size(entry.copy_bytes)}" if entry.copy_bytes else "")


def legend(report: Report, grouped: bool) -> str:
    """Returns the legend: the meaning of the figures, and the machine."""
    words = (
        f"{report.machine}, {report.threads} CPU threads. Times: medians of one call, dense twin and sparse "
        "in turn, warm; ratio: dense over sparse, ~ where the middle 60 % of the rounds hold 1: no "
        "difference shown. Backward is everything that needs a gradient."
    )
    if grouped:
        words += " Of equal layers: medians over them."
    if any(layer.break_even for layer in report.layers):
        words += " Even: the density above which dense is faster, predicted from the time measured."
    return words


def hidden_words(hidden: int) -> str:
    """Says how many layers are not shown."""
    return f"{hidden} dense {'layer' if hidden == 1 else 'layers'} not touched" if hidden else ""


def size(count: float) -> str:
    """Formats a number of bytes."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _from(dense: str, ours: str) -> str:
    return ours if ours == dense else f"{dense} -> {ours}"


def _count(number: float) -> str:
    for unit in ("", "k"):
        if number < 1000:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:,.3g}M" if number < 1000 else f"{number:,.0f}M"
