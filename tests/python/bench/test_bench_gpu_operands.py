"""What the GPU suite's calls read and are compared with, and cuSPARSE's format: ordinary tensors, so on the
CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_stand import CPU, TINY, scattered_calls

from sparseloom import ops
from sparseloom.testing import dense_product
from sparseloom_bench.bench.cells import Cell
from sparseloom_bench.bench.gpu import cusparse, fp8, operands
from sparseloom_bench.bench.gpu.operands import DENSE, DENSE_FAST, Operands, Reference


@pytest.mark.parametrize(
    "cell",
    [*TINY, Cell("dw", "f32", 9, 70, 45, (16, 32), 0.5), Cell("forward", "f32", 9, 70, 45, (16, 32), 0.5)],
)
def test_operands_and_reference_agree_with_the_library(cell: Cell) -> None:
    made = Operands(cell, CPU, 100_000)
    first, index = made.copies[0], made.host_index
    unpacked = ops.call("unpack", first.values, index.crow, index.col, index.rows, index.cols)
    assert torch.equal(made.weight, unpacked)
    packed = operands.gather(made.weight, made.block_row, made.block_col, cell.block)
    assert torch.equal(packed, first.values)
    reference = Reference(made)
    kernel = ops.plan(index, cell.direction, made.case.dtype, cell.m)["kernel"]
    own, dense = made.calls(kernel), made.dense_calls()[DENSE]
    assert len(own) == len(made.copies) and len(dense) >= 2
    outputs = [call() for call in own]
    assert all(torch.equal(output, outputs[0]) for output in outputs) and reference.check(outputs[0]).ok
    assert all(torch.equal(call(), dense[0]()) for call in dense)
    if cell.direction != "dw":  # a weight without zeros: zeros would flatter dense
        assert not torch.equal(dense[0](), scattered_calls(made)[0]())
    lost = outputs[0].clone()
    lost.view(-1)[:8] = torch.nan
    assert not reference.check(lost).ok
    assert len({copy.values.data_ptr() for copy in made.copies}) == len(made.copies)


def test_tf32_operands_are_tf32() -> None:
    made = Operands(Cell("forward", "tf32", 16, 64, 64, (16, 16), 0.5), CPU, 1)
    assert not bool((made.copies[0].x.view(torch.int32) & 0x1FFF).any())


def test_fp8_operands_scales_and_both_dense_products() -> None:
    made = Operands(Cell("forward", "fp8", 32, 64, 96, (16, 16), 0.5), CPU, 1)
    first = made.copies[0]
    assert first.x.dtype == first.values.dtype == made.weight.dtype == torch.float8_e4m3fn
    packed = operands.gather(made.weight.float(), made.block_row, made.block_col, (16, 16))
    assert torch.equal(packed, first.values.float())
    dense = made.dense_calls()
    assert list(dense) == [DENSE, DENSE_FAST] and dense[DENSE][0]().dtype == torch.bfloat16
    promoted = Operands(Cell("forward", "fp8_promoted", 32, 64, 96, (16, 16), 0.5), CPU, 1)
    assert list(promoted.dense_calls()) == [DENSE] and made.fast_accum and not promoted.fast_accum
    reference, result = Reference(made), made.calls("reference")[0]()
    assert result.dtype == torch.bfloat16 and result.abs().max() > 1 and reference.check(result).ok
    assert not reference.check(result * 2).ok  # a scale forgotten
    assert made.scale == fp8.X_SCALE * fp8.W_SCALE


def test_errors_are_compared_with_denses_tile_by_tile() -> None:
    made = Operands(Cell("forward", "f32", 256, 256, 64, (32, 32), 0.5), CPU, 1)
    reference = Reference(made)
    with torch.no_grad():
        dense = dense_product(made.case, made.copies[0].x, made.copies[0].dy, made.weight, None)
    same = reference.accuracy(dense)
    assert (same["median_tile_rms"], same["worst_tile_rms"], same["largest"], same["tile_elements"]) == (
        1,
        1,
        1,
        128 * 32,
    )
    worse = dense.double() + 3 * (dense.double() - reference._exact)
    assert reference.accuracy(worse)["median_tile_rms"] == pytest.approx(4, rel=1e-3)
    one = dense.clone()
    one[200, 40] += 1
    found = reference.accuracy(one)
    assert found["median_tile_rms"] == 1 and found["worst_tile_rms"] > 1000 and found["largest"] > 1000


# cuSPARSE's format, without cuSPARSE.


class Recorder:
    """Stands in for the library: keeps calls, gives descriptors away."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p(1)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def call(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, arguments))
        prototype = cusparse._PROTOTYPES[name]
        assert len(arguments) == len(prototype), name
        for argument, kind in zip(arguments, prototype, strict=True):
            if kind is not ctypes.c_void_p:
                kind(argument)  # a TypeError names what ctypes would refuse
        if name.startswith("cusparseCreate"):
            arguments[0]._obj.value = 8 + len(self.calls)


def test_blocked_ell_is_described_as_the_library_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(cusparse, "library", lambda: recorder)
    cell = TINY[0]
    made = Operands(cell, CPU, 1)
    calls = cusparse.blocked_ell_calls(made)
    assert len(calls) == len(made.copies)
    sparse = next(arguments for name, arguments in recorder.calls if name == "cusparseCreateBlockedEll")
    assert sparse[1:5] == (96, 64, 16, 32)  # two blocks of 16 in each row
    matrices = [arguments[1:4] for name, arguments in recorder.calls if name == "cusparseCreateDnMat"]
    assert matrices[:2] == [(64, 32, 64), (96, 32, 96)]  # x^T and y^T, column-major where they lie
    del calls
    assert sum(name.startswith("cusparseDestroy") for name, _ in recorder.calls) == 3 * len(made.copies)


def test_blocked_ell_stores_rows_and_fills_short_ones_up() -> None:
    values = torch.arange(12.0).reshape(3, 2, 2)
    matrix, columns = cusparse.padded_ell(
        values, torch.tensor([0, 2, 2, 3], dtype=torch.int32), torch.tensor([1, 4, 0], dtype=torch.int32)
    )
    assert columns.tolist() == [[1, 4], [-1, -1], [0, -1]] and columns.dtype == torch.int32
    assert matrix.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [0] * 4, [0] * 4, [8, 9, 0, 0], [10, 11, 0, 0]]


@pytest.mark.parametrize(
    ("cell", "reason"), [(TINY[1], "square"), (Cell("forward", "bf16", 8, 60, 64, (16, 16), 0.5), "ragged")]
)
def test_what_blocked_ell_cannot_hold_says_why(cell: Cell, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        cusparse.blocked_ell_calls(Operands(cell, CPU, 1))


def test_the_library_in_the_process_comes_first(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f00 r-xp 0 0:0 1 /a/libcusparse.so.12\n7f01 r-xp 0 0:0 1 /a/libcusparseLt.so.0\n")
    assert cusparse.find_library(str(maps)) == "/a/libcusparse.so.12"
