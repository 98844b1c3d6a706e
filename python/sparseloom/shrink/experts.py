"""Whole experts of transformers' mixtures, which keep them in one tensor per projection."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..nn.held.sparse_weight import joined
from ..patch.optimizer import Swap
from . import effect
from .part import exchanged, taken
from .role import Role, from_a_package, kept_units

_ENTRIES = ("gate_up_proj", "down_proj")


class Experts(Role):
    """Experts whose weights are zero, and the units inside the others: gate_up_proj [experts, gates and ups,
    in], down_proj [experts, out, units]. ``holder`` is the module with ``experts`` and the router ``gate``.
    """

    kinds: ClassVar[tuple[str, ...]] = ("experts", "units each")

    def __init__(self, name: str, holder: nn.Module, drop: bool) -> None:
        super().__init__(name, {})
        self._holder: Any = holder
        self._drop = drop
        experts: Any = self._holder.experts
        router: Any = self._holder.gate
        count, _, width = experts.down_proj.shape
        self.before = self.needed = (count, width)
        others = [each for each, _ in router.named_parameters() if each != "weight"]
        others += [each for each, _ in router.named_buffers()]
        others += [each for each, _ in experts.named_parameters() if each not in _ENTRIES]
        if others:
            self.reason = f"its {others[0]} is not known"

    def examine(self, multiple: int) -> None:
        experts = self._holder.experts
        ups, downs = experts.gate_up_proj.detach(), experts.down_proj.detach()
        act = getattr(experts, "act_fn", torch.ones_like)
        with torch.no_grad():
            found = [
                effect.units((up, None), (gate, None), down, act, takes_constants=False).alive.cpu()
                for (gate, up), down in zip((each.chunk(2) for each in ups), downs, strict=True)
            ]
        self._units = torch.stack(found)
        self._alive = self._units.any(1)
        width = int(self._units.sum(1).max())
        self.needed = self.before[0], min(self.before[1], max(1, -(-width // multiple)) * multiple)
        if bool(self._alive.all()):
            return
        if not self._drop:
            empty = self.before[0] - int(self._alive.sum())
            self.reason = f"{empty} are empty, but the router may choose them: experts=True lets them go"
            return
        least = getattr(self._holder.gate, "top_k", getattr(self._holder, "top_k", 1))
        self.needed = max(int(self._alive.sum()), int(least)), self.needed[1]

    def shapes(self, widths: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        experts = self._holder.experts
        _, _, inner = experts.gate_up_proj.shape
        _, out, _ = experts.down_proj.shape
        count, units = widths
        return {
            joined(self.name, "experts.gate_up_proj"): (count, 2 * units, inner),
            joined(self.name, "experts.down_proj"): (count, out, units),
            joined(self.name, "gate.weight"): (count, self._holder.gate.weight.shape[1]),
        }

    def settings(self, widths: tuple[int, ...]) -> dict[str, Any]:
        return {
            "num_local_experts|num_experts": widths[0],
            "moe_intermediate_size|intermediate_size": widths[1],
        }

    def cut(self, model: nn.Module, widths: tuple[int, ...]) -> list[Swap]:
        kept = kept_units(self._alive, widths[0], 1)
        places = torch.stack([kept_units(self._units[expert], widths[1], 1) for expert in kept])

        def carry_down(like: Tensor) -> Tensor:
            chosen = like.index_select(0, kept.to(like.device))
            return chosen.gather(2, places.to(like.device)[:, None].expand(-1, like.shape[1], -1))

        def carry_up(like: Tensor) -> Tensor:
            halves = like.index_select(0, kept.to(like.device)).unflatten(1, (2, -1))
            index = places.to(like.device)[:, None, :, None].expand(-1, 2, -1, like.shape[2])
            return halves.gather(2, index).flatten(1, 2)

        experts, router = self._holder.experts, self._holder.gate
        swaps = [
            exchanged(joined(self.name, "experts"), experts, "gate_up_proj", carry_up),
            exchanged(joined(self.name, "experts"), experts, "down_proj", carry_down),
            taken(joined(self.name, "gate"), router, "weight", 0, kept),
        ]
        for module in (self._holder, experts, router):
            for attribute, number in (("num_experts", widths[0]), ("intermediate_dim", widths[1])):
                if isinstance(vars(module).get(attribute), int):
                    setattr(module, attribute, number)
        for module in model.modules():  # the model's own count, for its loss of balance
            if vars(module).get("num_experts") == self.before[0] and hasattr(module, "config"):
                vars(module)["num_experts"] = widths[0]
        return swaps


def experts_of(name: str, module: nn.Module, drop: bool) -> Experts | None:
    """Returns the role of a module that holds experts and their router; else None."""
    inside, router = getattr(module, "experts", None), getattr(module, "gate", None)
    if not isinstance(inside, nn.Module) or not isinstance(router, nn.Module) or not from_a_package(module):
        return None
    tensors = [inside._parameters.get(entry) for entry in _ENTRIES] + [router._parameters.get("weight")]
    up, down, weight = tensors
    if up is None or down is None or weight is None or up.dim() != 3 or down.dim() != 3:
        return None
    if up.shape != (len(down), 2 * down.shape[2], up.shape[2]) or len(weight) != len(down):
        return None
    return Experts(name, module, drop)
