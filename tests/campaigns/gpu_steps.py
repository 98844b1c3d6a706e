"""Steps on a GPU beside twins that take them one after the other: on two streams, in captured graphs, with
too little memory, on two devices. All by this library's kernels, so the bits are the twins'."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from on_gpu import capture
from torch import Tensor, nn

from sparseloom import BlockSparseLinear, ops

from .draws import Draw

Counts = dict[str, int]
DEVICE = "cuda"
DTYPES = torch.bfloat16, torch.float16, torch.float32
_said: list[str] = []


def layer_of(draw: Draw, inputs: int, outputs: int, dtype: torch.dtype) -> BlockSparseLinear:
    """Returns a layer whose topology moves, with a capacity or a fixed number of blocks. Strict: cuBLAS may
    compute other bits in a capture."""
    torch.manual_seed(draw.random.getrandbits(60))
    block = draw.pick((8, 16, 32, 64)), draw.pick((8, 16, 32, 64))
    made = BlockSparseLinear(inputs, outputs, block=block, density=0.4, dtype=dtype, device=DEVICE)
    made.strict = True
    if draw.chance(0.4):
        made.reserve_(0.7)
    made.set_topology_(made.pattern.mask.to(DEVICE))  # plans of moving topologies from now on
    return made


def mask_for(draw: Draw, layer: BlockSparseLinear) -> Tensor:
    """Returns a mask that the layer can take; not by asking it, which would wait."""
    bm, bn = layer.block
    grid = -(-layer.out_features // bm), -(-layer.in_features // bn)
    slots = layer.values.shape[0]
    count = slots if layer.capacity is None else draw.random.randint(0, slots)
    order = torch.randperm(grid[0] * grid[1], generator=draw.generator)[:count]
    mask = torch.zeros(grid[0] * grid[1], dtype=torch.bool)
    mask[order] = True
    return mask.view(grid)


def gradients(layer: BlockSparseLinear, x: Tensor, dy: Tensor) -> list[Tensor]:
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y, [x, layer.values], dy)]


def same_layers(one: BlockSparseLinear, other: BlockSparseLinear) -> bool:
    """Whether index and values have the same bits; free slots aside."""
    lists = zip(one.index.stored(), other.index.stored(), strict=True)
    return all(torch.equal(a.cpu(), b.cpu()) for a, b in lists) and torch.equal(
        one.values.detach().cpu(), other.values.detach().cpu()
    )


def streams(draw: Draw) -> Counts:
    """Two streams call and move two layers in turn; a layer's next step waits for its last one alone."""
    dtype, m = draw.pick(DTYPES), draw.size(200)
    sizes = [8 * draw.random.randint(2, 24) for _ in range(2)]
    layers = [layer_of(draw, *sizes, dtype) for _ in range(2)]
    twins = copy.deepcopy(layers)
    x = draw.numbers(m, sizes[0]).to(dtype).to(DEVICE).requires_grad_()
    dy = draw.numbers(m, sizes[1]).to(dtype).to(DEVICE)
    steps: list[tuple[int, int, Tensor | None]] = []
    for _ in range(24):
        which = draw.random.randint(0, 1)
        mask = mask_for(draw, layers[which]).to(DEVICE) if draw.chance(0.4) else None
        steps.append((which, draw.random.randint(0, 1), mask))
    sides, last = [torch.cuda.Stream() for _ in range(2)], [torch.cuda.Event() for _ in range(2)]
    results: list[list[Tensor]] = []
    torch.cuda.synchronize()
    for which, side, mask in steps:
        with torch.cuda.stream(sides[side]):
            sides[side].wait_event(last[which])
            if mask is not None:
                layers[which].set_topology_(mask)
            else:
                results.append(gradients(layers[which], x, dy))
            last[which].record()
    torch.cuda.synchronize()
    found = iter(results)
    for step, (which, _, mask) in enumerate(steps):
        if mask is not None:
            twins[which].set_topology_(mask)
            continue
        for name, got, wanted in zip(
            ("y", "dx", "dw"), next(found), gradients(twins[which], x, dy), strict=True
        ):
            assert torch.equal(got, wanted), (
                f"streams, step {step}, layer {which} {dtype}: other bits of {name}"
            )
    assert all(map(same_layers, layers, twins)), "streams: another topology than the twins'"
    return {"streams": len(steps)}


