"""AdamW with a count of steps for each block, beside torch's."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from sparseloom import BlockSparse, Error, sparsify_
from sparseloom import sparsify as S
from sparseloom.nn import BlockSparseLinear
from sparseloom.optim import AdamW
from sparseloom.sparsify import densities
from sparseloom.sparsify import methods as M


def train(layer, optimizer, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x, y = torch.randn(16, 64, generator=generator), torch.randn(16, 48, generator=generator)
        optimizer.zero_grad()
        (layer(x) - y).square().mean().backward()
        optimizer.step()


def test_with_a_fixed_topology_it_is_torchs():
    torch.manual_seed(0)
    mine = BlockSparseLinear(64, 48, block=8, density=0.5)
    theirs = copy.deepcopy(mine)
    options = {"lr": 1e-2, "betas": (0.8, 0.99), "weight_decay": 0.1}
    optimizer = AdamW(mine.parameters(), **options)
    train(mine, optimizer, 20)
    train(theirs, torch.optim.AdamW(theirs.parameters(), **options), 20)
    torch.testing.assert_close(mine.values, theirs.values, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(mine.bias, theirs.bias, atol=1e-6, rtol=1e-5)
    assert optimizer.state[mine.values]["step"].tolist() == [20] * len(mine.values)
    assert optimizer.state[mine.bias]["step"].dim() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_update_is_the_formula_of_each_block(dtype):
    """Parameters of several sizes and ages at once, beside one block after the other in float64."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 8, 8), (0, 8, 8), (3, 16, 8), (40, 24), (7,)]
    mine = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    optimizer = AdamW(mine, 1e-2, (0.8, 0.99), 1e-6, 0.1)
    wanted = [each.detach().double().clone() for each in mine]
    for each in mine:
        each.grad = torch.zeros_like(each)
    optimizer.step()  # which makes the state; zeros leave the decay alone
    wanted = [each * (1 - 1e-3) for each in wanted]
    for each in (mine[0], mine[2]):
        optimizer.state[each]["step"].copy_(torch.arange(len(each)))
    for step in range(3):
        for each, exact in zip(mine, wanted, strict=True):
            state, grad = optimizer.state[each], torch.randn(each.shape, generator=generator).to(dtype)
            m, v = (state[name].double() for name in ("exp_avg", "exp_avg_sq"))
            m, v = 0.8 * m + 0.2 * grad.double(), 0.99 * v + 0.01 * grad.double().square()
            ages = state["step"].double().view(-1, *[1] * (each.dim() - 1)) + 1
            ages = ages if each.dim() == 3 else ages.flatten()[0]
            exact.mul_(1 - 1e-3)
            exact.sub_(1e-2 * (m / (1 - 0.8**ages)) / ((v / (1 - 0.99**ages)).sqrt() + 1e-6))
            each.grad = grad
        optimizer.step()
        assert [int(n) for n in optimizer.state[mine[2]]["step"]] == [step + 1 + i for i in range(3)]
    loose = {"atol": 0.05, "rtol": 0.05} if dtype == torch.bfloat16 else {"atol": 1e-6, "rtol": 1e-5}
    for each, exact in zip(mine, wanted, strict=True):
        torch.testing.assert_close(each.detach().double(), exact, **loose)


