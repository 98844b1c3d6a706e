"""The list of the GPU suite and its rules, without a GPU."""

from __future__ import annotations

import json

import pytest
import torch

from sparseloom.errors import Error
from sparseloom_bench.bench import cells
from sparseloom_bench.bench.cells import Cell
from sparseloom_bench.bench.gpu import (
    batches,
    goals,
    groups,
    jobs,
    measure,
    operands,
    replay,
    targets,
)

# The list.


def test_the_committed_list_holds_the_table_of_speedups() -> None:
    listed = groups.gpu_cells()
    assert len(set(listed)) == len(listed)
    assert {name: len(groups.gpu_cells([name])) for name in groups.GROUPS} == {
        "forward": 45, "dx": 45, "dw": 20, "decode": 40, "patterns": 10, "masks": 59, "fp8": 14, "tf32": 30,
        "fp32": 15, "layers": 60, "others": 108,
    }  # fmt: skip
    promised = [cell for cell in listed if goals.goal(cell)]
    assert len(promised) == 45 + 45 + 20 + 35 + 10 + 30 + 15
    # Every figure of the table belongs to a cell that is measured.
    figures = sum(len(rows) for rows in goals.SPEEDUPS.values()) * len(goals.DENSITIES)
    assert len([cell for cell in promised if cell.direction != "dx"]) == figures
    assert {cell.dtype for cell in listed} == set(cells.DTYPES) - {"int8"}  # a CPU's
    assert {cell.block for cell in listed} == {(8, 8), (16, 16), (32, 32), (64, 64), (128, 128), (16, 64)}
    assert {(cell.m, cell.k, cell.n) for cell in listed if groups.compared(cell)} == set(groups.PEER_SHAPES)


def test_the_peers_table_is_covered() -> None:
    listed = set(groups.gpu_cells())
    for shape in groups.PEER_SHAPES:
        for side in groups.PEER_BLOCKS:
            wanted = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8) if shape == goals.SQUARE else (0.1, 0.2, 0.5)
            for density in wanted:
                cell = Cell("forward", "bf16", *shape, (side, side), density)
                assert cell in listed and groups.compared(cell), cell


def test_every_row_has_the_floor_or_ceiling_of_its_share() -> None:
    for cell in groups.gpu_cells(["forward"]):
        if cell.n <= 4096:
            counts = cell.case().make_pattern(0).mask.sum(1)
            width, total = -(-cell.k // cell.block[1]), int(counts.sum())
            assert int(counts.max()) - int(counts.min()) <= 1, cell
            assert total == round(cell.density * width * len(counts)), cell


@pytest.mark.parametrize("kind", ["lognormal", "barabasi", "banded", "block_diagonal"])
@pytest.mark.parametrize("density", [0.1, 0.2])
def test_patterns_have_the_density_that_is_asked_for(kind: str, density: float) -> None:
    case = Cell("forward", "bf16", *goals.SQUARE, (64, 64), density, kind).case()
    pattern = case.make_pattern(0)
    assert abs(pattern.density - density) < 0.011
    assert torch.equal(pattern.mask, case.make_pattern(0).mask)
    if kind == "lognormal":
        assert pattern.blocks == round(density * 64 * 64)


def test_a_cell_survives_its_record() -> None:
    for cell in groups.gpu_cells():
        assert cells.cell_of(json.loads(json.dumps(measure.cell_fields(cell)))) == cell
    case = Cell("forward", "tf32", *goals.SQUARE, (32, 32), 0.1).case("cuda")
    assert (case.dtype, case.tf32, case.device) == (torch.float32, True, "cuda")


def test_groups_choose_what_runs() -> None:
    assert len(jobs.choose([], [])) == len(groups.gpu_cells()) + len(jobs.extras())
    assert [str(job) for job in jobs.choose(["mlp", "host"], [])] == [
        "mlp-bf16-8192x4096x16384-64x64-d0.2",
        "host",
    ]
    assert (
        all(str(job).startswith("dw-bf16") for job in jobs.choose(["dw"], []))
        and len(jobs.choose(["dw"], ["128x128"])) == 5
    )
    assert [job.group for job in jobs.choose([], ["step", "128x128-d0.2"])] == ["step"]
    with pytest.raises(Error, match="a group of forward, dx"):
        jobs.choose(["nothing"], [])
    with pytest.raises(Error, match="a part of gpu"):
        jobs.choose(["dw"], ["fp8"])


# Rotation and timing rules.


@pytest.mark.parametrize(
    ("one", "l2", "sets"), [(137, 60, 2), (120, 60, 2), (119, 60, 3), (10, 60, 13), (0, 60, 121)]
)
def test_twice_the_l2_lies_between_two_uses_of_a_copy(one: int, l2: int, sets: int) -> None:
    assert operands.sets_needed(one, l2) == sets
    assert (sets - 1) * max(one, 1) >= 2 * l2


@pytest.mark.parametrize(
    ("us", "sets", "launches"),
    [(345, 2, 10), (8, 18, 216), (50, 7, 42), (5600, 2, 4), (90_000, 2, 4), (100, 2, 20)],
)
def test_a_burst_has_ten_calls_more_when_short_fewer_when_slow(us: float, sets: int, launches: int) -> None:
    assert replay.launches_for(us, sets) == launches
    assert launches % sets == 0


def test_a_step_is_beyond_if_it_rises_or_falls_by_too_much() -> None:
    assert not batches.beyond(10.0, 11.4) and not batches.beyond(10.4, 10.0)
    assert batches.beyond(10.0, 11.6) and batches.beyond(10.6, 10.0)


def test_steps_that_stayed_are_missed_targets() -> None:
    record = batches.fields(32, 0.1, "trained") | {"us": {}, "kernels": {}, "steps": []}
    assert targets.missed_gpu([record]) == []
    record["steps"] = [{"m": 64, "us": 8.0, "next_us": 16.0}]
    (sentence,) = targets.missed_gpu([record])
    assert sentence.startswith(
        "batches-16..256x4096x14336-32x32-d0.1-trained: 8.0 us at 64 tokens, 16.0 at one more"
    )


def test_the_trained_mask_is_uneven_and_has_the_blocks_of_its_density() -> None:
    case = Cell("forward", "bf16", 64, 4096, 4096, (64, 64), 0.1, "trained").case()
    drawn = case.make_pattern()
    counts = drawn.mask.sum(1)
    assert drawn.blocks == round(0.1 * 64 * 64)
    assert counts.max() > 2 * counts.float().mean()
    assert torch.equal(drawn.mask, case.make_pattern().mask)
