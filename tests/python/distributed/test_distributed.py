"""DistributedDataParallel and fully_shard on two ranks with gloo; two_ranks.py is what each runs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sparseloom import BlockSparse, Error, SparseTensor, layouts, prepare_ddp, sparsify_

SHOWN = [
    "no index is broadcast",
    "other buffers are",
    "ddp equals one rank",
    "sparsify_ under ddp is refused",
    "and from inside it",
    "patterns that differ are named",
    "an 8-bit layer stays out of ddp",
    "8-bit weights that differ are named",
    *["masks that differ are named", "masks that are broadcast are taken"] * 3,
    "values are sharded by blocks",
    "fsdp2 equals one rank",
    "and reads no dense copy of gathered values",
    "a rank without a block takes part",
    "and computes the same",
    "fully_shard's mixed precision leaves the indices int32",
    "patching under fully_shard is refused",
]


def ranks_of(name, tmp_path):
    """Returns (stdout, stderr) of the script on each of two ranks."""
    script = Path(__file__).parents[1] / name
    command = [sys.executable, "-W", "error::RuntimeWarning", str(script)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    done = [rank.communicate(timeout=900) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(stderr for _, stderr in done)
    return done


def test_methods_move_the_same_blocks_on_two_ranks(tmp_path):
    checks = [
        f"{name} is the same on both ranks"
        for name in ("gradual", "supermask", "set", "rigl", "rigl with room")
    ]
    checks.append("an overflow on one rank is one on both")
    assert [out.splitlines() for out, _ in ranks_of("two_ranks_methods.py", tmp_path)] == [checks, checks]


def test_layers_in_other_layouts_on_two_ranks(tmp_path):
    trained = [
        "no index is broadcast",
        "ddp equals one rank",
        "and both ranks are equal",
        "and every layer learned",
    ]
    kept = ["what is saved loads", "pickles keep bits"]
    named = [f"{name} that differ are named" for name in ("csr", "coo", "bitmap", "nm", "nmg", "ell_rows")]
    checks = [*trained, *trained, *kept, *named]  # in fp32, and under autocast with a scaler
    assert [out.splitlines() for out, _ in ranks_of("two_ranks_layouts.py", tmp_path)] == [checks, checks]


def test_masks_of_2_to_4_are_the_same_on_two_ranks(tmp_path):
    checks = [
        f"{rule} under {how} equals one rank"
        for rule in ("sr_ste", "sr_ste_decoupled", "cast", "s_ste")
        for how in ("ddp", "fsdp2")
    ]
    assert [out.splitlines() for out, _ in ranks_of("two_ranks_semi24.py", tmp_path)] == [checks, checks]


def test_two_ranks(tmp_path):
    done = ranks_of("two_ranks.py", tmp_path)
    gathered = [
        "what is gathered loads into a whole model",
        "b29: no absent block came back under fully_shard",
    ]
    first = done[0][0].splitlines()
    assert [line for line in first if line not in gathered] == SHOWN and [
        line for line in first if line in gathered
    ] == gathered
    assert done[1][0].splitlines() == SHOWN
    # said once, not once a rank
    assert "became block-sparse" in done[0][1] and "became block-sparse" not in done[1][1]


def test_prepare_ddp_without_ranks_takes_the_indices_out():
    net = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32))
    sparsify_(net, {"0": BlockSparse(16, 0.5)})
    net._ddp_params_and_buffers_to_ignore = ["1.running_mean"]  # the program's own
    assert prepare_ddp(net) is net
    assert set(net._ddp_params_and_buffers_to_ignore) == {"0.packed_index", "1.running_mean"}
    assert torch.is_tensor(net[0].packed_index)


def test_sparse_tensors_among_the_parameters_are_refused_by_name():
    """One process of gloo: the refusal comes before anything is sent."""
    net = nn.Sequential(nn.Linear(8, 8))
    net[0].weight = nn.Parameter(SparseTensor.from_dense(torch.eye(8), layouts.Csr))
    with pytest.raises(Error, match=r"prepare_ddp.*plain tensors.*0\.weight, a SparseTensor.*sparsify_"):
        prepare_ddp(net)
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(Error, match=r"DistributedDataParallel.*0\.weight, a SparseTensor"):
            DistributedDataParallel(net)
    finally:
        dist.destroy_process_group()
