"""The GPU suite: its list, its rules and its records on the CPU with small stand-ins; one run of everything on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sparseloom import cli, ops
from sparseloom.bench import cells, results
from sparseloom.bench.cells import GPU_SHAPES, Cell
from sparseloom.bench.gpu import cusparse, host, measure, operands, replay, run, targets
from sparseloom.bench.gpu.operands import Operands, Reference
from sparseloom.testing import dense_product, tf32_switch

CPU = torch.device("cpu")
TINY = [
    Cell("forward", "bf16", 32, 64, 96, (16, 16), 0.5),
    Cell("dx", "bf16", 32, 64, 96, (16, 32), 0.5),
    Cell("dw", "f32", 32, 64, 96, (32, 32), 0.5),
]


def bench(*arguments: object) -> int:
    try:
        return cli.main(["bench", "gpu", *(str(argument) for argument in arguments)])
    except SystemExit as end:
        return int(end.code or 0)


# The list.


def test_the_committed_list() -> None:
    listed = cells.gpu_cells()
    assert len(set(listed)) == len(listed)
    forward = [cell for cell in listed if (cell.direction, cell.dtype) == ("forward", "bf16")]
    assert {(cell.m, cell.k, cell.n) for cell in forward} == set(GPU_SHAPES)
    assert {cell.block for cell in listed} == {(8, 8), (16, 16), (32, 32), (64, 64), (128, 128), (16, 64)}
    for direction in ("dx", "dw"):
        assert sum(cell.direction == direction and cell.block[0] in cells.GPU_BLOCKS for cell in listed) == 16 + 1
    assert {cell.dtype for cell in listed} == set(cells.DTYPES)


@pytest.mark.parametrize(
    ("shape", "side", "densities"),
    # The peers' table of these shapes; two digits, as printed there.
    [
        (GPU_SHAPES[0], 128, [0.06, 0.09, 0.19, 0.31, 0.50, 0.81]),
        (GPU_SHAPES[0], 64, [0.05, 0.09, 0.20, 0.30, 0.50, 0.80]),
        (GPU_SHAPES[3], 128, [0.17, 0.50]),
        (GPU_SHAPES[3], 32, [0.04, 0.08, 0.21, 0.50]),
        (GPU_SHAPES[4], 128, [0.04, 0.08, 0.21, 0.50]),
    ],
)
def test_densities_are_those_of_the_peers_table(shape: tuple[int, int, int], side: int, densities: list[float]) -> None:
    listed = [c for c in cells.gpu_cells() if (c.m, c.k, c.n, c.block) == (*shape, (side, side))]
    found = {cell.density for cell in listed if (cell.direction, cell.dtype) == ("forward", "bf16")}
    assert [round(density, 2) for density in sorted(found)] == densities


def test_every_row_has_the_same_number_of_blocks() -> None:
    for cell in cells.gpu_cells():
        if cell.k * cell.n <= 4096 * 4096 and cell.direction == "forward" and cell.dtype == "bf16":
            counts = cell.case().make_pattern(0).mask.sum(1)
            assert int(counts.min()) == int(counts.max()) == round(cell.density * -(-cell.k // cell.block[1])), cell


def test_a_cell_survives_its_record() -> None:
    for cell in cells.gpu_cells():
        assert cells.cell_of(json.loads(json.dumps(measure.cell_fields(cell)))) == cell
    tf32 = cells.gpu_cell("forward", "tf32", GPU_SHAPES[0], (32, 32), 0.1)
    case = tf32.case("cuda")
    assert (case.dtype, case.tf32, case.device) == (torch.float32, True, "cuda")


# Rotation and timing rules.


@pytest.mark.parametrize(("one", "l2", "sets"), [(137, 60, 2), (120, 60, 2), (119, 60, 3), (10, 60, 13), (0, 60, 121)])
def test_twice_the_l2_lies_between_two_uses_of_a_copy(one: int, l2: int, sets: int) -> None:
    assert operands.sets_needed(one, l2) == sets
    assert (sets - 1) * max(one, 1) >= 2 * l2


@pytest.mark.parametrize(
    ("us", "sets", "launches"), [(345, 2, 10), (8, 18, 216), (50, 7, 42), (7000, 2, 6), (90_000, 2, 4), (100, 2, 20)]
)
def test_a_burst_has_ten_calls_more_when_short_fewer_when_slow(us: float, sets: int, launches: int) -> None:
    assert replay.launches_for(us, sets) == launches
    assert launches % sets == 0


def test_pauses_keep_the_card_cool() -> None:
    assert [replay.pause_after(seconds) for seconds in (0, 0.007, 1)] == [0.005, 0.028, 0.06]


def scattered_calls(made: Operands) -> list[Callable[[], torch.Tensor]]:
    """torch's product with the scattered weight, one call for each copy: a right answer that no kernel of ours gave."""
    return [lambda copy=copy: dense_product(made.case, copy.x, copy.dy, made.weight, None) for copy in made.copies]


