"""Writes results in their common form: one JSON file per run, <folder>/<device>/<name>.json, with what it
takes to judge and repeat the run."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from sparseloom import ops
from sparseloom.io.files import write_whole

#: (vendor, family, models) -> the core's name, from /proc/cpuinfo. AMD's brand strings in virtual machines
#: often say no more than "AMD EPYC", and the generation decides what a number means.
CORES = (
    ("AuthenticAMD", 23, range(0x30), "zen1"),
    ("AuthenticAMD", 23, range(0x30, 0x100), "zen2"),
    ("AuthenticAMD", 25, (*range(0x10), *range(0x20, 0x60)), "zen3"),
    ("AuthenticAMD", 25, (*range(0x10, 0x20), *range(0x60, 0xB0)), "zen4"),
    ("AuthenticAMD", 26, range(0x100), "zen5"),
    ("GenuineIntel", 6, (85,), "skylake-cascadelake"),
    ("GenuineIntel", 6, (106, 108), "icelake"),
    ("GenuineIntel", 6, (143,), "sapphirerapids"),
    ("GenuineIntel", 6, (207,), "emeraldrapids"),
    ("GenuineIntel", 6, (173, 174), "graniterapids"),
)


def core_name(cpuinfo: str) -> str:
    """Returns a name such as "zen4" or "sapphirerapids", or "family-model" when unknown; "" when the text has
    neither (not x86)."""

    def entry(key: str) -> str:
        found = re.search(rf"^{key}\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
        return found.group(1).strip() if found else ""

    vendor, family, model = entry("vendor_id"), entry("cpu family"), entry("model")
    if not family.isdigit() or not model.isdigit():
        return ""
    for known_vendor, known_family, models, name in CORES:
        if vendor == known_vendor and int(family) == known_family and int(model) in models:
            return name
    return f"family{family}-model{model}"


def device_slug(threads: int | None = None) -> str:
    """Returns a folder name for this machine: CPU, core and threads used, such as "amd-epyc-zen4-2c"."""
    try:
        core = core_name(Path("/proc/cpuinfo").read_text())
    except OSError:
        core = ""
    brand = re.sub(
        r"\(.*?\)|\b(processor|cpu|\d+-core)\b|@.*",
        " ",
        str(ops.info().get("cpu", "cpu")),
        flags=re.IGNORECASE,
    )
    words = re.sub(r"[^a-z0-9]+", "-", f"{brand} {core}".lower()).strip("-")
    return f"{words}-{threads or torch.get_num_threads()}c"


def torch_isa() -> str:
    """Returns what torch's own CPU kernels may use: its vectors, and oneDNN's limit where the environment
    sets one."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    return torch.backends.cpu.get_cpu_capability() + (f", oneDNN up to {limit}" if limit else "")


def commit() -> str:
    """Returns the source tree's commit; "unknown" outside a checkout.

    "-dirty" is appended when files differ from the commit. A copy of a checkout on a machine lent for a
    measurement has no .git, or that of another commit. It brings its own commit in a file: `git rev-parse
    HEAD >.commit` in the copy.
    """
    folder = Path(__file__).resolve().parent
    brought = folder.parents[2] / ".commit"

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=20
        ).stdout

    if brought.is_file():
        return brought.read_text().strip()
    try:
        # When this package is installed inside somebody else's repository, that commit is not ours.
        if not Path(
            git("rev-parse", "--show-toplevel").strip(), "include", "sparseloom", "version.h"
        ).is_file():
            return "unknown"
        # Results themselves are written into the tree; they do not change what was measured.
        dirty = git("status", "--porcelain", "--", ":/", ":(exclude,top)bench/results").strip()
        return git("rev-parse", "HEAD").strip() + ("-dirty" if dirty else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def header(mode: str, device: str | None = None) -> dict[str, Any]:
    """Returns what stands before the records: device, commit, date (UTC), versions, mode, machine.

    ``mode``: "burst" or "training". ``device``: the results' folder, for what ran on a GPU; default: this
    machine's CPU.
    """
    core = ops.info()
    return {
        "device": device or device_slug(),
        "commit": commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "sparseloom": core.get("version"),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "compiler": core.get("compiler"),
        },
        "mode": mode,
        "machine": {
            "cpu": core.get("cpu"),
            "isa": core.get("isa_active"),
            "threads": torch.get_num_threads(),
            "platform": platform.platform(),
            "torch_isa": torch_isa(),
        },
    }


def write_results(folder: Path, name: str, head: dict[str, Any], records: list[dict[str, Any]]) -> Path:
    """Writes folder/<device>/<name>.json, whole or not at all. Raises sparseloom.Error when that fails."""
    target = folder / str(head["device"]) / f"{name}.json"
    with contextlib.suppress(OSError):  # write_whole meets the same obstacle and names it
        target.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n    ".join(json.dumps(record) for record in records)
    rest = {key: value for key, value in head.items() if key != "records"}
    text = json.dumps(rest, indent=2)[:-2] + f',\n  "records": [\n    {lines}\n  ]\n}}\n'
    json.loads(text)
    write_whole(target, text.encode())
    return target


def default_folder(otherwise: Path) -> Path:
    """Returns bench/results of the checkout in the current folder, else `otherwise`."""
    found = Path("bench/results")
    return found if Path("bench").is_dir() and Path("CMakeLists.txt").is_file() else otherwise
