"""bench nmg at its smoke size: what its record and its tables say."""

import json

import pytest

from sparseloom import cli
from sparseloom_bench.bench import nmg


def test_every_cell_of_a_smoke_run_is_recorded(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "nmg", "--smoke", "--seconds", "0.001", "--results", str(tmp_path)])
    assert not end.value.code
    (path,) = tmp_path.glob("*/nmg_linear.json")
    found = json.loads(path.read_text())
    assert found["suite"] == "nmg_linear" and found["versions"]["torch"]
    cells = [(*each["group"], each["tokens"]) for each in found["records"]]
    assert cells == [(*group, tokens) for group in nmg.GROUPS for tokens in nmg.TOKENS]
    for each in found["records"]:
        assert each["us"].keys() == {"nmg", "csr", "dense"} and min(each["us"].values()) > 0
        assert each["kernel"] and each["predicted_us"] > 0
    text = capsys.readouterr().out
    assert text.count("| 64 x 96 | ") == len(nmg.GROUPS) and str(path.resolve()) in text
    for name, shares in found["kept"].items():  # fewer choices keep less
        assert shares["nmg"] < 1.001 * shares["nm"] and shares["nm"] < shares["any"] < 1
        assert f"| {name} | {shares['nmg']:.1%} |" in text
