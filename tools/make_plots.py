"""Makes tables and plots of README.md and docs/performance.md from bench/results/<device>/*.json.

Without a result file there is no number.

Usage: python tools/make_plots.py [--check]. With --check the exit status is 1 when a page or plot is not up
to date.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cpu_goals import NO_CPU_GOALS, cpu_goals_part, torch_limit
from generated import ROOT, table, update
from gpu_goals import NO_GOALS, NO_PROFILE, goals_line, goals_part, is_profile, profile_part
from gpu_tables import is_gpu, merged, page, readme_table
from model_tables import is_models
from model_tables import page as models_page
from result_files import runs_of
from speedup_svg import Panel, speedup_svg

Record = dict[str, Any]
RESULTS = ROOT / "bench" / "results"
README, PAGE = ROOT / "README.md", ROOT / "docs" / "performance.md"
#: The product that README shows: 1024 tokens, 4096 features in and out, square blocks of 32.
SHOWN = {"m": 1024, "k": 4096, "n": 4096, "block": [32, 32]}
DIRECTIONS = ("forward", "dx", "dw")
DTYPES = {"f32": "fp32", "fp32": "fp32", "bf16": "bf16", "f16": "fp16", "fp16": "fp16", "int8": "int8"}
MISSING = "No result files yet: `make bench` writes them."
NO_MODELS = "No result files yet: `python -m sparseloom bench models` writes them, on a GPU."


def cell(record: Record) -> tuple[Any, ...]:
    """Returns the key of what was measured: later measurements of the same cell replace earlier ones."""
    return (
        record["op"],
        DTYPES[record["dtype"]],
        DIRECTIONS.index(record["direction"]),
        record["m"],
        record["k"],
        record["n"],
        tuple(record["block"]),
        record["density"],
        record.get("pattern", ""),
    )


def load(folder: Path) -> dict[str, list[Record]]:
    """Returns the records of all CPU runs of one device by instruction set and threads.

    The setting with the most records comes first. Each cell has its newest record, with its run's caption, in
    the order of cells.
    """
    newest: dict[str, dict[tuple[Any, ...], Record]] = defaultdict(dict)
    for run in (run for run in runs_of(folder) if not is_gpu(run)):
        machine = run.get("machine", {})
        setting = f"{machine.get('isa', '?')}, {machine.get('threads', '?')} threads"
        if limit := torch_limit(run):
            setting += f", torch by {limit}"
        for record in run["records"]:
            if record.get("op") == "linear" and record.get("dense_us") and record.get("dtype") in DTYPES:
                newest[setting][cell(record)] = record | {"caption": caption(run), "date": str(run["date"])}
    by_size = sorted(newest.items(), key=lambda item: (-len(item[1]), item[0]))
    return {setting: [records[key] for key in sorted(records)] for setting, records in by_size}


def quality_table(run: Record) -> str:
    """Returns the demo's experiment: held-out bits per byte of both models, medians over seeds at each one's
    best learning rate."""
    rows = []
    for entry in run["summary"]:
        excess = entry.get("excess_percent")
        against = "" if excess is None else f"{excess:+.1f} %"
        rows.append(
            [
                entry["model"],
                f"{entry['held_out_bits_per_byte']:.3f}",
                against,
                f"{entry['lr']:g}",
                str(entry["seeds"]),
            ]
        )
    settings = run["settings"]
    about = (
        f"Density {settings['density']:g}, blocks of {settings['block']}, "
        f"{settings['steps']} steps on {run['text']['name']}"
    )
    head = ["model", "bits per byte", "against dense", "learning rate", "seeds"]
    return f"{table(head, rows)}\n\n{about}. {caption(run)}"


def shown(records: Iterable[Record]) -> list[Record]:
    of_size = [record for record in records if all(record[key] == value for key, value in SHOWN.items())]
    return [record for record in of_size if record.get("pattern", "balanced") == "balanced"]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def record_row(record: Record, with_shape: bool) -> list[str]:
    dense, sparse = record["dense_us"], record["us"]["median"]
    speedup = dense / sparse
    shape = [
        f"{record['m']} x {record['k']} x {record['n']}",
        "{}x{}".format(*record["block"]),
        record.get("pattern", ""),
    ]
    torch_bsr = record.get("peers", {}).get("torch_bsr")
    return [
        DTYPES[record["dtype"]],
        record["direction"],
        *(shape if with_shape else []),
        f"{record['density']:g}",
        record["kernel"],
        f"{number(sparse)} ({number(record['us']['p20'])} to {number(record['us']['p80'])})",
        f"{100 * record['share_of_peak']:.0f} % {record['peak']}" if record.get("peak") else "-",
        number(dense),
        number(torch_bsr) if torch_bsr else "-",
        f"{speedup:.2f}x" + (" **slower**" if speedup < 1 else ""),
    ]


def record_table(records: list[Record], with_shape: bool) -> str:
    shape = ["tokens x in x out", "block", "pattern"] if with_shape else []
    columns = [
        "density",
        "kernel",
        "us (p20 to p80)",
        "of the peak",
        "dense us",
        "torch BSR us",
        "against dense",
    ]
    head = ["dtype", "direction", *shape, *columns]
    return table(head, [record_row(record, with_shape) for record in records])


def caption(run: Record) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run.get("versions", {}).items()))
    return f"{run['device']}; commit {str(run['commit'])[:12]}, {run['date']}; {versions}."


def captions(records: list[Record]) -> str:
    """Returns the captions of the runs that these records come from, one a line."""
    return "\n".join(dict.fromkeys(record["caption"] for record in records))


def demo_table(run: Record) -> str:
    """Returns the demo's own table of figures, of a model trained on a GPU."""
    settings = run["settings"]
    size = ", ".join(
        f"{key} {settings[key]}"
        for key in ("width", "layers", "density", "block", "steps")
        if key in settings
    )
    head = ["", "dense", "block-sparse", "sparse against dense"]
    return (
        f"{table(head, run['table'])}\n\n{size}; {run['gpu']}, {run['seconds']:.0f} s in all. {caption(run)}"
    )


