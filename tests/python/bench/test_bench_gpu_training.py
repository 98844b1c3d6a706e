"""The GPU suite's training steps and changed topologies: on the CPU with small sizes, and once on a GPU."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest
import torch
from bench_stand import CPU, Stand, stand_in

from sparseloom import ops
from sparseloom.nn import BlockSparseLinear
from sparseloom_bench.bench import cells
from sparseloom_bench.bench.gpu import goals, measure, targets, topology, training
from sparseloom_bench.bench.gpu.device import Monitor


@pytest.fixture(name="on_the_cpu")
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return stand_in(monkeypatch)


def test_a_training_step_is_compared_with_its_products(
    on_the_cpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(goals, "SQUARE", (64, 128, 128))
    monkeypatch.setattr(training, "Replay", Stand)
    monkeypatch.setattr(
        training,
        "in_turn",
        lambda made, rounds: {name: [each.burst()] * rounds for name, each in made.items()},
    )
    monkeypatch.setattr(training, "plan_of", measure.plan_of)
    found = training.layer_step(on_the_cpu.settings, 16, 0.5)
    assert found["name"] == "step-bf16-64x128x128-16x16-d0.5" and set(found["products_us"]) == set(
        cells.DIRECTIONS
    )
    assert found["beyond_us"] == pytest.approx(
        found["us"]["median"] - sum(found["products_us"].values()), abs=0.05
    )
    assert 0 < max(found["relative_error"].values()) < 0.02 and set(found["relative_error"]) == {
        "y",
        "dx",
        "dvalues",
        "dbias",
    }


def test_a_wrong_gradient_shows_in_the_step() -> None:
    layer = BlockSparseLinear(64, 48, density=0.5, block=16, dtype=torch.bfloat16)
    dense = torch.randn(48, 64)
    packed = training.blocks_of(dense, layer)
    unpacked = ops.call("unpack", packed, layer.index.crow, layer.index.col, 48, 64)
    assert (
        torch.equal(unpacked != 0, (unpacked == dense) & (unpacked != 0))
        and packed.shape == layer.values.shape
    )
    assert training.compared(["a"], (packed * 1.1,), (packed,)) == {"a": pytest.approx(0.1, rel=1e-3)}


def test_the_mlp_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse, dense = training.mlps(CPU, 128, 256)
    (data,) = training.operands(32, 128, 128, 1, CPU)
    errors = training.mlp_error(sparse, *data, sparse)
    assert 0 < max(errors.values()) < 0.02
    calls = training.steps(dense, list(dense.parameters()), [data])
    assert calls[0]().shape == data[0].shape and dense.up.weight.grad is None


def test_the_compiled_mlp_is_checked_and_timed_beside_dense(
    on_the_cpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TOKENS", 32), ("WIDTH", 128), ("HIDDEN", 256), ("Replay", Stand)):
        monkeypatch.setattr(training, name, value)
    monkeypatch.setattr(
        training,
        "in_turn",
        lambda made, rounds: {name: [us[name] * (each.burst() > 0)] * rounds for name, each in made.items()},
    )
    us = {"sparse": 200.0, "dense": 500.0}  # a measured quotient may have too few digits to compare
    found = training.compiled_mlp(on_the_cpu.settings, backend="aot_eager")
    assert (found["dense_us"], found["us"]["median"], found["speedup"]) == (500, 200, 2.5)
    assert 0 < max(found["relative_error"].values()) < 0.02
    assert {key: found[key] for key in training.mlp_fields()} == training.mlp_fields()


def test_a_changed_topology_is_planned_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()  # of a clock that goes on by a millisecond whenever it is read
    monkeypatch.setattr(topology, "time", SimpleNamespace(perf_counter=lambda: 1e-3 * next(ticks)))
    found = topology.host_plan("cpu")
    assert found["changes"] == 30 and set(found["parts_us"].values()) == {1000.0}
    assert found["parts_us"].keys() == {"index", *cells.DIRECTIONS} and next(ticks) == 2 * 4 * 33
    assert found["target_us"] == goals.HOST_PLAN_US and found["us"]["median"] == 4000


@pytest.mark.parametrize("wrong", [None, "slot"])
def test_tables_rewritten_on_the_device_are_compared_with_the_hosts(
    monkeypatch: pytest.MonkeyPatch, wrong: str | None
) -> None:
    real = ops.set_topology

    def set_topology(index: ops.Index, *arguments: torch.Tensor) -> None:
        real(index, *arguments)
        if wrong:
            getattr(index, wrong)[0] += 1

    monkeypatch.setattr(topology, "FEATURES", 256)
    monkeypatch.setattr(ops, "set_topology", set_topology)
    monkeypatch.setattr(topology, "Replay", Stand)
    monkeypatch.setattr(
        topology,
        "in_turn",
        lambda made, rounds: {name: [each.burst()] * rounds for name, each in made.items()},
    )
    if wrong:
        with pytest.raises(RuntimeError, match="the rewritten index"):
            topology.device_plan(CPU)
    else:
        found = topology.device_plan(CPU)
        assert (
            found["us"]["median"] > 0 and found["blocks"] == 6 and found["target_us"] == goals.DEVICE_PLAN_US
        )


def settings_here() -> measure.Settings:
    here = torch.device("cuda", torch.cuda.current_device())
    return measure.Settings(here, 1 << 20, 0.0, False, Monitor(here))


@pytest.mark.gpu
def test_training_steps_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goals, "SQUARE", (512, 512, 768))
    found = training.layer_step(settings_here(), 64, 0.25)
    assert max(found["relative_error"].values()) < targets.STEP_ERROR and found["graph_us"]["median"] > 0, (
        found
    )
    assert min(found["products_us"].values()) > 0 and found["us"]["median"] >= 0.9 * sum(
        found["products_us"].values()
    )
    for name, value in (("TOKENS", 256), ("WIDTH", 256), ("HIDDEN", 512)):
        monkeypatch.setattr(training, name, value)
    mlp = training.compiled_mlp(settings_here())
    assert max(mlp["relative_error"].values()) < targets.STEP_ERROR and mlp["speedup"] > 0, mlp


@pytest.mark.gpu
def test_plans_of_a_changed_topology_on_a_gpu() -> None:
    here = settings_here().device
    assert topology.host_plan(here)["us"]["median"] > 0
    assert topology.device_plan(here)["us"]["median"] > 0  # raises when the tables are not the host's
