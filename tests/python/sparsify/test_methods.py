"""Methods at work: budgets that are met, topologies that move with their state, and runs that resume."""

import math

import pytest
import torch
import torch.nn.functional as F
from method_runs import (
    METHODS,
    MOVING,
    batches,
    begin,
    layers,
    learn,
    require_packed,
    require_resumed,
    start,
    train,
)
from torch import nn

from sparseloom import BlockSparse, pack_, sparsify_
from sparseloom.nn import BlockSparseLinear
from sparseloom.sparsify import methods as M
from sparseloom.sparsify.grid import expanded


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_meets_its_budget_and_packs(name):
    net, optimizer, run = start(name)
    learned = learn(net, optimizer, run)
    counts = [layer.pattern.blocks for layer in layers(net)]
    if METHODS[name][1]:
        shares = [96, 60]
        wanted = [math.floor(0.25 * n + 0.5) for n in shares]
        assert counts == wanted or ("global" in name and sum(counts) == sum(wanted))
    else:
        assert 0 < sum(counts) < 156, counts
    masks = {held.name: held.present() for held in run.weights}
    weights = {held.name: held.dense().clone() for held in run.weights}
    pack_(net, optimizer=optimizer)
    for layer_name, mask in masks.items():
        layer = net.get_submodule(layer_name)
        assert isinstance(layer, BlockSparseLinear) and not layer.dynamic
        if name not in ("l0",):
            assert torch.equal(layer.pattern.mask, mask)
            kept = expanded(mask, layer.block, layer.dense_shape)
            assert torch.equal(layer.to_dense().weight, weights[layer_name] * kept)
    require_packed(name, net, optimizer, *learned)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_is_resumed_is_bitwise_the_run_that_was_not(name):
    other = {"select": "random", "seed": 5} if METHODS[name][1] else {}
    require_resumed(start(name), start(name, **other), batches(20), seed=3)


@pytest.mark.parametrize("name", ["rigl", "set"])
def test_state_moves_with_its_block_and_new_blocks_start_clean(name):
    net, optimizer, run = start(name)
    train(net, optimizer, run, batches(3))
    layer = net[0]
    old = layer.pattern.mask
    x, y = batches(1, 7)[0]
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
    weight = layer.sparse_weights()["values"]
    dense = {
        key: weight.unpacked(t).clone()
        for key, t in [("values", layer.values.detach()), *moments(optimizer, layer)]
    }
    run.step()
    new = layer.pattern.mask
    assert int(new.sum()) == int(old.sum()) and not torch.equal(new, old)
    kept = expanded(old & new, layer.block, layer.dense_shape)
    for key, tensor in [("values", layer.values.detach()), *moments(optimizer, layer)]:
        assert torch.equal(layer.sparse_weights()["values"].unpacked(tensor), dense[key] * kept), key


def moments(optimizer, layer):
    return [(k, v) for k, v in optimizer.state[layer.values].items() if v.dim() == 3]


def test_what_returns_to_a_dense_master_starts_clean():
    net, optimizer, run = start("ac/dc")
    data = batches(12)
    train(net, optimizer, run, data[:6])
    layer = net[0]
    gone = ~expanded(layer.mask, layer.block, (96, 64))
    assert gone.any() and not layer.weight[gone].any()
    train(net, optimizer, run, data[6:7])
    assert not layer.weight[gone].any() and not optimizer.state[layer.weight]["exp_avg"][gone].any()
    train(net, optimizer, run, data[7:8])  # dense again, after the step
    assert layer.mask.all() and not layer.weight[gone].any()
    train(net, optimizer, run, data[8:9])
    assert layer.weight[gone].any()


def test_ac_dc_compresses_to_another_mask_in_each_phase():
    net, optimizer, run = begin(BlockSparse(8, 0.25, method=M.ac_dc(4, 20, 44)), lr=0.1)
    masks = []
    for batch in batches(50):
        train(net, optimizer, run, [batch])
        masks.append(net[0].pattern.mask)
    assert [int(mask.sum()) for mask in masks] == [96] * 3 + [24] * 20 + [96] * 20 + [24] * 7
    assert all(torch.equal(mask, masks[3]) for mask in masks[3:23]) and not torch.equal(masks[3], masks[43])


@pytest.mark.parametrize("name", ["gradual", "decreasing", "movement"])
def test_the_number_of_blocks_follows_the_schedule(name):
    net, optimizer, run = start(name)
    cubic, wanted = METHODS[name][0].schedule, 1.0
    for step, batch in enumerate(batches(20), 1):
        train(net, optimizer, run, [batch])
        wanted = cubic.budget(step, 0.25) if cubic.due(step) else wanted
        net(batch[0])  # with which scores choose
        counts = [int(layer.mask.sum()) for layer in layers(net)]
        assert counts == [math.floor(wanted * size + 0.5) for size in (96, 60)], step


