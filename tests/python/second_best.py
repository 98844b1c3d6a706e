"""`sparseloom bench sweep` of a plan that always takes the second best candidate: what a sweep has to see.

python tests/python/second_best.py --seed 1 --name sweep-1-second-best      the options of `bench sweep`
"""

from __future__ import annotations

import sys
from typing import Any

from sparseloom import cli
from sparseloom_bench.bench.sweep import record


def second_best(plan: dict[str, Any]) -> str:
    """Of the candidates that can run, by the plan's own prediction; the only one where there is no other."""
    return str(record.able(plan)[:2][-1]["kernel"])


if __name__ == "__main__":
    record.choice = second_best
    sys.exit(cli.main(["bench", "sweep", *sys.argv[1:]]))
