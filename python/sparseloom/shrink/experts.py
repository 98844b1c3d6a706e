"""Whole experts of transformers' mixtures, which keep them in one tensor per projection."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..nn.held.sparse_weight import joined
from ..patch.optimizer import Swap
from .part import taken
from .role import Role, from_a_package, kept_units

_ENTRIES = ("gate_up_proj", "down_proj")


class Experts(Role):
    """Experts whose weights are zero. ``holder`` is the module with ``experts`` and the router ``gate``."""

    kinds: ClassVar[tuple[str, ...]] = ("experts",)

    def __init__(self, name: str, holder: nn.Module, drop: bool) -> None:
        super().__init__(name, {})
        self._holder: Any = holder
        self._drop = drop
        experts: Any = self._holder.experts
        router: Any = self._holder.gate
        self.before = self.needed = (len(experts.down_proj),)
        others = [each for each, _ in router.named_parameters() if each != "weight"]
        others += [each for each, _ in router.named_buffers()]
        others += [each for each, _ in experts.named_parameters() if each not in _ENTRIES]
        if others:
            self.reason = f"its {others[0]} is not known"

    def examine(self, multiple: int) -> None:
        experts = self._holder.experts
        up, down = experts.gate_up_proj.detach(), experts.down_proj.detach()
        half = up.shape[1] // 2
        empty = torch.zeros(len(down), dtype=torch.bool)
        for i in range(len(down)):  # one by one: a comparison makes a tensor of the expert's size
            silent = not bool(down[i].any()) or not bool(up[i, :half].any()) or not bool(up[i, half:].any())
            empty[i] = silent
        self._alive = ~empty
        if bool(empty.any()) and not self._drop:
            count = int(empty.sum())
            self.reason = f"{count} are empty, but the router may choose them: experts=True lets them go"
            return
        least = getattr(self._holder.gate, "top_k", getattr(self._holder, "top_k", 1))
        self.needed = (max(int(self._alive.sum()), int(least)),)

    def shapes(self, widths: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {name: (widths[0], *tensor.shape[1:]) for name, (_, _, tensor) in self._tensors().items()}

    def settings(self, widths: tuple[int, ...]) -> dict[str, Any]:
        return {"num_local_experts|num_experts": widths[0]}

    def cut(self, model: nn.Module, widths: tuple[int, ...]) -> list[Swap]:
        kept = kept_units(self._alive, widths[0], 1)
        swaps = [taken(name, module, entry, 0, kept) for name, (module, entry, _) in self._tensors().items()]
        for module in (self._holder, self._holder.experts, self._holder.gate):
            if isinstance(vars(module).get("num_experts"), int):
                module.num_experts = widths[0]
        for module in model.modules():  # the model's own count, for its loss of balance
            if vars(module).get("num_experts") == self.before[0] and hasattr(module, "config"):
                vars(module)["num_experts"] = widths[0]
        return swaps

    def _tensors(self) -> dict[str, tuple[nn.Module, str, Tensor]]:
        """Returns {name: (module, entry, tensor)} of what has one slice for each expert."""
        places = [("experts", entry) for entry in _ENTRIES] + [("gate", "weight")]
        return {
            joined(self.name, f"{path}.{entry}"): (
                module := self._holder.get_submodule(path),
                entry,
                module.get_parameter(entry),
            )
            for path, entry in places
        }


def experts_of(name: str, module: nn.Module, drop: bool) -> Experts | None:
    """Returns the role of a module that holds experts and their router; else None."""
    inside, router = getattr(module, "experts", None), getattr(module, "gate", None)
    if not isinstance(inside, nn.Module) or not isinstance(router, nn.Module) or not from_a_package(module):
        return None
    tensors = [inside._parameters.get(entry) for entry in _ENTRIES] + [router._parameters.get("weight")]
    counts = {None if tensor is None else len(tensor) for tensor in tensors}
    if None in counts or len(counts) != 1:
        return None
    return Experts(name, module, drop)
