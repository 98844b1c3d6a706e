"""The benchmarks on tiny cells: the form of the results, the checks, the targets, and what is refused."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sparseloom import Error, cli, ops
from sparseloom_bench.bench import cells, int8, measure, peak, results, skewed, targets, timing
from sparseloom_bench.bench import cli as bench_cli
from sparseloom_bench.bench.cells import Cell

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
    assert {"device", "commit", "date", "versions", "mode", "records"} <= run.keys() and run[
        "mode"
    ] == "burst"
    assert 0 <= run["load"]["busy_before"] <= 1 and run["machine"]["torch_isa"]
    agreed = {
        "op",
        "direction",
        "dtype",
        "m",
        "k",
        "n",
        "block",
        "density",
        "pattern",
        "kernel",
        "us",
        "dense_us",
        "peers",
    }
    agreed |= {"speedup", "useful_tflops", "worst_tile_error", "dense_tile_error"}
    for cell, record in zip(TINY, run["records"], strict=True):
        assert agreed <= record.keys() and cells.cell_of(record) == cell
        assert record["kernel"] in ops.info()["kernels"]
        assert 0 < record["us"]["p20"] <= record["us"]["median"] <= record["us"]["p80"]
        assert record["tile_excess"] <= 1 and record["samples"] >= timing.LEAST_ROUNDS
        seconds = record["us"]["median"] * 1e-6
        assert record["useful_tflops"] == pytest.approx(
            2 * 16 * 64 * 96 * 0.5 / seconds / 1e12, rel=0.01, abs=1e-5
        )
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


def test_a_wrong_kernel_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "word"), [(["gpu"], "suite"), (["cpu", "--only", "nothing-so-named"], "nothing-so-named")]
)
def test_what_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    assert bench(*arguments, "--results", tmp_path) == 2
    error = capsys.readouterr().err
    assert word in error and error.startswith("sparseloom bench: ") and error.count("\n") == 1


def test_a_busy_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_cli, "busy_share", lambda: 0.37)
    assert bench("cpu", "--results", tmp_path) == 2
    assert "37 %" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_results_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert bench("cpu", "--busy", "--seconds", 0, "--only", "dx", "--results", tmp_path / "file") == 1
    assert "sparseloom bench: " in capsys.readouterr().err


def test_the_committed_lists() -> None:
    flagship, choices = cells.flagship(), cells.plan_cells()
    assert len(set(flagship)) == len(flagship)
    assert {(c.k, c.n) for c in flagship} == {(4096, 4096)} and {c.m for c in flagship if not c.rotated} == {
        1024
    }
    assert {c.pattern for c in flagship} == {"balanced", *skewed.KINDS}
    assert {c.block[0] for c in flagship if c.dtype == "f32"} == {8, 16, 32, 64, 128}
    assert {(c.block[0], c.density) for c in flagship if c.dtype == "int8"} >= {
        (32, 0.2),
        (64, 0.2),
        (32, 0.5),
        (64, 0.5),
    }
    assert len(set(choices)) == len(choices) >= targets.CELLS
    for cell in choices:
        assert cell.density <= 1 and cell.direction in cells.DIRECTIONS


def record(direction: str, density: float, share: float, block: int = 32, **more: Any) -> dict[str, Any]:
    cell = {
        "direction": direction,
        "dtype": "f32",
        "m": 1024,
        "k": 4096,
        "n": 4096,
        "block": [block, block],
        "pattern": "balanced",
    }
    measured = {"useful_tflops": share / 2, "share_of_peak": share, "peak": "f32_avx512", "speedup": 20.0}
    return cell | measured | {"density": density, "threads": 2, "kernel": "some", "tile_excess": 0.5} | more


@pytest.mark.parametrize(
    ("missed", "word"),
    [
        (record("forward", 0.1, 0.71), "71.0 % of f32_avx512, target 72 %"),
        (record("forward", 0.1, 0.66, 8), "target 67 %"),
        (record("forward", 0.2, 0.80, peak="f32_avx2"), "target 81 %"),
        (record("forward", 0.2, 0.77, dtype="bf16", peak="bf16_avx512"), "target 78 %"),
        (record("forward", 0.2, 0.29, dtype="bf16", peak="bf16_amx"), "29.0 % of bf16_amx, target 30 %"),
        (record("forward", 0.2, 0.17, dtype="bf16", peak="bf16_amx", threads=16), "target 18 %"),
        (record("forward", 0.05, 0.9, speedup=11.9), "11.90x of torch's speed, target 12x"),
        (record("dx", 0.1, 0.9, of_forward={"median": 0.88}), "0.88 of forward's rate, target 0.9"),
        (record("dw", 0.1, 0.9, of_forward={"median": 0.62}), "0.62 of forward's rate, target 0.75"),
        (record("forward", 0.1, 0.1, rotated=True, speedup=8.4), "target 8.5x"),
        (
            record("forward", 0.1, 0.1, pattern="lognormal", over_balanced={"median": 1.16}),
            "1.16 of a balanced pattern's time",
        ),
        (record("forward", 0.5, 0.9, tile_excess=float("inf")), "inf of the error allowed"),
        (
            record("forward", 0.2, 0.5, 64, dtype="int8", over_bf16={"median": 1.59}),
            "1.59x of our bf16's speed, target 1.6x",
        ),
    ],
)
def test_missed_targets_are_named(missed: dict[str, Any], word: str) -> None:
    good = [
        record("forward", 0.1, 0.8),
        record("forward", 0.1, 0.68, 8, speedup=1.0),  # blocks of 8 promise no speed-up
        record("forward", 0.8, 0.1, kernel="dense", speedup=0.98),
        # of each core less than of two alone
        record("forward", 0.5, 0.2, dtype="bf16", peak="bf16_amx", threads=16),
        record("dx", 0.1, 0.01, of_forward={"median": 0.91}),
        record("dw", 0.1, 0.01, of_forward={"median": 0.75}),
        record("forward", 0.3, 0.01),  # no target at this density
        record("forward", 0.1, 0.01, rotated=True, speedup=8.5),
        record("forward", 0.1, 0.01, pattern="barabasi", over_balanced={"median": 1.15}),
        record("forward", 0.2, 0.01, dtype="int8", over_bf16={"median": 1.6}),
        # promised for blocks of 32 and 64
        record("forward", 0.2, 0.01, 16, dtype="int8", over_bf16={"median": 1.0}),
    ]
    assert targets.missed("cpu", good) == []
    (sentence,) = targets.missed(
        "cpu", [*good, missed] if missed["direction"] != "forward" else [*good[1:], missed]
    )
    assert word in sentence


def test_skewed_rows_keep_the_total_and_are_skewed() -> None:
    generator = torch.Generator().manual_seed(3)
    for total in (0, 1, 500, 128 * 64 - 5, 128 * 64):
        lengths = skewed.row_lengths(128, 64, total, generator)
        assert int(lengths.sum()) == total and int(lengths.max()) <= 64 and int(lengths.min()) >= 0
    cell = Cell("forward", "f32", 4, 2048, 4096, (32, 32), 0.1, "lognormal")
    pattern = cell.case().make_pattern(5)
    assert pattern == cell.case().make_pattern(5) != cell.case().make_pattern(6)
    assert pattern.blocks == round(0.1 * 128 * 64)
    counts = pattern.mask.sum(1).double()
    assert counts.std() > 0.8 * counts.mean()
    hubs = Cell("forward", "f32", 4, 2048, 4096, (32, 32), 0.1, "barabasi").case().make_pattern()
    assert hubs.density == pytest.approx(0.1, rel=0.15)
    for side in (0, 1):
        assert hubs.mask.sum(side).max() > 4 * hubs.mask.sum(side).double().mean()
    with pytest.raises(Error, match="skewed pattern"):
        skewed.SkewedCase("x", "forward", torch.float32, (32, 32), 1, 64, 64, "even").make_pattern()


@pytest.mark.parametrize("direction", ["dx", "dw"])
def test_gradients_are_timed_beside_their_forward(direction: str) -> None:
    found = measure.measure_choice(Cell(direction, "f32", 64, 256, 512, (32, 32), 0.3), 0)
    assert found["of_forward"]["median"] > 0 and "over_balanced" not in found and found["tile_excess"] <= 1
    assert "of_forward" not in measure.measure_choice(Cell("forward", "f32", 8, 64, 64, (16, 16), 0.5), 0)


def test_rotated_weights_and_skewed_rows_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ROTATED_BYTES", 1 << 20)
    found = measure.measure_choice(Cell("forward", "f32", 2, 512, 768, (16, 16), 0.5, rotated=True), 0)
    assert (
        found["rotated"]
        and cells.cell_of(found).rotated
        and found["weight_gb_s"] > 0
        and found["tile_excess"] <= 1
    )
    found = measure.measure_choice(Cell("forward", "f32", 64, 512, 512, (16, 16), 0.3, "lognormal"), 0)
    assert found["over_balanced"]["median"] > 0 and cells.cell_of(found).pattern == "lognormal"
    assert 0 < found["share_of_peak"] == found["share_spread"]["median"] and found["peak_tflops"] > 0


@pytest.mark.skipif(not int8.runs_here(), reason="no fast int8 kernel on this CPU")
def test_int8_is_measured_beside_bf16_and_dense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        cells, "SUITES", {"cpu": lambda: [Cell("forward", "int8", 33, 64, 96, (16, 16), 0.5)]}
    )
    assert bench("cpu", "--busy", "--seconds", 0, "--results", tmp_path) == 0
    (found,) = written(tmp_path, "cpu")["records"]
    assert found["tile_excess"] == 0 and found["over_bf16"]["median"] > 0 and found["bf16_us"] > 0
    assert found["dense_by"] in found["peers"] and found["dense_us"] == found["peers"][found["dense_by"]]
    assert found["kernel"] != "reference" and found["peak"].startswith("i8_")
    assert "over bf16" in capsys.readouterr().out
    with pytest.raises(Error, match="no gradients"):
        int8.measure_int8(Cell("dx", "int8", 8, 64, 64, (16, 16), 0.5), 0)


def test_the_plan_target_counts_cells_candidates_and_losses() -> None:
    entry = {"kernel": "some", "tile_excess": 0.5}
    full = [
        record("forward", 0.1, 1) | {"candidates": [entry] * 3, "over_best": 1.0 if i < 32 else 1.2}
        for i in range(40)
    ]
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


def test_samples_begin_with_threads_awake_and_short_calls_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(timing, "wake_threads", lambda: seen.append("wake"))
    rounds = timing.LEAST_ROUNDS
    # A clock of its own, which calls alone put on: a busy machine makes a millisecond of any sleep.
    now = [0.0]
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def call(name: str, seconds: float) -> None:
        seen.append(name)
        now[0] += seconds

    long, short = partial(call, "long", 1.5e-3), partial(call, "short", 0.3e-3)
    timing.interleaved([long, short], 0)
    assert seen[:4] == ["long", "long", "short", "short"]  # the start: one to warm up, one to see how long
    starts = "-".join(seen[4:])
    assert seen.count("wake") == 2 * rounds and "wake-wake" not in starts
    # Untimed behind a long call, but for the first round, which does not know yet that the call is short.
    assert starts.count("wake-short-short") == rounds - 1 and "wake-long-long" not in starts
    seen.clear()
    timing.interleaved([long, short], 0, settled=False)
    assert "wake" not in seen and "short-short" not in "-".join(seen[4:])


def test_the_peak_is_vdpbf16ps_only_where_it_is_twice_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = {"f32_avx2": 50.0, "f32_avx512": 100.0, "bf16_avx512": 200.0}
    monkeypatch.setattr(peak, "rates", lambda: fast)
    assert [peak.peak_name(dtype) for dtype in ("f32", "bf16", "f16")] == [
        "f32_avx512",
        "bf16_avx512",
        "f32_avx512",
    ]
    fast["bf16_avx512"] = 50.0  # Sapphire Rapids: half of fp32
    assert peak.peak_name("bf16") == "f32_avx512"
    fast["bf16_amx"] = 1600.0
    assert peak.peak_name("bf16") == "bf16_amx" and peak.peak_name("f16") == "f32_avx512"
    fast["f32_avx512"] = 0.0  # SPARSELOOM_ISA=avx2
    assert peak.peak_name("f32") == "f32_avx2"


def test_a_spin_is_of_all_threads_and_of_a_peak_that_is_there() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = peak.Spin("f32")
        torch.set_num_threads(2)
        assert one.flops > 0 and one() == 2 * one.flops == peak.Spin("f32").flops
    finally:
        torch.set_num_threads(threads)
    with pytest.raises(Error, match="a register peak of this CPU, got 'copy_bytes'"):
        ops.call("spin_registers", "copy_bytes", 1)


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
    assert (
        results.core_name(
            f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: x\n"
        )
        == name
    )


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
