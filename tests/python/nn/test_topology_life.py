"""A layer of changing topology saved, copied, fixed, compiled, exported, trained and sharded."""

import copy

import pytest
import torch
import torch.nn.functional as F
from topology_layers import cells, dense_of, make, other, train

import sparseloom
from sparseloom import Error, Pattern
from sparseloom.nn import BlockSparseLinear
from sparseloom.nn.held import capacity
from sparseloom.nn.held.state import build_index


def test_what_is_saved_is_the_topology_of_that_moment(tmp_path):
    layer = make()
    for seed in range(3):
        layer.set_topology_(other(layer, seed))
    state = layer.state_dict()
    assert set(state) == {"values", "bias", "crow", "col"}
    fixed = make(seed=9)
    fixed.load_state_dict(state)
    assert fixed.pattern == layer.pattern and not fixed.dynamic
    sparseloom.save(layer, tmp_path / "layer.safetensors")
    loaded = make(seed=3)
    loaded.set_topology_(other(loaded, 8))
    places = [tensor.data_ptr() for tensor in (loaded.index.packed, loaded.values)]
    sparseloom.load(tmp_path / "layer.safetensors", loaded)
    x = torch.randn(4, 100)
    assert (
        loaded.dynamic
        and loaded.pattern == layer.pattern
        and torch.equal(loaded(x), layer(x))
        and torch.equal(fixed(x), layer(x))
    )
    loaded.load_state_dict(make(seed=5).state_dict())
    assert loaded.dynamic and [tensor.data_ptr() for tensor in (loaded.index.packed, loaded.values)] == places
    assert loaded.pattern == make(seed=5).pattern


def test_a_state_of_another_number_of_blocks_ends_it():
    layer, more = make(), make(density=0.6)
    layer.set_topology_(other(layer))
    layer.load_state_dict(more.state_dict())
    assert not layer.dynamic and layer.pattern == more.pattern
    x = torch.randn(4, 100)
    assert torch.equal(layer(x), more(x))


def test_copies_and_moves_keep_the_topology():
    layer = make()
    layer.set_topology_(other(layer))
    twin = copy.deepcopy(layer)
    pattern = layer.pattern
    layer.set_topology_(other(layer, 3))
    assert twin.dynamic and twin.pattern == pattern != layer.pattern
    assert twin.double().pattern == pattern and twin.to(torch.float32).pattern == pattern
    twin.train()
    assert twin.pattern == pattern


def test_index_buffers_that_something_else_wrote_to_are_mended_or_refused():
    layer = make()
    layer.set_topology_(other(layer))
    pattern = layer.pattern
    layer.index.row.fill_(99)
    layer.train()
    assert torch.equal(layer.packed_index, build_index(pattern).packed)
    layer.crow.fill_(3)
    with pytest.raises(Error, match="crow"):
        layer.state_dict()


def test_the_end_of_it_gives_the_fixed_layers_plan():
    layer = make()
    layer.set_topology_(other(layer))
    assert layer.dynamic and layer.fix_topology_() is layer and not layer.dynamic
    assert layer.index.digest == build_index(layer.pattern).digest
    x = torch.randn(3, 100)
    torch.testing.assert_close(layer(x), F.linear(x, dense_of(layer), layer.bias), atol=1e-5, rtol=1e-5)


def test_a_backward_pass_over_blocks_that_moved_is_an_error():
    layer = make()
    x = torch.randn(3, 100, requires_grad=True)
    y = layer(x).sum()
    layer.set_topology_(other(layer))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_compiled_code_sees_the_next_topology_and_is_not_compiled_again():
    from torch._dynamo.testing import CompileCounterWithBackend  # imports all of dynamo

    torch._dynamo.reset()
    layer = make()
    layer.set_topology_(other(layer))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    x = torch.randn(3, 100)
    for seed in range(4):
        torch.testing.assert_close(
            compiled(x), F.linear(x, dense_of(layer), layer.bias), atol=1e-5, rtol=1e-5
        )
        layer.set_topology_(other(layer, seed))
    assert counter.frame_count == 1
    torch._dynamo.reset()


def test_an_exported_program_holds_the_topology_of_its_moment():
    layer = make()
    layer.set_topology_(other(layer))
    x = torch.randn(3, 100)
    program = torch.export.export(layer, (x,), strict=False).module()
    torch.testing.assert_close(program(x), layer(x))
    layer.values.data.normal_()
    sparseloom.report(layer, x)


