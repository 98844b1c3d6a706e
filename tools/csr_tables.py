"""Makes the tables of CSR products (bench/results/<device>/csr_linear*.json)."""

from statistics import geometric_mean

from generated import table
from result_files import Record, caption

#: Column -> the products that it adds up.
COLUMNS = {"forward": ("forward",), "forward + backward": ("forward", "dx", "dw")}


def is_csr(run: Record) -> bool:
    return run.get("suite") == "csr_linear"


def times(record: Record, products: tuple[str, ...]) -> dict[str, float]:
    """Returns the microseconds of the fastest calls of ours, dense and torch.sparse, without what torch
    refuses."""
    return {
        kind: sum(min(record["us"][product][kind].values()) for product in products)
        for kind in ("ours", "dense", "torch")
        if all(kind in record["us"][product] for product in products)
    }


def page(run: Record) -> str:
    """Shows every cell of a run, and how the columns compare with torch.sparse."""
    head = ["W (out x in)", "sparsity", "tokens"]
    for name in COLUMNS:
        head += [f"{name} us", "over dense", "over torch.sparse"]
    rows = []
    ratios: dict[str, list[float]] = {name: [] for name in COLUMNS}
    for record in run["records"]:
        row = [" x ".join(map(str, record["shape"])), f"{record['sparsity']:.0%}", str(record["tokens"])]
        for name, products in COLUMNS.items():
            us = times(record, products)
            row.append(f"{us['ours']:.0f}")
            row += [f"{us[kind] / us['ours']:.2f}" if kind in us else "" for kind in ("dense", "torch")]
            ratios[name] += [us["torch"] / us["ours"]] if "torch" in us else []
        rows.append(row)
    means = [
        f"{name} {geometric_mean(each):.2f} in geometric mean and {min(each):.2f} at least"
        for name, each in ratios.items()
        if each
    ]
    dtypes = ", ".join(dict.fromkeys(record["dtype"] for record in run["records"]))
    parts = [table(head, rows), caption(run)]
    return "\n\n".join(
        [f"{dtypes}.{' Over torch.sparse: ' + '; '.join(means) + '.' if means else ''}", *parts]
    )
