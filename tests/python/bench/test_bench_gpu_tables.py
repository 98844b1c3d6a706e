"""The tables made of the GPU suite's records: gains, losses, errors, goals, and the break-even curve."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from gpu_cells import forward, plain, record

from sparseloom_bench.bench.cells import Cell
from sparseloom_bench.bench.gpu import goals, groups, measure, table, targets, topology, training

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))
gpu_goals = importlib.import_module("gpu_goals")
gpu_tables = importlib.import_module("gpu_tables")
cell_summary = importlib.import_module("cell_summary")
make_break_even = importlib.import_module("make_break_even")
semi24_tables = importlib.import_module("semi24_tables")

GPU = {"name": "NVIDIA H200", "driver": "1", "l2_bytes": 60 << 20}


def even(text: str) -> bool:
    """Whether the rows of every table in a text are equally long."""
    tables = [part for part in text.split("\n\n") if part.startswith("|")]
    return bool(tables) and all(
        len({line.replace("\\|", "").count("|") for line in part.splitlines()}) == 1 for part in tables
    )


def test_the_tables_show_gains_losses_peers_and_failures() -> None:
    called = {"op": "host", "m": 16, "k": 4096, "n": 4096, "calls": 10000}
    called |= {mode: {"us": {"median": 9.0}, "linear_us": {"median": 10.0}} for mode in targets.HOST_US}
    failing = measure.failed_record(forward(16, 0.1), "a | b")
    skewed = record(Cell("forward", "bf16", *goals.SQUARE, (64, 64), 0.1, "lognormal"), 77)
    shown = [
        record(forward(32, 0.1)),
        record(forward(64, 0.5), 400),
        record(forward(64, 0.1)),
        skewed,
        called,
        failing,
    ]
    written = {"suite": "gpu", "gpu": GPU, "records": shown}
    peers = gpu_tables.peers_table(written)
    assert "6.90x |" in peers and "0.86x **slower** |" in peers and "1.20x" in peers
    assert "16x16" not in peers and "| 77 |" not in peers
    whole = gpu_tables.page(written, "caption.")
    lost = cell_summary.losses(gpu_tables.cells(written), gpu_tables.DTYPES)
    assert "9.0 us" in whole
    assert "16x16: 0.1 failed: a | b" in lost and "64x64: 0.5 0.86x" in lost  # every loss
    assert "failed: a / b" in whole and "0.1 lognormal" in whole
    assert even(whole) and even(peers)
    assert gpu_tables.peers_table(written | {"records": [failing]}) == ""
    assert len(table.row(shown[0])) == len(table.row(failing)) == len(table.HEAD)


def test_the_tables_of_2_4_products_show_gains_peers_wrong_results_and_failures() -> None:
    named = {"op": "semi24", "dtype": "bf16", "m": 8, "k": 64, "n": 32}
    product = named | {"us": {"median": 100.0}, "speedup": 1.5, "over_peer": 1.25, "peer_version": "0.8.0"}
    product |= {"tile_excess": 2.0, "goal": {"dense": 1.2, "cusparselt": 0.97}}
    product["sustained"] = {"speedup": 1.4, "over_peer": None}
    pruned = {"op": "semi24_prune", "method": "magnitude", "of": "W", "us": {"median": 20.0}}
    pruned |= {"torch_us": None, "most_us": 25.0, "same_bits": False}
    found = [product, named | {"error": "a | b"}, pruned, pruned | {"error": "c"}]
    text = semi24_tables.semi24_part(found)
    assert "| bf16 | 8 x 64 x 32 | 100 **wrong** | 1.50 | 1.40 | 1.25 | - | 1.2, 0.97 |" in text
    assert "failed: a / b" in text and "cuSPARSELt 0.8.0" in text
    assert "| magnitude | W | 20.0 **wrong** | - | 25 |" in text and "failed: c" in text
    head, _, other = text.partition("cuSPARSELt 0.8.0")
    assert even(head.strip()) and even(other.partition("\n\n")[2])
    assert semi24_tables.semi24_part([]) == ""


def test_errors_are_shown_beside_what_is_allowed() -> None:
    exact = {"median_tile_rms": 0.2, "worst_tile_rms": 0.4, "largest": 0.3}
    others = [
        {"accuracy": exact},
        {"accuracy": exact | {"median_tile_rms": 0.5, "largest": 0.6}},
        {"tile_excess": 1.25},
    ]
    cells = [Cell("forward", "f32", *goals.SQUARE, (64, 64), density) for density in (0.1, 0.2, 0.5)]
    made = [record(cell, others=each) for cell, each in zip(cells, others, strict=True)]
    first, second = gpu_goals.errors_list(made).splitlines()
    assert (
        "in 2 of 3 cells. Not in F fp32 8192 x 4096 x 4096, blocks of 64, density 0.5 at **1.25** of it."
        in first
    )
    assert (
        "0.20 to 0.50 in the median, at most 0.40 (target 1); largest error 0.30 to 0.60 (target 2)" in second
    )
    nothing = record(cells[0], others={"tile_excess": float("nan")})
    assert "in 0 of 1 cells. Not in" in gpu_goals.errors_list([nothing])
    (alone,) = gpu_goals.errors_list([record(cells[0])]).splitlines()
    assert alone.endswith("in 1 of 1 cells.") and gpu_goals.errors_list([]) == ""


def test_the_whole_suite_makes_tables(tmp_path: Path) -> None:
    made = [record(cell, 345 / (1 + 5 * (1 - cell.density))) for cell in groups.gpu_cells()]
    made[3] = measure.failed_record(groups.gpu_cells()[3], "it broke")
    steps = {
        "us": {"median": 300.0},
        "graph_us": None,
        "dense_us": 1100.0,
        "speedup": 3.7,
        "relative_error": {"y": 0.003},
    }
    beyond = {"products_us": {"forward": 50.0, "dx": 60.0, "dw": 110.0}, "beyond_us": 80.0}
    made += [training.step_fields(64, density) | steps | beyond for density in goals.DENSITIES]
    made.append(
        training.mlp_fields()
        | {"us": {"median": 3500.0}, "dense_us": 9800.0, "speedup": 2.8, "relative_error": {"y": 0.003}}
    )
    made += [
        topology.fields(where) | {"us": {"median": 45.0}, "target_us": most}
        for where, most in (("host", 1000.0), ("device", 30.0))
    ]
    text = gpu_goals.goals_part(made)
    # Every figure of the table of goals is in it.
    rows = [line for line in text.splitlines() if line.startswith(("| F ", "| dX ", "| dW "))]
    assert len(rows) == sum(len(sides) for sides in goals.SPEEDUPS.values()) + 9 + 2
    assert (
        "| F bf16 8192 x 4096 x 4096 | 128 | **5.75 (9.2)** † | **5.50 "
        "(7.4)** † | 5.00 (4.4) | **failed** | 2.00 (1.2) |" in rows
    )
    assert any(row.startswith("| dX bf16") and "5.75 (5.35)" in row for row in rows)
    assert (
        "lognormal" in text
        and "**80**" in text
        and "**2.80x**" in text
        and "**45 us** (target 30)" in text
        and ": 45 us (" in text
    )
    assert (
        f"of {sum(goals.goal(cell) is not None for cell in groups.gpu_cells())} cells reach it" in text
        and even(text)
    )
    assert "\n\n- The plan's choice" in gpu_goals.goals_part(
        [record(plain(32, 0.1)) | {"goal": None, "over_predicted": None}]
    )
    assert gpu_goals.goals_part([]) == gpu_goals.NO_GOALS and gpu_goals.goals_line([]) == ""
    assert (
        f"of {sum(goals.goal(cell) is not None for cell in groups.gpu_cells())} cells"
        in gpu_goals.goals_line(made)
    )


def test_runs_of_one_gpu_are_shown_together_and_the_newest_counts() -> None:
    old = {
        "gpu": GPU,
        "date": "1",
        "records": [record(plain(16, 0.1), 70), record(plain(32, 0.1), 71), {"op": "host", "us": 1}],
    }
    new = {"gpu": GPU, "date": "2", "records": [record(plain(32, 0.1), 50)]}
    whole = gpu_tables.merged([old, new], lambda run: f"of {run['date']}")
    assert [each["us"]["median"] for each in whole["records"] if each["op"] == "linear"] == [70, 50]
    assert whole["caption"] == "of 1\nof 2" and len(whole["records"]) == 3


def test_a_skewed_pattern_is_no_point_of_the_break_even_curve(tmp_path: Path) -> None:
    records = [
        record(forward(64, 0.1), 50),
        record(Cell("forward", "bf16", *goals.SQUARE, (64, 64), 0.1, "lognormal"), 500),
    ]
    (tmp_path / "gpu.json").write_text(json.dumps({"suite": "gpu", "date": "1", "records": records}))
    ((_, curve),) = make_break_even.curves(tmp_path).items()
    assert curve == [(0.1, 345 / 50)]
