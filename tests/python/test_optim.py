"""AdamW with a count of steps for each block, beside torch's."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from sparseloom import BlockSparse, Error, sparsify_
from sparseloom.nn import BlockSparseLinear
from sparseloom.optim import AdamW


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
