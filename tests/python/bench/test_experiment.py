"""`sparseloom experiment digits`: a smoke run, what it writes, and how it judges."""

import json
import sys

import pytest

from sparseloom.cli import main
from sparseloom_bench.experiment import digits, outcome


def results(*accuracies):
    return [{"accuracy": each, "density": 0.2} for each in accuracies]


@pytest.mark.package("sklearn")
def test_a_smoke_run_trains_every_arm_once_and_resumes(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["experiment", "digits", "--smoke", "--out", str(tmp_path), "--only", "(dense|RigL|L0)@.*"])
    assert not ended.value.code
    with pytest.raises(SystemExit):
        main(["experiment", "digits", "--smoke", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert said.count("RigL@80: ") == 1 and "| Spartan | 80 % |" in said
    record = json.loads((tmp_path / "digits.json").read_text())
    assert len(record["arms"]) == 1 + 9 + 5 and record["setting"] == {"steps": 12, "seeds": 1}
    for name, arm in digits.arms(12).items():
        if not arm.dense:
            (result,) = record["arms"][f"{name}@80"]
            assert 0.05 < result["accuracy"] <= 1
            if arm.takes_density:
                assert result["density"] == pytest.approx(0.2, abs=1e-3), name
    assert (tmp_path / "digits.png").stat().st_size > 10_000
    assert "| dense |" in (tmp_path / "digits.md").read_text()


def test_bars_are_the_reference_with_its_margin():
    record = {"dense@0": results(0.97, 0.98), "static@80": results(0.955), "gradual@95": results(0.937)}
    record |= {"one-shot@95": results(0.938), "Spartan@80": results(0.954)}
    by_name = {f"{row.arm}@{row.sparsity}": row for row in outcome.rows(record)}
    assert by_name["static@80"].allowed == pytest.approx(0.6 + 1.5) and by_name["static@80"].met
    assert by_name["gradual@95"].allowed == pytest.approx(1.7 + 2.0) and not by_name["gradual@95"].met
    assert by_name["one-shot@95"].allowed is None and not by_name["one-shot@95"].met
    assert by_name["Spartan@80"].allowed == pytest.approx(2.0) and not by_name["Spartan@80"].met
    assert by_name["dense@0"].deviation == pytest.approx(0.7071, abs=1e-3)
    assert "**missed**" in outcome.table(record, 1200)


def test_without_scikit_learn_the_command_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["experiment", "digits", "--smoke", "--out", str(tmp_path)]) == 2
    assert "pip install scikit-learn" in capsys.readouterr().err
