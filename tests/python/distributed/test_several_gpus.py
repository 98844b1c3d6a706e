"""Tensor parallelism, FSDP2 and DDP of sparse layers: ranks.py on four ranks with gloo, and on two GPUs with
NCCL. Each rank compares with a model that it trains alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
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
    "torch gathers the order of the whole weight",
    "and loads it",
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
    "what torch would load in the parts' order is refused",
]


def require_checks(kind, world, folder):
    """Raises AssertionError unless all ranks wrote all checks. On the CPU the last rank then fails, and the
    others tell that they did not wait for it."""
    command = [sys.executable, "-W", "error::RuntimeWarning", str(HERE / "ranks.py"), kind, str(world)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(folder)], capture_output=True, text=True, env=environment, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    last = ["a rank that fails leaves no hang"] if kind == "cpu" else []
    for rank in range(world):
        expected = CHECKS + (last if rank < world - 1 else [])
        assert (folder / str(rank)).read_text().splitlines() == expected


def test_four_ranks(tmp_path):
    require_checks("cpu", 4, tmp_path)


@pytest.mark.two_gpus
def test_second_device_two_ranks(tmp_path):
    require_checks("cuda", 2, tmp_path)
