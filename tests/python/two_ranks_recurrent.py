"""What test_recurrent_models.py runs on each of two ranks: `two_ranks_recurrent.py RANK FILE`. Prints one
line for each check that held."""

import sys

import torch
import torch.distributed as dist
from leaving import leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sparseloom import BlockSparse, sparsify_

RANK = int(sys.argv[1])


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.head = kind(32, 48), nn.Linear(48, 8)
        sparsify_(self, {"rnn": BlockSparse(16, 0.5)})

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def trained(net, part):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(5, 8, 32, generator=generator), torch.randn(5, 8, 8, generator=generator)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        (net(x[:, part]) - y[:, part]).square().mean().backward()
        optimizer.step()
    return net


dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=2)
for kind, words in ((nn.LSTM, "an LSTM"), (nn.GRU, "a GRU")):
    mine = trained(DistributedDataParallel(Net(kind)), slice(4 * RANK, 4 * RANK + 4)).module
    one = trained(Net(kind), slice(0, 8))
    for a, b in zip(mine.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    print(f"{words} under ddp equals one rank", flush=True)
leave()
