"""bench.ranks and the example for several GPUs, on one rank: the course, and what the record says."""

import importlib.util
import json
import socket
from pathlib import Path

import pytest
import torch.distributed as dist

from sparseloom.bench.ranks import __main__ as ranks
from sparseloom.bench.ranks.exposed import covered

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def one_rank(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    about = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in about.items():
        monkeypatch.setenv(name, str(value))
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_every_way_is_measured(one_rank, tmp_path, capsys):
    sizes = {"width": 64, "hidden": 128, "layers": 1, "samples": 1, "tokens": 8, "head": 16, "block": 8}
    asked = [f"--{name}={size}" for name, size in (sizes | {"device": "cpu", "rounds": 2}).items()]
    ranks.main([*asked, "--results", str(tmp_path)])
    (file,) = tmp_path.glob("*/ranks.json")
    found = json.loads(file.read_text())
    assert found["world"] == 1 and found["sizes"]["hidden"] == 128
    assert [(record["way"], record["mlp"]) for record in found["records"]] == [
        (way, mlp) for way in ranks.WAYS for mlp in ("dense", "sparse")
    ]
    for record in found["records"]:
        assert ("over_one_gpu" in record) == (not record["way"].endswith("alone"))
        assert ("over_dense" in record) == (record["mlp"] == "sparse")
        assert record["tokens_per_s"] == pytest.approx(8e6 / record["us"]["median"], rel=1e-2, abs=0.5)


def test_exposed_time_is_what_no_computation_covers():
    assert covered([]) == 0
    assert covered([(0, 2), (1, 3), (5, 6), (5, 5.5)]) == 4
    sent, computed = [(0, 4), (10, 12)], [(3, 11), (20, 30)]
    assert covered([*sent, *computed]) - covered(computed) == 4


@pytest.mark.parametrize("way", ["ddp", "fsdp2", "tp", "both"])
def test_the_example_trains(way, one_rank, capsys):
    spec = importlib.util.spec_from_file_location("several_gpus", ROOT / "examples/several_gpus/train.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main(way)
    losses = [float(line.split(": ")[1]) for line in capsys.readouterr().out.splitlines()[:3]]
    assert losses[2] < 0.9 * losses[0]