def test_set_finds_more_than_a_fixed_pattern_does():
    """A planted block-sparse weight, sought by dropping the weakest blocks and growing others at random
    (Mocanu et al. 2018)."""
    torch.manual_seed(0)
    wanted = Pattern(128, 128, 16, torch.rand(8, 8) < 0.25)
    target = torch.randn(128, 128) * cells(BlockSparseLinear(128, 128, pattern=wanted), wanted.mask)
    layer = BlockSparseLinear(
        128, 128, bias=False, pattern=sparseloom.pattern.random(128, 128, 16, wanted.density, 1)
    )
    optimizer = torch.optim.Adam(layer.parameters(), 0.03)
    mask = layer.pattern.mask
    start = int((mask & wanted.mask).sum())
    grow = max(1, wanted.blocks // 4)
    for _ in range(30):
        for _ in range(15):
            x = torch.randn(64, 128)
            optimizer.zero_grad()
            (layer(x) - x @ target.t()).square().mean().backward()
            optimizer.step()
        strength = torch.full(mask.shape, -1.0).masked_scatter_(
            mask, layer.values.detach().flatten(1).norm(dim=1)
        )
        kept = torch.zeros(mask.numel(), dtype=torch.bool).scatter_(
            0, strength.flatten().topk(wanted.blocks - grow).indices, True
        )
        chance = torch.rand(mask.numel()).masked_fill_(kept, -1.0)
        mask = kept.scatter_(0, chance.topk(grow).indices, True).view(mask.shape)
        layer.set_topology_(mask, optimizer=optimizer)
        assert int(layer.requested_blocks) == wanted.blocks
    assert int((mask & wanted.mask).sum()) > start + wanted.blocks // 3


def test_values_that_are_sharded_are_refused():
    from torch.distributed import HashStore, destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        layer = make()
        mask = other(layer)
        sharded = distribute_tensor(layer.values.detach(), init_device_mesh("cpu", (1,)), [Shard(0)])
        layer.values = torch.nn.Parameter(sharded)
        with pytest.raises(Error, match="fully_shard"):
            layer.set_topology_(mask)
    finally:
        destroy_process_group()


@pytest.mark.parametrize("share", [None, 0.8])
@pytest.mark.parametrize("grows", [False, True])
def test_too_little_memory_for_a_change_leaves_the_layer_whole(share, grows, monkeypatch):
    """The index was written before the moves asked for their scratch."""
    layer = make()
    if share is not None:
        layer.reserve_(share)
    optimizer = torch.optim.AdamW(layer.parameters())
    train(layer, optimizer)
    twin, grown = copy.deepcopy(layer), torch.randn(70, 100) if grows else None
    mask, allocate = other(layer), torch.Tensor.new_empty

    def whole():
        return [layer.packed_index, layer.values, layer.values.grad, *optimizer.state[layer.values].values()]

    def no_memory(self, size, **how):
        if how.get("dtype") is torch.uint8:
            assert size >= layer.values.nbytes * (3 if grows else 1)
            raise torch.OutOfMemoryError("out of memory")
        return allocate(self, size, **how)

    before = [each.detach().clone() for each in whole()]
    with monkeypatch.context() as patched, pytest.raises(torch.OutOfMemoryError):
        patched.setattr(torch.Tensor, "new_empty", no_memory)
        layer.set_topology_(mask, optimizer=optimizer, grown=grown)
    assert all(map(torch.equal, whole(), before))
    layer.set_topology_(mask, optimizer=optimizer, grown=grown)
    twin.set_topology_(mask, grown=grown)
    assert torch.equal(layer.packed_index, twin.packed_index) and torch.equal(layer.values, twin.values)


def test_too_little_memory_for_a_capacity_leaves_the_layer_whole(monkeypatch):
    layer = make()
    optimizer = torch.optim.AdamW(layer.parameters())
    train(layer, optimizer)
    x, calls = torch.randn(3, 100), []
    y, with_room = layer(x).detach(), capacity._with_room

    def no_memory(tensor, slots):
        calls.append(tensor)
        if len(calls) == 3:  # values and gradient were made
            raise torch.OutOfMemoryError("out of memory")
        return with_room(tensor, slots)

    with monkeypatch.context() as patched, pytest.raises(torch.OutOfMemoryError):
        patched.setattr(capacity, "_with_room", no_memory)
        layer.reserve_(0.8, optimizer=optimizer)
    assert layer.capacity is None and torch.equal(layer(x), y)
    train(layer, optimizer)
    layer.reserve_(0.8, optimizer=optimizer)
    train(layer, optimizer)
