"""A page for each device of bench/results: a picture, what each kernel reached, and every loss."""

import itertools
import statistics
from pathlib import Path

from cell_summary import losses, speed, summary_table
from cpu_tables import DTYPES as CPU_DTYPES
from cpu_tables import captions, load
from front_page import sources
from gpu_tables import DTYPES, cells, host_line, is_gpu, merged, peers_table
from result_files import Record, caption, runs_of
from speedup_svg import COLOURS, Panel, speedup_svg

from .drawings import inline

#: The style sheet gives a page with this the width that is there.
WIDE = '<div class="wide"></div>'
WORDS = {"forward": "forward", "dx": "dX", "dw": "dW"}


def layer_of(record: Record) -> tuple[str, int, int, int]:
    return str(record["dtype"]), record["m"], record["k"], record["n"]


def drawn(records: list[Record], note: str, title: str) -> str:
    """Returns the picture of the layer of which most was measured; "" where that is no line."""
    usable = [
        record
        for record in records
        if record.get("pattern", "balanced") == "balanced"
        and "error" not in record
        and record["block"][0] == record["block"][1]
        and record["op"] == "linear"
    ]
    counted = [(sum(layer_of(r) == layer for r in usable), layer) for layer in {layer_of(r) for r in usable}]
    if not counted or max(counted)[0] < 4:
        return ""
    layer = max(counted)[1]
    panels = []
    for direction, words in WORDS.items():
        here = [r for r in usable if layer_of(r) == layer and r["direction"] == direction]
        lines = {}
        for side in sorted({r["block"][0] for r in here}, reverse=True):
            points = sorted((r["density"], speed(r)) for r in here if r["block"][0] == side)
            lines[f"{side} x {side}"] = points
        lines = {name: points for name, points in lines.items() if len(points) > 1}
        if lines:
            panels.append(Panel(words, dict(itertools.islice(lines.items(), len(COLOURS)))))
    dtype, m, k, n = layer
    what = f"{title}: times dense (dense = 1), {m} tokens, {k} x {n}, {DTYPES.get(dtype, dtype)}"
    return inline(speedup_svg(panels, what, note), what) if panels else ""


def folded(title: str, text: str) -> str:
    """Returns a part that opens by a click."""
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def verdict(records: list[Record]) -> str:
    """Says how often dense was the faster one, and by how much the others gained."""
    speeds = sorted(speed(record) for record in records if "error" not in record)
    lost = sum(value < 1 for value in speeds)
    median = statistics.median(speeds)
    return (
        f"Of {len(speeds):,} products {lost:,} were slower than dense. They take {median:.2f} times less "
        f"time in the median, {speeds[0]:.2f} in the worst and {speeds[-1]:.2f} in the best case. "
        "[All records](records.md) has them one by one."
    )


def gpu_page(folder: Path, runs: list[Record]) -> list[str]:
    whole = merged(runs, caption)
    found = cells(whole)
    name = str(whole["gpu"]["name"])
    return [
        f"# {name}",
        WIDE,
        drawn(found, sources(runs[-1:]), name),
        host_line(whole),
        verdict(found),
        folded("What each kernel reached", summary_table(found, DTYPES)),
        folded("Every loss", losses(found, DTYPES)),
        folded("One layer, and its peers", peers_table(whole) or "Not measured."),
        folded("Commits and versions", whole["caption"]),
    ]


def cpu_page(folder: Path) -> list[str]:
    settings = load(folder)
    parts = [f"# {folder.name}", WIDE]
    for number, (setting, records) in enumerate(settings.items()):
        svg = drawn(records, records[-1]["caption"], f"{folder.name}, {setting}") if number == 0 else ""
        parts += [
            f"## {setting}",
            svg,
            verdict(records),
            folded("What each kernel reached", summary_table(records, CPU_DTYPES)),
            folded("Every loss", losses(records, CPU_DTYPES)),
            folded("Commits and versions", captions(records)),
        ]
    return parts


def pages(folders: list[Path]) -> dict[str, str]:
    """Returns a page for each device of which linear layers were measured: name -> text."""
    made = {}
    for folder in folders:
        gpus = [run for run in runs_of(folder) if is_gpu(run)]
        if gpus or load(folder):
            parts = gpu_page(folder, gpus) if gpus else cpu_page(folder)
            made[folder.name] = "\n\n".join(part for part in parts if part) + "\n"
    return made
