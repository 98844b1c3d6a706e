"""What test_several_gpus.py runs: `ranks.py DEVICE WORLD FOLDER`. Each of WORLD ranks writes a line for each
check that held to FOLDER/<rank>.

Ranks lie two by two: mesh["dp"] is for FSDP2, mesh["tp"] for tensor parallelism.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks_layers import check_broadcast, check_copies, check_products, check_refusals, check_topology
from ranks_model import adam, close, data, equal, error_of, expect, gradients, sparse_stack, state_of, step
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

import sparseloom
from sparseloom.distributed import mlp_plan

KIND, WORLD, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
STEPS = 20

# Ranks are forked here, since the imports take seconds; nothing has started a thread or used a GPU.
RANK = next((rank for rank in range(WORLD) if os.fork() == 0), None)
if RANK is None:
    statuses = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(WORLD)]
    sys.exit(any(statuses))
sys.stdout = (FOLDER / str(RANK)).open("w")

torch.set_num_threads(1)
if KIND == "cuda":
    torch.cuda.set_device(RANK)
dist.init_process_group(
    "gloo" if KIND == "cpu" else "nccl",
    init_method=f"file://{FOLDER / 'store'}",
    rank=RANK,
    world_size=WORLD,
    timeout=timedelta(seconds=300),  # four ranks beside a busy machine's builds missed 60
)
mesh = init_device_mesh(KIND, (WORLD // 2, 2), mesh_dim_names=("dp", "tp"))
everyone = init_device_mesh(KIND, (WORLD,), mesh_dim_names=("all",))


def made(pattern=0):
    return sparse_stack(KIND, pattern=pattern)


def cut(model, over, sequence_dim=None):
    for block in model.blocks:
        plan = mlp_plan(block.mlp, ("gate_proj", "up_proj"), "down_proj", over, sequence_dim=sequence_dim)
        parallelize_module(block.mlp, over, plan)
    return model


def sharded(model, over):
    for block in model.blocks:
        fully_shard(block, mesh=over)
    return fully_shard(model, mesh=over)


alone = made()
start, optimizer = state_of(alone), adam(alone)
x, y = data(KIND, next(alone.parameters()).dtype)
expected = [(step(alone, optimizer, x, y), gradients(alone)) for _ in range(STEPS)]
end = state_of(alone)


def trains_alike(what, model, over=None):
    """Compares the losses and gradients of all steps with those of one process, where the ranks of ``over``
    have a part of the batch each; returns the optimizer."""
    optimizer, rows = adam(model), slice(None)
    if over is not None:
        count = len(x) // over.size()
        rows = slice(over.get_local_rank() * count, (over.get_local_rank() + 1) * count)
    for loss, theirs in expected:
        mine = step(model, optimizer, x[rows], y[rows])
        if over is not None:
            dist.all_reduce(mine, group=over.get_group())
            mine /= over.size()
        assert close({"loss": mine}, {"loss": loss}), f"{what}: {mine} for {loss}"
        assert close(gradients(getattr(model, "module", model)), theirs), what
    expect(what, close(state_of(getattr(model, "module", model)), end))
    return optimizer


tensor = cut(made(), mesh["tp"])
of_tensor = trains_alike("tensor parallel trains as one process", tensor)
cuts = [block.mlp.up_proj._cut for block in tensor.blocks]
expect("ranks have about as many blocks", all(max(c.counts) - min(c.counts) <= 2 * 6 for c in cuts))
trains_alike("FSDP2 trains as one process", sharded(made(), everyone["all"]), everyone["all"])
both = sharded(cut(made(), mesh["tp"]), mesh["dp"])
of_both = trains_alike("tensor parallel and FSDP2 train as one process", both, mesh["dp"])
copies = DistributedDataParallel(made())
trains_alike("DDP trains as one process", copies, everyone["all"])
indices = {id(buffer) for name, buffer in copies.module.named_buffers() if name.endswith("packed_index")}
expect("DDP sends no index", indices and not indices & {id(buffer) for buffer in copies.modules_buffers})
got = error_of(lambda: DistributedDataParallel(made(pattern=RANK)))
expect("DDP names patterns that differ", "one pattern of blocks.0.mlp.down_proj on all ranks" in got)

sequence = cut(made(), mesh["tp"], sequence_dim=1)
place, half = mesh["tp"].get_local_rank(), x.shape[1] // 2
part = sequence(x[:, place * half : (place + 1) * half])
(part - y[:, place * half : (place + 1) * half]).square().sum().div(y.numel()).backward()
for block in sequence.blocks:  # each rank has the summand of its tokens of what lies outside the MLPs
    for parameter in block.norm.parameters():
        dist.all_reduce(parameter.grad, group=mesh["tp"].get_group())
expect("sequence parallel has the gradients of one process", close(gradients(sequence), expected[0][1]))

# Accumulated gradients, and torch's mixed precision
halves, accumulated = (
    (slice(0, len(x) // 2), slice(len(x) // 2, None)),
    sharded(cut(made(), mesh["tp"]), mesh["dp"]),
)
for rows, last in zip(halves, (False, True), strict=True):
    accumulated.set_requires_gradient_sync(last)
    (accumulated(x[rows]) - y[rows]).square().mean().div(2).backward()
expect("gradients accumulate", close(gradients(accumulated), expected[0][1]))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=x.dtype)
mixed = cut(made(), mesh["tp"])
for block in mixed.blocks:
    fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
loss = (mixed(x) - y).square().mean()
loss.backward()
kinds = {mixed.blocks[0].mlp.up_proj.values.dtype, mixed.blocks[0].mlp.up_proj.values.grad.dtype}
expect(
    "bf16 products of wider values",
    kinds == {x.dtype} and torch.allclose(loss.detach(), expected[0][0], rtol=0.01),
)


# Checkpoints and files


def save_checkpoint(name, model, optimizer):
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(states, checkpoint_id=FOLDER / name)


def load_checkpoint(name, model):
    optimizer = adam(model)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(states, checkpoint_id=FOLDER / name)
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    return optimizer


def moments(model, optimizer):
    """Returns the optimizer's state in whole, by the Parameters' names."""
    state = get_state_dict(model, optimizer)[1]["state"]
    return state_of_entries(
        {f"{name}.{what}": value for name, each in state.items() for what, value in each.items()}
    )


def state_of_entries(entries):
    return {
        name: entry.full_tensor() if hasattr(entry, "full_tensor") else entry
        for name, entry in entries.items()
    }


def as_first_pair(model, optimizer):
    """Gives all pairs of ranks the first one's values. Each process plans by times that it measured, so pairs
    may choose other kernels and differ in rounding, and of each part only one pair's is written."""
    states = [each for state in optimizer.state.values() for each in state.values()]
    if mesh["dp"].size() > 1:
        for entry in [*model.parameters(), *states]:
            local = entry.detach()
            local = local.to_local() if hasattr(local, "to_local") else local
            dist.broadcast(local, group=mesh["dp"].get_group(), group_src=0)


