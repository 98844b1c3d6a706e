"""Tensor parallelism, FSDP2 and DDP of sparse layers: ranks.py on four ranks with gloo, and on two GPUs with
NCCL. Each rank compares with a model that it trains alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKS = [
    "tensor parallel trains as one process",
    "ranks have about as many blocks",
    "FSDP2 trains as one process",
    "tensor parallel and FSDP2 train as one process",
    "DDP trains as one process",
    "DDP sends no index",
    "DDP names patterns that differ",
    "sequence parallel has the gradients of one process",
    "gradients accumulate",
    "bf16 products of wider values",
    "two ranks' checkpoint loads into all ranks",
    "all ranks' checkpoint loads into one",
    "and both train on alike",
    "a checkpoint of tensor parallel and FSDP2 loads into all ranks",
    "a file of sharded layers is an ordinary one",
    "an ordinary file loads into cut layers",
    "an ordinary file loads into sharded layers",
    "an ordinary file loads into cut and sharded layers",
    "all ranks say that rank 0 cannot write",
    "a layer cut across block rows trains as the whole one",
    "a layer cut across block columns trains as the whole one",
    "blocks move alike in a cut layer",
    "and so does the optimizer's state",
    "blocks cannot move to another rank",
    "what cannot be cut is refused",
    "a copy of a cut layer is one",
]


def run_ranks(kind, world, folder):
    command = [sys.executable, "-W", "error::RuntimeWarning", str(HERE / "ranks.py"), kind, str(world)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(world)
    ]
    return [(rank, *rank.communicate(timeout=400)) for rank in ranks]


def require_checks(kind, world, folder):
    """Raises AssertionError unless all ranks printed all checks; the last one leaves before the others look
    for it."""
    done = run_ranks(kind, world, folder)
    failed = "\n".join(error[-3000:] for rank, _, error in done if rank.returncode)
    assert not failed, failed
    last = ["a rank that fails leaves no hang"] if kind == "cpu" else []
    for number, (_, out, _) in enumerate(done):
        assert out.splitlines() == CHECKS + (last if number < world - 1 else [])


def test_four_ranks(tmp_path):
    require_checks("cpu", 4, tmp_path)


@pytest.mark.two_gpus
def test_second_device_two_ranks(tmp_path):
    require_checks("cuda", 2, tmp_path)
