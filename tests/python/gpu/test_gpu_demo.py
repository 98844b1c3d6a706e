"""`sparseloom demo --preset h200 --quick` on a GPU: it ends, says which kernels ran, and resumes bitwise."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_demo_job import assert_same_outcome, interrupt_at
from test_demo_preset import demo

from sparseloom_bench.demo import checkpoint, train

pytestmark = [
    pytest.mark.gpu,
    # torch's own, at inductor's import
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]
SMALL = ("--preset", "h200", "--quick", "--steps", 10, "--width", 256, "--block", 32, "--threads", 2)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of one uninterrupted run; its results file lies in results/."""
    out = tmp_path_factory.mktemp("gpu-demo")
    assert demo(*SMALL, "--out", out, "--results", out / "results") == 0
    return out


def test_the_table_and_the_layers_come_from_the_gpu(finished: Path) -> None:
    (path,) = (finished / "results").glob("*/demo_h200.json")
    run = json.loads(path.read_text())
    assert run["gpu"] == torch.cuda.get_device_name() and run["device"] == path.parent.name
    layers = [record for record in run["records"] if record["op"] == "demo_layer"]
    assert len(layers) == 4 * 2
    for record in layers:
        assert record["dtype"] == "bfloat16" and all(
            kernel.startswith("sm") for kernel in record["kernels"].values()
        )
        assert min(record["us"].values()) > 0 and min(record["dense_us"].values()) > 0
    assert torch.cuda.get_device_name() in (finished / "report.html").read_text()
    losses = json.loads((finished / "results.json").read_text())["models"][1]["losses"]
    assert losses[-1] < losses[0]


def test_no_switch_of_torch_is_left_turned(finished: Path) -> None:
    assert finished.is_dir() and not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_resumes_bitwise(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5, number)
        assert demo(*SMALL, "--out", tmp_path) == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.NAME]
    torch._dynamo.reset()  # as in a process of its own
    assert demo(*SMALL, "--out", tmp_path, "--resume") == 0
    assert_same_outcome(finished, tmp_path)


def test_a_model_starts_with_the_same_bits_on_every_device() -> None:
    on_gpu, on_cpu = (
        train.build_model("sparse", train.Settings(width=128, layers=1, preset=name))
        for name in ("h200", "cpu")
    )
    for (name, a), b in zip(on_gpu.named_parameters(), on_cpu.parameters(), strict=True):
        assert a.is_cuda and torch.equal(a.cpu(), b), name
