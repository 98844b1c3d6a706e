"""Checks the records of a GPU run against the targets of the GPU kernels and returns sentences on what they
miss: the products' by cell_targets.py, the others' here. The figures are in goals.py."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from ..cells import cell_of
from . import attention_group, batches, cell_targets, goals

Record = dict[str, Any]

#: The most time of dense products over the predicted one, in the median of at least LEAST_CELLS cells with
#: MANY_TOKENS tokens or more. Sound GPUs took .88 to 1.14 of the predicted time; one under a power brake took
#: 2.3 times as long in the median, while it reported its full clock.
DENSE_AT_MOST, MANY_TOKENS, LEAST_CELLS = 1.5, 4096, 3
HOST_US = {"without_gradients": 10.0, "with_gradients": 18.0}
#: The largest relative error of a training step's results against fp32: bf16 rounds each result once, and the
#: activation's input once.
STEP_ERROR = 0.02


def missed_gpu(records: list[Record]) -> list[str]:
    """Returns a sentence for every target that these records miss."""
    cells = [record for record in records if record["op"] == "linear" and "error" not in record]
    return [
        *slowed(cells),
        *failed(records),
        *cell_targets.missed_by(cells),
        *host_over(records),
        *steps_over(records),
        *plans_over(records),
        *steps_of_batches(records),
        *semi24_below(records),
        *attention_group.below(records),
    ]


def name_of(record: Record) -> str:
    return str(cell_of(record)) if record["op"] == "linear" else str(record.get("name", record["op"]))


def failed(records: Iterable[Record]) -> list[str]:
    """Returns sentences on cells and candidates that raised an error."""
    sentences = []
    for record in records:
        if "error" in record:
            sentences.append(f"{name_of(record)}: {record['error']}")
        for each in record.get("candidates", []):
            if "error" in each:
                sentences.append(f"{name_of(record)} by {each['kernel']}: {each['error']}")
    return sentences


def slowed(cells: Iterable[Record]) -> list[str]:
    """Returns a sentence when the GPU itself is too slow for the run to count: dense products, the yardstick,
    take far longer than they should."""
    ratios = [
        each["us"]["median"] / each["predicted_us"]
        for record in cells
        if record["m"] >= MANY_TOKENS and record["dtype"] in ("bf16", "f16")
        for each in record["candidates"]
        if each["kernel"] == "dense" and each.get("us") and each.get("predicted_us")
    ]
    if len(ratios) < LEAST_CELLS or (ratio := statistics.median(ratios)) <= DENSE_AT_MOST:
        return []
    what = (
        f"dense products took {ratio:.1f} times what is expected of "
        f"this GPU, in the median of {len(ratios)} cells"
    )
    return [
        f"{what}: it is slowed down (a power brake, heat, another process), and no figure of this run counts"
    ]


def host_over(records: Iterable[Record]) -> list[str]:
    """Checks the host overhead of module calls, when the run measured it."""
    return [
        f"a module call {mode.replace('_', ' ')}: "
        f"{record[mode]['us']['median']:.1f} us of the host, target {most:g}"
        for record in records
        if record["op"] == "host" and "error" not in record
        for mode, most in HOST_US.items()
        if record[mode]["us"]["median"] > most
    ]


def steps_over(records: Iterable[Record]) -> list[str]:
    """Checks a layer's training step and the compiled MLP."""
    sentences = []
    for record in records:
        if record["op"] not in ("step", "mlp") or "error" in record:
            continue
        for name, error in record["relative_error"].items():
            if not error <= STEP_ERROR:  # NaN, too
                sentences.append(
                    f"{name_of(record)}: {name} has {error:.3g} of relative "
                    f"error against fp32, target {STEP_ERROR}"
                )
        if record["op"] == "step" and record["beyond_us"] > goals.STEP_BEYOND_US:
            beyond = f"{record['beyond_us']:.0f} us beyond its three products"
            sentences.append(f"{name_of(record)}: {beyond}, target {goals.STEP_BEYOND_US:g}")
        if record["op"] == "mlp" and record["speedup"] < goals.MLP_SPEEDUP:
            sentences.append(
                f"{name_of(record)}: {record['speedup']:.2f}x as fast as dense, target {goals.MLP_SPEEDUP:g}x"
            )
    return sentences


def plans_over(records: Iterable[Record]) -> list[str]:
    """Checks the time of a changed topology's plan, on the host and on the device."""
    return [
        f"{name_of(record)}: {record['us']['median']:.0f} us, target {record['target_us']:g}"
        for record in records
        if record["op"] == "plan" and "error" not in record and record["us"]["median"] > record["target_us"]
    ]


def steps_of_batches(records: Iterable[Record]) -> list[str]:
    """Checks that one token more never costs much, and that one token fewer never costs more."""
    return [
        f"{name_of(record)}: {step['us']:.1f} us at {step['m']} tokens, {step['next_us']:.1f} at one more;"
        f" target {batches.RISE:g}x at most, and no fall beyond {batches.FALL:g}x"
        for record in records
        if record["op"] == "batches" and "error" not in record
        for step in record["steps"]
    ]


def semi24_below(records: Iterable[Record]) -> list[str]:
    """Checks products of 2:4 weights against dense and cuSPARSELt, and the time of pruning with packing."""
    sentences = []
    for record in records:
        if "error" in record or not record["op"].startswith("semi24"):
            continue
        if record["op"] == "semi24_prune":
            if record["most_us"] is not None and record["us"]["median"] > record["most_us"]:
                sentences.append(
                    f"{name_of(record)}: {record['us']['median']:.1f} us, target {record['most_us']:g}"
                )
            continue
        if record["op"] == "semi24_train":
            figures = (record["speedup"], "speedup"), (record["sustained"]["speedup"], "sustained")
            sentences += [
                f"{name_of(record)}: {found:.2f}x of dense, target {record['least'][what]:g}x ({what})"
                for found, what in figures
                if found < record["least"][what]
            ]
            continue
        for other, found in (("dense", record["speedup"]), ("cusparselt", record["over_peer"])):
            least = record["goal"][other]
            if found is not None and least is not None and found < least:
                sentences.append(f"{name_of(record)}: {found:.2f}x of {other}, target {least:g}x")
    return sentences