def graphs(draw: Draw) -> Counts:
    """A topology changes inside of a captured step, or between the replays of one, beside an eager twin."""
    dtype, m, inside = draw.pick(DTYPES), draw.size(200), draw.chance(0.6)
    inputs, outputs = (8 * draw.random.randint(2, 24) for _ in range(2))
    layer = layer_of(draw, inputs, outputs, dtype)
    twin = copy.deepcopy(layer)
    mask = layer.pattern.mask.to(DEVICE)
    x = draw.numbers(m, inputs).to(dtype).to(DEVICE).requires_grad_()
    dy = draw.numbers(m, outputs).to(dtype).to(DEVICE)

    def step(of: BlockSparseLinear) -> list[Tensor]:
        if inside:
            of.set_topology_(mask)
        return gradients(of, x, dy)

    graph, results = capture(lambda: step(layer))
    name = f"graph of {outputs} x {inputs} in {layer.block} {dtype} m={m} {layer.capacity} inside={inside}"
    for replay in range(8):
        mask.copy_(mask_for(draw, layer))
        if not inside:
            for each in (layer, twin):
                each.set_topology_(mask)
        with torch.no_grad():
            x.copy_(draw.numbers(m, inputs))
            for each in results:
                each.fill_(torch.nan)
        graph.replay()
        for got, wanted in zip(results, step(twin), strict=True):
            assert torch.equal(got, wanted), f"{name}: other bits in replay {replay}"
        assert same_layers(layer, twin), f"{name}: another topology in replay {replay}"
        dense, index = draw.numbers(outputs, inputs).to(dtype).to(DEVICE), layer.index
        fresh = ops.call("pack", dense, index.crow, index.col, *layer.block)
        with torch.no_grad():  # blocks that came were zero
            for each in (layer, twin):
                each.values.copy_(fresh)
    return {"graphs": 8}


class Training:
    """A model, its optimizer and a step in parts, of which each may find no memory."""

    def __init__(self, sizes: Sequence[int], block: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.layers = [
            BlockSparseLinear(a, b, block=block, density=0.5, device=DEVICE) for a, b in pairwise(sizes)
        ]
        self.model = nn.Sequential(*self.layers)
        for layer in self.layers:
            layer.strict = True
        # fused: without memory of its own, as torch's others would leave half of the parameters stepped
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3, fused=DEVICE == "cuda")

    def backward(self, x: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(x).square().mean().backward()

    def move(self, masks: Sequence[Tensor]) -> None:
        for layer, mask in zip(self.layers, masks, strict=True):
            layer.set_topology_(mask, optimizer=self.optimizer)

    def step(self, x: Tensor, masks: Sequence[Tensor]) -> None:
        self.backward(x)
        self.optimizer.step()
        self.move(masks)

    def state(self) -> list[list[Tensor]]:
        """Returns the bits of each layer: index, values, moments, bias."""
        found = []
        for layer in self.layers:
            moments = [self.optimizer.state[layer.values].get(key) for key in ("exp_avg", "exp_avg_sq")]
            tensors = [layer.packed_index, layer.values, *moments, layer.bias]
            found.append([each.detach().clone() for each in tensors if each is not None])
        return found


def equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def without_memory(call: Callable[[], None], extra: int) -> bool:
    """Whether a call found too little memory with so many bytes beyond what torch holds."""
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + extra) / whole))
    try:
        call()
    except torch.OutOfMemoryError:
        return True
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return False


