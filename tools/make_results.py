"""Makes README.md's rows and picture and the tables of docs/ from bench/results/<device>/*.json.

The site's pages of each device, and its table of all records, are tools/docsite's.

Without a result file there is no number.

Usage: python tools/make_results.py [--check | --all [DEVICE...]]. With --check the exit status is 1 when a
page or the picture is not up to date. With --all, they stay as they are and every measured product is
printed.
"""

import sys
from collections import defaultdict
from pathlib import Path

import claims_tables
import front_page
from conv_tables import is_conv
from conv_tables import page as conv_page
from cpu_goals import NO_CPU_GOALS, cpu_goals_part
from cpu_model_tables import cpu_models_part, is_cpu_models
from cpu_tables import captions, load, record_table
from csr_tables import is_csr
from csr_tables import page as csr_page
from digits_tables import digits_part
from generated import ROOT, update
from gpu_goals import NO_GOALS, NO_PROFILE, goals_line, goals_part, is_profile, limits_part, profile_part
from gpu_tables import is_gpu, merged, page
from lm_tables import lm_part
from model_tables import demo_table, is_models, quality_table
from model_tables import page as models_page
from nmg_tables import is_nmg
from nmg_tables import page as nmg_page
from ranks_tables import is_ranks
from ranks_tables import page as ranks_page
from result_files import Record, caption, runs_of
from semi24_tables import cpu_part as semi24_cpu_part
from semi24_tables import is_semi24_cpu, semi24_part
from speedup_svg import speedup_svg

RESULTS = ROOT / "bench" / "results"
PICTURE = ROOT / "docs" / "speedup.svg"
MISSING = "No result files yet: `make bench` writes them."
NO_MODELS = "No result files yet: `python -m sparseloom bench models` writes them, on a GPU."
NO_SEMI24 = "No result files yet: `sparseloom bench gpu --group semi24` writes them."
#: What a part says while there is no result for it, by page and part.
EMPTY = {
    "README.md": {"front": MISSING, "losses": ""},
    "docs/distributed.md": {"ranks": "No result files yet: `sparseloom bench ranks` writes them."},
    "docs/convolutions.md": {
        "cpu": "No result files yet: `sparseloom bench conv` writes them.",
        "gpu": "Not measured yet.",
    },
    "docs/csr.md": {"csr": "No result files yet: `sparseloom bench csr` writes them."},
    "docs/nmg.md": {"nmg": "No result files yet: `sparseloom bench nmg` writes them."},
    "docs/performance.md": {"headlines": MISSING},
    "docs/results_targets.md": {"cpu-goals": NO_CPU_GOALS, "goals": NO_GOALS, "limits": NO_PROFILE},
    "docs/results_semi24.md": {
        "gpu": NO_SEMI24,
        "cpu": "No result files yet: `sparseloom bench semi24` writes them.",
    },
    "docs/results.md": {"claims": ""},
    "docs/results_digits.md": {"table": "No result files yet: `sparseloom experiment digits` writes them."},
    "docs/results_lm.md": {"table": "No result files yet: `sparseloom experiment lm` writes them."},
    "docs/results_models.md": {
        "models": NO_MODELS,
        "cpu": "No result files yet: `sparseloom bench models --device cpu` writes them.",
        "demo": NO_MODELS,
        "quality": MISSING,
    },
}
Parts = dict[tuple[str, str], list[str]]  # (page, part) -> texts, one for each device or setting


def add_gpu(parts: Parts, name: str, runs: list[Record]) -> None:
    """Adds what was measured on one GPU."""
    if measured := [run for run in runs if is_gpu(run)]:
        whole = merged(measured, caption)
        parts["docs/results_targets.md", "goals"].append(f"### {name}\n\n{goals_part(whole['records'])}")
        if products := semi24_part(whole["records"]):
            parts["docs/results_semi24.md", "gpu"].append(f"{name}:\n\n{products}")
        if line := goals_line(whole["records"]):
            parts["docs/performance.md", "headlines"].append(f"- {name}: {line}")
    if trained := [run for run in runs if is_models(run)]:
        parts["docs/results_models.md", "models"].append(f"### {name}\n\n{models_page(trained)}")
    for run in filter(is_ranks, runs):
        parts["docs/distributed.md", "ranks"].append(f"{name}, {ranks_page(run)}")
    for run in runs:
        if is_profile(run):
            text = f"### {name}\n\n{limits_part(run, caption(run))}"
            parts["docs/results_targets.md", "limits"].append(text)


def add_cpu(parts: Parts, folder: Path) -> None:
    """Adds what was measured on one CPU, by instruction set and threads."""
    for setting, records in load(folder).items():
        if goals := cpu_goals_part(f"{folder.name}, {setting}", records):
            first, *_ = goals.splitlines()
            parts["docs/performance.md", "headlines"].append(f"- {first}")
            parts["docs/results_targets.md", "cpu-goals"].append(goals)


