"""Reads the result files of one device: bench/results/<device>/*.json."""

import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def runs_of(folder: Path) -> list[Record]:
    """Returns the runs, oldest first; none where there is no such folder."""
    runs = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted((run for run in runs if "records" in run), key=lambda run: str(run["date"]))


def caption(run: Record) -> str:
    """Says which machine, commit, date and versions a run is of."""
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run.get("versions", {}).items()))
    return f"{run['device']}; commit {str(run['commit'])[:7]}, {str(run['date'])[:10]}; {versions}."
