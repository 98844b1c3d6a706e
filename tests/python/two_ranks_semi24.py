"""What test_distributed.py runs on each of two ranks: `two_ranks_semi24.py RANK FILE`.

2:4 training under DistributedDataParallel and under fully_shard, each rank with its own half of the batch.
Prints one line for each check that held.
"""

import sys

import torch
import torch.distributed as dist
from leaving import leave
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sparseloom import InLayout, sparsify_
from sparseloom.nn import Semi24Training
from sparseloom.sparsify import methods

RANK = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=2)
RULES = ("sr_ste", "sr_ste_decoupled", "cast", "s_ste")


def trained(rule, wrap, rows, steps=6):
    """Trains with a mask that changes every second step, and returns the model and its run."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 18), nn.Linear(18, 5))
    recipe = InLayout("semi24", method=methods.semi24(rule, every=2, decay=0.1))
    run = sparsify_(net, {"[034]": recipe}).method
    for layer in net:
        if isinstance(layer, Semi24Training):
            layer.multiply = "semi24"
    called = wrap(net)
    optimizer = torch.optim.AdamW(called.parameters(), 1e-2)
    run.optimizers = optimizer
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(8, 3, 4, 4, generator=generator), torch.randn(8, 5, generator=generator)
        optimizer.zero_grad()
        (called(x[rows]) - y[rows]).square().mean().backward()
        optimizer.step()
        run.step()
    return net, run


def sharded(net):
    for layer in (net[0], net[3], net[4], net):
        fully_shard(layer)
    return net


mine = slice(4 * RANK, 4 * RANK + 4)
for rule in RULES:
    alone, run = trained(rule, lambda net: net, slice(0, 8))
    wanted = alone.state_dict()
    for name, wrap in (("ddp", DistributedDataParallel), ("fsdp2", sharded)):
        net, other = trained(rule, wrap, mine)
        state = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))
        if RANK == 0 or name == "ddp":
            for key, tensor in wanted.items():
                torch.testing.assert_close(state[key], tensor, msg=f"{rule} {name} {key}")
        assert other.flip_rates() == run.flip_rates()
        print(f"{rule} under {name} equals one rank", flush=True)
        del net, other
dist.barrier()
leave()
