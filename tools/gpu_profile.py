"""Profiles one launch of each cell under Nsight Compute (ncu) and writes bench/results/<gpu>/ncu.json.

The cells are a flagship of each operation, and every cell that misses its target.

Usage: tools/profile_gpu [--cells NAME,...]. NAME is as `sparseloom bench gpu --list` prints it. The default
is FLAGSHIPS and the cells that bench/results/<gpu>/gpu*.json say miss their targets.

All cells run in one process, since starting torch under ncu takes longer than reading the counters. Between
them a kernel that does nothing is profiled too: it marks in ncu's list where the next cell begins. The tool
needs this Python with torch, and ncu of the CUDA toolkit with the right to read counters.
"""

import argparse
import csv
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu_goals import promised
from gpu_steps import IMPORTED, ROOT, run
from gpu_tables import is_gpu, merged
from gpu_verdicts import Finished
from result_files import runs_of

Record = dict[str, Any]
FLAGSHIPS = (
    "forward-bf16-8192x4096x4096-64x64-d0.2-balanced",
    "dx-bf16-8192x4096x4096-64x64-d0.2-balanced",
    "dw-bf16-8192x4096x4096-64x64-d0.2-balanced",
    "forward-bf16-32x12288x12288-64x64-d0.1-balanced",
    "forward-fp8-8192x4096x4096-128x128-d0.2-balanced",
    "forward-tf32-8192x4096x4096-128x128-d0.2-balanced",
    "forward-f32-8192x4096x4096-64x64-d0.2-balanced",
)
_ELAPSED, _ACTIVE = "avg.pct_of_peak_sustained_elapsed", "avg.pct_of_peak_sustained_active"
#: Our names -> ncu's names; the first that this ncu knows is used. Values are percent of the peak, except us
#: (from ns), l2_to_sm (TB/s) and mhz.
METRICS = {
    "us": ("gpu__time_duration.sum",),
    "tensor": (
        f"sm__pipe_tensor_cycles_active.{_ELAPSED}",
        f"sm__pipe_tensor_op_hmma_cycles_active.{_ELAPSED}",
    ),
    "fma": (f"sm__inst_executed_pipe_fma.{_ACTIVE}",),
    "l2_to_sm": ("l1tex__m_xbar2l1tex_read_bytes.sum.per_second", "lts__t_bytes.sum.per_second"),
    "l2": (f"lts__throughput.{_ELAPSED}", f"lts__t_sectors.{_ELAPSED}"),
    "l2_hits": ("lts__t_sector_hit_rate.pct",),
    "dram": (f"gpu__dram_throughput.{_ELAPSED}", f"dram__throughput.{_ELAPSED}"),
    "issue": (f"smsp__issue_active.{_ACTIVE}",),
    "occupancy": (f"sm__warps_active.{_ACTIVE}",),
    "mhz": ("sm__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second"),
}
UNITS = {"us": 1e-3, "l2_to_sm": 1e-12, "mhz": 1e-6}
#: The metric of the cycles that a warp waits for a reason, per instruction issued.
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active$")
STALLS = (
    "barrier",
    "gmma",
    "long_scoreboard",
    "math_pipe_throttle",
    "mio_throttle",
    "short_scoreboard",
    "sleeping",
    "wait",
)
#: What the L2 of an H200 delivers for rows that lie apart; rows that many multiprocessors request in step
#: come faster.
L2_TO_SM_TBS = 9.0
#: A unit this busy (in percent) is what limits a kernel; below it, waiting is.
BUSY = 70.0
LIMIT = 400.0
SPIN = "spin_kernel"  # the kernel that torch.cuda._sleep launches
SAID = "profiled: "


def find_ncu() -> str | None:
    """Returns ncu from the PATH, else from a CUDA toolkit in its usual places; None when there is none."""
    beside = [
        Path(shutil.which("nvcc") or "/").resolve().parent,
        *sorted(Path("/usr/local").glob("cuda*/bin"), reverse=True),
    ]
    beside += sorted(Path("/opt/nvidia").glob("nsight-compute/*"), reverse=True)
    places = [shutil.which("ncu"), *(str(folder / "ncu") for folder in beside)]
    return next((place for place in places if place and Path(place).is_file()), None)


def known_metrics(ncu: str) -> set[str]:
    """Returns the names, without the part behind the first dot, that ncu has for this GPU; none when it does
    not say."""
    try:
        done = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return set()
    return set(re.findall(r"^\s*([a-z0-9]+__\w+)", done.stdout, re.MULTILINE))


