"""Compares what the CPU suite promises with what it measured, from bench/results/<cpu>/*.json."""

from collections import defaultdict
from typing import Any

Record = dict[str, Any]
NO_CPU_GOALS = "No results with targets yet: `python -m sparseloom bench cpu` writes them."


def torch_limit(run: Record) -> str:
    """Returns the limit on torch's instructions in a run that stands for a lesser machine than its own; else
    ""."""
    allowed = str(run.get("machine", {}).get("torch_isa", ""))
    return allowed if "oneDNN" in allowed else ""


def cpu_goals_part(setting: str, records: list[Record]) -> str:
    """Says how many figures of these records reach their targets, and of those that do not the worst of each
    product.

    It is empty where nothing is promised. Only cells of the CPU suite have targets: others are measured for
    the plan's choices.
    """
    from sparseloom_bench.bench.cells import cell_of, flagship
    from sparseloom_bench.bench.cpu_targets import promised_cpu

    cells = set(flagship())
    # Records of the first versions name no peak, and have no targets.
    figures = promised_cpu(
        [each for each in records if cell_of(each) in cells and ("peak" in each or "over_bf16" in each)]
    )
    if not figures:
        return ""
    short: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for figure in figures:
        if not figure.reached:
            cell = figure.cell
            # "59.1 % of f32_avx512, target 60 %" with one quantity for all blocks and densities of a product
            quantity = figure.sentence.partition(" of ")[2].rpartition(", target ")[0]
            short[f"{cell.direction} {cell.dtype} {cell.m} tokens", quantity].append(figure)
    reached = sum(figure.reached for figure in figures)
    lines = [f"- {words}, {_worst(quantity, missed)}" for (words, quantity), missed in short.items()]
    return "\n".join(
        [
            f"{setting}: {reached} of {len(figures)} figures reach their targets.",
            *(["", *lines] if lines else []),
        ]
    )


def _worst(quantity: str, missed: list[Any]) -> str:
    """Says how many figures of one quantity are missed, and which of them by the most."""

    def short_by(figure: Any) -> float:
        ratio: float = figure.value / figure.target
        return ratio if figure.least else 1 / ratio

    worst = min(missed, key=short_by)
    cell, (value, _, rest) = worst.cell, worst.sentence.partition(" of ")
    where = f"blocks of {cell.block[0]} at {cell.density:g}"
    where += "" if cell.pattern == "balanced" else f", {cell.pattern}"
    target = rest.rpartition(", target ")[2]
    most = "" if len(missed) == 1 else f"{len(missed)} short, most of all "
    return f"of {quantity}: {most}{value} for {target} ({where})."
