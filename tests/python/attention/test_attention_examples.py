"""The examples of attention run, and say what they show."""

import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "says"),
    [("07_context_parallel.py", "rank 1: dv (1, 2, 512, 64) is that of one process"),
     ("08_block_scorer.py", "25% of the blocks")],
)  # fmt: skip
def test_an_example_runs(name, says):
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / name], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert says in run.stdout


def test_the_examples_of_the_page_run_in_order(tmp_path):
    page = (ROOT / "docs" / "attention.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    done = forked.run("\n".join(blocks), tmp_path)
    assert done.returncode == 0, done.stderr
