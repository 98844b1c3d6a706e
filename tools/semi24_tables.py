"""Makes docs/results_semi24.md's tables: of the GPU group `semi24` (bench/results/<gpu>/gpu*.json), and of
few tokens on CPUs (bench/results/<cpu>/semi24_cpu*.json)."""

from typing import Any

from generated import table
from gpu_tables import number
from result_files import caption

Record = dict[str, Any]
DTYPES = {
    "bf16": "bf16",
    "fp8": "e4m3, fast",
    "fp8_promoted": "e4m3, promoted",
    "int8": "int8",
}
HEAD = [
    "dtype",
    "tokens x in x out",
    "us",
    "over dense",
    "under load",
    "over cuSPARSELt",
    "under load",
    "goal",
]


def semi24_part(records: list[Record]) -> str:
    """Returns a table of the products and one of pruning, with the peer's version; empty where nothing was
    measured."""
    products = [record for record in records if record["op"] == "semi24"]
    pruned = [record for record in records if record["op"] == "semi24_prune"]
    trained = [record for record in records if record["op"] == "semi24_train" and "error" not in record]
    parts = []
    if products:
        parts.append(table(HEAD, [product_row(record) for record in products]))
        versions = sorted({record["peer_version"] for record in products if record.get("peer_version")})
        if versions:
            how = "with its search, the faster of y and y^T, or without where that alone runs"
            parts.append(f"cuSPARSELt {', '.join(versions)}, through torch: {how}.")
    if pruned:
        parts.append(
            table(
                ["prune and pack", "of", "us", "torch us", "at most"], [pruned_row(each) for each in pruned]
            )
        )
    parts += [step_part(each) for each in trained]
    return "\n\n".join(parts)


def step_part(record: Record) -> str:
    """Shows a layer's training step by every way, with the peers' versions and what kept one away."""
    names = {"dense": "dense", "ours": "Semi24Training", "ours_refreshed": "with a new mask in each step"}
    burst = {
        "dense": record["dense_us"], "ours": record["us"]["median"], "ours_refreshed": record["refreshed_us"],
        **record["peers"],
    }  # fmt: skip
    loaded = record["sustained"]["us"]
    rows = []
    for way, us in burst.items():
        how = names.get(way, f"{way}'s 2:4 training, a new mask in each step")
        if way in record["eager"]:
            how += ", eager"
        times = record["dense_us"] / us, loaded["dense"] / loaded[way]
        rows.append([how, f"{us:.0f}", *(f"{each:.2f}" for each in times)])
    head = [
        "forward and backward, {m} x {k} x {n}, packed in each step".format(**record),
        "us",
        "over dense",
        "under load",
    ]
    parts = [table(head, rows)]
    if record["peer_version"]:
        parts.append(f"With cuSPARSELt {record['peer_version']}.")
    parts += [f"{name} did not run: {why}." for name, why in record["peers_absent"].items()]
    return "\n\n".join(parts)


def product_row(record: Record) -> list[str]:
    start = [DTYPES[record["dtype"]], "{m} x {k} x {n}".format(**record)]
    if "error" in record:
        return [*start, f"failed: {record['error']}".replace("|", "/"), *[""] * 5]
    us, loaded, goal = record["us"]["median"], record["sustained"], record["goal"]
    least = f"{goal['dense']:g}" + (f", {goal['cusparselt']:g}" if goal["cusparselt"] else "")
    return [
        *start,
        number(us) + ("" if record["tile_excess"] <= 1 else " **wrong**"),
        f"{record['speedup']:.2f}",
        f"{loaded['speedup']:.2f}",
        *("-" if each is None else f"{each:.2f}" for each in (record["over_peer"], loaded["over_peer"])),
        least,
    ]


def pruned_row(record: Record) -> list[str]:
    start = [record["method"], record["of"]]
    if "error" in record:
        return [*start, f"failed: {record['error']}".replace("|", "/"), "", ""]
    wrong = "" if record["same_bits"] else " **wrong**"
    torchs, most = ("-" if record[name] is None else f"{record[name]:g}" for name in ("torch_us", "most_us"))
    return [*start, f"{record['us']['median']:.1f}{wrong}", torchs, most]


def is_semi24_cpu(run: Record) -> bool:
    return run.get("suite") == "semi24_cpu"


def cpu_part(run: Record) -> str:
    """Shows every cell of `bench semi24`: the medians, and the middle 60 % of the rounds' ratios."""
    head = ["dtype", "tokens x in x out", "kernel", "us", "GB/s of W", "dense us", "over dense"]
    rows = []
    for record in run["records"]:
        ratio = record["speedup"]
        rows.append(
            [
                record["dtype"],
                "{m} x {k} x {n}".format(**record),
                record["kernel"],
                f"{record['us']['median']:.0f}" + ("" if record["tile_excess"] <= 1 else " **wrong**"),
                f"{record['weight_gb_s']:.1f}",
                f"{record['dense_us']['median']:.0f}",
                f"{ratio['median']:.2f} ({ratio['p20']:.2f} to {ratio['p80']:.2f})",
            ]
        )
    return f"{table(head, rows)}\n\n{caption(run)}"
