"""Writes the table of SECURITY.md from bench/results/campaigns/.

Usage: python tools/make_campaigns.py [--check]. With --check the exit status is 1 when it is not up to date.
"""

import json
import sys
from typing import Any

from generated import ROOT, table, update

PAGE, RECORDS = ROOT / "SECURITY.md", ROOT / "bench" / "results" / "campaigns"


def row(record: dict[str, Any]) -> list[str]:
    """Returns campaign, cases, minutes, machines, findings and what was mended."""
    machines = sorted({run["machine"] for run in record["runs"]})
    figures = [f"{record['cases']:,}", f"{record['minutes']:,}"]
    return [
        record["campaign"], *figures, "; ".join(machines), str(record["found"]),
        "; ".join(record["mended"]) or "-",
    ]  # fmt: skip


def main(check: bool) -> int:
    records = [json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))]
    head = ["campaign", "cases", "minutes", "machines", "found", "mended"]
    current = update(PAGE, {"campaigns": table(head, [row(record) for record in records])}, check)
    state = "up to date" if current else "not up to date" if check else "written"
    print(f"{PAGE.relative_to(ROOT)} is {state}")
    return int(check and not current)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
