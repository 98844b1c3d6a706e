"""tools/row_evidence.py: what deleting a row costs by the records."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = str(Path(__file__).resolve().parents[3] / "tools")


@pytest.fixture(name="tool")
def imported(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TOOLS)
    import row_evidence

    yield row_evidence
    sys.modules.pop("row_evidence", None)


def record(m: int, **us: Any) -> dict[str, Any]:
    same = {"op": "sweep", "direction": "forward", "dtype": "bf16", "m": m, "k": 64, "n": 64}
    return same | {"block": [8, 8], "density": 0.1, "candidates": [{"kernel": k, "us": us[k]} for k in us]}


def write(folder: Path, name: str, date: str, records: list[dict[str, Any]], **also: Any) -> None:
    (folder / "card").mkdir(exist_ok=True)
    text = json.dumps({"date": date, "records": records, **also})
    (folder / "card" / f"{name}.json").write_text(text)


def test_a_loss_is_that_of_the_best_other_candidate(tool: Any, tmp_path: Path) -> None:
    records = [
        record(1, a=1.0, b=2.0, dense_copy=0.1),
        record(2, a=3.0, b={"median": 2.0}),
        record(3, a=1.0),  # nothing to go to: not in the domain
        {**record(4), "candidates": None, "op": "host"},
    ]
    del records[3]["candidates"]
    write(tmp_path, "sweep-1", "2026-01-01", records)
    table = {line[0]: line[1:] for line in tool.rows(tool.problems(tmp_path))}
    assert table["bsr `a`"][:5] == ["2", "1", "x1.4142", "50.0 %", "x2.00"]
    assert table["bsr `b`"][:5] == ["2", "1", "x1.2247", "50.0 %", "x1.50"]


def test_a_problem_counts_once_as_last_timed_and_by_family(tool: Any, tmp_path: Path) -> None:
    write(tmp_path, "sweep-1-again", "2026-01-02", [record(1, a=1.0, b=1.05)])
    write(tmp_path, "sweep-1", "2026-01-01", [record(1, a=1.0, b=9.0)])
    write(tmp_path, "sweep-semi24-1", "2026-01-01", [record(1, a=1.0, b=3.0)], family="semi24")
    table = {line[0]: line[1:] for line in tool.rows(tool.problems(tmp_path))}
    assert table["bsr `a`"][4] == "x1.05" and table["semi24 `a`"][4] == "x3.00"


def test_rows_that_are_deleted_together_are_no_refuge(tool: Any, tmp_path: Path) -> None:
    write(tmp_path, "sweep-1", "2026-01-01", [record(1, a=1.0, b=1.1, c=4.0), record(2, a=1.0)])
    left = tool.without(tool.problems(tmp_path), ["bsr b", "other a"])
    assert {line[0]: line[5] for line in tool.rows(left)} == {"bsr `a`": "x4.00", "bsr `c`": "x1.00"}


def test_the_rule(tool: Any) -> None:
    def verdict(*losses: float) -> str:
        return str(tool.Evidence.of([(each, None) for each in losses]).verdict)

    assert verdict(*[1.004] * 100) == "fails" and verdict(*[1.006] * 100) == "stays"
    assert verdict(*[1.0] * 98, 1.11, 1.11) == "fails" and verdict(*[1.0] * 97, *[1.11] * 3) == "stays"
    assert verdict(1.0, 1.0) == "fails, of 2"


def test_the_records_of_this_tree_have_the_rows_that_stand_on_them(tool: Any) -> None:
    table = {line[0]: line[-1] for line in tool.rows(tool.problems())}
    assert table["bsr `sm80_decode`"] == table["bsr `avx512_panel`"] == "stays"
    assert table["bsr `sm90_decode`"] == table["bsr `sm90_wgmma_merged_narrow`"] == "fails"  # deleted