def panels(records: list[Record]) -> list[Panel]:
    """Returns one panel per dtype: density -> speed-up, a line per direction."""
    lines: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for record in shown(records):
        if record.get("pattern", "balanced") == "balanced":
            point = record["density"], record["dense_us"] / record["us"]["median"]
            lines[DTYPES[record["dtype"]]][record["direction"]].append(point)
    drawn = [dtype for dtype in ("fp32", "bf16") if lines[dtype]]
    return [Panel(dtype, {name: sorted(points) for name, points in lines[dtype].items()}) for dtype in drawn]


def rank(records: list[Record]) -> tuple[int, str]:
    return len(panels(records)), max((record["date"] for record in records), default="")


def main() -> int:
    check = "--check" in sys.argv
    current = True
    readme = {"plot": "", "kernels": MISSING, "gpu": "", "quality": MISSING, "demo": ""}
    pages, models, goals, profiles, cpu_goals = [], [], [], [], []
    newest: list[Record] = []
    for folder in sorted(path for path in RESULTS.glob("*") if path.is_dir()):
        for run in runs_of(folder):
            if "summary" in run:
                readme["quality"] = quality_table(run)
            if run.get("preset") == "h200":
                readme["demo"] = demo_table(run)
            if is_profile(run):
                profiles.append(f"### {folder.name}\n\n{profile_part(run, caption(run))}")
        if measured := [run for run in runs_of(folder) if is_gpu(run)]:
            whole = merged(measured, caption)
            pages.append(f"### {folder.name}\n\n{page(whole, whole['caption'])}")
            if shown_there := readme_table(whole, whole["caption"]):
                readme["gpu"] = "\n\n".join(
                    part for part in (shown_there, goals_line(whole["records"])) if part
                )
            goals.append(f"### {folder.name}\n\n{goals_part(whole['records'])}")
        if trained := [run for run in runs_of(folder) if is_models(run)]:
            models.append(f"### {folder.name}\n\n{models_page(trained, caption)}")
        settings = load(folder)
        for setting, records in settings.items():
            pages.append(
                f"### {folder.name}: {setting}\n\n{captions(records)}\n\n{record_table(records, True)}"
            )
            cpu_goals.append(cpu_goals_part(f"**{folder.name}, {setting}**", records))
        if not settings:
            continue
        # The front page shows one device: of those on which the most was measured, the one measured last.
        newest = max(newest, shown(next(iter(settings.values()))), key=rank)
    if drawn := panels(newest):
        size = "{m} tokens, {k} x {n}".format(**SHOWN)
        here = captions(newest)
        svg = speedup_svg(drawn, f"Speed against torch's dense product: {size}, blocks of 32 x 32", here)
        path = ROOT / "docs" / "speedup.svg"
        current &= path.exists() and path.read_text() == svg
        if not check:
            path.write_text(svg)
        readme["plot"] = f"![speed-up over density, by dtype and direction](docs/{path.name})"
        readme["kernels"] = (
            f"{size}, blocks of 32 x 32, balanced rows:\n\n{record_table(newest, False)}\n\n{here}"
        )
    current &= update(README, readme, check)
    parts = {
        "records": "\n\n".join(pages) or MISSING,
        "models": "\n\n".join(models) or NO_MODELS,
        "cpu-goals": "\n\n".join(part for part in cpu_goals if part) or NO_CPU_GOALS,
        "goals": "\n\n".join(goals) or NO_GOALS,
        "limits": "\n\n".join(profiles) or NO_PROFILE,
    }
    current &= update(PAGE, parts, check)
    if check and not current:
        print("README.md or docs/performance.md is not what bench/results says: run make docs-tables")
    return 1 if check and not current else 0


if __name__ == "__main__":
    sys.exit(main())
