"""What test_distributed.py runs on each of two ranks: `two_ranks.py RANK FILE`. Prints one line for each
check that held."""

import sys

import torch
import torch.distributed as dist
from leaving import leave
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import sparseloom
from sparseloom import BlockSparse, InLayout, prepare_ddp, sparsify_
from sparseloom.sparsify import Method, methods
from sparseloom.sparsify.gradients import Masked
from sparseloom.sparsify.select import NM

RANK = int(sys.argv[1])


def model(seed=0):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.BatchNorm1d(96), nn.Linear(96, 32))
    sparsify_(net, {"[03]": BlockSparse(16, 0.5, "random", seed=seed)})
    return net


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 64, generator=generator), torch.randn(16, 32, generator=generator)


def train(net, rows, steps=3):
    optimizer, (x, y) = torch.optim.AdamW(net.parameters(), 1e-2), data()
    for _ in range(steps):
        optimizer.zero_grad()
        (net(x[rows]) - y[rows]).square().mean().backward()
        optimizer.step()


def close(mine, theirs):
    return mine.keys() == theirs.keys() and all(
        torch.allclose(mine[name], theirs[name], atol=1e-5, rtol=1e-4) for name in theirs
    )


def expect(what, held):
    assert held, what
    print(what, flush=True)


def error_of(call):
    try:
        call()
    except sparseloom.Error as error:
        return str(error)
    return ""


dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=2)
mine = slice(8 * RANK, 8 * RANK + 8)

alone = model().eval()  # evaluation: the norm of a half batch would not be the whole batch's
train(alone, slice(0, 16))

wrapped = DistributedDataParallel(prepare_ddp(model().eval()))
broadcast = {id(buffer) for buffer in wrapped.modules_buffers}
indices = [wrapped.module[i].packed_index for i in (0, 3)]
expect("no index is broadcast", not any(id(index) in broadcast for index in indices))
expect("other buffers are", id(wrapped.module[2].running_mean) in broadcast)
train(wrapped, mine)
expect("ddp equals one rank", close(wrapped.module.state_dict(), alone.state_dict()))
refused = error_of(lambda: sparsify_(wrapped, {".*": BlockSparse(16, 0.5)}))
expect("sparsify_ under ddp is refused", "sparsify_ first, then wrap" in refused)
inner = nn.Sequential(nn.Linear(32, 32))
outer = DistributedDataParallel(inner)
expect("and from inside it", "then wrap" in error_of(lambda: sparsify_(inner, {"0": BlockSparse(16, 0.5)})))
del outer
expect(
    "patterns that differ are named",
    "one pattern of 0 on all ranks" in error_of(lambda: prepare_ddp(model(seed=RANK))),
)


def eight_bits(seed=0):
    net = model().eval()
    with torch.no_grad():
        net[0].values += seed
    sparseloom.quantize_(net, {"0": torch.float8_e4m3fn})
    net[0].kernel = "reference"
    return net


wrapped = DistributedDataParallel(eight_bits())  # gloo cannot send float8
wrapped(data()[0]).sum().backward()
expect("an 8-bit layer stays out of ddp", wrapped.module[3].values.grad is not None)
differ = error_of(lambda: prepare_ddp(eight_bits(seed=RANK)))
expect("8-bit weights that differ are named", "8-bit weight of 0 on all ranks" in differ)


def masked(layout, method, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16))
    sparsify_(net, {"[01]": InLayout(layout, method=method)})
    return net


def called(net, **options):
    wrapped = DistributedDataParallel(net, **options)
    for _ in range(2):
        wrapped(torch.ones(2, 64)).sum().backward()
    return wrapped


METHODS = [
    ("semi24", methods.semi24("sr_ste", every=2)),
    ("semi24", methods.semi24("s_ste", every=2)),
    ("nm", Method(select=NM(4), gradient=Masked())),
]
for recipe in METHODS:
    refused = [
        error_of(lambda r=recipe: prepare_ddp(masked(*r, RANK))),
        error_of(lambda r=recipe: called(masked(*r, RANK), broadcast_buffers=False)),
    ]
    expect("masks that differ are named", all("one mask of 0 on all ranks" in each for each in refused))
    called(prepare_ddp(masked(*recipe, 0)), broadcast_buffers=False)
    wrapped = called(masked(*recipe, RANK))  # those of rank 0 are broadcast
    expect("masks that are broadcast are taken", error_of(lambda w=wrapped: prepare_ddp(w.module)) == "")

sharded = model().eval()
sharded[0].dense_copy = sharded[3].dense_copy = True
for layer in (sharded[0], sharded[3], sharded):
    fully_shard(layer)
expect("values are sharded by blocks", sharded[0].values.to_local().shape == (6, 16, 16))
train(sharded, mine)
whole = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
expect("fsdp2 equals one rank", RANK != 0 or close(whole, alone.state_dict()))
with torch.no_grad():
    stale = not torch.allclose(sharded(data()[0]), alone(data()[0]), atol=1e-5)
expect("and reads no dense copy of gathered values", not stale and sharded[0]._copy._weight is None)
absent = {
    name: layer.to_dense().weight == 0
    for name, layer in model().named_children()
    if hasattr(layer, "pattern")
}
if RANK == 0:
    again = model().eval()
    again.load_state_dict(whole)
    expect("what is gathered loads into a whole model", close(again.state_dict(), alone.state_dict()))
    kept = all(
        (again.get_submodule(name).to_dense().weight[mask] == 0).all() for name, mask in absent.items()
    )
    expect("b29: no absent block came back under fully_shard", kept and len(absent) == 2)
few = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
sparsify_(few, {"0": BlockSparse(16, 1.0)})
expected = few(data()[0][:, :16]).detach()
for layer in (*few, few):
    fully_shard(layer)
expect("a rank without a block takes part", few[0].values.to_local().shape == (1 - RANK, 16, 16))
expect("and computes the same", torch.allclose(few(data()[0][:, :16]), expected, atol=1e-6))
# torch's batch norm takes no bf16 weights here
mixed = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 32))
sparsify_(mixed, {"[02]": BlockSparse(16, 0.5, "random", seed=0)})
fully_shard(mixed, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
out = mixed(data()[0])
out.float().square().mean().backward()
kinds = (out.dtype, mixed[0].values.grad.dtype, mixed[0].crow.dtype)
expect(
    "fully_shard's mixed precision leaves the indices int32",
    kinds == (torch.bfloat16, torch.float32, torch.int32),
)
refused = error_of(lambda: sparsify_(sharded, {"[03]": BlockSparse(16, 0.5)})) + error_of(
    lambda: sparseloom.densify_(sharded)
)
expect("patching under fully_shard is refused", refused.count("then fully_shard") == 2)
dist.barrier()
leave()
