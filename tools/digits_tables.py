"""Makes docs/results_digits.md's table from what `sparseloom experiment digits` wrote
(bench/results/<cpu>/digits.json)."""

import json
from pathlib import Path


def digits_part(folder: Path) -> str:
    """Returns the table with its introduction; empty where nothing was run."""
    from sparseloom_bench.experiment.outcome import table

    path = folder / "digits.json"
    if not path.exists():
        return ""
    record = json.loads(path.read_text())
    _, text = table(record["arms"], record["setting"]["steps"]).split("\n\n", 1)  # without its title
    return f"{folder.name}:\n\n{text.strip()}"
