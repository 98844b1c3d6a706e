"""The methods, a model, batches and a training loop for the tests of methods at work."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from sparseloom import BlockSparse, sparsify_
from sparseloom import sparsify as S
from sparseloom.nn import BlockSparseLinear, MaskedLinear
from sparseloom.sparsify import methods as M

#: name -> (method, whether it takes a density)
METHODS = {
    "magnitude": (M.magnitude(5), True),
    "gradual": (M.gradual(4, 16, 3), True),
    "gradual global": (M.gradual(4, 16, 3, scope="global", returns=False), True),
    "set": (M.set_(4, end=17), True),
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
#: What moves among masked weights as RigL and SET do among stored blocks.
MOVING = {
    name: S.Method(schedule=S.schedules.Constant(4, 17), gradient=S.gradients.Masked(), regrow=regrow)
    for name, regrow in (("rigl", S.regrow.Gradient()), ("set", S.regrow.Random()))
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


def begin(recipe, names="[02]", kind=torch.optim.AdamW, lr=1e-2, device="cpu", dtype=None):
    """Returns a model, its optimizer, made before sparsify_, and the run of the recipe's method."""
    net = model().to(device, dtype)
    optimizer = kind(net.parameters(), lr)
    return net, optimizer, sparsify_(net, {names: recipe}, optimizer=optimizer).method


def start(name, block=8, **more):
    method, takes = METHODS[name]
    return begin(BlockSparse(block, 0.25 if takes else None, method=method, **more))


def train(net, optimizer, run, data):
    for x, y in data:
        optimizer.zero_grad()
        (F.cross_entropy(net(x), y) + run.penalty()).backward()
        optimizer.step()
        run.step()


def learn(net, optimizer, run):
    """Trains on one batch, of which the loss must fall; returns the batch and what the network says of it."""
    ((x, y),) = batches(1)
    before = F.cross_entropy(net(x), y)
    torch.manual_seed(0)
    train(net, optimizer, run, [(x, y)] * 24)
    expected = net.eval()(x)
    assert F.cross_entropy(expected, y) < 0.9 * before
    return x, y, expected


def require_packed(name, net, optimizer, x, y, expected):
    """A network that was packed says the same, and its optimizer goes on with it."""
    torch.testing.assert_close(net(x), expected, atol=1e-5, rtol=1e-5)
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()  # it holds the new values, with the state of what was kept
    assert "frozen" in name or optimizer.state[net[0].values]["exp_avg"].shape == net[0].values.shape


def require_resumed(first, second, data, seed=None):
    """Trains the first (model, optimizer, run), and the second from the first's state after nine steps on: to
    the same bits. With a seed the state of torch's random numbers goes along."""
    if seed is not None:
        torch.manual_seed(seed)
    train(*first, data[:9])
    saved, random = copy.deepcopy([part.state_dict() for part in first]), torch.get_rng_state()
    train(*first, data[9:])
    for part, state in zip(second, saved, strict=True):
        part.load_state_dict(state)
    if seed is not None:
        torch.set_rng_state(random)
    train(*second, data[9:])
    wanted, got = everything(*first[:2]), everything(*second[:2])
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.equal(got[key], value), key


def everything(net, optimizer):
    state = {f"model {name}": value for name, value in net.state_dict().items()}
    for number, each in enumerate(optimizer.state_dict()["state"].values()):
        state |= {f"state {number} {name}": value for name, value in each.items()}
    return state


def layers(net):
    return [m for m in net if isinstance(m, (BlockSparseLinear, MaskedLinear))]
