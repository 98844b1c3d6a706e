"""The GPU suite's promises: which records made by hand keep them, and how one that is missed is named."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_cells import forward, plain, record

from sparseloom_bench.bench import targets as all_targets
from sparseloom_bench.bench.cells import Cell
from sparseloom_bench.bench.gpu import device, goals, groups, measure, table, targets, training


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H100 PCIe", "h100"),
    ],
)
def test_a_gpu_names_a_folder(name: str, slug: str) -> None:
    assert device.slug(name) == slug


def missed(*records: dict[str, Any]) -> list[str]:
    return all_targets.missed("gpu", list(records))


def test_promises_kept_are_silent() -> None:
    good = [record(forward(side, density), 20) for side in groups.PEER_BLOCKS for density in (0.1, 0.3)]
    good.append(record(Cell("dx", "bf16", *goals.SQUARE, (64, 64), 0.1), 21))
    called = {"op": "host"} | {mode: {"us": {"median": most}} for mode, most in targets.HOST_US.items()}
    assert missed(*good, called) == []


@pytest.mark.parametrize(
    ("cell", "figure", "least"),
    [
        (forward(128, 0.05), 9.2, 9.2),
        (forward(8, 0.2), 1.0, 0.97),
        (forward(64, 0.5, goals.VIT_UP), 1.45, 1.45),
        (forward(16, 0.8, goals.DECODE), 1.1, 1.1),
        (Cell("dw", "bf16", *goals.SQUARE, (16, 16), 0.8), 1.0, 0.95),
        (Cell("dw", "tf32", *goals.SQUARE, (128, 128), 0.1), 3.5, 3.5),
        (Cell("forward", "fp8", *goals.SQUARE, (64, 64), 0.05), 5, 5),
        (Cell("forward", "f32", *goals.SQUARE, (32, 32), 0.5), 2.8, 2.8),
        (Cell("dx", "tf32", *goals.SQUARE, (64, 64), 0.5), 0.85, 0.85),
    ],
    ids=str,
)
def test_figures_of_the_table(cell: Cell, figure: float, least: float) -> None:
    found = goals.goal(cell)
    assert found is not None and (found.figure, found.least, found.of_forward) == (
        figure,
        least,
        cell.direction == "dx",
    )


@pytest.mark.parametrize(
    "cell",
    [
        forward(64, 0.3),
        forward(16, 0.1, goals.DECODE_SMALL),
        Cell("dx", "f32", *goals.SQUARE, (64, 64), 0.1),
        plain(64, 0.1),
        Cell("forward", "bf16", *goals.SQUARE, (64, 64), 0.1, "lognormal"),
        Cell("forward", "bf16", *goals.SQUARE, (16, 64), 0.1),
    ],
    ids=str,
)
def test_what_the_table_does_not_promise(cell: Cell) -> None:
    assert goals.goal(cell) is None


def test_speedups_are_held_against_the_table_in_bursts_and_under_load() -> None:
    cell = forward(64, 0.1)
    assert missed(record(cell, 345 / 6.1)) == []
    slow = missed(record(cell, 345 / 6.0))
    assert slow == [f"{cell}: sparse is 6.00x as fast as dense, target 6.1x"]
    hot = record(
        cell, 345 / 6.1, others={"sustained": {"us": 1, "dense_us": 1, "sparse_us": 1, "speedup": 5.6}}
    )
    assert missed(hot) == [f"{cell}: sparse sustains 5.60x, target 0.92 of 6.1x"]
    even = forward(8, 0.8)
    assert missed(record(even, 345 / 0.97)) == [] and "0.96x as fast" in missed(record(even, 345 / 0.96))[0]


def test_dx_is_held_against_forward_of_the_same_run() -> None:
    dx = Cell("dx", "bf16", *goals.SQUARE, (64, 64), 0.1)
    assert missed(record(dx, 100)) == []  # forward was not measured
    base = record(forward(64, 0.1), 50)
    assert missed(base, record(dx, 50 / 0.935)) == []
    found = missed(base, record(dx, 50 / 0.92))
    assert found == [f"{dx}: sparse is 6.35x as fast as dense, target 0.93 of forward's 6.90x"]
    # whatever forward does
    assert missed(record(dx, 345 / 0.94)) == [f"{dx}: sparse has 0.94 of dense's speed, target 0.95"]


def test_fp32_errors_are_held_against_cublas() -> None:
    cell = Cell("forward", "f32", *goals.SQUARE, (64, 64), 0.1)

    def with_errors(median: float, worst: float, largest: float) -> list[str]:
        accuracy = {
            "median_tile_rms": median,
            "worst_tile_rms": worst,
            "largest": largest,
            "tile_elements": 8192,
        }
        return missed(record(cell, 10, others={"accuracy": accuracy}))

    assert with_errors(0.9, 1.05, 1.9) == []
    assert "rms error 1.010 (median tile)" in with_errors(1.01, 1.05, 1.0)[0]
    assert (
        "1.200 (worst)" in with_errors(0.9, 1.2, 1.0)[0]
        and "largest error 2.10" in with_errors(0.9, 1.0, 2.1)[0]
    )
    assert "nan" in with_errors(float("nan"), 1.0, 1.0)[0]


def test_skewed_rows_are_held_against_balanced_ones_by_stored_element() -> None:
    even = record(forward(64, 0.1), 50)
    skewed = Cell("forward", "bf16", *goals.SQUARE, (64, 64), 0.1, "barabasi")
    assert missed(even, record(skewed, 57)) == []
    assert missed(even, record(skewed, 58)) == [
        f"{skewed}: 1.16 of a balanced pattern's time, target <= 1.15"
    ]
    assert missed(even, record(skewed, 60, others={"stored": 0.105})) == []
    assert missed(record(skewed, 60)) == [] and missed(even, record(Cell(*_of(skewed), "banded"), 60)) == []


def _of(cell: Cell) -> tuple[Any, ...]:
    return cell.direction, cell.dtype, cell.m, cell.k, cell.n, cell.block, cell.density


@pytest.mark.parametrize(
    ("cell", "us", "bsr", "word"),
    [
        (plain(16, 0.1), 61, 60, "0.98 of torch BSR's speed, target 1"),
        (plain(32, 0.2), 61, 60, "0.98 of torch BSR"),
        (plain(64, 0.1), 61, 42, "0.69 of torch BSR's speed, target 0.7"),
        (forward(128, 0.3), 61, 42, "0.69"),
        (forward(128, 0.1, goals.DECODE), 30, 29, "0.97 of torch BSR's speed, target 1"),
        (plain(32, 0.1), 50, None, "it broke"),
    ],
)
def test_torch_bsr_is_to_be_beaten(cell: Cell, us: float, bsr: float | None, word: str) -> None:
    (sentence,) = missed(record(cell, us, bsr=bsr))
    assert str(cell) in sentence and word in sentence


def test_above_the_density_any_candidate_counts() -> None:
    cell = plain(64, 0.5)
    dense = {"kernel": "dense", "best": "dense", "us": {"median": 345, "p20": 1, "p80": 1}, "speedup": 1.0}
    assert missed(record(cell, 900, dense=345, bsr=345, others=dense)) == []
    (sentence,) = missed(record(cell, 900, dense=345, bsr=200, others=dense))
    assert "dense has 0.58" in sentence
    # below it the sparse kernel itself must do it
    (low,) = missed(record(plain(64, 0.2), 900, dense=345, bsr=345, others=dense))
    assert "sparse has 0.38" in low


def test_sparser_must_be_faster() -> None:
    fine, dense = record(forward(32, 0.05), 60, bsr=100), record(forward(32, 0.2), 100, bsr=120)
    assert missed(fine, dense) == []
    (sentence,) = missed(record(forward(32, 0.05), 61, bsr=100), dense)
    assert "0.61 of the time" in sentence


def test_a_gpu_that_is_slowed_down_is_named_and_nothing_else_counts() -> None:
    def of(dense: float, densities: tuple[float, ...] = (0.1, 0.2, 0.5)) -> list[Any]:
        made = [record(forward(64, density), dense=dense) for density in densities]
        for one in made:
            one["candidates"][1]["predicted_us"] = 361.0
        return made

    assert targets.slowed(of(345)) == [] and targets.slowed(of(500)) == []
    (sentence,) = targets.slowed(of(845))
    assert "2.3 times" in sentence and "no figure of this run counts" in sentence
    assert sentence in targets.missed_gpu(of(845)) and sentence in table.summary(of(845))
    assert targets.slowed(of(845, (0.1, 0.2))) == []  # too few to tell
    # few tokens wait for the host and the memory
    assert targets.slowed([record(plain(32, 0.1), dense=845)] * 5) == []


def test_choices_and_the_number_of_candidates_are_counted() -> None:
    good = [record(plain(side, density), 20) for side in groups.PEER_BLOCKS for density in (0.1, 0.2)]
    bad = record(plain(32, 0.5), 20, others={"over_best": 1.06})
    assert missed(*good, good[0], bad) == []  # nine of ten
    assert missed(*good[:8], bad) == [
        "the plan's choice is within 5 % of the best in 89 % of the cells, target 90 %"
    ]
    some = [{"kernel": name, "us": {"median": 20}, "tile_excess": 0.5} for name in "abcd"]
    assert missed(record(plain(32, 0.1), 20, others={"candidates": some})) == []
    untimed = [*some[:3], {"kernel": "d", "error": "it broke"}, {"kernel": "e", "error": "it broke"}]
    sentences = missed(record(plain(32, 0.1), 20, others={"candidates": untimed}))
    assert sum("it broke" in sentence for sentence in sentences) == 2
    assert any(
        "3 of the 5 candidates that can run were timed, target 4" in sentence for sentence in sentences
    )
    lines = table.summary([*good, bad])
    assert (
        lines[0].endswith("in 8 of 9 cells")
        and "fewer can run in 9" in lines[1]
        and "1.10 (1.10 to 1.10)" in lines[2]
    )
    assert lines[3] == "seconds: bursts 4, sustained 2"
    assert table.summary([{"op": "host"}]) == []


def test_training_and_plans() -> None:
    fine = training.step_fields(64, 0.1) | {
        "us": {"median": 300},
        "beyond_us": 75.0,
        "relative_error": {"y": 0.003},
    }
    mlp = training.mlp_fields() | {"us": {"median": 3000}, "speedup": 3.0, "relative_error": {"y": 0.003}}
    plan = {"op": "plan", "name": "topology-host", "us": {"median": 999.0}, "target_us": 1000.0}
    assert missed(fine, mlp, plan) == []
    found = missed(
        fine | {"beyond_us": 80.0},
        fine | {"relative_error": {"y": 0.003, "dx": float("nan")}},
        mlp | {"speedup": 2.9},
        plan | {"us": {"median": 1001.0}},
        training.mlp_fields() | {"error": "x"},
    )
    words = (
        "80 us beyond its three products, target 75",
        "dx has nan of relative error",
        "2.90x as fast as dense, target 3x",
        "1001 us",
        "x",
    )
    assert len(found) == 5 and all(any(word in sentence for sentence in found) for word in words)


def test_other_promises() -> None:
    cell = Cell("dw", "f16", *goals.SQUARE, (32, 32), 0.5)
    (slow,) = missed(record(cell, 400, dense=345))
    assert "0.86 of dense's speed" in slow
    failing = measure.cell_fields(cell) | {"error": "RuntimeError: broke"}
    assert missed(failing) == [f"{cell}: RuntimeError: broke"]
    unlike = record(cell)
    unlike["candidates"][0]["same_bits"] = False
    unlike["candidates"][1] |= {"same_bits": False, "tile_excess": 2.0}
    sentences = missed(unlike)
    assert len(sentences) == 2 and "differ" in sentences[1] and "dense: 2.00 of the error" in sentences[0]
    called = {
        "op": "host",
        "without_gradients": {"us": {"median": 10.1}},
        "with_gradients": {"us": {"median": 18.0}},
    }
    assert missed(called) == ["a module call without gradients: 10.1 us of the host, target 10"]
    assert missed({"op": "host", "error": "x"}) == ["host: x"]
