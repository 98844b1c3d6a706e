"""What test_distributed.py runs on each of two ranks, of layers in other layouts than blocks:
`two_ranks_layouts.py RANK FILE`. Prints one line for each check that held."""

import io
import pickle
import sys
from pathlib import Path

import ell  # noqa: F401  registers ell_rows
import torch
import torch.distributed as dist
from leaving import leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sparseloom
from sparseloom import InLayout, sparsify_

RANK = int(sys.argv[1])
KINDS = {
    "csr": InLayout("csr", density=0.3),
    "coo": InLayout("coo", density=0.3),
    "bitmap": InLayout("bitmap", density=0.3),
    "nm": InLayout("nm", n=2, m=4),
    "nmg": InLayout("nmg", n=1, m=4, g=2),
    "ell_rows": InLayout("ell_rows", width=5),
}


def model(kinds=KINDS, seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in kinds))
    sparsify_(net, {rf"{i}\.0": recipe for i, recipe in enumerate(kinds.values())})
    assert [each[0].layout.name for each in net] == list(kinds)
    return net


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 24, generator=generator), torch.randn(16, 24, generator=generator)


def train(net, rows, autocast=False, steps=3):
    optimizer, (x, y) = torch.optim.AdamW(net.parameters(), 1e-2), data()
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=autocast)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = (net(x[rows]).float() - y[rows]).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def close(mine, theirs, atol=1e-5):
    return mine.keys() == theirs.keys() and all(
        torch.allclose(mine[name], theirs[name], atol=atol, rtol=1e-4) for name in theirs
    )


def equal(mine, theirs):
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in theirs)


def expect(what, held):
    assert held, what
    print(what, flush=True)


dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=2)
mine = slice(8 * RANK, 8 * RANK + 8)

for autocast in (False, True):
    alone, wrapped = model(), DistributedDataParallel(model())
    ignored = {name for name in wrapped.parameters_to_ignore if not name.endswith("values")}
    indices = {name for name, buffer in wrapped.module.named_buffers() if not buffer.is_floating_point()}
    expect("no index is broadcast", indices and indices <= ignored)
    train(alone, slice(0, 16), autocast)
    train(wrapped, mine, autocast)
    trained = wrapped.module.state_dict()
    # Each rank rounds its half of a sum to bf16, and Adam's first steps have one size whatever the gradient.
    expect("ddp equals one rank", close(trained, alone.state_dict(), 2e-2 if autocast else 1e-5))
    gathered = [None, None]
    dist.all_gather_object(gathered, {name: each.clone() for name, each in trained.items()})
    expect("and both ranks are equal", equal(gathered[0], gathered[1]))
    before = model().state_dict()
    moved = [
        name for name in trained if name.endswith("values") and not torch.equal(trained[name], before[name])
    ]
    expect("and every layer learned", len(moved) == len(KINDS))

path = Path(sys.argv[2]).with_name(f"layouts-{RANK}.safetensors")
sparseloom.save(wrapped.module, path)
other = model(seed=5)
sparseloom.load(path, other)
dense = nn.Sequential(*(nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in KINDS))
sparseloom.load(path, dense, sparsify=True)
expect("what is saved loads", equal(other.state_dict(), trained) and equal(dense.state_dict(), trained))
buffer = io.BytesIO()
torch.save(wrapped.module, buffer)
buffer.seek(0)
copies = pickle.loads(pickle.dumps(wrapped.module)), torch.load(buffer, weights_only=False)
x = data()[0]
expect("pickles keep bits", all(torch.equal(each(x), wrapped.module(x)) for each in copies))

for name in KINDS:
    try:
        DistributedDataParallel(model({name: KINDS[name]}, seed=RANK))
        refused = ""
    except sparseloom.Error as error:
        refused = str(error)
    expect(f"{name} that differ are named", "one pattern of 0.0 on all ranks" in refused)
leave()
