"""The table of all records of bench/results, as static HTML: a row for each, without a library."""

import html
from pathlib import Path
from typing import Any

from result_files import Record, runs_of

#: Columns, and whether they hold numbers.
COLUMNS = {
    "device": False,
    "operation": False,
    "direction": False,
    "dtype": False,
    "problem": False,
    "block": False,
    "density": True,
    "times dense": True,
    "us": True,
    "dense us": True,
    "kernel": False,
    "pattern": False,
    "machine": False,
    "date": False,
    "commit": False,
}
RATIO = list(COLUMNS).index("times dense")
#: Columns that a reader may choose one value of.
CHOICES = ("device", "operation", "direction", "dtype")


def median(value: Any) -> float | None:
    """Returns the median of a spread, or a plain number; None for what is neither."""
    value = value.get("median") if isinstance(value, dict) else value
    return float(value) if isinstance(value, int | float) else None


def sides(value: Any) -> str:
    return (
        " x ".join(map(str, value))
        if isinstance(value, list | tuple)
        else str(value if value is not None else "")
    )


def problem(record: Record) -> str:
    """Returns the sizes of what was measured, in the words of its suite."""
    if "m" in record and "k" in record:
        return f"{record['m']} x {record['k']} x {record['n']}"
    named: tuple[str, ...] = (
        "name",
        "model",
        "kind",
        "way",
        "arm",
        "images",
        "channels",
        "extent",
        "kernel_size",
        "shape",
    )
    named += ("units", "steps", "batch", "tokens", "out_features", "in_features", "sparsity", "group", "mlp")
    return ", ".join(f"{name} {sides(record[name])}" for name in named if record.get(name) is not None)


def kernel(record: Record) -> str:
    found = record.get("kernel")
    return found if isinstance(found, str) and not found.isdigit() else ""


def row(run: Record, record: Record) -> list[str]:
    machine = run.get("machine", {})
    setting = (
        f"{machine.get('isa', '')}, {machine.get('threads', '?')} threads" if "gpu" not in run else "GPU"
    )
    us, dense = median(record.get("us")), median(record.get("dense_us"))
    ratio = dense / us if us and dense else median(record.get("speedup"))
    suite, op = str(run.get("suite") or run.get("kind") or "demo"), str(record.get("op", ""))
    listed = suite in ("cpu", "gpu", "plan")  # suites of many operations, each of which says what it is
    density = record.get("density")
    return [
        str(run["device"]),
        op if listed else suite if op in ("", suite) else f"{suite}: {op}",
        str(record.get("direction", "")),
        str(record.get("dtype", "")),
        problem(record),
        sides(record.get("block")),
        f"{density:.3g}" if isinstance(density, int | float) else "",
        f"{ratio:.2f}" if ratio else "",
        f"{us:,.4g}" if us else "",
        f"{dense:,.4g}" if dense else "",
        kernel(record) or ("failed" if "error" in record and us is None else ""),
        str(record.get("pattern", "")),
        setting,
        str(run["date"])[:10],
        str(run["commit"])[:7],
    ]


def rows(folders: list[Path]) -> list[list[str]]:
    """Returns a row for every record: those beside dense first, the newest run before the others."""
    runs = sorted((run for folder in folders for run in runs_of(folder)), key=lambda run: str(run["date"]))
    found = [row(run, record) for run in reversed(runs) for record in run["records"]]
    return sorted(found, key=lambda line: line[RATIO] == "")


def page(found: list[list[str]]) -> str:
    """Returns the page: a filter, which the script shows, and the table."""
    names = list(COLUMNS)
    selects = ""
    for name in CHOICES:
        column = names.index(name)
        options = "".join(
            f"<option>{html.escape(value)}" for value in sorted({line[column] for line in found} - {""})
        )
        label = f"every {name}"
        selects += (
            f'<select data-column="{column}" aria-label="{name}"><option value="">{label}{options}</select>'
        )
    lines = []
    for line in found:
        slower = line[RATIO] != "" and float(line[RATIO]) < 1
        cells = [
            f"<td{' class=n' if number else ''}>{html.escape(cell)}"
            for cell, number in zip(line, COLUMNS.values(), strict=True)
        ]
        lines.append(f"<tr{' class=slower' if slower else ''}>{''.join(cells)}")
    head = "".join(f'<th scope="col"><button type="button">{name}</button>' for name in names)
    return "\n".join(
        [
            '<form class="records-filter" hidden>',
            '<input name="words" type="search" placeholder="sm90_wgmma 4096" aria-label="words of a row">',
            f"{selects}<output></output></form>",
            f'<div class="records-frame"><table class="records"><thead><tr>{head}</thead><tbody>',
            *lines,
            "</tbody></table></div>",
            '<button type="button" class="records-more" hidden>show more</button>',
            '<script src="../_static/records.js"></script>',
            "",
        ]
    )
