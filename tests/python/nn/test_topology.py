"""A topology changed in place: tables, values, gradient and optimizer state follow; plans stay right."""

import copy
import logging
import statistics
import time

import pytest
import torch
import torch.nn.functional as F
from topology_layers import cells, dense_of, make, other, train

import sparseloom
from sparseloom import Error, Pattern, ops
from sparseloom.nn import BlockSparseLinear
from sparseloom.nn.held.state import build_index


@pytest.mark.parametrize(
    "out, features, block", [(70, 100, 16), (8, 8, 8), (300, 40, (32, 8)), (5, 700, (8, 64)), (256, 256, 32)]
)
@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 1.0])
def test_the_tables_are_those_of_a_new_index(out, features, block, density):
    layer = make(out, features, block, density)
    for seed in range(3):
        mask = other(layer, seed)
        before = layer.pattern
        moved = layer.set_topology_(mask)
        expected = Pattern(out, features, block, mask)
        assert layer.pattern == expected and layer.density == expected.density
        for got, wanted in zip(layer.index.lists(), build_index(expected).lists(), strict=True):
            assert torch.equal(got, wanted)
        stayed = (before.mask & mask)[mask]
        assert torch.equal(moved >= 0, stayed)
        assert torch.equal(moved[moved >= 0], (before.mask & mask)[before.mask].nonzero().flatten().int())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_products_right_after_a_change_are_those_of_the_dense_weight(dtype):
    layer = make(dtype=dtype)
    x, dy = torch.randn(19, 100, dtype=dtype, requires_grad=True), torch.randn(19, 70, dtype=dtype)
    layer(x)  # planned before
    mask = other(layer)
    layer.set_topology_(mask)
    weight = torch.randn(70, 100, dtype=dtype)
    with torch.no_grad():
        layer.values.copy_(ops.call("pack", weight, layer.crow, layer.col, 16, 16))
    weight = (weight * cells(layer, mask)).requires_grad_()
    y, expected = layer(x), F.linear(x, weight, layer.bias)
    near = {"atol": 0.1, "rtol": 0.02} if dtype.itemsize == 2 else {"atol": 1e-4, "rtol": 1e-5}
    torch.testing.assert_close(y, expected, **near)
    got, wanted = (
        torch.autograd.grad(y, [x, layer.values], dy),
        torch.autograd.grad(expected, [x, weight], dy),
    )
    torch.testing.assert_close(got[0], wanted[0], **near)
    torch.testing.assert_close(dense_of(layer, got[1]), wanted[1] * cells(layer, mask), **near)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_values_gradient_and_state_move_with_their_blocks(kind):
    layer = make()
    optimizer = kind(layer.parameters(), 0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    train(layer, optimizer)
    state = optimizer.state[layer.values]
    moments = [key for key, value in state.items() if isinstance(value, torch.Tensor) and value.dim() == 3]
    assert moments

    def all_of_it():
        found = {key: dense_of(layer, state[key]) for key in moments}
        return found | {"values": dense_of(layer), "grad": dense_of(layer, layer.values.grad)}

    before = all_of_it()
    step = copy.deepcopy(state.get("step"))
    mask = other(layer)
    layer.set_topology_(mask, optimizer=optimizer)
    kept = cells(layer, mask)
    after = all_of_it()
    for key, value in before.items():
        assert torch.equal(after[key], value * kept), key
        assert after[key].any(), key
    assert state.get("step") == step and optimizer.param_groups[0]["params"][0] is layer.values
    train(layer, optimizer)
    assert layer.values.isfinite().all()


def test_an_optimizer_that_is_not_named_is_left_alone():
    layer = make()
    optimizer = torch.optim.AdamW(layer.parameters())
    train(layer, optimizer)
    before = optimizer.state[layer.values]["exp_avg"].clone()
    layer.set_topology_(other(layer))
    assert torch.equal(optimizer.state[layer.values]["exp_avg"], before)


def test_grown_blocks_take_what_is_given_and_padding_stays_zero():
    layer = make()
    before, mask, grown = dense_of(layer), other(layer), torch.randn(70, 100)
    old = cells(layer, layer.pattern.mask)
    layer.set_topology_(mask, grown=grown)
    assert torch.equal(
        dense_of(layer), torch.where(cells(layer, mask) & ~old, grown, before * cells(layer, mask))
    )
    layer.load_state_dict(layer.state_dict())  # refuses padding that is not zero


def test_everything_keeps_its_place_and_one_plan_serves_all():
    layer = make()
    layer.set_topology_(other(layer))
    places = [tensor.data_ptr() for tensor in (layer.index.packed, layer.values, layer.requested_blocks)]
    packed, digest = layer.index.packed, layer.index.digest
    for seed in range(3):
        layer.set_topology_(other(layer, seed + 5))
        assert [
            tensor.data_ptr() for tensor in (layer.index.packed, layer.values, layer.requested_blocks)
        ] == places
        assert layer.index.packed is packed and layer.index.digest == digest == ops.UNKNOWN
    assert layer.plan(9)["kernel"] and layer.plan(9, "dx")["kernel"]


def test_skewed_rows_give_the_same_bits_as_a_fixed_layer_with_any_number_of_threads():
    layer = make(512, 256, 8, 0.2)
    mask = torch.zeros(64, 32, dtype=torch.bool)
    mask[:12] = True
    mask[20:28, :3] = True
    mask[40, : layer.values.shape[0] - int(mask.sum())] = True
    layer.set_topology_(mask)
    fixed = BlockSparseLinear(256, 512, pattern=Pattern(512, 256, 8, mask))
    with torch.no_grad():
        fixed.values.copy_(layer.values.normal_())
        fixed.bias.copy_(layer.bias)
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            for m in (1, 37, 200):
                x = torch.randn(m, 256, requires_grad=True)
                a, b = layer(x), fixed(x)
                assert torch.equal(a, b)
                grads = [torch.autograd.grad(y.sum(), [x, w.values]) for y, w in ((a, layer), (b, fixed))]
                assert all(torch.equal(p, q) for p, q in zip(*grads, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_a_mask_of_too_many_blocks_is_cut_and_one_of_too_few_filled_up_with_zeros(caplog):
    layer = make()
    blocks, before = len(layer.values), dense_of(layer)
    layer.set_topology_(torch.ones(5, 7, dtype=torch.bool))
    assert int(layer.requested_blocks) == 35
    with caplog.at_level(logging.WARNING, "sparseloom"):
        first = layer.pattern
    assert f"35 blocks for a layer of {blocks}: the first {blocks} were taken" in caplog.text
    assert torch.equal(first.mask.flatten(), torch.arange(35) < blocks)
    few = torch.zeros(5, 7, dtype=torch.bool)
    few[4, 5:] = few[0, 3] = True
    layer.set_topology_(few)
    assert int(layer.requested_blocks) == 3 and "filled up" not in caplog.text
    assert layer.pattern.blocks == blocks and bool((layer.pattern.mask & few).sum() == 3)
    # What fills up is new even where a block was: the product is the mask's.
    assert torch.equal(dense_of(layer), before * cells(layer, first.mask & few))


def test_a_mask_may_be_bytes_a_pattern_or_strided():
    layer = make()
    mask = other(layer)
    for given in (mask.to(torch.uint8) * 7, Pattern(70, 100, 16, mask), mask.t().contiguous().t()):
        twin = copy.deepcopy(layer)
        twin.set_topology_(given)
        assert torch.equal(twin.pattern.mask, mask)


def test_the_operators_as_torch_checks_them():
    layer = make()
    index, mask = layer.index, other(layer)
    packed = index.packed.clone()
    moved, requested = torch.zeros_like(index.col), torch.zeros(1, dtype=torch.int32)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.sparseloom.set_topology.default, (mask, packed, moved, requested), test_utils=tests
    )
    torch.library.opcheck(
        torch.ops.sparseloom.move_blocks.default, (layer.values.detach().clone(), moved), test_utils=tests
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.complex128])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 3), (6, 8, 8), (6, 0)])
def test_anything_with_blocks_as_its_first_dimension_moves(dtype, shape):
    values = torch.randint(1, 100, shape).to(dtype)
    moved = torch.tensor([3, -1, 3, 0, 6, 5], dtype=torch.int32)
    expected = torch.where(
        ((moved < 0) | (moved > 5)).reshape(-1, *[1] * (len(shape) - 1)), 0, values[moved.clamp(0, 5).long()]
    )
    ops.move_blocks(values, moved)
    assert torch.equal(values, expected.to(dtype))


