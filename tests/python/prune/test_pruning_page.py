"""The Python of docs/pruning.md, each block in a namespace of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "pruning.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_each_block_stands_alone(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(block, {"__name__": "page"})
    assert capsys.readouterr().out  # each ends by a print
