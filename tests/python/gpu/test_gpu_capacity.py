"""Layers with a capacity on the GPU: every kernel that takes them, tables and choices as on the CPU, no wait,
inside CUDA graphs, in the time of the blocks that exist."""

import copy
import math
import statistics

import pytest
import torch
import torch.nn.functional as F
from on_gpu import capture, make, random, sleeping
from torch import nn

from sparseloom import BlockSparse, Error, Pattern, ops, sparsify_
from sparseloom import sparsify as S
from sparseloom.nn.held.capacity import with_slots
from sparseloom.nn.held.state import FLAGS, build_index
from sparseloom.optim import AdamW

pytestmark = pytest.mark.gpu


def mask_of(grid, share, seed=0):
    return torch.rand(grid, generator=torch.Generator().manual_seed(seed)) < share


def grid_of(layer):
    return layer.pattern.mask.shape


def budget(count, share=0.0, device="cuda"):
    return torch.tensor([count, share], dtype=torch.float64, device=device)


def whole(mask, block, out, features):
    return mask.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:out, :features]


@pytest.mark.parametrize("m", [16, 300])
@pytest.mark.parametrize("block", [(16, 16), (32, 32), (64, 128), (8, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_kernel_that_takes_it_multiplies_what_is_stored(dtype, block, m):
    out, features = 336, 272
    grid = -(-out // block[0]), -(-features // block[1])
    x, dy = random(m, features, dtype=dtype), random(m, out, seed=1, dtype=dtype)
    dense = random(out, features, seed=2, dtype=dtype)
    slots = math.ceil(0.6 * grid[0] * grid[1])
    near = {"atol": 0.6, "rtol": 0.02} if dtype is torch.bfloat16 else {"atol": 3e-3, "rtol": 1e-4}
    ran = set()
    for share in (0.3, 0.0):
        pattern = Pattern(out, features, block, mask_of(grid, share))
        index = with_slots(build_index(pattern), slots)
        there = index._replace(packed=index.packed.cuda())
        inside = whole(pattern.mask.cuda(), block, out, features)
        weight = dense * inside
        values = ops.call("pack", dense, there.crow, there.col, *block)
        assert not values[pattern.blocks :].any()
        for direction in ops.DIRECTIONS:
            plan = ops.plan(index, direction, dtype, m, device="cuda")
            for kernel in [each["kernel"] for each in plan["candidates"] if not each["refusal"]]:
                ran.add((direction, kernel))
                if direction == "forward":
                    got, wanted = ops.linear(x, values, there, kernel=kernel), F.linear(x, weight)
                elif direction == "dx":
                    got, wanted = ops.linear_dx(dy, values, there, kernel=kernel), dy @ weight
                else:
                    held = torch.full_like(values, torch.nan)  # memory that the result may get
                    del held
                    dw = ops.linear_dw(dy, x, there, kernel=kernel)
                    assert not dw[pattern.blocks :].any(), kernel
                    sums = torch.zeros(values.shape, device="cuda")
                    ops.linear_dw(dy, x, there, kernel=kernel, out=sums)
                    assert not sums[pattern.blocks :].any(), kernel
                    wanted = (dy.float().t() @ x.float()) * inside
                    for each in (dw, sums):
                        got = ops.call("unpack", each, there.crow, there.col, out, features)
                        torch.testing.assert_close(got.float(), wanted, **near)
                    continue
                torch.testing.assert_close(got, wanted, **near)
    assert {direction for direction, _ in ran} == set(ops.DIRECTIONS)
    assert not any(kernel == "dense" for _, kernel in ran)


def equal_layers(on_gpu, on_cpu):
    pairs = zip(on_gpu.index.stored(), on_cpu.index.stored(), strict=True)
    return all(torch.equal(a.cpu(), b) for a, b in pairs) and torch.equal(on_gpu.values.cpu(), on_cpu.values)


@pytest.mark.parametrize("out, features, block", [(70, 100, 16), (300, 40, (32, 8)), (2048, 2048, 32)])
def test_changes_are_those_of_the_cpu(out, features, block):
    layer = make(features, out, block=block, density=0.3).reserve_(0.5)
    twin = copy.deepcopy(layer).cpu()
    for seed, share in enumerate((0.3, 0.45, 0.0, 0.2, 0.9)):
        mask = mask_of(grid_of(twin), share, seed)
        moved = layer.set_topology_(mask.cuda())
        assert torch.equal(moved.cpu(), twin.set_topology_(mask)) and equal_layers(layer, twin)
        assert int(layer.requested_blocks) == int(mask.sum())
        assert int(layer.get_buffer(FLAGS)) == int(mask.sum() > layer.capacity)
        for each in (layer, twin):
            if share == 0.9:
                with pytest.raises(Error, match="the capacity"):
                    each.state_dict()
        with torch.no_grad():
            fresh = random(*layer.values.shape, seed=seed, device="cpu")
            fresh[twin.pattern.blocks :] = 0
            for each in (layer, twin):
                each.values.copy_(fresh)
    cells = grid_of(twin).numel()
    for seed, (count, share) in enumerate([(0.4, 0.3), (0.4, 1.0), (0.1, 0.2), (0.0, 0.5), (0.5, 0.3)]):
        growth, scores = mask_of(grid_of(twin), 0.5, seed).float(), random(layer.capacity, seed=seed).round_()
        given = budget(int(count * cells), share)
        moved = layer.drop_and_grow_(given, growth.cuda(), scores)
        assert torch.equal(moved.cpu(), twin.drop_and_grow_(given.cpu(), growth, scores.cpu()))
        assert equal_layers(layer, twin)


def test_a_graph_captured_once_takes_every_number_of_blocks():
    """A choice, the change, forward, backward and a step of the optimizer in one graph, against the CPU."""
    layer = make(300, 200, density=0.3).reserve_(0.6)
    twin = copy.deepcopy(layer).cpu()
    optimizers = [AdamW(each.parameters(), lr=1e-2) for each in (layer, twin)]
    grid, x = grid_of(twin), random(40, 300)
    growth, given = torch.zeros(grid, device="cuda"), budget(40, 0.3)

    def step():
        moved = layer.drop_and_grow_(given, growth, optimizer=optimizers[0])
        layer.values.grad = torch.autograd.grad(layer(x).square().mean(), layer.values)[0]
        optimizers[0].step()
        return moved

    def same_on_cpu():
        moved = twin.drop_and_grow_(given.cpu(), growth.cpu(), optimizer=optimizers[1])
        twin.values.grad = torch.autograd.grad(twin(x.cpu()).square().mean(), twin.values)[0]
        optimizers[1].step()
        return moved

    graph, moved = capture(step)
    same_on_cpu()  # what capture did before, outside of the graph
    for seed, count in enumerate((40, 90, 5, 0, 140, 20)):
        given.copy_(budget(count, 0.3))
        growth.copy_(random(*grid, seed=seed))
        graph.replay()
        assert torch.equal(moved.cpu(), same_on_cpu())
        assert layer.pattern == twin.pattern and layer.pattern.blocks == count
        torch.testing.assert_close(layer.values.cpu(), twin.values, atol=2e-3, rtol=1e-3)
        assert torch.equal(
            optimizers[0].state[layer.values]["step"].cpu()[:count],
            optimizers[1].state[twin.values]["step"][:count],
        )
        with torch.no_grad():  # so that rounding does not add up to another choice
            twin.load_state_dict(layer.state_dict())
            for key, moment in optimizers[1].state[twin.values].items():
                moment.copy_(optimizers[0].state[layer.values][key])
    given.copy_(budget(layer.capacity + 1, 0.3))
    graph.replay()
    with pytest.raises(Error, match="the capacity"):
        layer.state_dict()
    assert layer.pattern.blocks == 20


@pytest.mark.parametrize("method", [S.methods.rigl(100, 1), S.methods.set_(1)])
def test_a_change_of_a_method_waits_for_nothing(method):
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 32)).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    chosen = BlockSparse(32, 0.3, "random", seed=0, method=method, capacity=0.5)
    run = sparsify_(net, {"0": chosen}, optimizer=optimizer).method
    x, before = random(33, 256), net[0].pattern

    def step():
        net(x).square().mean().backward()
        optimizer.step()
        run.step()
        optimizer.zero_grad()

    for _ in range(2):
        step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with sleeping() as event:
            step()
            assert not event.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert net[0].pattern != before and net[0].pattern.blocks == before.blocks


def test_the_time_is_that_of_the_blocks_that_exist():
    def made(density, capacity):
        layer = make(2048, 2048, block=64, density=density, dtype=torch.bfloat16)
        return layer.reserve_(capacity)

    layers = {"half": made(0.2, 0.4), "all": made(0.2, 0.2)}
    x, dy = random(8192, 2048, dtype=torch.bfloat16), random(8192, 2048, seed=1, dtype=torch.bfloat16)
    # graphs hold addresses alone, and the second capture hands back memory that nobody refers to
    graphs, inputs = {}, {name: x.clone().requires_grad_() for name in layers}
    for name, layer in layers.items():

        def products(layer=layer, given=inputs[name]):
            return torch.autograd.grad(layer(given), [given, layer.values], dy)[0]

        graphs[name] = capture(lambda call=products: [call() for _ in range(10)])[0]
    times = {name: [] for name in graphs}
    for _ in range(7):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end))
    half, full = (statistics.median(times[name]) for name in ("half", "all"))
    assert half < 1.1 * full, (half, full)
