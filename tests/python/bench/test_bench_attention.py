"""bench attention at its smoke size: what its record and its table say."""

import json

import pytest
import torch

from sparseloom import cli
from sparseloom_bench.bench import attention


def test_every_cell_of_a_smoke_run_is_recorded(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "attention", "--smoke", "--seconds", "0.001", "--results", str(tmp_path)])
    assert not end.value.code
    (path,) = tmp_path.glob("*/block_attention.json")
    records = json.loads(path.read_text())["records"]
    assert [(each["block"], each["density"], each["kind"]) for each in records] == [
        (block, density, kind)
        for block in attention.BLOCKS
        for density in attention.DENSITIES
        for kind in attention.KINDS
    ]
    for each in records:
        assert each["us"]["ours"].keys() == {"forward", "backward", "transpose"}
        assert each["us"]["dense"].keys() == {"forward", "backward"} and each["error"] < 1e-5
        assert each["kernels"].keys() == {"forward", "backward"}
    assert capsys.readouterr().out.count("| 256, 64 | ") == len(records)


def test_maps_have_the_density_in_each_row():
    for kind in attention.KINDS:
        kept = attention.drawn(kind, 4096, 128, 0.25, torch.Generator().manual_seed(0))
        assert kept.shape == (1, 8, 32, 32) and (kept.sum(-1) == 8).all()
    assert kept.diagonal(dim1=-2, dim2=-1).float().mean() > 0.9


def test_wrong_options_are_named(capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "attention", "--dtype", "int8"])
    assert "a dtype of float32, bfloat16, float16" in capsys.readouterr().err
