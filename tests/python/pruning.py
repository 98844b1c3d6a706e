"""Small models with their data, and a sparsifier that remembers what it was told, for the tests of prune_."""

from __future__ import annotations

from dataclasses import replace

import tiny_models
import torch
from torch import Tensor, nn

from sparseloom import InLayout, Semi24
from sparseloom.sparsify import Context, ElementSparsifier, PerBlockNM


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16)).eval()


def batches(count: int = 3, width: int = 24) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    mix = torch.randn(width, width, generator=generator)
    return [torch.randn(40, width, generator=generator) @ mix for _ in range(count)]


class Cheapest(ElementSparsifier):
    """Keeps half of the elements by a rule of its own, and remembers what it was told."""

    def __init__(self) -> None:
        self.contexts: list[Context] = []

    def select(self, context: Context) -> Tensor:
        self.contexts.append(replace(context, weight=context.weight.clone()))  # prune_ writes into it
        scores = context.weight.abs() * context.need("input_statistics").sqrt()
        return PerBlockNM(2, 4).select_mask(scores / context.need("hessian").diagonal().clamp(min=1e-9))

    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        raise NotImplementedError


EVERY = {r".*(self_attn|mlp).*": Semi24(), "lm_head": InLayout("csr", density=0.5)}


def llama() -> nn.Module:
    return tiny_models.made("LlamaForCausalLM", "llama")


def data() -> list[Tensor]:
    return [tiny_models.tokens(12, 9), tiny_models.tokens(12, 9).flip(0, 1)]


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same(model: nn.Module, expected: dict[str, Tensor]) -> None:
    state = model.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())
