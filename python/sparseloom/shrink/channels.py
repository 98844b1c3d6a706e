"""The channels between two convolutions of torchvision's ResNet blocks, with the batch norm between them."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..nn.held.sparse_weight import joined
from ..patch.optimizer import Swap
from .part import Part, add_to_bias, narrow
from .role import Role, kept_units, width_of


class Channels(Role):
    """relu(norm(first x)), which ``second`` takes: a channel goes if the filter that makes it is zero, or all
    taps that take it. A constant that it hands on moves into the mean of the norm behind ``second``, unless
    zeros are padded between: borders would then see another constant than the inside."""

    kinds: ClassVar[tuple[str, ...]] = ("channels",)

    def __init__(self, name: str, parts: dict[str, Part], norms: tuple[Part, Part]) -> None:
        super().__init__(name, parts)
        self._norm, self._next_norm = norms
        self.before = self.needed = (0,)
        if not self.reason and any(part.dense.groups != 1 for part in parts.values()):
            self.reason = "its convolutions have groups"
        if not self.reason and any(_lacks_statistics(norm.module) for norm in norms):
            self.reason = "its norms are not batch norms with running statistics"
        if not self.reason:
            self.before = self.needed = (parts["first"].shape[0],)

    def examine(self, multiple: int) -> None:
        first, second = self.parts["first"], self.parts["second"]
        norm: Any = self._norm.module
        exact = torch.promote_types(first.weight.dtype, torch.float32)
        mean, variance = norm.running_mean.to(exact), norm.running_var.to(exact)
        gain = 1.0 if norm.weight is None else norm.weight.detach().to(exact)
        shift = 0.0 if norm.bias is None else norm.bias.detach().to(exact)
        made = -mean if first.bias is None else first.bias.to(exact) - mean
        constant = torch.relu(made * torch.rsqrt(variance + norm.eps) * gain + shift)
        flat = ~first.weight.flatten(1).ne(0).any(1)
        if norm.weight is not None:
            flat |= norm.weight.detach() == 0
        silent = ~second.weight.transpose(0, 1).flatten(1).ne(0).any(1)
        self._constant = torch.where(silent, torch.zeros_like(constant), constant)
        padded = second.dense.padding not in ("valid", 0, (0, 0))
        usable = self._constant == 0 if padded else self._constant.isfinite()
        self._alive = ~(silent | (flat & usable)).cpu()
        self._granule = max(first.blocks[0], second.blocks[1])
        self.needed = (width_of(self._alive, self._granule, multiple),)
        if self.needed == self.before and bool((flat & ~silent).any()):
            self.reason = "constants of empty channels would change at the zeros that are padded behind"

    def shapes(self, widths: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {}  # no config says them

    def settings(self, widths: tuple[int, ...]) -> dict[str, Any]:
        return {}

    def cut(self, model: nn.Module, widths: tuple[int, ...]) -> list[Swap]:
        kept = kept_units(self._alive, widths[0], self._granule)
        gone = torch.ones(len(self._alive), dtype=torch.bool)
        gone[kept] = False
        first, second = (model.get_submodule(self.parts[key].name) for key in ("first", "second"))
        constant = self._constant[gone.to(self._constant.device)]
        if bool(constant.ne(0).any()):
            taps: Tensor = (
                second.get_parameter("weight").detach()[:, gone.to(constant.device)].flatten(2).sum(2)
            )
            add_to_bias("", self._next_norm.module, -(taps.to(constant.dtype) @ constant))
        swaps = narrow(self.parts["first"].name, first, rows=kept)
        swaps += narrow(self._norm.name, self._norm.module, rows=kept)
        return swaps + narrow(self.parts["second"].name, second, cols=kept)


def _lacks_statistics(norm: nn.Module) -> bool:
    return not isinstance(norm, _BatchNorm) or norm.running_mean is None


def channels_of(name: str, module: nn.Module) -> list[Channels]:
    """Returns the roles inside a block of torchvision's ResNet."""
    cls = next(each for each in type(module).__mro__ if "forward" in vars(each))
    if cls.__module__ != "torchvision.models.resnet" or cls.__name__ not in ("BasicBlock", "Bottleneck"):
        return []
    children = dict(module.named_children())
    found = []
    for i in range(1, 3 if cls.__name__ == "Bottleneck" else 2):
        first, second, norm, behind = (
            Part(joined(name, each), children[each])
            for each in (f"conv{i}", f"conv{i + 1}", f"bn{i}", f"bn{i + 1}")
        )
        found.append(Channels(joined(name, f"conv{i}"), {"first": first, "second": second}, (norm, behind)))
    return found