def memory(draw: Draw) -> Counts:
    """Too little memory in a forward or backward pass, or in a change of the topology: parameters, index and
    moments of each layer stay whole, state_dict loads, and the step is right when it is done again."""
    sizes = [256 * draw.random.randint(2, 6) for _ in range(3)]
    block, seed, m = draw.pick((32, 64)), draw.random.getrandbits(31), 1024 * draw.random.randint(2, 8)
    ours, twin = Training(sizes, block, seed), Training(sizes, block, seed)
    x = draw.numbers(m, sizes[0]).float().to(DEVICE)
    orders = [[mask_for(draw, layer).to(DEVICE) for layer in ours.layers] for _ in range(3)]
    for each in (ours, twin):
        each.step(x, orders[0])
    before = ours.state()
    assert all(map(equal, before, twin.state())), "memory: two runs of one step differ"
    counts = {"memory": 1}
    need = 4 * m * sum(sizes)
    name = f"memory of {sizes} in {block}, m={m}"
    for extra in (draw.random.randint(0, need), 0):
        failed = without_memory(lambda: ours.backward(x), extra)
        counts["memory" if failed else "memory that sufficed"] = counts.get("memory", 0) + 1
        assert all(map(equal, before, ours.state())), f"{name}: a pass with {extra} bytes changed the model"
    for each in (ours, twin):
        each.backward(x)
        each.optimizer.step()
    stepped = twin.state()
    assert all(map(equal, ours.state(), stepped)), f"{name}: the step after it is another"
    twin.move(orders[1])
    moved = twin.state()
    for extra in (0, draw.random.randint(0, 32 << 20)):
        without_memory(lambda: ours.move(orders[1]), extra)
        for found, old, new in zip(ours.state(), stepped, moved, strict=True):
            whole = equal(found, old) or equal(found, new)
            assert whole, f"{name}: a topology is half changed with {extra} bytes"
        counts["memory"] += 1
        ours.move(orders[1])
        assert all(map(equal, ours.state(), moved)), f"{name}: the change done again is another"
    again = copy.deepcopy(ours.model)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    again.load_state_dict(ours.model.state_dict())
    assert torch.allclose(again(x[:64]), ours.model(x[:64]), 1e-4, 1e-5), f"{name}: state_dict does not load"
    for each in (ours, twin):
        each.step(x, orders[2])
    assert all(map(equal, ours.state(), twin.state())), f"{name}: the last step is another"
    return counts


def devices(draw: Draw) -> Counts:
    """A layer and its copy on the second device at the same time, moved there and back."""
    if torch.cuda.device_count() < 2:
        if not _said:
            _said.append("two devices")
            print("gpu: two devices: skipped, torch sees one GPU", file=sys.stderr)
        return {}
    dtype, m = draw.pick(DTYPES), draw.size(200)
    inputs, outputs = (8 * draw.random.randint(2, 24) for _ in range(2))
    here = layer_of(draw, inputs, outputs, dtype)
    there = copy.deepcopy(here).to("cuda:1")
    x, dy = (draw.numbers(m, width).to(dtype) for width in (inputs, outputs))
    alike = torch.cuda.get_device_name(0) == torch.cuda.get_device_name(1)
    for step in range(6):
        mask = mask_for(draw, here)
        answers = []
        for layer, device in ((here, "cuda:0"), (there, "cuda:1")):
            layer.set_topology_(mask.to(device))
            answers.append(gradients(layer, x.to(device).requires_grad_(), dy.to(device)))
        assert torch.cuda.current_device() == 0, "devices: another current device"
        for a, b in zip(*answers, strict=True):
            wanted = a.cpu()
            right = torch.equal(b.cpu(), wanted) if alike else torch.allclose(b.cpu(), wanted, 2e-2, 1e-2)
            assert right, f"devices, step {step} of {outputs} x {inputs} {dtype}: the second one differs"
        assert same_layers(here, there), f"devices, step {step}: another topology"
        if draw.chance(0.3):
            here, there = there.to("cuda:0"), here.to("cuda:1")
    return {"devices": 6}
