"""Compares what the GPU suite promises with what it measured, and tells what the profiler says, from
bench/results/<gpu>/*.json."""

from typing import Any

from generated import table

Record = dict[str, Any]
NO_GOALS = "No results with targets yet: `python -m sparseloom bench gpu` writes them."
NO_PROFILE = "No profile yet: `tools/profile_gpu` writes it."
OPERATIONS = {"forward": "F", "dx": "dX", "dw": "dW"}
DTYPES = {
    "bf16": "bf16",
    "f16": "fp16",
    "fp8": "fp8",
    "fp8_promoted": "fp8, promoted",
    "tf32": "TF32",
    "f32": "fp32",
}
SHARES = (
    ("tensor", "tensor cores"),
    ("fma", "FMA"),
    ("l2_to_sm", "L2 to SM TB/s"),
    ("l2", "L2"),
    ("dram", "memory"),
    ("issue", "issue slots"),
    ("occupancy", "occupancy"),
)
#: How many stall reasons are shown, those with the most cycles per instruction issued first.
STALLS = 3


def measured(records: list[Record], op: str) -> list[Record]:
    return [record for record in records if record["op"] == op and "error" not in record]


def key(record: Record, direction: str) -> tuple[Any, ...]:
    shape = (
        record["dtype"],
        record["m"],
        record["k"],
        record["n"],
        tuple(record["block"]),
        record["density"],
        record["pattern"],
    )
    return direction, *shape


def goals_part(records: list[Record]) -> str:
    """Returns all parts, or the sentence that there is nothing yet."""
    parts = [
        goals_table(records),
        errors_list(records),
        patterns_table(records),
        training_table(records),
        plans_list(records),
    ]
    return "\n\n".join(part for part in parts if part) or NO_GOALS


def order(record: Record) -> tuple[Any, ...]:
    """Sorts the table's rows by dtype, operation and size, large blocks first."""
    operation = list(DTYPES).index(record["dtype"]), list(OPERATIONS).index(record["direction"])
    return *operation, -record["m"], record["k"], record["n"], -record["block"][0], record["density"]


def promised(records: list[Record]) -> list[tuple[Record, bool, str]]:
    """Returns every cell with a target, whether its burst reaches the target, and the table's entry."""
    speeds = {key(record, record["direction"]): record["speedup"] for record in measured(records, "linear")}
    found = []
    for record in sorted(
        (each for each in records if each["op"] == "linear" and each.get("goal")), key=order
    ):
        if "error" in record:
            found.append((record, False, "**failed**"))
            continue
        least, text = cell_text(record, speeds)
        found.append((record, least is None or record["speedup"] >= least, text))
    return found


def goals_line(records: list[Record]) -> str:
    """Says in one sentence how many targets are reached; empty when these records have no targets."""
    met = [reached for _, reached, _ in promised(records)]
    return f"{sum(met)} of {len(met)} cells reach their targets." if met else ""


def goals_table(records: list[Record]) -> str:
    """Returns a table of operation and block by density: the speed-up over dense in bursts, its target, and
    marks where bursts or sustained load fall short."""
    found = promised(records)
    rows: dict[tuple[str, str], dict[float, str]] = {}
    for record, _, text in found:
        shape = f"{record['m']} x {record['k']} x {record['n']}"
        row = f"{OPERATIONS[record['direction']]} {DTYPES[record['dtype']]} {shape}", str(record["block"][0])
        rows.setdefault(row, {})[record["density"]] = text
    if not rows:
        return ""
    densities = sorted({density for row in rows.values() for density in row})
    lines = [[*row, *(entries.get(density, "-") for density in densities)] for row, entries in rows.items()]
    met = sum(reached for _, reached, _ in found)
    about = (
        "Speed-up over torch's dense product of the same dtype and "
        "shape, timed in the same rounds, in bursts (target): "
        f"{met} of {len(found)} cells reach it. **Bold**: missed. †: "
        "sustained, less than .92 of the target. dX's target is .93 of "
        "F's figure, TF32's .85; where 1 is the target, .97 passes (dW: .95)."
    )
    return f"{about}\n\n{table(['operation', 'block', *(f'{density:g}' for density in densities)], lines)}"


def cell_text(record: Record, speeds: dict[tuple[Any, ...], float]) -> tuple[float | None, str]:
    """Returns the least speed-up that passes, and the table's entry. The first is None when forward was not
    measured, on which dx's target depends."""
    goal, speed = record["goal"], record["speedup"]
    base = speeds.get(key(record, "forward")) if goal["of_forward"] else 1.0
    if base is None:
        return None, f"{speed:.2f}"
    least, figure = goal["least"] * base, goal["figure"] * base
    shown = f"{speed:.2f} ({figure:.2f})" if goal["of_forward"] else f"{speed:.2f} ({figure:g})"
    mark = "" if record["sustained"]["speedup"] >= goal["sustained"] * least else " †"
    return least, (shown if speed >= least else f"**{shown}**") + mark


