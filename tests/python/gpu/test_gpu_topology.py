"""A topology that changes on the GPU: tables as on the CPU, without a wait, inside a CUDA graph; every kernel
right after it."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from on_gpu import capture, make, random, sleeping

from sparseloom import Pattern, ops
from sparseloom.nn.held.state import build_index
from sparseloom.testing import Case, kernels_for, sparse_product

pytestmark = pytest.mark.gpu


def shuffled(mask, seed):
    order = torch.randperm(mask.numel(), generator=torch.Generator().manual_seed(seed))
    return mask.flatten()[order].reshape(mask.shape)


def dense_of(layer, values=None):
    index = layer.index
    values = layer.values.detach() if values is None else values
    return ops.call("unpack", values, index.crow, index.col, index.rows, index.cols)


def equal_layers(on_gpu, on_cpu):
    pairs = zip((on_gpu.index.packed, on_gpu.values), (on_cpu.index.packed, on_cpu.values), strict=True)
    return all(torch.equal(a.cpu(), b) for a, b in pairs)


@pytest.mark.parametrize(
    "out, features, block", [(70, 100, 16), (8, 8, 8), (300, 40, (32, 8)), (4096, 4096, 32), (4096, 2000, 8)]
)
@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 1.0])
def test_tables_and_values_are_those_of_the_cpu(out, features, block, density):
    layer = make(features, out, block=block, density=density)
    twin = copy.deepcopy(layer).cpu()
    first = layer.pattern.mask
    for seed in range(3):
        mask = shuffled(first, seed)
        moved = layer.set_topology_(mask.cuda())
        assert torch.equal(moved.cpu(), twin.set_topology_(mask))
        assert equal_layers(layer, twin) and layer.pattern == Pattern(out, features, block, mask)
    for mask in (torch.ones_like(first), torch.zeros_like(first)):
        moved = layer.set_topology_(mask.cuda())
        assert torch.equal(moved.cpu(), twin.set_topology_(mask)) and equal_layers(layer, twin)
        assert int(layer.requested_blocks) == int(mask.sum())


@pytest.mark.parametrize("m", [16, 300])
@pytest.mark.parametrize("block", [(16, 16), (32, 32), (64, 128), (8, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("direction", ops.DIRECTIONS)
def test_every_kernel_right_after_a_change_has_the_bits_of_a_fixed_index(direction, dtype, block, m):
    case = Case("topology", direction, dtype, block, m, 330, 275, "random", device="cuda")
    inputs = case.inputs()
    before = build_index(Pattern(275, 330, block, shuffled(inputs.pattern.mask, 1))).to("cuda")
    mask = inputs.pattern.mask.cuda()
    for kernel in kernels_for(case, inputs):
        expected = sparse_product(case, inputs, kernel)
        index = before._replace(packed=before.packed.clone(), digest=ops.UNKNOWN)
        changing = replace(inputs, index=index)
        sparse_product(case, changing, kernel)
        ops.set_topology(index, mask, torch.empty_like(index.col), index.col.new_zeros(1))
        if kernel == "dense":
            torch.testing.assert_close(sparse_product(case, changing, kernel), expected, atol=0.2, rtol=0.02)
        else:
            assert torch.equal(sparse_product(case, changing, kernel), expected), kernel


def test_nothing_waits():
    layer = make(256, 256, block=32)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    x, mask, grown = random(33, 256), shuffled(layer.pattern.mask, 1).cuda(), random(256, 256, seed=1)

    def step():
        layer.set_topology_(mask, optimizer=optimizer, grown=grown)
        layer(x).square().mean().backward()
        optimizer.step()

    for _ in range(2):
        step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with sleeping() as event:
            step()
            assert not event.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("out, features, block", [(200, 300, 16), (256, 256, (64, 32))])
def test_a_graph_captured_once_takes_every_mask(out, features, block):
    """The change, a forward and a backward pass in one graph, replayed with other masks, against dense;
    ragged and not."""
    layer = make(features, out, block=block)
    twin = copy.deepcopy(layer).cpu()
    first = layer.pattern.mask
    mask, x, dy = first.cuda(), random(40, features).requires_grad_(), random(40, out, seed=1)

    def step():
        moved = layer.set_topology_(mask)
        y = layer(x)
        return torch.cat(
            [
                moved.float(),
                *(t.flatten() for t in (y.detach(), *torch.autograd.grad(y, [x, layer.values], dy))),
            ]
        )

    graph, result = capture(step)
    twin.set_topology_(first)
    sizes = [len(layer.col), 40 * out, 40 * features, layer.values.numel()]
    for seed in range(6):
        new = shuffled(first, seed)
        mask.copy_(new)
        result.fill_(torch.nan)
        graph.replay()
        moved, y, dx, dw = result.split(sizes)
        assert torch.equal(moved.int().cpu(), twin.set_topology_(new)) and equal_layers(layer, twin)
        assert layer.pattern == Pattern(out, features, block, new) and int(layer.requested_blocks) == int(
            new.sum()
        )
        weight = dense_of(layer)
        close = {"atol": 1e-3, "rtol": 1e-4}
        torch.testing.assert_close(y.view(40, -1), F.linear(x, weight, layer.bias), **close)
        torch.testing.assert_close(dx.view(40, -1), dy @ weight, **close)
        bm, bn = layer.block
        inside = new.cuda().repeat_interleave(bm, 0).repeat_interleave(bn, 1)[:out, :features]
        torch.testing.assert_close(dense_of(layer, dw.view_as(layer.values)), (dy.t() @ x) * inside, **close)
        with torch.no_grad():
            fresh = torch.randn(layer.values.shape, generator=torch.Generator().manual_seed(seed))
            packed = ops.call(
                "pack", dense_of(twin, fresh), twin.index.crow, twin.index.col, *layer.block
            )  # zero padding
            layer.values.copy_(packed)
            twin.values.copy_(packed)


def test_a_graph_of_the_layer_alone_sees_a_change_from_outside():
    layer = make(300, 200, dtype=torch.bfloat16).requires_grad_(False)
    x = random(16, 300, dtype=torch.bfloat16)
    graph, y = capture(lambda: layer(x))
    for seed in range(3):
        layer.set_topology_(shuffled(layer.pattern.mask, seed).cuda())
        y.fill_(torch.nan)
        graph.replay()
        assert torch.equal(y, layer(x)), seed
        fixed = copy.deepcopy(layer).fix_topology_()
        assert not fixed.dynamic and torch.equal(y, fixed(x))


def test_prune_and_grow_inside_a_captured_training_step_follows_an_eager_twin():
    """SET: blocks drop by their norm and others grow; forward, backward, AdamW and the change are one
    graph."""
    layer = make(256, 128, block=16, density=0.25)
    twin = copy.deepcopy(layer)
    blocks, grow = len(layer.values), len(layer.values) // 4
    x, target = random(64, 256), random(64, 128, seed=1)
    chance, sides = torch.rand(layer.pattern.mask.numel(), device="cuda"), []
    for each in (layer, twin):
        optimizer = torch.optim.AdamW(each.parameters(), 1e-2, fused=True, capturable=True)
        sides.append((each, optimizer, each.pattern.mask.cuda()))

    def step(each, optimizer, mask):
        optimizer.zero_grad()
        loss = (each(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        strength = torch.full(mask.shape, -1.0, device="cuda").masked_scatter_(
            mask, each.values.detach().flatten(1).norm(dim=1)
        )
        kept = (
            torch.zeros_like(mask).view(-1).scatter_(0, strength.view(-1).topk(blocks - grow).indices, True)
        )
        mask.copy_(kept.scatter_(0, chance.masked_fill(kept, -1.0).topk(grow).indices, True).view(mask.shape))
        each.set_topology_(mask, optimizer=optimizer)
        return loss.detach()

    graph, loss = capture(lambda: step(*sides[0]))
    step(*sides[1])  # what capture did before it captured
    for seed in range(8):
        chance.copy_(torch.rand(len(chance), generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        assert torch.equal(loss, step(*sides[1])), seed
        assert int(layer.requested_blocks) == blocks
    states = [optimizer.state[each.values] for each, optimizer, _ in sides]
    for key in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(states[0][key], states[1][key]), key
    assert torch.equal(layer.values, twin.values) and layer.pattern == twin.pattern
    assert layer.pattern == Pattern(128, 256, 16, sides[0][2].cpu())


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128]
)
@pytest.mark.parametrize("shape", [(600,), (600, 1), (600, 3), (600, 32, 32), (600, 0)])
def test_anything_with_blocks_as_its_first_dimension_moves(dtype, shape):
    values = torch.randint(1, 100, shape).to(dtype)
    moved = torch.randint(-1, 600, (600,), dtype=torch.int32)
    on_gpu = values.cuda()
    ops.move_blocks(on_gpu, moved.cuda())
    ops.move_blocks(values, moved)
    assert torch.equal(on_gpu.cpu(), values)


def test_the_same_change_gives_the_same_tables_every_time():
    index = build_index(Pattern(4096, 4096, 32, torch.rand(128, 128) < 0.5)).to("cuda")
    mask, blocks = torch.zeros(128 * 128, dtype=torch.bool), len(index.col)
    mask[torch.randperm(128 * 128)[:blocks]] = True
    mask = mask.view(128, 128).cuda()
    found = []
    for _ in range(200):
        packed = index.packed.clone()
        moved, requested = torch.empty_like(index.col), index.col.new_zeros(1)
        ops.call("set_topology", mask, packed, moved, requested)
        found.append([packed, moved, requested])
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_too_little_memory_for_a_change_leaves_the_layer_whole():
    layer = make(4096, 4096, block=32)  # 32 MB of values
    first = layer.pattern.mask
    layer.set_topology_(first.cuda())
    twin, mask = copy.deepcopy(layer), shuffled(first, 1).cuda()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (8 << 20)) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            layer.set_topology_(mask)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.equal(layer.packed_index, twin.packed_index) and torch.equal(layer.values, twin.values)
    for each in (layer, twin):
        each.set_topology_(mask)
    assert torch.equal(layer.packed_index, twin.packed_index) and torch.equal(layer.values, twin.values)
