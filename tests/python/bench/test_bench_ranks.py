"""bench.ranks and the example for several GPUs, on one rank: the course, and what the record says."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from sparseloom import cli
from sparseloom_bench.bench.ranks import __main__ as ranks
from sparseloom_bench.bench.ranks.exposed import covered

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def one_rank(monkeypatch):
    # Port 0 is any free one: a port that was looked up before may be another's when the store opens it.
    about = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
    for name, value in about.items():
        monkeypatch.setenv(name, str(value))
    yield {name: str(value) for name, value in about.items()}
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


def test_the_command_gives_each_rank_its_words(one_rank, tmp_path, capsys, monkeypatch):
    started = []
    done = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: started.append(command) or done)
    words = ["--device", "cpu", "--smoke", "--size", "tokens=4", "--rounds", "1", "--way", "alone"]
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "ranks", *words, "--way", "ddp", "--results", str(tmp_path)])
    assert end.value.code == 0
    (command,) = started
    program = command.index("sparseloom_bench.bench.ranks")
    assert command[1 : program - 1] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    monkeypatch.undo()
    for name, value in one_rank.items():
        monkeypatch.setenv(name, value)
    ranks.main(command[program + 1 :])
    (file,) = tmp_path.glob("*/ranks.json")
    found = json.loads(file.read_text())
    assert found["sizes"]["tokens"] == 4 and found["sizes"]["width"] == 64
    assert [record["way"] for record in found["records"]] == ["alone", "alone", "ddp", "ddp"]


@pytest.mark.skipif(torch.cuda.device_count() > 7, reason="there are as many GPUs")
def test_the_command_says_that_gpus_are_missing(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "ranks", "--processes", "8"])
    assert end.value.code == 1
    assert "[bench] expected 8 GPUs" in capsys.readouterr().err


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
