"""The units between the two layers of a feed-forward part, gated or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..nn.held.sparse_weight import joined
from ..patch.optimizer import Swap
from . import effect
from .part import Part, add_to_bias, narrow
from .role import Role, child, from_a_package, kept_units, others_are_idle, width_of


class Names(NamedTuple):
    """Where a package keeps the layers. ``checked`` is the module that holds the first, and nothing else that
    computes; None where the classes are torch's own."""

    up: str
    down: str
    act: tuple[str, ...]
    gate: str = ""
    checked: str | None = ""


#: Of Llama, Qwen and their kind; GPT-2; BERT and its kind; ViT of transformers and of timm; torch's encoder.
_NAMES = (
    Names("up_proj", "down_proj", ("act_fn",), gate="gate_proj"),
    Names("c_fc", "c_proj", ("act",)),
    Names(
        "intermediate.dense", "output.dense", ("intermediate.intermediate_act_fn",), checked="intermediate"
    ),
    Names("fc1", "fc2", ("activation_fn", "act")),
    Names("linear1", "linear2", ("activation",), checked=None),
)


class FeedForward(Role):
    """y = down (act(up x)), or y = down (act(gate x) * (up x)): the units between."""

    kinds: ClassVar[tuple[str, ...]] = ("units",)

    def __init__(
        self, name: str, parts: dict[str, Part], act: Callable[[Tensor], Tensor], reason: str
    ) -> None:
        super().__init__(name, parts)
        self.act, self.reason = act, reason or self.reason
        down = parts["down"]
        if not self.reason and any(part.shape[0] != down.shape[1] for part in self._ups):
            self.reason = "its layers have other sizes than a feed-forward part"
        self.before = self.needed = (down.shape[1],) if not down.refusal else (0,)

    @property
    def _ups(self) -> list[Part]:
        return [part for key, part in self.parts.items() if key != "down"]

    def examine(self, multiple: int) -> None:
        up, gate, down = self.parts["up"], self.parts.get("gate"), self.parts["down"]
        granule = max(down.blocks[1], *(part.blocks[0] for part in self._ups))
        first = gate or up

        def act(x: Tensor) -> Tensor:
            return self.act(first.activate(x.clone()))  # x is the bias itself, and act may be in place

        with torch.no_grad():
            found = effect.units(
                (up.weight, up.bias),
                None if gate is None else (gate.weight, gate.bias),
                down.weight,
                act,
                down.bias is not None,
            )
        self._granule, self._alive, self._constant = granule, found.alive.cpu(), found.constant
        self.needed = (width_of(self._alive, granule, multiple),)
        if down.bias is None and self.needed == self.before:
            known = effect.units(
                (up.weight, up.bias),
                None if gate is None else (gate.weight, gate.bias),
                down.weight,
                act,
                True,
            )
            if bool(found.alive.sum() > known.alive.sum()):
                self.reason = f"constants of empty units have no bias to go to in {down.name}"

    def shapes(self, widths: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        down, shapes = self.parts["down"], dict[str, tuple[int, ...]]()
        for part in self._ups:
            shapes[f"{part.name}.weight"] = part.size_after(widths[0], None)
        return shapes | {f"{down.name}.weight": down.size_after(None, widths[0])}

    def settings(self, widths: tuple[int, ...]) -> dict[str, Any]:
        return {"intermediate_size|n_inner": widths[0]}

    def cut(self, model: nn.Module, widths: tuple[int, ...]) -> list[Swap]:
        kept = kept_units(self._alive, widths[0], self._granule)
        gone = torch.ones(len(self._alive), dtype=torch.bool)
        gone[kept] = False
        name, swaps = self.parts["down"].name, list[Swap]()
        down = model.get_submodule(name)
        constant = self._constant[gone.to(self._constant.device)]
        if bool(constant.ne(0).any()):
            weight = Part("", down).weight[:, gone.to(self._constant.device)]
            exact = torch.promote_types(weight.dtype, torch.float32)
            swaps = add_to_bias(name, down, weight.to(exact) @ constant.to(exact))
        swaps += narrow(name, down, cols=kept)
        for part in self._ups:
            swaps += narrow(part.name, model.get_submodule(part.name), rows=kept)
        return swaps


def feed_forward_of(name: str, module: nn.Module) -> FeedForward | None:
    """Returns the role of a module that is a feed-forward part, or holds its layers; else None."""
    for names in _NAMES:
        paths = {"up": names.up, "down": names.down} | ({"gate": names.gate} if names.gate else {})
        layers = {key: child(module, path) for key, path in paths.items()}
        if any(layer is None for layer in layers.values()) or not from_a_package(module):
            continue
        act = next((found for path in names.act if callable(found := _at(module, path))), None)
        if act is None:
            continue
        parts = {
            key: Part(joined(name, paths[key]), layer) for key, layer in layers.items() if layer is not None
        }
        return FeedForward(name, parts, act, _other_children(module, names, paths.values()))
    return None


def _at(module: nn.Module, path: str) -> Any:
    holder, _, name = path.rpartition(".")
    return getattr(module.get_submodule(holder), name, None)


def _other_children(module: nn.Module, names: Names, paths: Iterable[str]) -> str:
    if names.checked is None:
        known = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
        return "" if isinstance(module, known) else f"{type(module).__name__} is not known"
    inside = [path.removeprefix(f"{names.checked}.") for path in (*paths, *names.act)]
    return others_are_idle(module.get_submodule(names.checked), inside)