def patterns_table(records: list[Record]) -> str:
    """Returns a table of skewed and structured patterns beside the balanced one of the same size."""
    cells = measured(records, "linear")
    balanced = {
        key(record, record["direction"]): record for record in cells if record["pattern"] == "balanced"
    }
    rows = []
    for record in cells:
        even = balanced.get(key(record | {"pattern": "balanced"}, record["direction"]))
        if record["pattern"] == "balanced" or even is None or "stored" not in record:
            continue
        cost, base = (each["us"]["median"] / each["dense_us"] / each["stored"] for each in (record, even))
        skewed = record["pattern"] in ("lognormal", "barabasi")
        ratio = f"**{cost / base:.2f}**" if skewed and cost / base > 1.15 else f"{cost / base:.2f}"
        us = f"{record['us']['median']:.1f}"
        rows.append(
            [
                record["pattern"],
                f"{record['density']:g}",
                f"{record['stored']:.3f}",
                record["kernel"],
                us,
                ratio,
            ]
        )
    if not rows:
        return ""
    head = ["pattern", "density", "stored", "kernel", "us", "time per stored element, balanced = 1"]
    return (
        "Other patterns, F bf16 8192 x 4096 x 4096, blocks of 64 (target "
        f"for the skewed ones: 1.15):\n\n{table(head, rows)}"
    )


def training_table(records: list[Record]) -> str:
    """Returns a table of the steps of a layer, and sentences on the MLP."""
    rows = []
    for record in measured(records, "step"):
        over = record["beyond_us"]
        products = " + ".join(f"{us:.0f}" for us in record["products_us"].values())
        beyond = f"**{over:.0f}**" if over > 75 else f"{over:.0f}"
        graph = "-" if record["graph_us"] is None else f"{record['graph_us']['median']:.0f}"
        block, us = str(record["block"][0]), f"{record['us']['median']:.0f}"
        rows.append(
            [
                block,
                f"{record['density']:g}",
                us,
                products,
                beyond,
                graph,
                f"{record['dense_us']:.0f}",
                f"{record['speedup']:.2f}x",
            ]
        )
    parts = []
    if rows:
        head = [
            "block",
            "density",
            "us",
            "F + dX + dW us",
            "beyond them",
            "in a graph",
            "dense us",
            "against dense",
        ]
        about = (
            "A layer's training step, 8192 x 4096 x 4096, bf16, bias and GELU, "
            "by autograd (target: 75 us beyond the products):"
        )
        parts.append(f"{about}\n\n{table(head, rows)}")
    for record in measured(records, "mlp"):
        size = f"{record['k']} to {record['n']} to {record['k']}, {record['m']} tokens"
        sparse = f"density {record['density']:g}, blocks of {record['block'][0]}"
        about = f"A GPT MLP ({size}, {sparse}), forward and backward, both compiled"
        speed = f"{record['speedup']:.2f}x" if record["speedup"] >= 3 else f"**{record['speedup']:.2f}x**"
        parts.append(
            f"{about}: {record['us']['median']:.0f} us, dense "
            f"{record['dense_us']:.0f} us, {speed} (target 3)."
        )
    return "\n\n".join(parts)


def errors_list(records: list[Record]) -> str:
    """Says whether results are as exact as promised: every tile beside dense's, and fp32 beside cuBLAS
    fp32."""
    cells = [record for record in measured(records, "linear") if "tile_excess" in record]
    if not cells:
        return ""
    beyond = [record for record in cells if not record["tile_excess"] <= 1]
    named = "; ".join(f"{cell_name(record)} at **{record['tile_excess']:.2f}** of it" for record in beyond)
    lines = [
        "- Every tile of 16 tokens by a block is within the error allowed, "
        "twice the dense product's and a rounding's floor, in "
        f"{len(cells) - len(beyond)} of {len(cells)} cells{f'. Not in {named}' if named else ''}."
    ]
    found = [record["accuracy"] for record in cells if record.get("accuracy") and record.get("goal")]
    if found:
        middle, worst, largest = (
            [each[name] for each in found] for name in ("median_tile_rms", "worst_tile_rms", "largest")
        )
        lines.append(
            "- fp32, cuBLAS fp32's error being 1: rms of a tile "
            f"{min(middle):.2f} to {max(middle):.2f} in the median, at most "
            f"{max(worst):.2f} (target 1); largest error {min(largest):.2f} to {max(largest):.2f} (target 2)."
        )
    return "\n".join(lines)


