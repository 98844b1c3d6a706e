"""fold_batchnorm_: equal results in eval mode, and what it leaves or refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, Error, sparsify_
from sparseloom.nn import BlockSparseConv2d
from sparseloom.patch import fold_batchnorm_


class Block(nn.Module):
    """Of a ResNet: two convolutions and a shortcut."""

    def __init__(self, channels: int, bias: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.conv2 = nn.Conv2d(channels, channels, 1, bias=bias)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + x).relu()


def net(bias: bool = False) -> nn.Sequential:
    """Returns a net of ragged channels whose batch norms have seen images, in eval mode."""
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20), Block(20, bias),
        nn.ConvTranspose2d(20, 12, 3, stride=2, bias=bias), nn.BatchNorm2d(12),
    )  # fmt: skip
    sparsify_(made, {r"[23].*": BlockSparse(block=8, density=0.5)})
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d) and module.affine:
            nn.init.normal_(module.weight), nn.init.normal_(module.bias)
    for _ in range(3):
        made(torch.randn(4, 3, 8, 8) * 2 + 1)
    return made.eval()


X = torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bias", [False, True])
def test_the_folded_model_computes_the_same(bias: bool) -> None:
    model = net(bias)
    y, before = model(X), model[2].conv1.values
    result = fold_batchnorm_(model)
    assert result.pairs == [("2.conv1", "2.bn1"), ("2.conv2", "2.bn2"), ("3", "4")] and not result.skipped
    assert type(model[4]) is nn.Identity and type(model[1]) is nn.BatchNorm2d
    assert model[2].conv1.values is before and "3 batch norms folded" in str(result)
    torch.testing.assert_close(model(X), y, rtol=1e-4, atol=1e-4)
    sparseloom.densify_(model)
    torch.testing.assert_close(model(X), y, rtol=1e-4, atol=1e-4)


def test_a_convolution_with_room_for_more_blocks_is_folded() -> None:
    model = net()
    model[2].conv2.linear.reserve_(0.9)
    y = model(X)
    assert ("2.conv2", "2.bn2") in fold_batchnorm_(model).pairs
    torch.testing.assert_close(model(X), y, rtol=1e-4, atol=1e-4)


def test_pairs_can_be_named_and_edge_bias_is_folded() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        BlockSparseConv2d(8, 16, 3, padding=1, density=1.0, block=8, edge_bias=True, dtype=torch.float64),
        nn.BatchNorm2d(16, dtype=torch.float64),
    )
    conv: Any = model[0]
    for each in (conv.edges.gain, conv.edges.bias, model[1].weight, model[1].bias):
        nn.init.normal_(each)
    x = torch.randn(2, 8, 5, 5, dtype=torch.float64)
    model(x), model.eval()
    y = model(x)
    fold_batchnorm_(model, pairs=[("0", "1")])
    torch.testing.assert_close(model(x), y)
    with pytest.raises(Error, match="a Identity is no batch norm"):
        fold_batchnorm_(model, pairs=[("0", "1")])
    with pytest.raises(Error, match="no 7"):
        fold_batchnorm_(model, pairs=[("0", "7")])


def test_training_mode_and_absent_statistics_are_refused_by_name() -> None:
    model = net()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    model[4].train()
    with pytest.raises(Error, match="4 in training mode"):
        fold_batchnorm_(model)
    model.eval()
    model[2].bn2 = nn.BatchNorm2d(20, affine=False, track_running_stats=False).eval()
    with pytest.raises(Error, match=r"2\.bn2 without them"):
        fold_batchnorm_(model)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


class Twice(nn.Module):
    """Uses what a batch norm takes elsewhere, or calls it twice, or adds a residual before it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, activation = how, "relu" if how == "activation" else None
        self.conv = BlockSparseConv2d(8, 8, 3, padding=1, density=1.0, block=8, activation=activation)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "residual":
            return self.norm(self.conv(x, x))
        y = self.conv(x)
        z: Tensor = self.norm(y)
        if self.how == "branch":
            return z if x.sum() > 0 else y
        return z + y if self.how == "users" else self.norm(z)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("users", "something else takes"),
        ("twice", "called several times"),
        ("residual", "adds a residual"),
        ("activation", "called several times|applies relu"),
    ],
)
def test_what_cannot_be_folded_stays_and_says_why(how: str, said: str) -> None:
    model = Twice(how).eval()
    result = fold_batchnorm_(model)
    assert not result.pairs and type(model.norm) is nn.BatchNorm2d
    (skip,) = result.skipped
    assert any(each in skip.reason for each in said.split("|"))


def test_a_model_that_cannot_be_traced_is_refused() -> None:
    with pytest.raises(Error, match=r"torch.fx can trace.*pairs="):
        fold_batchnorm_(Twice("branch").eval())
