"""bench semi24 at its smoke size: what its record says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sparseloom import cli
from sparseloom_bench.bench import semi24_cpu


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "semi24", "--smoke", "--seconds", "0", *arguments])
    return int(stopped.value.code or 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_record_has_every_number_of_tokens(tmp_path: Path, dtype: str, capsys) -> None:
    assert run("--dtype", dtype, "--results", str(tmp_path)) == 0
    (path,) = tmp_path.glob("*/semi24_cpu*.json")
    assert path.stem == ("semi24_cpu" if dtype == "bfloat16" else f"semi24_cpu_{dtype}")
    record = json.loads(path.read_text())
    assert record["suite"] == "semi24_cpu" and [each["m"] for each in record["records"]] == list(
        semi24_cpu.TOKENS
    )
    for each in record["records"]:
        assert 0 < each["speedup"]["p20"] <= each["speedup"]["median"] <= each["speedup"]["p80"]
        assert each["kernel"] and each["predicted_us"] > 0 and each["samples"] >= 5
        assert each["tile_excess"] <= 1
    assert str(path.resolve()) in capsys.readouterr().out


def test_a_wrong_product_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        semi24_cpu.ops_semi24, "linear", lambda x, values, *_: torch.zeros(len(x), len(values), dtype=x.dtype)
    )
    assert run("--results", str(tmp_path)) == 1


def test_other_dtypes_are_refused(capsys) -> None:
    assert run("--dtype", "float64") == 1
    assert "bfloat16, float16, float32" in capsys.readouterr().err
