"""Makes the tables of n:m:g products (bench/results/<device>/nmg_linear*.json)."""

from statistics import geometric_mean

from generated import table
from result_files import Record, caption


def is_nmg(run: Record) -> bool:
    return run.get("suite") == "nmg_linear"


def page(run: Record) -> str:
    """Shows every cell of a run, how n = 1 at 1:8 and beyond compares with dense, and all cells with CSR."""
    rows: dict[tuple[str, str], list[str]] = {}
    for record in run["records"]:
        us = record["us"]
        key = (" x ".join(map(str, record["shape"])), ":".join(map(str, record["group"])))
        over = ", ".join(f"{us[other] / us['nmg']:.2f}" for other in ("dense", "csr"))
        rows.setdefault(key, []).append(f"{us['nmg']:.0f} ({over})")
    tokens = dict.fromkeys(str(record["tokens"]) for record in run["records"])
    cells = table(["W (out x in)", "n:m:g", *tokens], [[*key, *told] for key, told in rows.items()])
    return "\n\n".join([cells, "\n".join([beside_dense(run), beside_csr(run)]), caption(run)])


def beside_dense(run: Record) -> str:
    """Says what one element of a group of eight and more gains, by the size of the group."""
    gains: dict[int, list[float]] = {}
    for record in run["records"]:
        n, m, _ = record["group"]
        if n == 1 and m >= 8:
            gains.setdefault(m, []).append(record["us"]["dense"] / record["us"]["nmg"])
    every = [gain for each in gains.values() for gain in each]
    means = ", ".join(f"{geometric_mean(each):.1f} at 1:{m}" for m, each in gains.items())
    most = f"{min(every):.2f} to {max(every):.1f} times"
    return f"- n = 1 at 1:8 and beyond over dense: {most}; geometric means {means}"


def beside_csr(run: Record) -> str:
    """Says in how many cells CSR of the same density is the faster one."""
    over = [record["us"]["nmg"] / record["us"]["csr"] for record in run["records"]]
    faster = sum(each > 1 for each in over)
    cells = f"{faster} of {len(over)} cells, {geometric_mean(over):.2f} times in geometric mean"
    return f"- CSR of the same density is faster in {cells}"
