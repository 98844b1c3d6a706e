"""The methods, a model, batches and a training loop for the tests of methods at work."""

import torch
import torch.nn.functional as F
from torch import nn

from sparseloom import BlockSparse, sparsify_
from sparseloom.nn import BlockSparseLinear, MaskedLinear
from sparseloom.sparsify import methods as M

#: name -> (method, whether it takes a density)
METHODS = {
    "magnitude": (M.magnitude(5), True),
    "gradual": (M.gradual(4, 16, 3), True),
    "gradual global": (M.gradual(4, 16, 3, scope="global", returns=False), True),
    "set": (M.set_(4, end_step=17), True),
    "rigl": (M.rigl(17, 4), True),
    "decreasing": (M.decreasing(4, 16, 3), True),
    "movement": (M.movement(4, 16, 3, lr=0.1), True),
    "soft movement": (M.soft_movement(4, 16, 3, penalty=20.0, lr=0.3), False),
    "supermask": (M.supermask(lr=0.1), True),
    "frozen supermask": (M.supermask(frozen=True, lr=0.1), True),
    "spartan": (M.spartan(16, 5), True),
    "l0": (M.l0(0.005, lr=0.3), False),
    "group lasso": (M.group_lasso(20.0, 0.5, 2, 8, 16, 2), False),
    "ac/dc": (M.ac_dc(4, 4, 16), True),
}


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 40), nn.Tanh(), nn.Linear(40, 10))


def batches(steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(32, 64, generator=generator), torch.randint(10, (32,), generator=generator))
        for _ in range(steps)
    ]


def start(name, block=8, **more):
    method, takes = METHODS[name]
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)  # before sparsify_
    chosen = BlockSparse(block, 0.25 if takes else None, method=method, **more)
    done = sparsify_(net, {"[02]": chosen}, optimizer=optimizer)
    return net, optimizer, done.method


def train(net, optimizer, run, data):
    for x, y in data:
        optimizer.zero_grad()
        (F.cross_entropy(net(x), y) + run.penalty()).backward()
        optimizer.step()
        run.step()


def everything(net, optimizer):
    state = {f"model {name}": value for name, value in net.state_dict().items()}
    for number, each in enumerate(optimizer.state_dict()["state"].values()):
        state |= {f"state {number} {name}": value for name, value in each.items()}
    return state


def layers(net):
    return [m for m in net if isinstance(m, (BlockSparseLinear, MaskedLinear))]
