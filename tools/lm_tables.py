"""Makes docs/results_lm.md's tables from what `sparseloom experiment lm` wrote (bench/results/<gpu>/lm)."""

from pathlib import Path


def lm_part(folder: Path) -> str:
    """Returns the tables with their introduction; empty where dense has no seed."""
    from sparseloom_bench.experiment import lm_outcome

    if not (folder / "lm" / "dense.seed0.json").exists():
        return ""
    _, text = lm_outcome.table(lm_outcome.read(folder / "lm")).split("\n\n", 1)  # without its title
    return f"{folder.name}:\n\n{text.strip()}"
