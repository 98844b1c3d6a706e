"""Texts that the printed report and its page share: times, spreads, sizes, totals and the legend."""

from __future__ import annotations

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
        f"{report.machine}, {report.threads} CPU threads. us: median of "
        "one call, dense twin -> sparse, interleaved, warm, and "
        "the rounds' median ratio (20th to 80th percentile), no difference shown where those hold 1; "
        "backward is everything that needs a gradient."
    )
    if grouped:
        words += " Of equal layers: medians over them."
    if any(layer.break_even for layer in report.layers):
        words += (
            " Break-even: density above which dense is faster, from predictions scaled to the time measured."
        )
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
