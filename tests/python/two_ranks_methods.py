"""What test_distributed.py runs on each of two ranks: `two_ranks_methods.py RANK FILE`.

Methods under DistributedDataParallel, each rank with its own half of the batch. Prints one line for each
check that held.
"""

import sys

import torch
import torch.distributed as dist
from leaving import leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sparseloom import BlockSparse, prepare_ddp, sparsify_
from sparseloom.sparsify import methods

RANK = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=2)


def data(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 64, generator=generator), torch.randn(16, 48, generator=generator)


def same_everywhere(tensor):
    other = tensor.clone()
    dist.broadcast(other, 0)
    return torch.equal(other, tensor)


METHODS = {
    "gradual": methods.gradual(2, 8, 2),
    "supermask": methods.supermask(lr=0.1),
    "set": methods.set_(3),
    "rigl": methods.rigl(100, 3),
    "rigl with room": methods.rigl(100, 3),
}
for name, method in METHODS.items():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 48))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    capacity = 0.5 if name.endswith("room") else None
    chosen = BlockSparse(8, 0.3, "random", seed=0, method=method, capacity=capacity)
    run = sparsify_(net, {"0": chosen}, optimizer=optimizer).method
    wrapped, before = DistributedDataParallel(prepare_ddp(net)), net[0].pattern.mask
    for step in range(10):
        x, y = data(step)
        optimizer.zero_grad()
        (wrapped(x[RANK::2]) - y[RANK::2]).square().mean().backward()
        optimizer.step()
        run.step()
    mask = net[0].pattern.mask
    assert not torch.equal(mask, before) and int(mask.sum()) == 29
    weight = net[0].values if name[:4] in ("set", "rigl") else net[0].weight
    moment = optimizer.state[weight]["exp_avg"]
    assert all(same_everywhere(each) for each in (mask, weight.detach(), moment)), name
    print(f"{name} is the same on both ranks", flush=True)

# A rank whose gradient overflowed holds back the change on both.
held = run.weights[0]
held.pairs = [(torch.full((4, 96), float("inf") if RANK else 1.0), torch.ones(4, 64))]
assert held.gradient_scores("l2") is None
print("an overflow on one rank is one on both", flush=True)
del wrapped, net, optimizer, run, held
dist.barrier()
leave()
