"""The heads of an attention: KV groups, and the query heads of each."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..nn.held.sparse_weight import joined
from ..patch.optimizer import Swap
from . import effect
from .part import Part, add_to_bias, narrow
from .role import KEPT_HEADS, Role, child, from_a_package, others_are_idle

#: Attributes for the features of a head, in transformers and timm.
_SIZES = ("head_dim", "attention_head_size")
#: Attributes that a narrower attention has other numbers in: of heads, KV heads, queries of a KV head, and
#: features of all heads.
_HEADS = ("num_heads", "num_attention_heads")
_GROUPS = ("num_key_value_heads",)
_PER_GROUP = ("num_key_value_groups",)
_FEATURES = ("all_head_size", "attn_dim", "split_size")
#: BigBird's way to another attention where inputs are short.
_REBUILDS = "set_attention_type"
#: Norms of one head, which all heads share.
_NORMS = ("q_norm", "k_norm")


class Names(NamedTuple):
    """Where a package keeps the projections: three, or one of all in the order q, k, v. ``inner`` is the
    module that computes the attention."""

    output: str
    separate: tuple[str, str, str] | None = None
    fused: str = ""
    inner: str = ""


#: Of BERT and its kind; Llama, Qwen and ViT of transformers; GPT-2; ViT of timm.
_NAMES = (
    Names("output.dense", ("self.query", "self.key", "self.value"), inner="self"),
    Names("o_proj", ("q_proj", "k_proj", "v_proj")),
    Names("c_proj", fused="c_attn"),
    Names("proj", fused="qkv"),
)


class Attention(Role):
    """Heads whose values or columns of the output projection are zero. A KV group goes with its queries; of
    the groups that stay each keeps as many queries as the others."""

    kinds: ClassVar[tuple[str, ...]] = ("KV heads", "queries each")

    def __init__(self, name: str, parts: dict[str, Part], inner: tuple[str, nn.Module], reason: str) -> None:
        super().__init__(name, parts)
        self._inner, module = inner
        self.reason = reason or self.reason
        self.before = self.needed = (0, 0)
        if self.reason:
            return
        size = next((getattr(module, each) for each in _SIZES if hasattr(module, each)), None)
        queries, keys = self._rows()
        output = parts["output"].shape[1]
        if not isinstance(size, int) or size <= 0 or queries % size or keys % size or output != queries:
            self.reason = "its projections are not whole heads"
            return
        self.size, groups = size, keys // size
        if queries // size % groups:
            self.reason = "its heads are no whole groups"
            return
        self.before = self.needed = (groups, queries // size // groups)
        for norm in _NORMS:
            weight = getattr(getattr(module, norm, None), "weight", None)
            if isinstance(weight, Tensor) and weight.numel() != size:
                self.keep_all(f"its {norm} is over all heads")

    def _rows(self) -> tuple[int, int]:
        """Returns the out features of q and of k."""
        if "fused" in self.parts:
            return (third := self.parts["fused"].shape[0] // 3), third
        return self.parts["query"].shape[0], self.parts["key"].shape[0]

    def examine(self, multiple: int) -> None:
        output = self.parts["output"]
        value = self.parts.get("value") or self.parts["fused"]
        weight, bias = value.weight, value.bias
        if "fused" in self.parts:
            third = len(weight) // 3
            weight, bias = weight[2 * third :], None if bias is None else bias[2 * third :]
        found = effect.heads((weight, bias), output.weight, self.size, output.bias is not None)
        self._alive, self._constant = found.alive.cpu(), found.constant
        per_group = self._alive.sum(1)
        self.needed = max(1, int(per_group.ne(0).sum())), max(1, int(per_group.max()))
        if output.bias is None and self.needed == self.before:
            known = effect.heads((weight, bias), output.weight, self.size, True)
            if bool(found.alive.sum() > known.alive.sum()):
                self.reason = f"constants of empty heads have no bias to go to in {output.name}"

    def wider(self, widths: tuple[int, ...]) -> list[tuple[int, ...]]:
        groups, queries = self.before
        grid: list[tuple[int, ...]] = [
            (g, q) for g in range(widths[0], groups + 1) for q in range(widths[1], queries + 1)
        ]
        return sorted(grid, key=lambda each: each[0] * each[1])[:-1]

    def shapes(self, widths: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        groups, queries = widths
        features = {"query": groups * queries, "key": groups, "value": groups, "fused": 3 * groups * queries}
        shapes: dict[str, tuple[int, ...]] = {
            f"{part.name}.weight": part.size_after(features[key] * self.size, None)
            for key, part in self.parts.items()
            if key != "output"
        }
        output = self.parts["output"]
        return shapes | {f"{output.name}.weight": output.size_after(None, groups * queries * self.size)}

    def settings(self, widths: tuple[int, ...]) -> dict[str, Any]:
        groups, queries = widths
        return {
            KEPT_HEADS: list(widths),
            "num_attention_heads": groups * queries,
            "num_key_value_heads?": groups,
            "head_dim": self.size,
        }

    def cut(self, model: nn.Module, widths: tuple[int, ...]) -> list[Swap]:
        groups, queries = self._kept(widths)
        of_groups = _features(groups, self.size)
        of_queries = _features(queries, self.size)
        swaps = self._fold(model, queries)
        for key, part in self.parts.items():
            module = model.get_submodule(part.name)
            if key == "output":
                swaps += narrow(part.name, module, cols=of_queries)
            elif key == "fused":
                third = self.before[0] * self.before[1] * self.size
                rows = torch.cat([of_queries + third * i for i in range(3)])
                swaps += narrow(part.name, module, rows=rows)
            else:
                swaps += narrow(part.name, module, rows=of_queries if key == "query" else of_groups)
        self._count(model, widths)
        return swaps

    def _kept(self, widths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Returns the KV groups and the query heads that stay: all with an effect, then the first others."""
        per_group = self._alive.sum(1)
        groups = torch.argsort(per_group.eq(0), stable=True)[: widths[0]].sort().values
        inside = torch.argsort(~self._alive[groups], dim=1, stable=True)[:, : widths[1]].sort(1).values
        return groups, (groups[:, None] * self.before[1] + inside).flatten()

    def _fold(self, model: nn.Module, queries: Tensor) -> list[Swap]:
        """Adds what the heads that go hand on to the bias behind."""
        gone = torch.ones(self._alive.numel(), dtype=torch.bool)
        gone[queries] = False
        constant = self._constant.repeat_interleave(self.before[1], 0)  # of each query head
        places = gone.to(constant.device)
        weight = Part("", output := model.get_submodule(self.parts["output"].name)).weight
        columns = weight.unflatten(1, (-1, self.size))[:, places].flatten(1)
        more = constant[places].flatten()
        if not bool((columns.ne(0).any(0) & more.ne(0)).any()):
            return []
        exact = torch.promote_types(weight.dtype, torch.float32)
        return add_to_bias(self.parts["output"].name, output, columns.to(exact) @ more.to(exact))

    def _count(self, model: nn.Module, widths: tuple[int, ...]) -> None:
        inner: Any = model.get_submodule(self._inner)
        heads = widths[0] * widths[1]
        for names, number in (
            (_HEADS, heads),
            (_GROUPS, widths[0]),
            (_PER_GROUP, widths[1]),
            (_FEATURES, heads * self.size),
        ):
            for name in names:
                if isinstance(vars(inner).get(name), int):
                    setattr(inner, name, number)


def _features(heads: Tensor, size: int) -> Tensor:
    return (heads[:, None] * size + torch.arange(size, device="cpu")).flatten()


def attention_of(name: str, module: nn.Module) -> Attention | None:
    """Returns the role of a module that is an attention; else None."""
    for names in _NAMES:
        paths = {"fused": names.fused}
        if names.separate is not None:
            paths = dict(zip(("query", "key", "value"), names.separate, strict=True))
        paths["output"] = names.output
        layers = {key: child(module, path) for key, path in paths.items()}
        if any(layer is None for layer in layers.values()) or not from_a_package(module):
            continue
        inner = module.get_submodule(names.inner)
        parts = {
            key: Part(joined(name, paths[key]), layer) for key, layer in layers.items() if layer is not None
        }
        inside = [path.removeprefix(f"{names.inner}.") for path in (*paths.values(), *_NORMS)]
        reason = others_are_idle(inner, inside)
        if hasattr(module, _REBUILDS):
            reason = f"its {_REBUILDS} makes the attention anew, with the heads of its config"
        return Attention(name, parts, (joined(name, names.inner), inner), reason)
    return None
