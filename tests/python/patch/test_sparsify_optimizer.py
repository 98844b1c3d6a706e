"""Optimizers of patched models: re-pointed with the state of the kept blocks, or stopped."""

import copy

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom import BlockSparse, densify_, sparsify_
from sparseloom.nn import BlockSparseLinear

HALF = BlockSparse(block=16, density=0.5)


def trained(make, steps=3):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 8))
    optimizer = make(net.parameters())
    for _ in range(steps):
        step(net, optimizer)
    return net, optimizer


def step(net, optimizer):
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, net[0].in_features, generator=generator)
    net(x).square().sum().backward()
    optimizer.step()


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True),
}


def masked_twin(net, optimizer, layer):
    """The dense network and optimizer as they were, with the weight's absent blocks held at zero by hand."""
    mask = layer.pattern.mask.repeat_interleave(16, 0).repeat_interleave(16, 1)
    with torch.no_grad():
        net[0].weight.mul_(mask)
        for value in optimizer.state[net[0].weight].values():
            if torch.is_tensor(value) and value.shape == mask.shape:
                value.mul_(mask)
    net[0].weight.register_hook(lambda grad: grad * mask)
    return mask


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_if_the_absent_blocks_had_been_masked(name):
    net, optimizer = trained(OPTIMIZERS[name])
    twin = copy.deepcopy(net)
    twin_optimizer = OPTIMIZERS[name](twin.parameters())
    twin_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # it would share the tensors
    result = sparsify_(net, {"0": HALF}, optimizer=optimizer)
    assert not result.notes and any(
        p is net[0].values for group in optimizer.param_groups for p in group["params"]
    )
    mask = masked_twin(twin, twin_optimizer, net[0])
    for _ in range(4):
        step(net, optimizer)
        step(twin, twin_optimizer)
    torch.testing.assert_close(net[0].to_dense().weight, twin[0].weight * mask, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(net[2].weight, twin[2].weight, atol=1e-6, rtol=1e-5)
    densify_(net, optimizer=optimizer)  # and back: the state returns to its places
    masked_twin(net, optimizer, BlockSparseLinear.from_dense(twin[0], density=0.5, block=16))
    for _ in range(2):
        step(net, optimizer)
        step(twin, twin_optimizer)
    torch.testing.assert_close(net[0].weight, twin[0].weight, atol=1e-6, rtol=1e-5)


def test_an_optimizer_with_a_replaced_parameter_raises_at_its_next_step():
    net, optimizer = trained(OPTIMIZERS["adamw"])
    sparsify_(net, {"0": HALF})
    before = [p.detach().clone() for p in net.parameters()]
    net(torch.randn(2, 64)).sum().backward()
    with pytest.raises(
        sparseloom.Error, match=r"parameter 0 of group 0 \(48 x 64\).*pass optimizer= to sparsify_"
    ):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    torch.optim.AdamW(net.parameters()).step()  # one that holds what the model has goes on
    densify_(net)
    with pytest.raises(sparseloom.Error, match="in no model any more"):
        optimizer.step()


def test_several_optimizers_and_schedulers_go_on():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 16))
    first, second = torch.optim.SGD(net[0].parameters(), lr=0.1), torch.optim.Adam(net[2].parameters())
    schedule = torch.optim.lr_scheduler.StepLR(first, 1)
    sparsify_(net, {"0|2": HALF}, optimizer=[first, second])
    before = net[0].values.detach().clone()
    for _ in range(2):
        step(net, first)
        second.step()
        schedule.step()
    assert not torch.equal(net[0].values, before) and first.param_groups[0]["lr"] == pytest.approx(0.001)


def test_gradients_in_flight_are_kept():
    net, optimizer = trained(OPTIMIZERS["sgd"])
    grad = net[0].weight.grad.clone()
    sparsify_(net, {"0": BlockSparse(16, 1.0)}, optimizer=optimizer)
    kept = BlockSparseLinear.from_dense(grad, net[0].pattern).values
    assert torch.equal(net[0].values.grad, kept)


def test_state_of_another_shape_starts_anew_and_says_so(caplog):
    net, optimizer = trained(lambda p: torch.optim.Adafactor(p, lr=1e-3))
    result = sparsify_(net, {"0": HALF}, optimizer=optimizer)
    assert "Adafactor keeps state of another shape" in str(result) and "Adafactor" in caplog.text
    step(net, optimizer)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (torch.optim.LBFGS, "LBFGS"),
        (lambda p: torch.optim.Muon([*p][:1]), "AdamW group"),
        (list, "got Parameter"),
        (lambda _: 3, "got int"),
    ],
)
def test_optimizers_that_cannot_be_re_pointed_are_refused_before_anything_changes(make, message):
    net = nn.Sequential(nn.Linear(64, 48))
    weight = net[0].weight
    with pytest.raises(sparseloom.Error, match=message):
        sparsify_(net, {"0": HALF}, optimizer=make(net.parameters()))
    assert net[0].weight is weight


def test_conv1d_and_attention_state_is_carried():
    transformers = pytest.importorskip("transformers.pytorch_utils")
    torch.manual_seed(0)
    net = nn.ModuleDict({"c": transformers.Conv1D(48, 32), "a": nn.MultiheadAttention(32, 4, bias=False)})
    optimizer = torch.optim.Adam(net.parameters())
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    moments = [optimizer.state[p]["exp_avg"].clone() for p in (net["c"].weight, net["a"].in_proj_weight)]
    sparsify_(net, {"c|a": HALF}, optimizer=optimizer)
    densify_(net, optimizer=optimizer)
    for parameter, moment in zip((net["c"].weight, net["a"].in_proj_weight), moments, strict=True):
        kept = optimizer.state[parameter]["exp_avg"]
        assert torch.equal(kept[kept != 0], moment[kept != 0]) and (kept == 0).float().mean() == 0.5
