"""Makes the tables of convolutions (bench/results/<device>/bsr_conv*.json)."""

from generated import table
from result_files import Record, caption

DIRECTIONS = ("forward", "dx", "dw")


def is_conv(run: Record) -> bool:
    return run.get("suite") == "bsr_conv"


def page(run: Record) -> str:
    """Shows every cell of a run: our time, torch's time over it (the median of the rounds' ratios and its
    quartiles), and what the plan's choice makes of it (fastest rounds)."""
    head = ["images, channels, extent", "block", "density"]
    for direction in DIRECTIONS:
        head += [f"{direction} us", "over torch", "by plan"]
    rows = []
    for record in run["records"]:
        row = [f"{record['images']}, {record['channels']}, {record['extent']}", str(record["block"])]
        row.append(f"{record['density']:g}")
        for direction in DIRECTIONS:
            us = record["us"][direction]
            low, median, high = record["ratio"][direction]
            fastest = {kind: min(calls.values()) for kind, calls in us.items()}
            row.append(f"{fastest['ours']:.0f}")
            row += [f"{median:.2f} ({low:.2f} to {high:.2f})", f"{fastest['torch'] / fastest['plan']:.2f}"]
        rows.append(row)
    dtypes = ", ".join(dict.fromkeys(record["dtype"] for record in run["records"]))
    torchs = "cuDNN's channels-last convolution" if "gpu" in run else "torch's in its faster memory format"
    said = f"3 x 3 taps, padding 1, beside {torchs} in turn, by the kernel"
    parts = [f"{dtypes}, {said} and by the plan's choice:", table(head, rows)]
    return "\n\n".join([*parts, *memory(run["records"]), caption(run)])


def memory(records: list[Record]) -> list[str]:
    """Shows what a call of a GPU holds at most beside its operands; nothing of records without it."""
    told = [record for record in records if record.get("peak_bytes")]
    if not told:
        return []

    def shares(pairs: list[Record]) -> str:
        found = [pair["ours"] / pair["torch"] for pair in pairs]
        return f"{min(found):.2f} to {max(found):.2f}"

    calls = [f"{way} {shares([record['peak_bytes'][way] for record in told])}" for way in DIRECTIONS]
    weight = shares([record["weight_bytes"] for record in told])
    return [
        f"Bytes, of cuDNN's: the weight with its index {weight}; what a call holds at most beside its "
        f"operands {', '.join(calls)}."
    ]