def cell_name(record: Record) -> str:
    size = f"{record['m']} x {record['k']} x {record['n']}"
    operation = f"{OPERATIONS[record['direction']]} {DTYPES[record['dtype']]}"
    return f"{operation} {size}, blocks of {record['block'][0]}, density {record['density']:g}"


def plans_list(records: list[Record]) -> str:
    """Says what plans cost, and how good their choices were."""
    lines = []
    for record in measured(records, "plan"):
        us, most = record["us"]["median"], record["target_us"]
        words = (
            "an index and three plans on the host"
            if record["where"] == "host"
            else "tables rewritten on the device"
        )
        shown = f"{us:.0f} us" if us <= most else f"**{us:.0f} us**"
        size = f"{record['k']} x {record['n']}, blocks of {record['block'][0]}, density {record['density']:g}"
        lines.append(f"- A changed topology ({size}), {words}: {shown} (target {most:.0f}).")
    cells = [record for record in measured(records, "linear") if "over_predicted" in record]
    if cells:
        good = sum(record["over_best"] <= 1.05 for record in cells)
        four = sum(len([each for each in record["candidates"] if "us" in each]) >= 4 for record in cells)
        share = 100 * good / len(cells)
        ratios = sorted(record["over_predicted"] for record in cells if record["over_predicted"])
        lines.append(
            f"- The plan's choice is within 5 % of the fastest in {good} of "
            f"{len(cells)} cells, {share:.0f} % (target 90 %)."
        )
        lines.append(f"- Four or more candidates were timed in {four} of them.")
        if ratios:
            low, middle, high = (ratios[round(at * (len(ratios) - 1))] for at in (0.2, 0.5, 0.8))
            lines.append(
                f"- Measured over predicted time: {middle:.2f} in the median, "
                f"{low:.2f} to {high:.2f} in the middle 60 %."
            )
    return "\n".join(lines)


def is_profile(run: Record) -> bool:
    return run.get("suite") == "profile"


def limits_part(run: Record, caption: str) -> str:
    """Returns a table of what limits the cells that were profiled, by operation, kernel and limit."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in run["records"]:
        if "error" not in record:
            direction, dtype, *_ = record["name"].split("-")
            limit, _, share = record["limit"].rpartition(": ")
            if limit == "latency":  # "latency: nothing above 58 % (L2); warps wait for wait"
                limit, share = (
                    f"latency; warps wait for {share.rpartition(' ')[2]}",
                    share.split(" above ")[1],
                )
            key = (
                OPERATIONS.get(direction, direction),
                DTYPES.get(dtype, dtype),
                f"`{record['kernel']}`",
                limit,
            )
            groups.setdefault(key, []).append(record | {"share": float(share.split()[0])})
    rows = []
    for head_of, group in groups.items():
        shares = sorted(record["share"] for record in group)
        span = f"{shares[0]:.0f} %" if len(shares) == 1 else f"{shares[0]:.0f} to {shares[-1]:.0f} %"
        rows.append([*head_of, span, str(len(group))])
    head = ["operation", "dtype", "kernel", "what limits it", "taken of the unit taken most", "cells"]
    return f"{table(head, rows)}\n\n{caption}"


def profile_part(run: Record, caption: str) -> str:
    """Returns a table of what limits each cell that was profiled, in percent of what the GPU can do."""
    rows = []
    for record in run["records"]:
        if "error" in record:
            rows.append(
                [
                    record["name"],
                    f"not profiled: {record['error']}".replace("|", "/"),
                    *[""] * (len(SHARES) + 3),
                ]
            )
            continue
        found = record["metrics"]
        shares = ["-" if found.get(name) is None else f"{found[name]:.3g}" for name, _ in SHARES]
        stalls = sorted(record["stalls"].items(), key=lambda each: -each[1])[:STALLS]
        waits = ", ".join(f"{reason} {cycles:.1f}" for reason, cycles in stalls)
        rows.append(
            [record["name"], f"`{record['kernel']}`", f"{record['us']:.1f}", *shares, waits, record["limit"]]
        )
    head = [
        "cell",
        "kernel",
        "us",
        *(words for _, words in SHARES),
        "cycles of a warp per instruction, waiting for",
        "what limits it",
    ]
    units = (
        "Percent of the GPU's peak, where no unit is given; clocks as "
        "they come, caches emptied before the launch."
    )
    return f"{units}\n\n{table(head, rows)}\n\n{caption}"