def test_a_larger_l0_penalty_leaves_fewer_blocks():
    left = []
    for penalty in (0.0, 0.002, 0.02):
        net, optimizer, run = begin(BlockSparse(8, method=M.l0(penalty, lr=0.2)))
        train(net, optimizer, run, batches(1) * 40)
        pack_(net)
        left.append(net[0].pattern.blocks + net[2].pattern.blocks)
    assert left[0] > left[1] > left[2], left


def test_pruned_weights_that_may_return_keep_their_values():
    net, optimizer, run = start("gradual")
    train(net, optimizer, run, batches(18))
    gone = ~expanded(net[0].mask, (8, 8), (96, 64))
    assert net[0].weight[gone].all()
    strict, strict_optimizer, strict_run = start("gradual global")
    train(strict, strict_optimizer, strict_run, batches(18))
    gone = ~expanded(strict[0].mask, (8, 8), (96, 64))
    assert gone.any() and not strict[0].weight[gone].any()


def test_rigl_finds_the_support_of_a_sparse_weight_and_set_does_not():
    torch.manual_seed(0)
    truth = torch.zeros(8, 8, dtype=torch.bool)
    truth.view(-1)[torch.randperm(64)[:12]] = True
    weight = torch.randn(64, 64) * expanded(truth, (8, 8), (64, 64))
    found = {}
    for name, method in (("rigl", M.rigl(500, 10)), ("set", M.set_(10, end=500))):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(64, 64, bias=False))
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        options = {"select": "random", "seed": 0, "method": method}
        run = sparsify_(net, {"0": BlockSparse(8, 12 / 64, **options)}, optimizer=optimizer).method
        for _ in range(500):
            x = torch.randn(64, 64)
            optimizer.zero_grad()
            (net(x) - x @ weight.t()).square().mean().backward()
            optimizer.step()
            run.step()
        found[name] = int((net[0].pattern.mask & truth).sum())
    assert found["rigl"] == 12 > found["set"], found


def test_rigl_sums_the_gradient_of_the_steps_that_it_is_given():
    net = nn.Sequential(nn.Linear(64, 64, bias=False))
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    options = {"select": "random", "seed": 0, "method": M.rigl(100, 5, share=0.5, steps=3)}
    run = sparsify_(net, {"0": BlockSparse(8, 0.25, **options)}, optimizer=optimizer).method
    (held,) = run.weights
    torch.manual_seed(0)
    for change in range(2):
        total, watched, norms = torch.zeros(64, 64), [], net[0].values.detach().flatten(1).norm(dim=1)
        mask = net[0].pattern.mask
        for step in range(1, 6):
            x, dy = torch.randn(16, 64), torch.randn(16, 64)
            optimizer.zero_grad()
            watched.append(held.watching)
            net(x).backward(dy)
            total += dy.t() @ x if step > 2 else 0
            run.step()
        assert watched == [False, False, True, True, True] and not held.pairs
        strength = torch.full((64,), -math.inf).masked_scatter(mask.flatten(), norms)
        kept = torch.zeros(64, dtype=torch.bool)
        share = held_share(run, 5 * (change + 1))
        kept[strength.topk(16 - int(share * 16)).indices] = True
        scores = total.view(8, 8, 8, 8).square().sum((1, 3)).sqrt().flatten().masked_fill(kept, -math.inf)
        kept[scores.topk(16 - int(kept.sum())).indices] = True
        assert torch.equal(net[0].pattern.mask.flatten(), kept)


def held_share(run, step):
    """What a run's only method drops after that step."""
    ((method, _),) = run._groups
    return method.regrow.share_at(method.schedule.progress(step))


def test_without_a_gradient_outside_rigl_grows_the_lowest_indices():
    net, optimizer, run = start("rigl")
    run.step()
    run.step()
    run.step()
    old = net[0].pattern.mask
    x = torch.zeros(4, 64)
    net(x).sum().backward()
    optimizer.zero_grad()
    run.step()
    new = net[0].pattern.mask
    order = new.flatten().nonzero().flatten()[: int((new & ~old).sum())]
    assert int(new.sum()) == int(old.sum()) and len(order) >= 0
    dropped_or_free = (~(old & new)).flatten().nonzero().flatten()
    assert torch.equal((new & ~old).flatten().nonzero().flatten(), dropped_or_free[: int((new & ~old).sum())])


def test_a_falling_budget_is_rigl_where_it_is_flat_and_gradual_pruning_with_share_0():
    flat = MOVING["rigl"], METHODS["rigl"][0]
    falling = M.decreasing(4, 16, 3, share=0.0), M.gradual(4, 16, 3, returns=False)
    for methods, how, steps in ((flat, {"kind": torch.optim.SGD, "lr": 0.5}, 12), (falling, {}, 20)):
        ends = []
        for method in methods:
            net, optimizer, run = begin(BlockSparse(8, 0.25, method=method), **how)
            train(net, optimizer, run, batches(steps))
            ends.append([layer.pattern.mask for layer in layers(net)])
        assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
