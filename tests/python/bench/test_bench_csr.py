"""bench csr at its smoke size: what its record says, and what it refuses."""

from __future__ import annotations

import json
import math

import pytest
import torch

from sparseloom import cli
from sparseloom_bench.bench import csr


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "csr", *arguments])
    return int(end.value.code or 0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_cell_of_a_smoke_run_is_recorded(device: str, dtype: str, tmp_path, capsys):
    assert (
        run("--smoke", "--seconds", "0.001", "--device", device, "--dtype", dtype, "--results", str(tmp_path))
        == 0
    )
    (path,) = tmp_path.glob("*/csr_linear*.json")
    assert path.stem == ("csr_linear" if dtype == "float32" else f"csr_linear_{dtype}")
    record = json.loads(path.read_text())
    assert record["suite"] == "csr_linear" and ("gpu" in record) == (device == "cuda")
    cells = [(each["sparsity"], each["tokens"]) for each in record["records"]]
    assert cells == [(sparsity, tokens) for sparsity in csr.SPARSITIES for tokens in csr.TOKENS]
    beside = False  # whether torch.sparse was: MKL has no bf16, and cuSPARSE has its forward product alone
    for each in record["records"]:
        assert each["kernels"].keys() == each["us"].keys() == {"forward", "dx", "dw"}
        for products in csr.PRODUCTS.values():
            found = csr.speedups(each, products)
            assert {"ours", "dense"} <= found.keys()
            assert all(math.isfinite(each) and each > 0 for each in found.values())
            beside = beside or "torch" in found
    assert beside == (dtype == "float32" or device == "cuda")
    assert ("in geometric mean" in capsys.readouterr().out) == beside


def test_a_wrong_result_is_an_error(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(csr.Csr, "dx", lambda self, dy, values: torch.zeros(len(dy), self.cols))
    assert run("--smoke", "--seconds", "0.001", "--results", str(tmp_path)) == 1
    assert "wrong: [48, 40] 0.9 1" in capsys.readouterr().err


def test_what_it_refuses(capsys):
    assert run("--device", "tpu") == 1
    assert "cpu or cuda" in capsys.readouterr().err
    assert run("--dtype", "float64") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert run("--device", "cuda") == 1
    assert "a GPU for the suite csr" in capsys.readouterr().err