def test_the_rate_may_be_a_tensor_and_states_of_torchs_go_on():
    torch.manual_seed(0)
    mine = BlockSparseLinear(64, 48, block=8, density=0.5)
    theirs = copy.deepcopy(mine)
    old, new = torch.optim.AdamW(mine.parameters(), 1e-2), AdamW(mine.parameters(), torch.tensor(1e-2))
    train(mine, old, 3)
    new.load_state_dict(old.state_dict() | {"param_groups": new.state_dict()["param_groups"]})
    train(mine, new, 3, seed=1)
    both = torch.optim.AdamW(theirs.parameters(), 1e-2)
    train(theirs, both, 3)
    train(theirs, both, 3, seed=1)
    torch.testing.assert_close(mine.values, theirs.values, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(mine.bias, theirs.bias, atol=1e-6, rtol=1e-5)


def test_it_is_dense_adamw_with_masked_gradients():
    torch.manual_seed(0)
    layer = BlockSparseLinear(64, 48, block=8, density=0.5, bias=False)
    weight = layer.to_dense().weight.detach().clone().requires_grad_()
    inside = layer.sparse_weights()["values"].unpacked(torch.ones_like(layer.values))
    mine, theirs = AdamW(layer.parameters(), 1e-2), torch.optim.AdamW([weight], 1e-2)
    train(layer, mine, 10)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        x, y = torch.randn(16, 64, generator=generator), torch.randn(16, 48, generator=generator)
        theirs.zero_grad()
        (F.linear(x, weight * inside) - y).square().mean().backward()
        theirs.step()
    torch.testing.assert_close(layer.to_dense().weight, weight, atol=1e-6, rtol=1e-5)


def first_steps(kind):
    torch.manual_seed(0)
    layer = BlockSparseLinear(64, 48, block=8, density=0.5)
    optimizer = kind(layer.parameters(), 1e-2, weight_decay=0)
    train(layer, optimizer, 200)
    layer.set_topology_(~layer.pattern.mask, optimizer=optimizer)
    train(layer, optimizer, 1, seed=9)
    return layer, optimizer


def test_the_first_step_of_a_new_block_is_as_long_as_any_other_first_step():
    layer, optimizer = first_steps(AdamW)
    assert optimizer.state[layer.values]["step"].tolist() == [1] * len(layer.values)
    torch.testing.assert_close(layer.values.abs().max().item(), 1e-2, rtol=1e-3, atol=0)
    layer, _ = first_steps(torch.optim.AdamW)  # (1 - b1) / sqrt(1 - b2) times the rate, and its corrections
    expected = 1e-2 * 0.1 / math.sqrt(0.001) * math.sqrt(1 - 0.999**201)
    torch.testing.assert_close(layer.values.abs().max().item(), expected, rtol=1e-3, atol=0)


def test_counts_follow_sparsify_and_survive_a_state_dict():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 48))
    optimizer = AdamW(net.parameters(), 1e-2)
    train(net, optimizer, 3)
    sparsify_(net, {"0": BlockSparse(8, 0.5)}, optimizer=optimizer)
    train(net, optimizer, 2)
    layer = net[0]
    mask = layer.pattern.mask.roll(1, 1)
    layer.set_topology_(mask, optimizer=optimizer)
    train(net, optimizer, 1)
    counts = optimizer.state[layer.values]["step"]
    assert set(counts.tolist()) == {1.0, 6.0}
    again, twin = copy.deepcopy(net), copy.deepcopy(optimizer.state_dict())
    other = AdamW(again.parameters(), 1e-2)
    other.load_state_dict(twin)
    train(net, optimizer, 2)
    train(again, other, 2)
    assert torch.equal(layer.values, again[0].values)


def test_it_takes_a_closure_and_refuses_what_it_cannot_do():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = AdamW([weight], 0.1)

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3 and (weight < 1).all()
    with pytest.raises(Error, match=r"betas in \[0, 1\)"):
        AdamW([weight], betas=(1.0, 0.9))


def test_a_block_that_warms_up_takes_the_share_of_its_age():
    """Ages 1, 2, 4 and 9 of a warm-up of 4 beside the formula, and beside a Parameter without one."""
    generator = torch.Generator().manual_seed(0)
    slow, fast = (torch.zeros(4, 8, 8, requires_grad=True) for _ in range(2))
    optimizer = AdamW([slow, fast], 1e-2, (0.8, 0.99), 1e-6, 0.0)
    optimizer.warm_up(slow, 4)
    slow.grad, fast.grad = torch.zeros(4, 8, 8), torch.zeros(4, 8, 8)
    optimizer.step()
    for each in (slow, fast):
        optimizer.state[each]["step"].copy_(torch.tensor([0.0, 1.0, 3.0, 8.0]))
    grad = torch.randn(4, 8, 8, generator=generator)
    slow.grad, fast.grad = grad, grad.clone()
    optimizer.step()
    ages = torch.tensor([1.0, 2.0, 4.0, 9.0], dtype=torch.float64).view(4, 1, 1)
    m, v = 0.2 * grad.double(), 0.01 * grad.double().square()
    whole = -1e-2 * (m / (1 - 0.8**ages)) / ((v / (1 - 0.99**ages)).sqrt() + 1e-6)
    torch.testing.assert_close(fast.detach().double(), whole, atol=1e-7, rtol=1e-5)
    shares = torch.tensor([0.25, 0.5, 1.0, 1.0], dtype=torch.float64).view(4, 1, 1)
    torch.testing.assert_close(slow.detach().double(), shares * whole, atol=1e-7, rtol=1e-5)
    again = AdamW([slow, fast], 1e-2)
    again.load_state_dict(optimizer.state_dict())
    assert again.state[slow]["warm_up"] == 4 and "warm_up" not in again.state[fast]
    with pytest.raises(Error, match=r"values \[blocks, bm, bn\]"):
        optimizer.warm_up(torch.zeros(8, 8), 4)


