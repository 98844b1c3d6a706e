"""The model that the tests of SparsityBuilder build on, and one step of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparseloom import sparsify as S


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6)
        self.layer, self.head = Mlp(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.norm(self.conv(x))))


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def inputs() -> Tensor:
    return torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(1))


def run(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the gradient of the input; parameters' gradients are left there."""
    x = x.clone().requires_grad_()
    y = model(x)
    y.square().sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


def masked(weight: nn.Parameter, sparsifier: S.ElementSparsifier) -> Tensor:
    """Zeroes what a sparsifier removes, in values and in gradients. Returns the mask."""
    mask = sparsifier.select_mask(weight.detach().flatten(1)).view(weight.shape)
    with torch.no_grad():
        weight.mul_(mask)
    weight.register_hook(lambda gradient: gradient * mask)
    return mask
