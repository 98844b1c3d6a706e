"""A layer with room for more blocks than it stores: products, state and optimizer follow the blocks that
exist, and a change that cannot be made is told at the next call that waits."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from topology_layers import cells, dense_of, train

import sparseloom
from sparseloom import Error, Pattern, ops
from sparseloom.nn import BlockSparseLinear
from sparseloom.nn.held.capacity import with_slots
from sparseloom.nn.held.state import FLAGS, build_index
from sparseloom.optim import AdamW


def make(density=0.3, capacity=0.6, dtype=torch.float32, seed=0, block=16, **options):
    torch.manual_seed(seed)
    return BlockSparseLinear(100, 70, density=density, block=block, dtype=dtype, capacity=capacity, **options)


def mask_of(count, seed=0):
    order = torch.randperm(35, generator=torch.Generator().manual_seed(seed))
    return (order < count).view(5, 7)


def budget(count, share=0.0):
    return torch.tensor([count, share], dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("count", [0, 1, 13, 21])
def test_products_are_those_of_the_blocks_that_exist(dtype, count):
    layer = make(dtype=dtype)
    mask = mask_of(count)
    layer.set_topology_(mask)
    live, weight = layer.pattern.blocks, torch.randn(70, 100, dtype=dtype) * cells(layer, mask)
    assert live == count and len(layer.values) == layer.capacity == 21 and layer.pattern.mask.equal(mask)
    with torch.no_grad():
        layer.values.copy_(ops.call("pack", weight, layer.crow, layer.col, 16, 16))
    weight.requires_grad_()
    x, dy = torch.randn(19, 100, dtype=dtype, requires_grad=True), torch.randn(19, 70, dtype=dtype)
    y, expected = layer(x), F.linear(x, weight, layer.bias)
    near = {"atol": 0.1, "rtol": 0.02} if dtype.itemsize == 2 else {"atol": 1e-4, "rtol": 1e-5}
    torch.testing.assert_close(y, expected, **near)
    got = torch.autograd.grad(y, [x, layer.values], dy)
    wanted = torch.autograd.grad(expected, [x, weight], dy)
    torch.testing.assert_close(got[0], wanted[0], **near)
    torch.testing.assert_close(dense_of(layer, got[1]), wanted[1] * cells(layer, mask), **near)
    assert not got[1][live:].any() and not layer.values[live:].any()


def test_the_tables_are_those_of_a_new_index():
    layer = make()
    for seed, count in enumerate((21, 4, 0, 17, 17)):
        before, mask = layer.pattern.mask, mask_of(count, seed)
        moved = layer.set_topology_(mask)
        expected = build_index(Pattern(70, 100, 16, mask))
        for got, wanted in zip(layer.index.stored(), expected.lists(), strict=True):
            assert torch.equal(got, wanted)
        assert torch.equal(moved[:count] >= 0, (before & mask)[mask])
        assert (moved[count : before.sum()] == -1).all() and (moved[max(count, before.sum()) :] == -2).all()
        stayed = moved[moved >= 0]
        assert torch.equal(stayed, (before & mask)[before].nonzero().flatten().int())


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, AdamW])
def test_state_moves_with_its_block_and_new_blocks_start_clean(kind):
    layer = make(density=0.4)
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {"weight_decay": 0.1}
    optimizer = kind(layer.parameters(), lr=0.01, **options)
    train(layer, optimizer, steps=3)
    state = optimizer.state[layer.values]
    follows = {k: v for k, v in state.items() if isinstance(v, torch.Tensor) and v.dim() > 0}
    assert ("step" in follows) == (kind is AdamW) and follows
    everything = {**follows, "values": layer.values.detach(), "grad": layer.values.grad}
    before = {k: v.clone() for k, v in everything.items()}
    old = layer.pattern.mask
    mask = mask_of(19, 5)
    moved = layer.set_topology_(mask, optimizer=optimizer)
    stays = moved >= 0
    assert stays.any() and torch.equal(stays[:19], (old & mask)[mask])
    for name, now in everything.items():
        assert torch.equal(now[stays], before[name][moved[stays].long()]), name
        assert not now[moved == -1].any(), name
        assert name == "step" or not now[moved == -2].any()  # counts in free slots mean nothing
    train(layer, optimizer)
    live = layer.pattern.blocks
    assert not layer.values[live:].any() and not layer.values.grad[live:].any()
    assert layer.values[:live].flatten(1).any(1).all()


def test_free_slots_count_in_no_norm():
    layer = make()
    twin = copy.deepcopy(layer).fix_topology_()
    x = torch.randn(9, 100)
    for each in (layer, twin):
        each(x).square().sum().backward()
    norms = [torch.nn.utils.clip_grad_norm_(each.parameters(), 1.0) for each in (layer, twin)]
    assert torch.allclose(*norms) and torch.allclose(layer.values.norm(), twin.values.norm())


def test_overflow_keeps_the_topology_and_is_told_once():
    layer = make()
    optimizer = torch.optim.AdamW(layer.parameters())
    train(layer, optimizer)
    before, mask = copy.deepcopy(layer), layer.pattern.mask
    moved = layer.set_topology_(mask_of(22), optimizer=optimizer, grown=torch.ones(70, 100))
    assert torch.equal(moved, torch.arange(21, dtype=torch.int32))
    assert torch.equal(layer.index.packed, before.index.packed) and torch.equal(layer.values, before.values)
    layer(torch.randn(2, 100))  # does not wait, so it does not tell
    with pytest.raises(Error, match="at most 21 blocks, the capacity, got 22"):
        layer.state_dict()
    assert layer.pattern.mask.equal(mask)
    x = torch.randn(2, 100)
    for ask in (lambda: layer.pattern, lambda: layer.plan(8), lambda: sparseloom.report(layer, x, seconds=0)):
        layer.set_topology_(mask_of(30))
        with pytest.raises(Error, match="got 30"):
            ask()
    layer.set_topology_(mask_of(21))
    assert layer.pattern.blocks == 21


def test_a_nan_score_keeps_the_topology_and_is_told():
    layer = make()
    with torch.no_grad():
        layer.values[2, 3, 3] = math.nan
    before = layer.pattern.mask
    layer.drop_and_grow_(budget(5, 0.5), torch.rand(5, 7))
    with pytest.raises(Error, match="scores without NaN"):
        layer.state_dict()
    assert layer.pattern.mask.equal(before)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_growth_that_is_not_finite_leaves_the_change_out(bad):
    layer, growth = make(), torch.rand(5, 7)
    growth[1, 2] = bad
    before = layer.pattern.mask
    layer.drop_and_grow_(budget(15, 0.5), growth)
    assert layer.pattern.mask.equal(before) and int(layer.get_buffer(FLAGS)) == 0


def chosen(present, scores, growth, count, share):
    """The next mask, by sorting."""

    def best(candidates, worth, many):
        return sorted(candidates, key=lambda cell: (-worth[cell], cell))[:many]

    stored = present.flatten().nonzero().flatten().tolist()
    worth = dict(zip(stored, scores.tolist(), strict=False))
    stay = min(len(stored), count)
    kept = best(stored, worth, stay - (0 if growth is None else int(share * stay)))
    mask = torch.zeros(present.numel(), dtype=torch.bool)
    mask[torch.tensor(kept, dtype=torch.long)] = True
    if growth is not None:
        others = [i for i in range(present.numel()) if not mask[i] and growth.flatten()[i] > -math.inf]
        mask[torch.tensor(best(others, growth.flatten().tolist(), count - len(kept)), dtype=torch.long)] = (
            True
        )
    return mask.view_as(present)


@pytest.mark.parametrize("count, share", [(11, 0.3), (21, 0.5), (5, 0.2), (0, 0.3), (11, 1.0), (11, 0.0)])
@pytest.mark.parametrize("grows", [True, False])
def test_the_best_blocks_stay_and_the_best_others_grow(count, share, grows):
    for seed in range(4):
        layer = make(seed=seed)
        torch.manual_seed(seed)
        scores = torch.randint(-2, 3, (21,)).float()  # many ties
        scores[3] = -0.0
        growth = torch.randint(0, 4, (5, 7)).float() if grows else None
        if grows:
            growth[2] = -math.inf
        before = layer.pattern.mask
        layer.drop_and_grow_(budget(count, share), growth, scores)
        assert layer.pattern.mask.equal(chosen(before, scores, growth, count, share))


def test_nothing_left_to_grow():
    layer = make(density=1.0, capacity=1.0)
    before = layer.values.detach().clone()
    moved = layer.drop_and_grow_(budget(35, 0.3), torch.rand(5, 7))
    # What was dropped is all that may come back, with its values.
    assert layer.pattern.blocks == 35 and (moved >= 0).all() and torch.equal(layer.values, before)


def test_no_block_kept_and_back():
    layer = make()
    optimizer = AdamW(layer.parameters())
    layer.drop_and_grow_(budget(0), optimizer=optimizer)
    x = torch.randn(3, 100)
    assert layer.pattern.blocks == 0 and torch.equal(layer(x), layer.bias.expand(3, -1))
    train(layer, optimizer)
    layer.drop_and_grow_(budget(6), torch.rand(5, 7), optimizer=optimizer)
    train(layer, optimizer)
    assert layer.pattern.blocks == 6 and layer.values[:6].flatten(1).any(1).all()
    assert (optimizer.state[layer.values]["step"][:6] == 2).all()


def test_a_change_in_the_middle_of_gradient_accumulation():
    layer = make()
    first, second = torch.randn(2, 9, 100)
    layer(first).sum().backward()
    mask, old = mask_of(17, 3), layer.pattern.mask
    part = dense_of(layer, layer.values.grad)
    layer.set_topology_(mask)
    layer(second).sum().backward()
    twin = torch.zeros(70, 100, requires_grad=True)
    F.linear(second, twin).sum().backward()
    expected = part * cells(layer, old & mask) + twin.grad * cells(layer, mask)
    torch.testing.assert_close(dense_of(layer, layer.values.grad), expected, atol=1e-4, rtol=1e-5)


def test_main_grad_has_no_gradient_in_free_slots():
    layer = make(fuse_wgrad_accumulation=True)
    layer.values.main_grad = torch.zeros_like(layer.values)
    x = torch.randn(9, 100)
    layer(x).sum().backward()
    layer.set_topology_(mask_of(9))
    layer(x).sum().backward()
    assert layer.values.main_grad[:9].any() and not layer.values.main_grad[9:].any()


def test_what_is_saved_fits_layers_of_either_kind(tmp_path):
    layer = make()
    layer.set_topology_(mask_of(17))
    with torch.no_grad():
        layer.values.copy_(ops.call("pack", torch.randn(70, 100), layer.crow, layer.col, 16, 16))
    state, x = layer.state_dict(), torch.randn(4, 100)
    assert {k: len(v) for k, v in state.items()} == {"values": 17, "bias": 70, "crow": 6, "col": 17}
    plain, roomy = BlockSparseLinear(100, 70, density=0.2, block=16), make(seed=4)
    place, parameter = roomy.values.data_ptr(), roomy.values
    for each in (plain, roomy):
        each.load_state_dict(copy.deepcopy(state))
        assert each.pattern == layer.pattern and torch.equal(each(x), layer(x))
    assert roomy.capacity == 21 and roomy.values is parameter and roomy.values.data_ptr() == place
    assert not roomy.values[17:].any()
    roomy.load_state_dict(copy.deepcopy(state), assign=True)
    assert len(roomy.values) == 21 and torch.equal(roomy(x), layer(x))
    sparseloom.save(layer, tmp_path / "layer.safetensors")
    sparseloom.load(tmp_path / "layer.safetensors", make(seed=7))
    small = make(density=0.1, capacity=0.2)
    with pytest.raises(RuntimeError, match="at most 7 blocks, the capacity of the layer"):
        small.load_state_dict(state)
    assert small.pattern.blocks == 4


def test_copies_moves_and_dtypes_keep_the_room():
    layer = make()
    layer.set_topology_(mask_of(13))
    for twin in (copy.deepcopy(layer), copy.deepcopy(layer).double(), copy.deepcopy(layer).to("cpu")):
        assert twin.capacity == 21 and twin.pattern == layer.pattern
        twin.set_topology_(mask_of(20))
        assert twin.pattern.blocks == 20 and layer.pattern.blocks == 13
    meta = BlockSparseLinear(100, 70, density=0.3, block=16, capacity=0.6, device="meta")
    made = meta.to_empty(device="cpu")
    made.reset_parameters()
    assert made.pattern.blocks == 11 and len(made.values) == 21
    assert not made.values[11:].any()
    made.set_topology_(mask_of(21))
    assert "capacity=21" in repr(made)


def test_room_is_made_and_given_back_with_its_state():
    plain = BlockSparseLinear(100, 70, density=0.4, block=16)
    optimizer = AdamW(plain.parameters())
    train(plain, optimizer)
    values, parameter = plain.values.detach().clone(), plain.values
    plain.reserve_(0.8, optimizer=optimizer)
    state = optimizer.state[plain.values]
    assert plain.values is parameter and len(state["step"]) == len(state["exp_avg"]) == 28
    train(plain, optimizer)
    plain.set_topology_(mask_of(9), optimizer=optimizer)
    plain.fix_topology_(optimizer=optimizer)
    assert plain.capacity is None and not plain.dynamic and plain.values is parameter
    assert len(plain.values) == len(plain.values.grad) == len(state["step"]) == 9 and len(values) == 14
    train(plain, optimizer)
    assert plain.plan(8)["kernel"] and set(plain.state_dict()) == {"values", "bias", "crow", "col"}


@pytest.mark.filterwarnings("ignore")
def test_compiled_code_sees_the_next_topology():
    layer = make()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.randn(4, 100)
    for count in (11, 21, 3):
        layer.set_topology_(mask_of(count))
        assert torch.equal(compiled(x), layer(x))


def test_operators_tell_torch_what_they_do():
    layer = make()
    grid, index = torch.zeros(5, 7, dtype=torch.bool), layer.index
    ints = [torch.zeros(n, dtype=torch.int32) for n in (21, 1, 1)]
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(
        torch.ops.sparseloom.update_topology.default, (grid, index.packed, *ints), test_utils=tests
    )
    for growth in (torch.rand(5, 7), None):
        given = (layer.index.packed, torch.rand(21), growth, budget(9, 0.3), grid, ints[2])
        torch.library.opcheck(torch.ops.sparseloom.choose_blocks.default, given, test_utils=tests)


@pytest.mark.parametrize(
    "call, told",
    [
        (lambda layer: layer.reserve_(0.1), "capacity for the 11 blocks"),
        (lambda layer: layer.reserve_(1.5), r"capacity in \[0, 1\]"),
        (lambda layer: layer.drop_and_grow_(torch.tensor([3.0, 0.1])), "float64 of 2"),
        (lambda layer: layer.drop_and_grow_(budget(3), torch.rand(7, 5).double()), "growth"),
        (lambda layer: layer.drop_and_grow_(budget(3), None, torch.rand(3)), r"scores \[21\]"),
        (lambda layer: layer.fix_topology_().drop_and_grow_(budget(3)), "call reserve_ first"),
        (lambda layer: with_slots(layer.index, 3), "at most 3 blocks"),
        (
            lambda layer: torch.func.vmap(
                torch.func.grad(lambda v, x: ops.linear(x, v, layer.index).sum()), (None, 0)
            )(layer.values.detach(), torch.randn(3, 2, 100)),
            "free slots",
        ),
    ],
)
def test_what_cannot_be(call, told):
    with pytest.raises(Error, match=told):
        call(make())


def test_a_layer_on_meta_gets_memory_and_pattern_from_an_assigned_state_dict():
    saved = make()
    saved.set_topology_(mask_of(17))
    layer = BlockSparseLinear(100, 70, density=0.3, block=16, capacity=0.6, device="meta")
    assert layer.pattern.blocks == 11 and layer.plan(8)["kernel"] == make().plan(8)["kernel"]
    layer.load_state_dict(saved.state_dict(), assign=True)
    x = torch.randn(9, 100)
    assert layer.capacity == 21 and layer.pattern == saved.pattern and torch.equal(layer(x), saved(x))
    assert all(not each.is_meta for each in (*layer.parameters(), *layer.buffers()))
    layer.set_topology_(mask_of(19, 1))
    assert layer.pattern.blocks == 19 and int(layer.requested_blocks) == 19
    layer(x).sum().backward()
    assert layer.values.grad.shape == (21, 16, 16)


def test_a_state_dict_that_is_assigned_on_meta_keeps_the_layer_there():
    saved = make()
    saved.set_topology_(mask_of(17))
    layer = make()
    layer.load_state_dict(
        {name: each.to("meta") for name, each in saved.state_dict().items() if name != "col"}
        | {"crow": saved.crow, "col": saved.col[:17]},
        assign=True,
    )
    assert layer.values.is_meta and layer.packed_index.is_meta and layer.pattern == saved.pattern
