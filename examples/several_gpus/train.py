"""Trains a model with sparse MLPs on several processes, and saves it as an ordinary file.

    torchrun --nproc-per-node 2 examples/several_gpus/train.py tp

The argument is ddp, fsdp2, tp, or both (tensor parallelism in pairs of ranks, FSDP2 across the pairs). Each
process takes one GPU; without GPUs they compute on the CPU.
"""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

import sparseloom
from sparseloom.distributed import mlp_plan


class Mlp(nn.Module):
    """A gated MLP."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden)
        self.up_proj = nn.Linear(width, hidden)
        self.down_proj = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps x [..., width] to the same."""
        hidden = F.silu(self.gate_proj(x)) * self.up_proj(x)
        y: torch.Tensor = self.down_proj(hidden)
        return y


class Block(nn.Module):
    """An MLP beside a residual path, which has to lie outside of the module that is cut."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.mlp = Mlp(width, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps x [..., width] to the same."""
        y: torch.Tensor = x + self.mlp(x)
        return y


def sparse_model(device: str) -> nn.Sequential:
    """Returns the same model on every rank: equal weights and seeds give equal patterns."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(64, 192) for _ in range(2))).to(device)
    sparseloom.sparsify_(model, {".*_proj": sparseloom.BlockSparse(16, 0.5, "random", seed=0)})
    return model


def spread(model: nn.Sequential, way: str, mesh: DeviceMesh) -> nn.Module:
    """Returns the model, spread over the ranks of mesh ("dp", "tp")."""
    if way == "ddp":
        return DistributedDataParallel(model, process_group=mesh.get_group("dp"))
    for block in model.children():
        if way in ("tp", "both"):
            mlp = block.get_submodule("mlp")
            plan = mlp_plan(mlp, ["gate_proj", "up_proj"], "down_proj", mesh["tp"])
            parallelize_module(mlp, mesh["tp"], plan)
        if way in ("fsdp2", "both"):
            fully_shard(block, mesh=mesh["dp"])
    return model


def main(way: str) -> None:
    """Trains, saves on all ranks together, and loads into a whole model."""
    kind, rank = "cuda" if torch.cuda.is_available() else "cpu", int(os.environ["LOCAL_RANK"])
    if kind == "cuda":
        torch.cuda.set_device(rank)
    world = int(os.environ["WORLD_SIZE"])
    parts = {"ddp": 1, "fsdp2": 1, "tp": world, "both": min(2, world)}[way]
    mesh = init_device_mesh(kind, (world // parts, parts), mesh_dim_names=("dp", "tp"))

    model = sparse_model(kind)
    trained = spread(model, way, mesh)
    # After the model is spread. torch's products of lists refuse cut and whole parameters in one list.
    optimizer = torch.optim.AdamW(trained.parameters(), lr=3e-3, foreach=False)

    torch.manual_seed(mesh["dp"].get_local_rank())  # ranks that share a model take the same samples
    x = torch.randn(256, 64, device=kind)
    y = torch.sin(3 * x)
    for step in range(60):
        optimizer.zero_grad()
        loss = F.mse_loss(trained(x), y)
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step:2}: {loss.item():.4f}")

    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    file = Path(folder[0]) / "model.safetensors"
    sparseloom.save(model, file)
    whole = sparse_model(kind)
    sparseloom.load(file, whole)
    with torch.no_grad():
        assert torch.allclose(whole(x), trained(x), atol=1e-4)
    if dist.get_rank() == 0:
        print(f"saved and loaded: {file.stat().st_size:,} bytes")
        file.unlink()
        file.parent.rmdir()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
