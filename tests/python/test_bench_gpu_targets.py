"""The GPU suite's promises and tables, on records made by hand."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from sparseloom.bench import cells
from sparseloom.bench import targets as all_targets
from sparseloom.bench.cells import GPU_SHAPES, Cell, gpu_cell
from sparseloom.bench.gpu import device, measure, table, targets

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
gpu_tables = importlib.import_module("gpu_tables")


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


def record(cell: Cell, us: float = 50, dense: float = 345, bsr: float | None = 60, others: dict[str, Any] | None = None) -> Any:
    candidates = [
        {"kernel": "sparse", "us": {"median": us}, "tile_excess": 0.5, "same_bits": True},
        {"kernel": "dense", "us": {"median": dense}, "tile_excess": 0.5, "same_bits": True},
    ]
    made = {
        "kernel": "sparse",
        "us": {"median": us, "p20": us, "p80": us},
        "dense_us": dense,
        "speedup": dense / us,
        "sparse_kernel": "sparse",
        "sparse_us": us,
        "best": "sparse",
        "tile_excess": 0.5,
        "sustained": {"us": us, "dense_us": dense, "sparse_us": us, "speedup": dense / us},
        "candidates": candidates,
        "peers": {"torch_bsr": bsr, "cusparse_ell": None},
        "peers_absent": {"cusparse_ell": "why", **({"torch_bsr": "it broke"} if bsr is None else {})},
    }
    return measure.cell_fields(cell) | made | (others or {})


def forward(side: int, density: float, shape: tuple[int, int, int] = GPU_SHAPES[0]) -> Cell:
    return gpu_cell("forward", "bf16", shape, (side, side), density)


def missed(*records: dict[str, Any]) -> list[str]:
    return all_targets.missed("gpu", list(records))


def test_promises_kept_are_silent() -> None:
    good = [record(forward(side, density)) for side in cells.GPU_BLOCKS for density in (0.1, 0.3)]
    called = {"op": "host"} | {mode: {"us": {"median": most}} for mode, most in targets.HOST_US.items()}
    assert missed(*good, called) == []


@pytest.mark.parametrize(
    ("cell", "us", "bsr", "word"),
    [
        (forward(16, 0.1), 61, 60, "0.98 of torch BSR's speed, target 1"),
        (forward(32, 0.3), 61, 60, "0.98 of torch BSR"),
        (forward(64, 0.1), 61, 42, "0.69 of torch BSR's speed, target 0.7"),
        (forward(128, 0.3), 61, 42, "0.69"),
        (forward(128, 0.1, GPU_SHAPES[2]), 61, 60, "0.98 of torch BSR's speed, target 1"),  # decode
        (forward(32, 0.1), 50, None, "it broke"),
    ],
)
def test_torch_bsr_is_to_be_beaten(cell: Cell, us: float, bsr: float | None, word: str) -> None:
    (sentence,) = missed(record(cell, us, bsr=bsr))
    assert str(cell) in sentence and word in sentence


def test_above_the_density_any_candidate_counts() -> None:
    cell = forward(64, 0.5)
    dense = {"kernel": "dense", "best": "dense", "us": {"median": 345, "p20": 1, "p80": 1}, "speedup": 1.0}
    assert missed(record(cell, 900, dense=345, bsr=345, others=dense)) == []
    (sentence,) = missed(record(cell, 900, dense=345, bsr=200, others=dense))
    assert "dense has 0.58" in sentence
    (low,) = missed(record(forward(64, 0.3), 900, dense=345, bsr=345, others=dense))  # below it the sparse kernel itself must do it
    assert "sparse has 0.38" in low


def test_sparser_must_be_faster() -> None:
    fine, dense = record(forward(32, 0.05), 60), record(forward(32, 0.2), 100, bsr=120)
    assert missed(fine, dense) == []
    (sentence,) = missed(record(forward(32, 0.05), 61, bsr=100), dense)
    assert "0.61 of the time" in sentence
    coarse = [record(forward(64, density, GPU_SHAPES[3]), 90, bsr=100) for density in (0.05, 0.2)]
    assert missed(*coarse) == []  # 1 and 2 blocks of 12: says nothing


def test_other_promises() -> None:
    cell = Cell("dw", "bf16", 8192, 4096, 4096, (32, 32), 0.5)
    (slow,) = missed(record(cell, 400, dense=345))
    assert "0.86 of dense's speed" in slow
    failing = measure.cell_fields(cell) | {"error": "RuntimeError: broke"}
    assert missed(failing) == [f"{cell}: RuntimeError: broke"]
    unlike = record(cell)
    unlike["candidates"][0]["same_bits"] = False
    unlike["candidates"][1] |= {"same_bits": False, "tile_excess": 2.0}
    sentences = missed(unlike)
    assert len(sentences) == 2 and "differ" in sentences[1] and "dense: 2.00 of the error" in sentences[0]
    called = {"op": "host", "without_gradients": {"us": {"median": 10.1}}, "with_gradients": {"us": {"median": 18.0}}}
    assert missed(called) == ["a module call without gradients: 10.1 us of the host, target 10"]
    assert missed({"op": "host", "error": "x"}) == ["host: x"]


def test_the_tables_show_gains_losses_peers_and_failures() -> None:
    gpu = {"name": "NVIDIA H200", "driver": "1", "l2_bytes": 60 << 20}
    called = {"op": "host", "m": 16, "k": 4096, "n": 4096, "calls": 10000}
    called |= {mode: {"us": {"median": 9.0}, "linear_us": {"median": 10.0}} for mode in targets.HOST_US}
    failing = measure.cell_fields(forward(16, 0.1)) | {"error": "a | b"}
    shown = [record(forward(32, 0.1)), record(forward(64, 0.5), 400), called, failing]
    written = {"suite": "gpu", "gpu": gpu, "records": shown}
    readme = gpu_tables.readme_table(written, "caption.")
    assert "6.90x" in readme and "0.86x **slower**" in readme and "1.20x" in readme and "9.0 us without" in readme
    assert "16x16" not in readme and "failed: a / b" in gpu_tables.page(written, "caption.")
    lengths = {line.count("|") for line in gpu_tables.page(written, "caption.").splitlines() if line.startswith("|")}
    assert len(lengths) == 1
    assert gpu_tables.readme_table(written | {"records": [failing]}, "caption.") == ""
    assert len(table.row(shown[0])) == len(table.row(failing)) == len(table.HEAD)