def asked(known: set[str]) -> dict[str, str]:
    """Returns our names -> ncu's names, of those that exist; stalls as "stall:reason"."""
    able = {
        name: [each for each in ways if not known or each.split(".")[0] in known]
        for name, ways in METRICS.items()
    }
    found = {name: ways[0] for name, ways in able.items() if ways}
    reasons = sorted(match[1] for name in known if (match := STALL.match(name))) or STALLS
    return found | {
        f"stall:{why}": f"smsp__average_warps_issue_stalled_{why}_per_issue_active.ratio" for why in reasons
    }


def missed(records: list[Record]) -> list[str]:
    """Returns the names of the cells whose bursts are short of their targets."""
    from sparseloom_bench.bench.cells import cell_of

    return [
        str(cell_of(record))
        for record, reached, _ in promised(records)
        if not reached and "error" not in record
    ]


def newest_records(folder: Path) -> list[Record]:
    """Returns the newest record of every cell that any of a GPU's runs has measured, as the
    site shows them."""
    runs = [run for run in runs_of(folder) if is_gpu(run)]
    found: list[Record] = merged(runs, lambda _: "")["records"] if runs else []
    return found


def usual_cells() -> list[str]:
    """Returns the cells that are profiled by default; see the module's docstring."""
    sys.path[:0] = IMPORTED
    import torch

    from sparseloom_bench.bench.gpu.device import slug

    results = ROOT / "bench" / "results" / slug(torch.cuda.get_device_name())
    return list(dict.fromkeys([*FLAGSHIPS, *missed(newest_records(results))]))


def launch(names: list[str]) -> int:
    """Runs under ncu: launches every cell's sparse kernel once, behind a kernel that does nothing, and prints
    what it launched."""
    import torch

    from sparseloom.testing import tf32_switch
    from sparseloom_bench.bench.gpu.groups import gpu_cells
    from sparseloom_bench.bench.gpu.measure import NOT_SPARSE, one_line, plan_of
    from sparseloom_bench.bench.gpu.operands import Operands

    cells = {str(cell): cell for cell in gpu_cells()}
    for name in names:
        said: Record = {"name": name}
        try:
            cell = cells[name]
            with torch.no_grad(), tf32_switch(cell.tf32):
                made = Operands(cell, torch.device("cuda", torch.cuda.current_device()), 1)
                plan = plan_of(made)
                able = {
                    each["kernel"]: each["predicted_us"] for each in plan["candidates"] if not each["refusal"]
                }
                sparse = [kernel for kernel in able if kernel not in NOT_SPARSE]
                kernel = plan["kernel"] if plan["kernel"] in sparse else min(sparse, key=able.__getitem__)
                call, *_ = made.calls(kernel)
                call(), call()
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                said["listed"] = True
                torch.cuda._sleep(1)
                call()
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()
            said |= {"kernel": kernel, "predicted_us": round(able[kernel], 2)}
        except Exception as error:
            said["error"] = one_line(error)
        print(SAID + json.dumps(said), flush=True)
    return 0


def rows_of(log: str) -> list[dict[str, str]]:
    """Parses ncu's comma-separated page "raw": one row per launch, by column, without the row of units."""
    lines = [line for line in log.splitlines() if line.startswith('"')]
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    head, *rows = [*csv.reader(io.StringIO("\n".join(lines[start:])))] or [[]]
    return [dict(zip(head, row, strict=False)) for row in rows if row and row[0].strip()]


def number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if value == value else None


def short_name(kernel: str) -> str:
    """Returns the function's name alone, from a demangled template."""
    plain = kernel.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    return re.split(r"[<(]", plain)[0].split("::")[-1].split()[-1]


def of_cell(said: Record, launches: list[dict[str, str]], names: dict[str, str]) -> Record:
    """Returns the cell's record, made of its longest launch."""
    longest = max(launches, key=lambda row: number(row.get(names.get("us", ""))) or 0.0)
    values = {ours: number(longest.get(metric)) for ours, metric in names.items()}
    metrics = {
        ours: round(value * UNITS.get(ours, 1.0), 4)
        for ours, value in values.items()
        if value is not None and not ours.startswith("stall:")
    }
    stalls = {
        ours[6:]: round(value, 3)
        for ours, value in values.items()
        if value is not None and ours.startswith("stall:")
    }
    # Two reasons are no waiting: a warp that issues does not wait, and one that was passed over could have
    # issued.
    stalls = {
        why: cycles
        for why, cycles in stalls.items()
        if cycles >= 0.05 and why not in ("selected", "not_selected")
    }
    record: Record = (
        {"op": "profile"} | said | {"function": short_name(longest["Kernel Name"]), "launches": len(launches)}
    )
    record |= {"us": metrics.pop("us", 0.0), "metrics": metrics, "stalls": stalls}
    return record | {"limit": limit(metrics, stalls)}


