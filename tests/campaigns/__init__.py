"""Campaigns: millions of seeded cases that take longer than CI has, each with a short form that CI runs.

    PYTHONPATH=python:tests python -m campaigns products --minutes 60

A campaign goes on from the seed where the last one ended, which its record in bench/results/campaigns says. A
finding prints its seed; ``--seed N --seconds 0 --no-record`` runs that one alone.
"""

import sys
from pathlib import Path

#: Twins and cases of the Python tests.
_TESTS = Path(__file__).parents[1] / "python"
sys.path += [str(_TESTS), str(_TESTS / "attention")]
