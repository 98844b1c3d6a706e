"""DistributedDataParallel and fully_shard on two ranks with gloo; two_ranks.py is what each runs."""

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from sparseloom import BlockSparse, prepare_ddp, sparsify_

SHOWN = [
    "no index is broadcast",
    "other buffers are",
    "ddp equals one rank",
    "sparsify_ under ddp is refused",
    "and from inside it",
    "patterns that differ are named",
    "values are sharded by blocks",
    "fsdp2 equals one rank",
    "patching under fully_shard is refused",
]


def test_two_ranks(tmp_path):
    script = Path(__file__).with_name("two_ranks.py")
    command = [sys.executable, "-W", "error::RuntimeWarning", str(script)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    done = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(stderr for _, stderr in done)
    whole = "what is gathered loads into a whole model"
    assert [line for line in done[0][0].splitlines() if line != whole] == SHOWN and whole in done[0][0]
    assert done[1][0].splitlines() == SHOWN


def test_prepare_ddp_without_ranks_takes_the_indices_out():
    net = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32))
    sparsify_(net, {"0": BlockSparse(16, 0.5)})
    assert prepare_ddp(net) is net
    assert set(net._ddp_params_and_buffers_to_ignore) == {f"0.{name}" for name in ("crow", "col", "ccol", "row", "slot")}
    assert torch.is_tensor(net[0].crow)