# Operands and reference, which are ordinary tensors.


@pytest.mark.parametrize(
    "cell", [*TINY, Cell("dw", "f32", 9, 70, 45, (16, 32), 0.5), Cell("forward", "f32", 9, 70, 45, (16, 32), 0.5)]
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
    own, dense = made.calls(kernel), made.dense_calls()
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


def test_the_captured_calls_take_turns_and_reuse_their_own_output(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = SimpleNamespace(Event=lambda **_: None, stream=lambda _: contextlib.nullcontext(), current_device=lambda: 0)
    nothing.synchronize = lambda: None
    monkeypatch.setattr(replay.torch, "cuda", nothing)
    monkeypatch.setattr(replay, "_capture_stream", lambda _: None)
    monkeypatch.setattr(replay, "estimate_us", lambda _: 345.0)
    order: list[int] = []
    alive: list[int] = []

    def call(i: int) -> torch.Tensor:
        order.append(i)
        alive.append(len(made.outputs) if made else 0)
        return torch.full((1,), float(i))

    made: Any = None
    monkeypatch.setattr(replay, "capture", lambda body: SimpleNamespace(replay=body))
    made = replay.Replay([lambda i=i: call(i) for i in range(3)])
    order.clear(), alive.clear()
    made.replay()
    assert made.launches == 12 and order == [0, 1, 2] * 4 and max(alive) == 2  # the set's old output is free before the call
    assert [int(output) for output in made.outputs] == [0, 1, 2] and not made.same_bits()


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


def test_blocked_ell_stores_rows() -> None:
    values = torch.arange(16.0).reshape(4, 2, 2)
    expected = [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert cusparse.ell_values(values, 2).tolist() == expected


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (TINY[1], "square"),
        (Cell("forward", "bf16", 8, 64, 64, (16, 16), 0.3), "every row"),
        (Cell("forward", "bf16", 8, 60, 64, (16, 16), 0.5), "ragged"),
    ],
)
def test_what_blocked_ell_cannot_hold_says_why(cell: Cell, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        cusparse.blocked_ell_calls(Operands(cell, CPU, 1))


def test_the_library_in_the_process_comes_first(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f00 r-xp 0 0:0 1 /a/libcusparse.so.12\n7f01 r-xp 0 0:0 1 /a/libcusparseLt.so.0\n")
    assert cusparse.find_library(str(maps)) == "/a/libcusparse.so.12"


# A cell's record, with replays that run on the CPU.


class Stand:
    """A Replay on the CPU."""

    graphed, launches = True, 2

    def __init__(self, calls: Sequence[Callable[[], torch.Tensor]]) -> None:
        self._calls, self.outputs = calls, [call() for call in calls]

    def poisoned(self) -> torch.Tensor:
        return self.outputs[0]

    def same_bits(self) -> bool:
        return True

    def burst(self) -> float:
        start = time.perf_counter()
        self._calls[0]()
        return 1e6 * (time.perf_counter() - start)

    def sustained(self, during: Callable[[], None]) -> list[float]:
        during()
        return [self.burst()]


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Everything that asks CUDA, replaced; `settings` to measure with."""

    def plan_of(made: Operands) -> dict[str, Any]:
        return ops.plan(made.host_index, made.cell.direction, made.case.dtype, made.cell.m)

    def enter(name: str, made: Operands, reference: Reference) -> Stand:
        if name == "cusparse_ell":
            raise ValueError("no such library")
        return Stand(scattered_calls(made))

    monitor = SimpleNamespace(clock_mhz=lambda: 1980, power_watts=lambda: 500.0, driver=lambda: "1", reason="")
    gpu = {"name": "NVIDIA H200", "driver": "1", "l2_bytes": 1000, "memory_bytes": 1}
    monkeypatch.setattr(measure, "Replay", Stand)
    monkeypatch.setattr(measure, "enter", enter)
    monkeypatch.setattr(measure, "plan_of", plan_of)
    monkeypatch.setattr(measure, "alive", lambda: True)
    monkeypatch.setattr(measure, "pause_after", lambda seconds: 0)
    monkeypatch.setattr(run, "require_gpu", lambda: CPU)
    monkeypatch.setattr(run, "Monitor", lambda _: monitor)
    monkeypatch.setattr(run, "describe", lambda *_: gpu)
    monkeypatch.setattr(host, "FEATURES", 256)
    monkeypatch.setattr(run, "host_cost", lambda where: host.host_cost(where, calls=200))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 2)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setitem(cells.SUITES, "gpu", lambda: TINY)
    return SimpleNamespace(settings=measure.Settings(CPU, 1000, 0.0, True, monitor))  # type: ignore[arg-type]


def test_a_run_writes_every_cell_checked_with_peers_and_host(
    on_the_cpu: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--results", tmp_path) == 0
    written = json.loads((tmp_path / "h200" / "gpu.json").read_text())
    assert written["device"] == "h200" and written["gpu"]["name"] == "NVIDIA H200"
    *found, called = written["records"]
    assert [cells.cell_of(record) for record in found] == TINY
    for record in found:
        assert record["tile_excess"] <= 1 and record["sparse_us"] > 0 and record["samples"] >= 7
        names = [each["kernel"] for each in record["candidates"]]
        assert record["kernel"] in names and record["best"] in names and record["sparse_kernel"] not in measure.NOT_SPARSE
        assert record["sets"]["ours"] >= 2 and record["sustained"]["us"] > 0
        assert record["clock_mhz"] == {"burst": 1980, "sustained": 1980}
    assert found[0]["peers"]["torch_bsr"] > 0 and found[0]["peers"]["cusparse_ell"] is None
    assert found[0]["peers_absent"] == {"cusparse_ell": "ValueError: no such library"}
    assert found[1]["peers_absent"].keys() == found[1]["peers"].keys()
    assert called["op"] == "host" and called["with_gradients"]["us"]["median"] > called["without_gradients"]["us"]["p20"] > 0
    out = capsys.readouterr().out
    assert str(TINY[0]) in out and "F.linear" in out


def test_a_candidate_that_raises_is_recorded_and_the_rest_goes_on(
    on_the_cpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Operands.calls

    def broken(self: Operands, kernel: str) -> list[Callable[[], torch.Tensor]]:
        if self.cell.direction == "dx" and kernel != "reference":
            raise RuntimeError("illegal something\nand a stack")
        return real(self, kernel)

    monkeypatch.setattr(Operands, "calls", broken)
    assert bench("--results", tmp_path, "--only", "-bf16-") == 1
    first, second = json.loads((tmp_path / "h200" / "gpu.json").read_text())["records"]
    assert "error" not in first and "illegal something" in second["error"] and "stack" not in second["error"]
    assert "illegal something" in capsys.readouterr().err


def test_a_dead_context_leaves_its_record_and_a_new_process_goes_on(
    on_the_cpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(run.os, "execv", lambda path, arguments: started.append(arguments) or sys.exit(3))
    monkeypatch.setattr(sys, "argv", ["sparseloom", "bench", "gpu", "--seconds", "0"])
    monkeypatch.setattr(results, "commit", lambda: "c")
    real = Reference.check

    def deadly(self: Reference, actual: torch.Tensor) -> Any:
        if self._operands.cell.direction == "dx":
            monkeypatch.setattr(measure, "alive", lambda: False)
            raise RuntimeError("an illegal memory access was encountered")
        return real(self, actual)

    monkeypatch.setattr(Reference, "check", deadly)
    assert bench("--results", tmp_path) == 3
    assert started == [[sys.executable, "-m", "sparseloom", "bench", "gpu", "--seconds", "0", "--resume"]]
    before = json.loads((tmp_path / "h200" / "gpu.json").read_text())["records"]
    assert len(before) == 2 and "illegal memory access" in before[1]["error"]
    monkeypatch.setattr(measure, "alive", lambda: True)
    assert bench("--results", tmp_path, "--resume") == 1  # the error is still in the file
    after = json.loads((tmp_path / "h200" / "gpu.json").read_text())["records"]
    assert after[:2] == before and [record["op"] for record in after] == ["linear"] * 3 + ["host"]
    monkeypatch.setattr(results, "commit", lambda: "another")
    assert bench("--results", tmp_path, "--resume") == 2


def test_the_host_alone(on_the_cpu: SimpleNamespace, tmp_path: Path) -> None:
    assert bench("--results", tmp_path, "--only", "host") == 0
    (record,) = json.loads((tmp_path / "h200" / "gpu.json").read_text())["records"]
    assert record["calls"] == 200


def test_without_a_gpu_the_suite_says_so_and_still_lists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench("--results", tmp_path) == 2
    assert "GPU" in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert bench("--list", "--only", "dw-bf16", "--only", "128x128") == 0
    assert len(capsys.readouterr().out.split()) == 4


def test_the_host_is_timed_call_by_call_and_waits_outside() -> None:
    calls, waits = [], []
    found = host.per_call_us(lambda: calls.append(1), 250, lambda: waits.append(len(calls)))
    assert waits == [100, 200, 300, 400] and 0 < found.p20 <= found.median


def test_a_resumed_run_does_what_is_left() -> None:
    done = [measure.cell_fields(TINY[1]) | {"error": "x"}, {"op": "host"}]
    assert targets.unmeasured(TINY, done) == [TINY[0], TINY[2]]


# On a GPU: everything once.


@pytest.mark.gpu
def test_the_suite_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small = [
        Cell("forward", "bf16", 64, 512, 1024, (32, 32), 0.25),
        Cell("dx", "f16", 64, 512, 1024, (16, 16), 0.25),
        Cell("dw", "tf32", 64, 512, 1024, (64, 64), 0.25),
        Cell("forward", "f32", 64, 512, 1024, (16, 64), 0.25),
    ]
    monkeypatch.setitem(cells.SUITES, "gpu", lambda: small)
    monkeypatch.setattr(run, "host_cost", lambda where: host.host_cost(where, calls=200))
    assert bench("--results", tmp_path) == 0
    (path,) = tmp_path.glob("*/gpu.json")
    *found, called = json.loads(path.read_text())["records"]
    assert [cells.cell_of(each) for each in found] == small and called["op"] == "host"
    for each in found:
        assert each["candidates"], each
        for candidate in each["candidates"]:
            assert candidate["tile_excess"] <= 1 and (candidate["same_bits"] or candidate["kernel"] == "dense"), (each, candidate)
    assert found[0]["peers"]["torch_bsr"], found[0]["peers_absent"]
    assert found[0]["peers"]["cusparse_ell"], found[0]["peers_absent"]


@pytest.mark.gpu
def test_a_hole_in_a_result_is_seen() -> None:
    made = Operands(
        Cell("forward", "bf16", 64, 512, 1024, (32, 32), 0.25), torch.device("cuda", torch.cuda.current_device()), 1 << 20
    )
    reference = Reference(made)

    def holed(call: Callable[[], torch.Tensor]) -> torch.Tensor:
        y = torch.empty_like(call())
        y[:, 32:].copy_(call()[:, 32:])
        return y

    with torch.no_grad():
        whole = replay.Replay(scattered_calls(made))
        assert reference.check(whole.poisoned()).ok and whole.same_bits()
        lossy = replay.Replay([lambda call=call: holed(call) for call in scattered_calls(made)])
        assert not reference.check(lossy.poisoned()).ok
        assert whole.burst() > 0 and min(whole.sustained()) > 0
        assert replay.synchronises(lambda: torch.nonzero(whole.outputs[0])) and not replay.synchronises(scattered_calls(made)[0])


def fewer_tokens() -> list[Cell]:
    """The committed cells at token counts that a test can afford, each once."""
    return list(dict.fromkeys(replace(cell, m=min(cell.m, 257)) for cell in cells.gpu_cells()))


@pytest.mark.gpu
@pytest.mark.parametrize("cell", fewer_tokens(), ids=str)
def test_every_committed_cell_is_right(cell: Cell) -> None:
    with torch.no_grad(), tf32_switch(cell.tf32):
        made = Operands(cell, torch.device("cuda", torch.cuda.current_device()), 1)
        reference = Reference(made)
        for each in measure.plan_of(made)["candidates"]:
            if not each["refusal"]:
                found = reference.check(made.calls(each["kernel"])[-1]())
                assert found.ok, f"{each['kernel']}: {found}"