def add_cpu_models(parts: Parts, name: str, runs: list[Record]) -> None:
    """Adds the whole models that were measured on one CPU."""
    if measured := [run for run in runs if is_cpu_models(run)]:
        parts["docs/results_models.md", "cpu"].append(f"### {name}\n\n{cpu_models_part(measured)}")


def add_csr(parts: Parts, name: str, runs: list[Record]) -> None:
    """Adds the CSR products that were measured on one machine."""
    for run in filter(is_csr, runs):
        parts["docs/csr.md", "csr"].append(f"### {name}\n\n{csr_page(run)}")


def add_nmg(parts: Parts, name: str, runs: list[Record]) -> None:
    """Adds the n:m:g products that were measured on one CPU."""
    for run in filter(is_nmg, runs):
        parts["docs/nmg.md", "nmg"].append(f"### {name}\n\n{nmg_page(run)}")


def add_conv(parts: Parts, name: str, runs: list[Record]) -> None:
    """Adds the convolutions that were measured on one CPU."""
    for run in filter(is_conv, runs):
        section = "gpu" if "gpu" in run else "cpu"
        parts["docs/convolutions.md", section].append(f"### {name}\n\n{conv_page(run)}")


def add_semi24(parts: Parts, name: str, runs: list[Record]) -> None:
    """Adds the 2:4 products of few tokens that were measured on one CPU."""
    for run in filter(is_semi24_cpu, runs):
        parts["docs/results_semi24.md", "cpu"].append(f"{name}:\n\n{semi24_cpu_part(run)}")


def add_demo(parts: Parts, runs: list[Record]) -> None:
    """Keeps the demo's newest results."""
    for run in runs:
        if "summary" in run:
            parts["docs/results_models.md", "quality"] = [quality_table(run)]
        if run.get("preset") == "h200":
            parts["docs/results_models.md", "demo"] = [demo_table(run)]


def made(folders: list[Path]) -> Parts:
    """Returns every part that there is a result for."""
    parts: Parts = defaultdict(list)
    for folder in folders:
        runs = runs_of(folder)
        add_gpu(parts, folder.name, runs)
        add_cpu(parts, folder)
        add_cpu_models(parts, folder.name, runs)
        add_csr(parts, folder.name, runs)
        add_conv(parts, folder.name, runs)
        add_nmg(parts, folder.name, runs)
        add_semi24(parts, folder.name, runs)
        add_demo(parts, runs)
        if digits := digits_part(folder):
            parts["docs/results_digits.md", "table"].append(digits)
        if learnt := lm_part(folder):
            parts["docs/results_lm.md", "table"].append(learnt)
    parts["docs/results.md", "claims"] = [claims_tables.page(claims_tables.read(folders))]
    parts["README.md", "front"] = [front_page.front(folders)]
    parts["README.md", "losses"] = [front_page.losses(folders)]
    return parts


def draw(folders: list[Path], check: bool) -> bool:
    """Draws README.md's picture, or with `check` only compares it. Returns True when it was up to date."""
    panels, title, note = front_page.picture(folders)
    svg = speedup_svg(panels, title, note) if panels else ""
    current = PICTURE.exists() and PICTURE.read_text() == svg
    if not check:
        PICTURE.write_text(svg)
    return current


def every_cell(folder: Path) -> str:
    """Returns the tables of all products that were measured on one machine."""
    parts = [f"## {folder.name}"]
    if measured := [run for run in runs_of(folder) if is_gpu(run)]:
        whole = merged(measured, caption)
        parts.append(page(whole, whole["caption"]))
    parts += [profile_part(run, caption(run)) for run in runs_of(folder) if is_profile(run)]
    for setting, records in load(folder).items():
        parts += [f"### {setting}", captions(records), record_table(records)]
    return "\n\n".join(parts)


def main() -> int:
    check = "--check" in sys.argv
    if "--all" in sys.argv:
        names = sys.argv[sys.argv.index("--all") + 1 :] or sorted(path.name for path in RESULTS.iterdir())
        print("\n\n".join(every_cell(RESULTS / name) for name in names if (RESULTS / name).is_dir()))
        return 0
    folders = sorted(path for path in RESULTS.glob("*") if path.is_dir())
    stale = [] if draw(folders, check) else [PICTURE.relative_to(ROOT).as_posix()]
    parts = made(folders)
    for name, empty in EMPTY.items():
        gap = "\n" if name == "docs/performance.md" else "\n\n"
        contents = {part: gap.join(parts[name, part]) or words for part, words in empty.items()}
        stale += [] if update(ROOT / name, contents, check) else [name]
    if check and stale:
        print(f"not what bench/results says: {', '.join(stale)}. Run make docs-tables")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
