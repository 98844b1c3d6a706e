"""tools/check_advice.py: what is counted, what is missed, and that a stopped run goes on."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import check_advice

from sparseloom.timing import rounds


@pytest.fixture(autouse=True)
def threads_as_before():
    """The tool sets torch's threads for its process, which tests share with all that come behind them."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def record(ratio, recommended, spread=0.01):
    return {"recommended": "32x32" if recommended else None, "spread": spread, "ratio": {"median": ratio}}


def small(seed, number):
    return {
        "number": number,
        "out_features": 64 + number,
        "in_features": 64,
        "tokens": 2,
        "dtype": "float32",
        "training": number % 2 == 1,
        "density": 0.5,
    }


def test_a_recommended_layer_that_is_slower_and_a_win_that_is_not_recommended_are_what_counts():
    records = [record(1.5, True)] * 8 + [
        record(0.96, True),
        record(1.3, False),
        record(0.5, True, 0.06),
        record(0.5, False),
    ]
    told = check_advice.summary([*records, {"recommended": None, "spread": None, "ratio": None}])
    assert (
        told["layers"] == 13
        and told["counted"] == 11
        and told["spread_too_wide"] == 1
        and told["no_block_fits"] == 1
    )
    assert (
        told["recommended"] == 9
        and told["recommended_but_slower"] == 1
        and told["share_slower"] == pytest.approx(1 / 9, abs=1e-4)
    )
    assert (
        told["wins"] == 9
        and told["wins_recommended"] == 8
        and told["share_found"] == pytest.approx(8 / 9, abs=1e-4)
    )
    assert check_advice.missed(told) and not check_advice.missed(
        check_advice.summary([record(1.5, True)] * 60)
    )
    assert check_advice.missed(check_advice.summary([]))  # of nothing, nothing was shown


def test_layers_are_drawn_over_the_ranges_and_each_by_its_number():
    drawn = [check_advice.drawn(3, number) for number in range(300)]
    assert drawn[7] == check_advice.drawn(3, 7) != check_advice.drawn(4, 7)
    features = [size for layer in drawn for size in (layer["out_features"], layer["in_features"])]
    assert 64 <= min(features) < 80 and 6500 < max(features) <= 8192 and 300 < sorted(features)[300] < 1700
    assert {layer["dtype"] for layer in drawn} == {"float32", "bfloat16"} and {
        layer["training"] for layer in drawn
    } == {
        True,
        False,
    }
    assert (
        1 <= min(layer["tokens"] for layer in drawn) < 3
        and 3000 < max(layer["tokens"] for layer in drawn) <= 4096
    )


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(check_advice, "drawn", small)
    monkeypatch.setattr(rounds, "clock", rounds.clock)
    arguments = ["--seconds", "0.01", "--threads", "1", "--results", str(tmp_path)]
    check_advice.main([*arguments, "--layers", "2"])
    (path,) = tmp_path.glob("*/advice.json")
    first = json.loads(path.read_text())
    assert (
        [r["number"] for r in first["records"]] == [0, 1]
        and first["counts"]["layers"] == 2
        and first["clock"] == "wall"
    )
    check_advice.main([*arguments, "--layers", "3"])
    second = json.loads(path.read_text())
    assert second["records"][:2] == first["records"] and len(second["records"]) == 3
    assert {"recommended", "best", "ratio", "spread", "told"} <= set(second["records"][2])
    check_advice.main([*arguments, "--layers", "9", "--minutes", "0"])
    assert json.loads(path.read_text())["records"] == second["records"]
    check_advice.main([*arguments, "--layers", "1", "--seed", "5"])  # another seed's layers are others
    assert len(json.loads(path.read_text())["records"]) == 1