as_first_pair(tensor, of_tensor)
saved, saved_moments = state_of(tensor), moments(tensor, of_tensor)
save_checkpoint("two", tensor, of_tensor)
wider = cut(made(), everyone["all"])
of_wider = load_checkpoint("two", wider)
expect(
    "two ranks' checkpoint loads into all ranks",
    equal(state_of(wider), saved) and equal(moments(wider, of_wider), saved_moments),
)
save_checkpoint("all", wider, of_wider)
plain = made()
of_plain = load_checkpoint("all", plain)
expect(
    "all ranks' checkpoint loads into one",
    equal(state_of(plain), saved) and equal(moments(plain, of_plain), saved_moments),
)
step(wider, of_wider, x, y), step(plain, of_plain, x, y)
expect("and both train on alike", close(state_of(wider), state_of(plain)))
save_checkpoint("both", both, of_both)
again = cut(made(), everyone["all"])
of_again = load_checkpoint("both", again)
expect(
    "a checkpoint of tensor parallel and FSDP2 loads into all ranks",
    equal(state_of(again), state_of(both)) and equal(moments(again, of_again), moments(both, of_both)),
)

whole_state = get_model_state_dict(both, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
on_first = close({name: entry.to(x.device) for name, entry in whole_state.items()}, state_of(both))
expect("torch gathers the order of the whole weight", on_first or RANK != 0)
into = cut(made(), mesh["tp"])
set_model_state_dict(into, state_of(both), options=StateDictOptions(full_state_dict=True))
expect("and loads it", equal(state_of(into), state_of(both)))

sparseloom.save(both, FOLDER / "both.safetensors")
plain = made()
sparseloom.load(FOLDER / "both.safetensors", plain)
expect("a file of sharded layers is an ordinary one", equal(state_of(plain), state_of(both)))
if RANK == 0:
    torch.manual_seed(3)
    for parameter in plain.parameters():
        parameter.data.mul_(1.25)
    sparseloom.save(plain, FOLDER / "plain.safetensors")
dist.barrier()
sparseloom.load(FOLDER / "plain.safetensors", plain)
for what, model in (
    ("cut", cut(made(), everyone["all"])),
    ("sharded", sharded(made(), everyone["all"])),
    ("cut and sharded", both),
):
    sparseloom.load(FOLDER / "plain.safetensors", model)
    expect(f"an ordinary file loads into {what} layers", equal(state_of(model), state_of(plain)))
got = error_of(lambda: sparseloom.save(both, FOLDER / "none" / "file"))
expect("all ranks say that rank 0 cannot write", "none" in got)

check_products(mesh["tp"], KIND)
check_topology(mesh["tp"], KIND)
check_refusals(mesh["tp"], KIND)
check_copies(mesh["tp"], KIND)
check_broadcast(mesh["tp"], KIND)

if KIND == "cuda":  # NCCL's watchdog would end the process
    dist.destroy_process_group()
    sys.exit()
# The last rank fails: the others end with an error, and do not wait.
if RANK == WORLD - 1:
    os._exit(0)
try:
    wider(x)
except (RuntimeError, dist.DistBackendError) as error:
    assert any(word in str(error).lower() for word in ("connection", "peer")), error
    expect("a rank that fails leaves no hang", True)
os._exit(0)
