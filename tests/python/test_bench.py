"""The benchmarks on tiny cells: the form of the results, the checks, the targets, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from sparseloom import Error, cli, ops
from sparseloom.bench import cells, measure, peak, results, targets, timing
from sparseloom.bench import cli as bench_cli
from sparseloom.bench.cells import Cell

TINY = [
    Cell("forward", "f32", 16, 64, 96, (16, 16), 0.5),
    Cell("dx", "f32", 16, 64, 96, (16, 16), 0.5),
    Cell("dw", "bf16", 16, 64, 96, (16, 32), 0.5),
]


@pytest.fixture(autouse=True)
def tiny_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "SUITES", {"cpu": lambda: TINY, "plan": lambda: TINY})


def bench(*arguments: object) -> int:
    """Runs the command in this process; returns its exit status."""
    try:
        return cli.main(["bench", *(str(argument) for argument in arguments)])
    except SystemExit as end:
        return int(end.code or 0)


def written(folder: Path, name: str) -> dict[str, Any]:
    (path,) = folder.glob(f"*/{name}.json")
    found: dict[str, Any] = json.loads(path.read_text())
    assert path.parent.name == found["device"]
    return found


def test_a_run_writes_the_agreed_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("cpu", "--busy", "--seconds", 0, "--results", tmp_path) == 0
    run = written(tmp_path, "cpu")
    assert {"device", "commit", "date", "versions", "mode", "records"} <= run.keys() and run["mode"] == "burst"
    assert 0 <= run["load"]["busy_before"] <= 1
    agreed = {"op", "direction", "dtype", "m", "k", "n", "block", "density", "pattern", "kernel", "us", "dense_us", "peers"}
    agreed |= {"speedup", "useful_tflops", "worst_tile_error", "dense_tile_error"}
    for cell, record in zip(TINY, run["records"], strict=True):
        assert agreed <= record.keys() and cells.cell_of(record) == cell
        assert record["kernel"] in ops.info()["kernels"]
        assert 0 < record["us"]["p20"] <= record["us"]["median"] <= record["us"]["p80"]
        assert record["tile_excess"] <= 1 and record["samples"] >= timing.LEAST_ROUNDS
        seconds = record["us"]["median"] * 1e-6
        assert record["useful_tflops"] == pytest.approx(2 * 16 * 64 * 96 * 0.5 / seconds / 1e12, rel=0.01, abs=1e-5)
    out = capsys.readouterr().out
    assert all(str(cell) in out for cell in TINY)


def test_the_plan_suite_times_every_candidate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("plan", "--busy", "--seconds", 0, "--results", tmp_path, "--name", "choices") == 0
    for cell, record in zip(TINY, written(tmp_path, "choices")["records"], strict=True):
        assert cells.cell_of(record) == cell
        names = [candidate["kernel"] for candidate in record["candidates"]]
        assert len(set(names)) == len(names) >= min(measure.LEAST_CANDIDATES, len(able(cell)))
        assert record["kernel"] in names and record["best"] in names and set(names) <= set(able(cell))
        assert (record["over_best"] == 1) if record["best"] == record["kernel"] else record["over_best"] > 0
    assert re.search(r"best in \d of 3 cells", capsys.readouterr().out)


def able(cell: Cell) -> list[str]:
    plan = ops.plan(cell.case().inputs().index, cell.direction, cell.case().dtype, cell.m)
    return [candidate["kernel"] for candidate in plan["candidates"] if not candidate["refusal"]]


def test_a_wrong_kernel_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = measure.sparse_product

    def one_block_lost(*arguments: Any) -> torch.Tensor:
        y = real(*arguments).clone()
        y[:16, :16] = 0
        return y

    monkeypatch.setattr(measure, "sparse_product", one_block_lost)
    assert bench("cpu", "--busy", "--seconds", 0, "--results", tmp_path, "--only", "forward") == 0
    assert "of the error allowed in a tile" in capsys.readouterr().err
    assert written(tmp_path, "cpu")["records"][0]["tile_excess"] > 1
    assert bench("cpu", "--busy", "--seconds", 0, "--results", tmp_path, "--only", "forward", "--check") == 1


def test_only_narrows_and_list_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("cpu", "--list", "--only", "f32", "--only", "dx", "--results", tmp_path) == 0
    assert capsys.readouterr().out.split() == [str(TINY[1])]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("arguments", "word"), [(["gpu"], "suite"), (["cpu", "--only", "nothing-so-named"], "nothing-so-named")])
def test_what_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str) -> None:
    assert bench(*arguments, "--results", tmp_path) == 2
    error = capsys.readouterr().err
    assert word in error and error.startswith("sparseloom bench: ") and error.count("\n") == 1


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_cli, "busy_share", lambda: 0.37)
    assert bench("cpu", "--results", tmp_path) == 2
    assert "37 %" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_results_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert bench("cpu", "--busy", "--seconds", 0, "--only", "dx", "--results", tmp_path / "file") == 1
    assert "sparseloom bench: " in capsys.readouterr().err


def test_the_committed_lists() -> None:
    flagship, choices = cells.flagship(), cells.plan_cells()
    assert len(set(flagship)) == len(flagship) == 48
    assert {(c.m, c.k, c.n) for c in flagship} == {(1024, 4096, 4096)}
    assert len(set(choices)) == len(choices) >= targets.CELLS
    for cell in choices:
        assert cell.density <= 1 and cell.direction in cells.DIRECTIONS


def record(dtype: str, density: float, us: float, share: float, block: int = 32) -> dict[str, Any]:
    cell = {"direction": "forward", "dtype": dtype, "m": 1024, "k": 4096, "n": 4096, "block": [block, block], "pattern": "balanced"}
    return cell | {
        "density": density,
        "us": {"median": us},
        "share_of_peak": share,
        "threads": 2,
        "kernel": "some",
        "tile_excess": 0.5,
    }


def test_missed_targets_are_named() -> None:
    good = [record("f32", 0.05, 60, 0.4), record("f32", 0.1, 70, 0.51), record("f32", 0.2, 100, 0.5), record("bf16", 0.1, 70, 0.45)]
    assert targets.missed("cpu", good) == []
    slow = [record("f32", 0.1, 70, 0.49), record("bf16", 0.1, 70, 0.44), record("bf16", 0.5, 70, 0.1)]
    assert [sentence.split(":")[1].split("%")[0].strip() for sentence in targets.missed("cpu", slow)] == ["49.0", "44.0"]
    densified = [record("f32", 0.05, 61, 0.9, 64), record("f32", 0.2, 100, 0.9, 64)]
    assert ["0.61" in sentence for sentence in targets.missed("cpu", densified)] == [True]
    wrong = record("f32", 0.5, 1, 0.9) | {"tile_excess": float("inf")}
    assert ["inf" in sentence for sentence in targets.missed("cpu", [wrong])] == [True]


def test_the_plan_target_counts_cells_candidates_and_losses() -> None:
    entry = {"kernel": "some", "tile_excess": 0.5}
    full = [record("f32", 0.1, 1, 1) | {"candidates": [entry] * 3, "over_best": 1.0 if i < 32 else 1.2} for i in range(40)]
    assert targets.missed("plan", full) == [] and targets.good_choices(full) == 32
    full[0]["over_best"] = 1.11
    assert "78 %" in targets.missed("plan", full)[0]
    assert len(targets.missed("plan", [full[1] | {"candidates": [entry] * 2}])) == 2


def test_samples_are_paired_by_round() -> None:
    calls: list[str] = []
    first, second = timing.interleaved([lambda: calls.append("a"), lambda: calls.append("b")], 0)
    assert len(first) == len(second) == timing.LEAST_ROUNDS
    assert timing.ratios([4.0, 9.0, 100.0], [2.0, 3.0, 20.0]) == timing.Spread(3.0, 2.0, 5.0)
    assert timing.Spread.of([5.0, 1.0, 3.0, 2.0, 4.0, 6.0]) == timing.Spread(3.5, 2.0, 5.0)
    assert 0 <= timing.busy_share(0.05) <= 1


def test_the_peak_is_vdpbf16ps_only_where_it_is_twice_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = {"f32_avx2": 50.0, "f32_avx512": 100.0, "bf16_avx512": 200.0}
    monkeypatch.setattr(peak, "rates", lambda: fast)
    assert [peak.peak_flops(dtype, 2) for dtype in ("f32", "bf16", "f16")] == [200, 400, 200]
    fast["bf16_avx512"] = 50.0  # Sapphire Rapids: half of fp32
    assert peak.peak_flops("bf16", 2) == 200


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name"),
    [
        ("AuthenticAMD", 25, 17, "zen4"),
        ("AuthenticAMD", 26, 2, "zen5"),
        ("GenuineIntel", 6, 143, "sapphirerapids"),
        ("Other", 1, 2, "family1-model2"),
    ],
)
def test_the_core_is_named(vendor: str, family: int, model: int, name: str) -> None:
    assert results.core_name(f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: x\n") == name


def test_the_device_names_a_folder() -> None:
    assert results.core_name("processor: 0\nBogoMIPS: 50") == ""
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*-3c", results.device_slug(3))


def test_results_are_whole_or_absent(tmp_path: Path) -> None:
    head = results.header("burst") | {"extra": [1]}
    path = results.write_results(tmp_path / "new", "run", head, [{"a": 1}, {"a": 2}])
    assert json.loads(path.read_text()) == head | {"records": [{"a": 1}, {"a": 2}]}
    assert json.loads(results.write_results(tmp_path, "none", head, []).read_text())["records"] == []
    with pytest.raises(Error):
        results.write_results(path, "below-a-file", head, [])
    assert results.default_folder(tmp_path) in (tmp_path, Path("bench/results"))
