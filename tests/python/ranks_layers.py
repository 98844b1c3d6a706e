"""Layers cut between ranks, one at a time. Each function prints one line for each check that held."""

import copy

import torch
from ranks_model import close, error_of, expect, gradients, state_of, whole
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import parallelize_module

from sparseloom.distributed import BlockColwiseParallel, BlockRowwiseParallel, borders
from sparseloom.nn import BlockSparseLinear

IN, OUT, BLOCK = 96, 64, 8


class _Own(BlockSparseLinear):
    """A layer with another forward, which a cut would miss."""

    def forward(self, x, residual=None):
        """Doubles x first."""
        return super().forward(2 * x, residual)


def layer(device, seed=4, **options):
    """Returns a layer with bias and activation, most of it in its first block row and column."""
    torch.manual_seed(seed)
    made = BlockSparseLinear(IN, OUT, density=0.4, block=BLOCK, **{"activation": "gelu"} | options)
    mask = torch.zeros(OUT // BLOCK, IN // BLOCK, dtype=torch.bool)
    mask[0] = mask[:, 0] = True
    free = (~mask).view(-1).nonzero()[:, 0]
    mask.view(-1)[free[torch.randperm(len(free))[: made.pattern.blocks - int(mask.sum())]]] = True
    made.set_topology_(mask)
    made.fix_topology_()
    nn.init.normal_(made.values)
    return made.to(device, torch.float64 if device == "cpu" else torch.float32)


def cut(made, mesh, dim, **options):
    """Returns the layer, cut so that it takes and gives whole tensors unless ``options`` say otherwise."""
    if dim == 0:
        return parallelize_module(
            made, mesh, BlockColwiseParallel(**{"output_layouts": Replicate()} | options)
        )
    return parallelize_module(made, mesh, BlockRowwiseParallel(**{"input_layouts": Replicate()} | options))


def trained(model, steps, rate=0.1):
    """Takes steps of SGD with momentum; returns the last y, dx and gradients, and the optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    like = model[0].values
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        x, dy = (torch.randn(7, 3, n, generator=generator, dtype=torch.float64) for n in (IN, OUT))
        x, dy = x.to(like.device, like.dtype).requires_grad_(), dy.to(like.device, like.dtype)
        optimizer.zero_grad()
        y = model(x)
        y.backward(dy)
        optimizer.step()
    return {"y": y.detach(), "dx": x.grad, **gradients(model)}, optimizer


def check_products(mesh, device):
    """One layer by itself, whose input and output are whole on every rank."""
    for dim, name in enumerate(("rows", "columns")):
        one, parts = nn.Sequential(layer(device)), nn.Sequential(cut(layer(device), mesh, dim))
        equal = close(trained(parts, 2)[0], trained(one, 2)[0]) and close(state_of(parts), state_of(one))
        expect(f"a layer cut across block {name} trains as the whole one", equal)


def check_topology(mesh, device):
    """Blocks that move within the parts of a cut layer."""
    one, parts = nn.Sequential(layer(device)), nn.Sequential(cut(layer(device), mesh, 1))
    optimizers = [trained(model, 2)[1] for model in (one, parts)]
    mask = one[0].pattern.mask
    half = mask.shape[1] // mesh.size()
    moved = torch.cat([part.roll(1, 0) for part in mask.split(half, 1)], 1)
    grown = whole(one[0].to_dense()[0].weight) + 1
    for model, optimizer in zip((one, parts), optimizers, strict=True):
        model[0].set_topology_(moved, optimizer=optimizer, grown=grown)
    expect("blocks move alike in a cut layer", close(state_of(parts), state_of(one)))
    for optimizer in optimizers:
        optimizer.step()
    expect("and so does the optimizer's state", close(state_of(parts), state_of(one)))
    uneven = torch.zeros_like(mask)
    uneven.view(-1)[: int(mask.sum())] = True
    got = error_of(lambda: parts[0].set_topology_(uneven.t().reshape(mask.shape)))
    expect("blocks cannot move to another rank", "move blocks within the parts of dimension 1" in got)


def check_refusals(mesh, device):
    """What cannot be cut, or not be done to a part, raises Error on every rank."""
    rank, size = mesh.get_local_rank(), mesh.size()
    refused = {
        "features in": lambda: cut(BlockSparseLinear(IN, 56, density=0.5, block=8, device=device), mesh, 0),
        "rising borders": lambda: cut(layer(device), mesh, 0, borders=[0] * size + [OUT]),
        "one that is cut already": lambda: cut(cut(layer(device), mesh, 0), mesh, 0),
        "one that fully_shard": lambda: cut(fully_shard(layer(device)), mesh, 0),
        "one pattern of the layer": lambda: cut(layer(device, seed=rank), mesh, 0),
        "fuse_wgrad_accumulation": lambda: cut(layer(device, fuse_wgrad_accumulation=True), mesh, 0),
        "a BlockSparseLinear with its own forward": lambda: cut(_Own(IN, OUT, density=0.5), mesh, 0),
        "borders for Linear": lambda: cut(nn.Linear(IN, OUT, device=device), mesh, 0, borders=[0, OUT]),
        "one number of features": lambda: borders([layer(device)], [layer(device)], size),
        "parts of one width": lambda: cut(layer(device), mesh, 0, borders=[0, 8, OUT]) if size == 2 else None,
        "whole values": lambda: cut(layer(device), mesh, 0).to_dense(),
        "a whole layer": lambda: cut(layer(device), mesh, 1).reset_parameters(),
        "a part of one": lambda: setattr(cut(layer(device), mesh, 1), "dense_copy", True),
        "a residual": lambda: cut(layer(device), mesh, 1)(torch.zeros(2, IN, device=device), residual=1),
        "values that fully_shard": lambda: fully_shard(layer(device)).set_topology_(layer(device).pattern),
    }
    for text, call in refused.items():
        got = error_of(call)
        assert text in got or (text == "parts of one width" and size != 2), f"{text}: {got}"
    expect("what cannot be cut is refused", True)


def check_copies(mesh, device):
    """A copied part computes, and its optimizer's state is saved in the order of the whole weight."""
    made = nn.Sequential(cut(layer(device), mesh, 0))
    twin = copy.deepcopy(made)
    (results, optimizer), (theirs, _) = trained(twin, 2), trained(made, 2)
    saved = optimizer.state_dict()["state"][0]["momentum_buffer"]
    held = close(results, theirs) and len(saved) == made[0]._cut.pattern.blocks
    expect("a copy of a cut layer is one", held)


def check_broadcast(mesh, device):
    """torch would cut what rank 0 sends as if a part were a run of rows of the whole weight."""
    made = nn.Sequential(cut(BlockSparseLinear(IN, OUT, density=1.0, block=BLOCK, device=device), mesh, 1))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    try:
        set_model_state_dict(made, state_of(made), options=options)
    except RuntimeError as error:  # load_state_dict puts ours into its own
        held = "values in the order of the whole weight" in str(error)
        expect("what torch would load in the parts' order is refused", held)