def limit(metrics: dict[str, float], stalls: dict[str, float]) -> str:
    """Names what limits a kernel: the busiest unit and how far it is from its limit, and what warps wait for
    where none is busy."""
    units = {
        "tensor": "tensor cores",
        "fma": "FMA pipe",
        "l2": "L2",
        "dram": "memory",
        "issue": "instruction issue",
    }
    shares = {words: metrics[name] for name, words in units.items() if name in metrics}
    if "l2_to_sm" in metrics:
        shares[f"L2 to SM, of {L2_TO_SM_TBS:g} TB/s"] = 100 * metrics["l2_to_sm"] / L2_TO_SM_TBS
    if not shares:
        return "no counter was read"
    busiest = max(shares, key=shares.__getitem__)
    if shares[busiest] >= BUSY:
        return f"{busiest}: {shares[busiest]:.0f} %"
    waits = f"; warps wait for {max(stalls, key=stalls.__getitem__)}" if stalls else ""
    return f"latency: nothing above {shares[busiest]:.0f} % ({busiest}){waits}"


def records_of(said: list[Record], log: str, names: dict[str, str]) -> list[Record]:
    """Returns one record per cell, in order; a cell that could not be read has the error why."""
    groups: list[list[dict[str, str]]] = []
    for row in rows_of(log):
        if SPIN in row.get("Kernel Name", ""):
            groups.append([])
        elif groups:
            groups[-1].append(row)
    records, found = [], iter(groups)
    for each in said:
        launches = next(found, []) if each.pop("listed", False) else []
        if launches and "error" not in each:
            records.append(of_cell(each, launches, names))
        else:
            records.append({"op": "profile", "error": refusal(log)} | each)
    return records


def refusal(log: str) -> str:
    """Says why ncu has nothing to tell."""
    if "ERR_NVGPUCTRPERM" in log:
        return (
            "no permission to read the GPU's counters (ERR_NVGPUCTRPERM): "
            "run as root, or have the driver allow it to users"
        )
    errors = re.findall(r"==ERROR== (.*)", log)
    return f"ncu: {errors[0]}" if errors else "ncu listed no launch"


def said_by(done: Finished) -> list[Record]:
    lines = (line for line in done.output.splitlines() if line.startswith(SAID))
    return [json.loads(line.removeprefix(SAID)) for line in lines]


def write(records: list[Record], ncu: str) -> Path:
    """Writes ncu.json beside the benchmark's results."""
    sys.path[:0] = IMPORTED
    import torch

    from sparseloom_bench.bench.gpu.device import slug
    from sparseloom_bench.bench.results import header, write_results

    gpu = torch.cuda.get_device_name()
    version = subprocess.run([ncu, "--version"], capture_output=True, text=True).stdout.strip().splitlines()
    head = header("profile", slug(gpu)) | {
        "suite": "profile",
        "gpu": gpu,
        "ncu": version[-1] if version else "unknown",
    }
    return write_results(ROOT / "bench" / "results", "ncu", head, records)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tools/profile_gpu", description="what limits a kernel, by Nsight Compute"
    )
    parser.add_argument(
        "--cells", help="names of cells; default: one of each operation, and all that miss their targets"
    )
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.launch:
        return launch(given.cells.split(","))
    ncu = find_ncu()
    if ncu is None:
        print("profile_gpu: no ncu in the PATH or in a CUDA toolkit", file=sys.stderr)
        return 1
    cells = given.cells.split(",") if given.cells else usual_cells()
    names = asked(known_metrics(ncu))
    if missing := sorted(METRICS.keys() - names.keys()):
        print(f"profile_gpu: this ncu has no {', '.join(METRICS[name][0] for name in missing)}")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        options = [
            "--csv",
            "--page",
            "raw",
            "--print-units",
            "base",
            "--profile-from-start",
            "off",
            "--clock-control",
            "none",
        ]
        options += ["--log-file", str(log), "--metrics", ",".join(names.values())]
        program = str(Path(__file__).with_name("profile_gpu"))
        done = run([ncu, *options, sys.executable, program, "--launch", "--cells", ",".join(cells)], LIMIT)
        text = log.read_text() if log.is_file() else done.output
    said = said_by(done) or [
        {"name": name, "error": f"{done.how}: {done.output.strip()[-300:]}"} for name in cells
    ]
    records = records_of(said, text, names)
    for record in records:
        print(f"{record['name']}: {record.get('error') or record['limit']}")
    print(f"results: {write(records, ncu)}")
    return 1 if any("error" in record for record in records) else 0