@pytest.mark.parametrize(
    "break_it, words",
    [
        (
            lambda layer: layer.set_topology_(torch.ones(7, 5, dtype=torch.bool)),
            r"mask bool \[5, 7\].*\[7, 5\]",
        ),
        (lambda layer: layer.set_topology_(torch.ones(5, 7)), "float32"),
        (lambda layer: layer.set_topology_("all"), "str"),
        (
            lambda layer: layer.set_topology_(Pattern(70, 100, 32, torch.ones(3, 4, dtype=torch.bool))),
            "blocks of 16 x 16",
        ),
        (lambda layer: layer.to("meta").set_topology_(torch.ones(5, 7, dtype=torch.bool)), "meta"),
        (lambda layer: layer.set_topology_(other(layer), grown=torch.ones(100, 70)), r"grown \[70, 100\]"),
        (
            lambda layer: layer.set_topology_(other(layer), optimizer=torch.optim.LBFGS(layer.parameters())),
            "LBFGS",
        ),
        (lambda layer: ops.move_blocks(torch.ones(3), torch.zeros(4, dtype=torch.int32)), "4 blocks"),
        (
            lambda layer: ops.move_blocks(torch.ones(4, 4).t(), torch.zeros(4, dtype=torch.int32)),
            "contiguous",
        ),
        (lambda layer: ops.move_blocks(torch.ones(4), torch.zeros(4)), "int32"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(break_it, words):
    layer = make()
    before = copy.deepcopy(layer)
    with pytest.raises(Error, match=words):
        break_it(layer)
    assert not layer.dynamic
    if not layer.values.is_meta:
        assert layer.pattern == before.pattern and torch.equal(layer.values, before.values)


def test_a_new_pattern_is_planned_within_the_time_that_a_dynamic_trainer_has():
    """0.3 ms at density 0.5 on one core, index and all three plans; the promise is 1 ms, and a tenfold loss
    must show anywhere. In this thread's own time, and again where neighbours slow the core down."""
    ops.plan(build_index(sparseloom.pattern.balanced(4096, 4096, 32, 0.5, 0)), "forward", torch.float32, 1024)
    times = []
    for seed in range(150):
        mask = torch.rand(128, 128, generator=torch.Generator().manual_seed(seed)) < 0.5
        start = time.thread_time()
        index = build_index(Pattern(4096, 4096, 32, mask))
        for direction in ops.DIRECTIONS:
            ops.plan(index, direction, torch.float32, 1024)
        times.append(time.thread_time() - start)
        if seed >= 14 and min(times) < 2e-3:
            break
    assert min(times) < 2e-3, (min(times), statistics.median(times))