@pytest.mark.parametrize("method", [M.rigl(end=40, every=4, warm_up=3), M.set_(4, warm_up=3)])
def test_methods_tell_the_optimizer_how_slowly_new_blocks_begin(method):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 48))
    recipe = {"0": BlockSparse(8, 0.5, method=method)}
    with pytest.raises(Error, match="counts each block's steps"):
        other = copy.deepcopy(net)
        sparsify_(other, recipe, optimizer=torch.optim.AdamW(other.parameters()))
    optimizer = AdamW(net.parameters(), 1e-2, weight_decay=0)
    sparsify_(net, recipe, optimizer=optimizer)
    train(net, optimizer, 4)  # which ends with a change of the blocks
    values, state = net[0].values, optimizer.state[net[0].values]
    new = state["step"] == 0
    assert state["warm_up"] == 3 and 0 < int(new.sum()) < len(new)
    assert not values[new].any() and not state["exp_avg_sq"][new].any()
    train(net, optimizer, 1, seed=7)
    longest = values[new].abs().amax((1, 2))  # of a first step: the rate, of which a third
    torch.testing.assert_close(longest, torch.full_like(longest, 1e-2 / 3), rtol=1e-3, atol=0)


@pytest.mark.parametrize("power, factor", [(1.0, 4.0), (0.5, 2.0), (0.0, 1.0)])
def test_rates_follow_densities(power, factor):
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), BlockSparseLinear(64, 64, block=16, density=0.25))
    groups = densities.rates(net, 1e-3, power)
    by_rate = {id(each): group["lr"] for group in groups for each in group["params"]}
    assert len(by_rate) == 4 and by_rate[id(net[1].values)] == pytest.approx(factor * 1e-3)
    others = [net[0].weight, net[0].bias, net[1].bias]
    assert all(by_rate[id(each)] == 1e-3 for each in others)
    optimizer = AdamW(groups, 1.0)
    assert {group["lr"] for group in optimizer.param_groups} == set(by_rate.values())


def test_a_warm_up_needs_blocks_with_steps_of_their_own():
    with pytest.raises(Error, match=r"gradients.Stored\(\) beside warm_up and grace"):
        replace(M.rigl(warm_up=3), gradient=S.gradients.Masked())


@pytest.mark.parametrize("capacity", [None, 0.6], ids=["host", "device"])
@pytest.mark.parametrize("method", [M.rigl(end=400, every=4), M.set_(4)], ids=["rigl", "set"])
def test_a_new_block_stays_for_its_grace(method, capacity):
    """Blocks of the start have none; without a grace most new ones fall at the next change."""
    lives = {}
    for grace in (0, 9):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(64, 48))
        optimizer = AdamW(net.parameters(), 1e-3, weight_decay=0)
        moving = replace(method, regrow=replace(method.regrow, share=0.2, grace=grace))
        recipe = BlockSparse(8, 0.5, method=moving, capacity=capacity)
        sparsify_(net, {"0": recipe}, optimizer=optimizer)
        born, lives[grace], before = torch.zeros(6, 8), [], net[0].pattern.mask
        first = before.clone()
        for change in range(1, 9):
            train(net, optimizer, 4, seed=change)
            mask = net[0].pattern.mask
            dropped = before & ~mask
            lives[grace] += (change - born[dropped & (born > 0)]).tolist()
            born[mask & ~before] = change
            first &= mask
            before = mask
        assert int(before.sum()) == 24 and not first.all()
    assert min(lives[0]) == 1 and min(lives[9]) == 3  # of at least 9 steps, in changes every 4
