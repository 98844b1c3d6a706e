"""What is timed: a step of each model, alone on each GPU and spread over all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from sparseloom.distributed import mlp_plan
from sparseloom.errors import Error

from .stack import Sizes, made

#: How ranks share a model: alone, each has one for itself. "fsdp2 kept" gathers parameters once in a step,
#: and keeps them from the forward to the backward pass.
WAYS = ("alone", "ddp", "fsdp2", "fsdp2 kept", "mlp alone", "mlp tensor parallel")


@dataclass
class Arm:
    """One model and how the ranks share it.

    Args:
        way: one of WAYS.
        sparse: whether the MLPs are block-sparse.
        tokens: what a step trains on, on all ranks together.
        step: takes a step and returns the outputs of this rank.
    """

    way: str
    sparse: bool
    tokens: int
    step: Callable[[], Tensor]


def arms(ways: list[str], sizes: Sizes, mesh: DeviceMesh, dtype: torch.dtype) -> list[Arm]:
    """Returns the dense and the sparse arm of each way. Raises Error where a sparse tensor-parallel MLP does
    not compute what the whole one does."""
    found = []
    for way in ways:
        for sparse in (False, True):
            found.append(_arm(way, sparse, sizes, mesh, dtype))
    answers = {(arm.way, arm.sparse): arm.step() for arm in found if arm.way.startswith("mlp")}
    for sparse in (False, True):
        one, shared = (answers.get((way, sparse)) for way in WAYS[-2:])
        if one is not None and shared is not None:
            error = float((one - shared).float().norm() / one.float().norm())
            if not error < 2e-2:
                raise Error(
                    "bench", "the outputs of one GPU", f"a relative error of {error:.2g}", "report it"
                )
    return found


def _arm(way: str, sparse: bool, sizes: Sizes, mesh: DeviceMesh, dtype: torch.dtype) -> Arm:
    device = torch.device(mesh.device_type)
    mlp = way.startswith("mlp")
    model = made(sizes, device, dtype, sparse, mlp)
    generator = torch.Generator(device).manual_seed(0 if mlp else mesh.get_local_rank())
    x = torch.randn(sizes.samples, sizes.tokens, sizes.width, generator=generator, device=device, dtype=dtype)
    if way == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif way.startswith("fsdp2"):
        for part in (*model.get_submodule("blocks").children(), model):
            fully_shard(part, mesh=mesh, reshard_after_forward=way == "fsdp2")
    elif way == "mlp tensor parallel":
        parallelize_module(model, mesh, mlp_plan(model, ("gate_proj", "up_proj"), "down_proj", mesh))
    shared = way.startswith(("ddp", "fsdp2"))
    return Arm(way, sparse, sizes.batch * (mesh.size() if shared else 1), _step(model, x, mlp))


def _step(model: nn.Module, x: Tensor, mlp: bool) -> Callable[[], Tensor]:
    """Returns a step of SGD; of an MLP, forward and backward alone."""
    optimizer = None if mlp else torch.optim.SGD(model.parameters(), 1e-6)
    x = x.requires_grad_(mlp)  # a layer in a model has to give the gradient of its inputs

    def step() -> Tensor:
        y: Tensor = model(x)
        y.backward(torch.ones_like(y))
        if optimizer is not None:
            optimizer.step()
        model.zero_grad()
        x.grad = None
        return y.detach()

    return step
