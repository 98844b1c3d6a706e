"""bench lstm at its smoke size: what its record says, and which targets it has."""

from __future__ import annotations

import json

import pytest

from sparseloom import cli
from sparseloom_bench.bench import lstm


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_smoke_run_is_recorded_and_right(device: str, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(
            ["bench", "lstm", "--smoke", "--seconds", "0.001", "--device", device, "--results", str(tmp_path)]
        )
    assert not end.value.code
    (path,) = tmp_path.glob("*/lstm.json")
    run = json.loads(path.read_text())
    assert run["suite"] == "lstm" and ("gpu" in run) == (device == "cuda")
    directions = ["forward", "forward + backward"] if device == "cpu" else ["forward"]
    assert [each["direction"] for each in run["records"]] == directions
    for each in run["records"]:
        spread = each["speedup"]
        assert 0 < spread["p20"] <= spread["median"] <= spread["p80"]
        assert each["us"]["median"] > 0 and each["dense_us"]["median"] > 0
    assert not lstm.wrong(run["records"])


def test_the_targets_are_those_of_their_sizes_alone():
    def record(units, density, batch, faster, direction="forward"):
        named = {"units": units, "density": density, "batch": batch, "direction": direction}
        return named | {"speedup": {"median": faster}, "error": 1e-6, "dtype": "f32"}

    others = [record(2048, 0.1, 16, 1.0), record(2048, 0.05, 16, 1.0, "forward + backward")]
    assert not lstm.missed([*others, record(2048, 0.05, 16, 3.1), record(12288, 0.0304, 32, 16.5)])
    short = lstm.missed([record(2048, 0.05, 16, 2.9), record(12288, 0.0304, 32, 15.0)])
    assert short == [
        "2048 units, batch 16: 2.90 of dense, target 3",
        "12288 units, batch 32: 15.00 of dense, target 16",
    ]
    assert lstm.wrong([record(2048, 0.05, 16, 4.0) | {"error": float("nan")}])
