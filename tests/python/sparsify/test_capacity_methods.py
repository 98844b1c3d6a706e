"""Methods on layers with a capacity: the same changes as on the host, made where the weight is."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sparseloom import BlockSparse, Error, pack_, sparsify_
from sparseloom import sparsify as S
from sparseloom.optim import AdamW


def model_of(seed=0, sizes=(100, 70)):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(*sizes), nn.Tanh(), nn.Linear(sizes[1], 8))


def run_of(net, method, capacity, density=0.3, block=16, kind=AdamW, optimizer=None, pattern="0"):
    optimizer = optimizer or kind(net.parameters(), lr=0.01)
    chosen = BlockSparse(block, density, "random", seed=0, method=method, capacity=capacity)
    return sparsify_(net, {pattern: chosen}, optimizer=optimizer).method, optimizer


def train(net, optimizer, run, steps, first=0):
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(16, 100, generator=generator), torch.randn(16, 8, generator=generator)
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
        run.step()


@pytest.mark.parametrize("method", [S.methods.rigl(100, 3), S.methods.set_(3, 0.4)])
@pytest.mark.parametrize("kind", [AdamW, torch.optim.AdamW])
def test_room_changes_nothing_of_a_method(method, kind):
    nets = []
    for capacity in (None, 0.7):
        net = model_of()
        run, optimizer = run_of(net, method, capacity, kind=kind)
        first = net[0].pattern
        train(net, optimizer, run, 10)
        assert net[0].pattern != first and net[0].pattern.blocks == first.blocks
        nets.append((net, optimizer))
    (plain, of_plain), (roomy, of_roomy) = nets
    live = plain[0].pattern.blocks
    assert roomy[0].pattern == plain[0].pattern and len(roomy[0].values) > live
    assert torch.equal(roomy[0].values[:live], plain[0].values) and not roomy[0].values[live:].any()
    for key in ("exp_avg", "exp_avg_sq"):
        moments = [o.state[n[0].values][key] for n, o in ((plain, of_plain), (roomy, of_roomy))]
        assert torch.equal(moments[1][:live], moments[0]) and not moments[1][live:].any()


def test_a_falling_budget_of_stored_blocks():
    method = S.Method(schedule=S.schedules.Cubic(2, 12, 2))
    net = model_of()
    run, optimizer = run_of(net, method, 1.0)
    assert net[0].pattern.density == 1.0 and len(net[0].values) == 35
    for step in range(1, 14):
        train(net, optimizer, SimpleNamespace(step=lambda: None), 1, step)
        norms = S.scores.Norm()(run.weights[0].context(step)).flatten()
        run.step()
        if method.schedule.due(step):
            count = math.floor(method.schedule.budget(step, 0.3) * 35 + 0.5)
            strongest = torch.zeros(35, dtype=torch.bool).index_fill_(0, norms.topk(count).indices, True)
            assert net[0].pattern.mask.flatten().equal(strongest)
    assert net[0].pattern.blocks == 11 and not net[0].values[11:].any()


def test_ragged_blocks_count_as_on_the_host():
    for norm in ("l1", "l2", "max"):
        method = S.Method(score=S.scores.Norm(norm), schedule=S.schedules.Cubic(1, 2, 1))
        net = model_of()
        run, optimizer = run_of(net, method, 1.0)
        train(net, optimizer, run, 1)
        held = run.weights[0]
        on_host = held.present().new_zeros(35, dtype=torch.float32)
        stored = method.score.of_blocks(held)[: net[0].pattern.blocks]
        on_host[held.present().flatten()] = stored
        torch.testing.assert_close(on_host.view(5, 7), method.score(held.context(1)))


def test_the_optimizer_may_be_older_than_the_sparse_layer():
    net = model_of()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    nn.functional.mse_loss(net(torch.randn(4, 100)), torch.randn(4, 8)).backward()
    optimizer.step()
    dense = optimizer.state[net[0].weight]["exp_avg"].clone()
    run, _ = run_of(net, S.methods.rigl(100, 2), 0.6, optimizer=optimizer)
    values, state = net[0].values, optimizer.state[net[0].values]
    assert any(values is each for group in optimizer.param_groups for each in group["params"])
    (weight,) = net[0].sparse_weights().values()
    assert torch.equal(state["exp_avg"], weight.packed(dense)) and len(state["exp_avg"]) == 21
    train(net, optimizer, run, 5)
    assert net[0].values is values and not values[11:].any()


def test_a_step_that_grad_scaler_skips():
    net = model_of()
    run, optimizer = run_of(net, S.methods.rigl(100, 1), 0.6)
    train(net, optimizer, run, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    before, values = net[0].pattern, net[0].values.detach().clone()
    optimizer.zero_grad()
    scaler.scale(net(torch.randn(4, 100)).sum() * math.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    run.step()  # a change is due, and the gradient to grow by is not finite
    assert net[0].pattern == before and torch.equal(net[0].values, values)
    train(net, optimizer, run, 1)
    assert net[0].pattern != before


def test_what_took_no_part_in_a_step_keeps_its_blocks():
    net = model_of()
    run, _ = run_of(net, S.methods.rigl(100, 1), 0.6)
    before = net[0].pattern
    run.step()
    assert net[0].pattern == before


def test_a_nan_in_the_weight_is_told_and_moves_nothing():
    net = model_of()
    run, _ = run_of(net, S.methods.rigl(100, 1), 0.6)
    with torch.no_grad():
        net[0].values[3, 0, 0] = math.nan
    before = net[0].index.packed.clone()
    run.step()
    assert torch.equal(net[0].index.packed, before)
    with pytest.raises(Error, match="scores without NaN"):
        net.state_dict()


def test_an_average_of_the_weights_moves_along():
    net = model_of()
    run, optimizer = run_of(net, S.methods.rigl(100, 2), 0.6)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    run.follow(average.module)
    twin, dense = average.module[0], None
    for step in range(6):
        train(net, optimizer, run, 1, step)
        if dense is not None:
            new = net[0].sparse_weights()["values"].to_dense()
            kept = twin.sparse_weights()["values"].to_dense()
            mask = kept != 0
            assert torch.equal(kept[mask], dense[mask])
            dense = None
            assert new.shape == kept.shape
        average.update_parameters(net)
        assert twin.pattern == net[0].pattern
        dense = twin.sparse_weights()["values"].to_dense()
    with pytest.raises(Error, match=r"a copy of 0"):
        run.follow(nn.Linear(3, 3))


def test_a_resumed_run_is_the_same_to_the_last_bit():
    method, net = S.methods.rigl(40, 3), model_of()
    run, optimizer = run_of(net, method, 0.6)
    train(net, optimizer, run, 7)
    kept = copy.deepcopy((net.state_dict(), optimizer.state_dict(), run.state_dict()))
    train(net, optimizer, run, 8, first=7)
    again = model_of(seed=1)
    rerun, reoptimizer = run_of(again, method, 0.6)
    for each, state in zip((again, reoptimizer, rerun), kept, strict=True):
        each.load_state_dict(state)
    train(again, reoptimizer, rerun, 8, first=7)
    assert again[0].pattern == net[0].pattern
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), net.parameters(), strict=True))


def test_pack_gives_the_free_slots_back():
    net = model_of()
    run, optimizer = run_of(net, S.methods.rigl(40, 3), 0.6)
    train(net, optimizer, run, 4)
    x, pattern = torch.randn(3, 100), net[0].pattern
    before = net(x)
    pack_(net, optimizer=optimizer)
    state = optimizer.state[net[0].values]
    assert net[0].capacity is None and net[0].pattern == pattern and torch.equal(net(x), before)
    assert len(net[0].values) == len(state["exp_avg"]) == len(state["step"]) == pattern.blocks


def test_blocks_that_start_elsewhere_need_the_host_and_move_all_the_same():
    net = model_of()
    method = S.Method(schedule=S.schedules.Constant(2), regrow=S.regrow.Random(0.4, init="uniform"))
    run, optimizer = run_of(net, method, 0.6)
    before = net[0].pattern
    train(net, optimizer, run, 2)
    new = (net[0].pattern.mask & ~before.mask)[net[0].pattern.mask]
    assert new.any() and net[0].values[:11][new].flatten(1).any(1).all() and not net[0].values[11:].any()


def test_values_that_fully_shard_has_cut_up_still_cannot_move():
    net = model_of()
    run_of(net, S.methods.rigl(40, 3), 0.6)
    net[0].values.placements = (None,)
    with pytest.raises(Error, match="values that fully_shard has cut up"):
        net[0].drop_and_grow_(torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize(
    "options, told",
    [
        ({"method": S.methods.rigl(10), "capacity": 0.2}, "a capacity of 0.3 to 1"),
        ({"method": S.Method(schedule=S.schedules.Cubic(0, 10)), "capacity": 0.5}, "a capacity of 1 to 1"),
        ({"method": S.methods.gradual(0, 10), "capacity": 1.0}, "a method with stored blocks"),
        ({"capacity": 2.0}, "a capacity of 0.3 to 1"),
    ],
)
def test_capacities_that_cannot_be(options, told):
    with pytest.raises(Error, match=told):
        BlockSparse(16, 0.3, **options)
