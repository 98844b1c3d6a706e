"""Makes the generated parts of docs/sweep.md.

The distribution comes from sparseloom_bench.bench.sweep, the records from bench/results/<device>.

Usage: python tools/make_sweep.py [--check | --all [DEVICE...]]. With --check the exit status is 1 when the
page is not up to date. With --all, it stays as it is and every run is printed: by direction, mask, tokens,
block and dtype, what moved since the run that it repeats, and the ten worst.
"""

import re
import sys
from typing import Any

from generated import ROOT, table, update
from result_files import runs_of

from sparseloom_bench.bench.cells import DIRECTIONS
from sparseloom_bench.bench.sweep import compare, masks, problems, summary

PAGE = ROOT / "docs" / "sweep.md"
RESULTS = ROOT / "bench" / "results"
NONE_YET = "No result files yet: `sparseloom bench sweep` writes them."
Record = dict[str, Any]
OTHERS = {"semi24": ", 2:4", "tiles": ", tiles", "bsr_conv": ", convolutions", "attention": ", attention"}
#: How many of the summary's columns the overview shows: up to the speed-up's quantiles.
OVERVIEW = 9


def drawn() -> str:
    """Returns a table of what else a problem consists of."""
    rectangles = f"{100 * problems.RECTANGULAR_SHARE:.0f} %"
    sides = ", ".join(map(str, problems.SIDES))
    rows = [
        ["direction", ", ".join(DIRECTIONS), "uniform"],
        ["mask", ", ".join(masks.MASKS), "uniform"],
        [
            "dtype",
            ", ".join(problems.SWEPT_DTYPES),
            "uniform; f32 without TF32, convolutions on a GPU with it, as torch has it",
        ],
        ["layer", "ZOO in sweep/problems.py", "uniform; with a mask of the demo one of its own"],
        ["tokens", "{} to {}".format(*problems.TOKENS), "log-uniform"],
        ["block", f"squares of {sides}", f"uniform; {rectangles} are rectangles of these sides"],
        ["density", "{:g} to {:g}".format(*problems.DENSITIES), "log-uniform"],
    ]
    return table(["", "of", "drawn"], rows)


def record_part(run: Record, others: list[Record]) -> str:
    """Describes one file: figures, the ten worst (the file has their plans), and what moved since the run
    that it repeats."""
    parts = [f"**{summary.about(run)}**", table(summary.HEAD, summary.rows(run["records"]))]
    parts.append(
        "\n".join(listed(line) for line in summary.sentences(run["records"], run.get("dense_copy", False)))
    )
    repeated = next((other for other in others if repeats(run, other)), None)
    if repeated is not None:
        moved = "\n".join(compare.sentences(repeated, run))
        parts.append(f"Against the run of {repeated['date']}:\n\n```\n{moved}\n```")
    worst = "\n".join(title for title, _ in summary.worst_texts(run["records"]))
    parts.append(f"The ten worst:\n\n```\n{worst}\n```")
    return "\n\n".join(parts)


#: Of a list of problems, the page shows so many; the file has all.
SHOWN = 5


def listed(sentence: str) -> str:
    """Formats a sentence as a list item, with the first SHOWN of what it names one level below."""
    first, *others = sentence.splitlines()
    more = [f"and {len(others) - SHOWN} more, in the file"] if len(others) > SHOWN + 1 else []
    shown = others[:SHOWN] + more if more else others
    return "\n".join([f"- {first}", *(f"  - {line.strip().lstrip('#')}" for line in shown)])


def repeats(run: Record, other: Record) -> bool:
    """Returns whether `run` is a later run of the same problems."""
    plain = {"family": "bsr"}  # of files from before there was another one
    names = ("family", "seed", "kernel", "device", "dense_copy", "beside_busy")
    same = all((run.get(name) or plain.get(name)) == (other.get(name) or plain.get(name)) for name in names)
    return same and str(other["date"]) < str(run["date"])


def sweeps() -> dict[str, list[Record]]:
    """Returns the runs of each device that has any, the oldest run first."""
    folders = sorted(path for path in RESULTS.glob("*") if path.is_dir())
    found = {
        folder.name: [run for run in runs_of(folder) if run.get("suite") == "sweep" and run["records"]]
        for folder in folders
    }
    return {device: runs for device, runs in found.items() if runs}


def overview() -> str:
    """Returns a table with a row for each run that no later one repeats: how many problems are slower than
    dense, the quantiles, and the worst of them."""
    rows = []
    for device, runs in sweeps().items():
        for run in runs:
            if any(repeats(later, run) for later in runs):
                continue
            title = f"{device}, seed {run['seed']}" + OTHERS.get(run.get("family", ""), "")
            title += f", by {run['kernel']}" if run["kernel"] else ""
            title += ", dense copies allowed" if run.get("dense_copy") else ""
            title += ", beside busy processes too" if run.get("beside_busy") else ""
            title += f", {str(run['date'])[:10]} ({str(run['commit'])[:7]})"
            if measured := summary.measured(run["records"]):
                worst = next((text for text, _ in summary.worst_texts(run["records"])), "")
                # "0.618 of dense (1010.5 us by avx2_panel, dense 629.1): #48 dw f32 29 x 512 x 2048, .."
                worst = re.sub(r"of dense \([\d.]+ us (by \S+), dense [\d.]+\): #\d+", r"\1:", worst)
                figures = summary.row(title, measured)[:OVERVIEW]
                rows.append([*figures, worst if float(worst.split()[0]) < 1 else "none below 1"])
    return table([*summary.HEAD[:OVERVIEW], "the worst"], rows) if rows else NONE_YET


def records(devices: list[str]) -> str:
    """Describes every run of the devices, or of all."""
    parts = []
    for device, runs in sweeps().items():
        if not devices or device in devices:
            parts += [f"### {device}", *(record_part(run, runs) for run in runs)]
    return "\n\n".join(parts) or NONE_YET


if __name__ == "__main__":
    if "--all" in sys.argv:
        print(records(sys.argv[sys.argv.index("--all") + 1 :]))
        sys.exit()
    check = "--check" in sys.argv
    parts = {"runs": overview(), "drawn": drawn()}
    current = update(PAGE, parts, check)
    if check and not current:
        sys.exit("docs/sweep.md is not up to date: run python tools/make_sweep.py")
