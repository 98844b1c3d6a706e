"""Finds where a model keeps linear weights, and defines how each kind of module becomes sparse.

A form is one kind of module: nn.Linear, transformers' Conv1D, a 1x1 convolution, nn.MultiheadAttention. It
says why a module cannot be replaced, which weights it has as [out features, in features] matrices, and what
takes its place.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .. import ops
from ..nn import BlockSparseConv1D, BlockSparseConv1x1, BlockSparseLinear, BlockSparseMultiheadAttention
from ..nn.dense_entries import packed_layer
from ..pattern import Pattern

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_ATTENTION_WEIGHTS = {"in_proj": "in_proj_weight", "out_proj": "out_proj.weight"}


@dataclass
class Site:
    """One weight that may become block-sparse."""

    kind: str
    module: nn.Module
    weight: str  # the Parameter's name inside the module
    # every name the layer has in the model; several when a module is shared
    names: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)  # names of a module that holds this weight among others

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def parameter(self) -> nn.Parameter:
        return self.module.get_parameter(self.weight)

    @property
    def bias(self) -> nn.Parameter | None:
        inner, _, own = self.weight.rpartition(".")
        holder = self.module.get_submodule(inner) if inner else self.module
        return holder._parameters.get("in_proj_bias" if own == "in_proj_weight" else "bias")

    def matrix(self, like_weight: Tensor) -> Tensor:
        """Returns a tensor of the weight's shape as [out features, in features] (a view)."""
        if self.kind == "Conv1D":
            return like_weight.t()
        return like_weight.flatten(1) if like_weight.dim() > 2 else like_weight

    @property
    def shape(self) -> tuple[int, int]:
        """(out features, in features)."""
        rows, cols = self.matrix(self.parameter).shape
        return rows, cols


def kind_of(module: nn.Module) -> str | None:
    """Returns the name of a module's form, None for what is not a linear layer."""
    if isinstance(module, nn.MultiheadAttention):
        return "MultiheadAttention"
    if isinstance(module, nn.Linear):
        return "Linear"
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and set(module.kernel_size) == {1}:
        return type(module).__name__
    # a Conv1D exists only where its module was imported
    transformers = sys.modules.get("transformers.pytorch_utils")
    if transformers is not None and isinstance(module, transformers.Conv1D):
        return "Conv1D"
    return None


def sites_of(module: nn.Module, kind: str) -> list[Site]:
    """Returns the weights of a module of that kind."""
    if kind != "MultiheadAttention":
        return [Site(kind, module, "weight")]
    return [Site(kind, module, weight) for weight in _ATTENTION_WEIGHTS.values()]


def names_of(site: Site, module_name: str) -> str:
    """Returns what a regex is matched with: the module's name, or for attention name.in_proj and
    name.out_proj."""
    if site.kind != "MultiheadAttention":
        return module_name
    return f"{module_name}." * bool(module_name) + next(
        key for key, value in _ATTENTION_WEIGHTS.items() if value == site.weight
    )


def refusal(module: nn.Module, kind: str) -> str:
    """Returns why a module of that kind cannot be replaced; "" when it can."""
    for part in [module, *module.children()]:
        if parametrize.is_parametrized(part):
            return "it is parametrized: call torch.nn.utils.parametrize.remove_parametrizations first"
        if any(getattr(part, hooks, None) for hooks in _HOOKS):
            return "it has hooks, which a new layer would not have: remove them, or add them after sparsify_"
    base = {"Linear": nn.Linear, "MultiheadAttention": nn.MultiheadAttention, "Conv1D": None}.get(
        kind, getattr(nn, kind, None)
    )
    if "forward" in vars(module) or (base is not None and type(module).forward is not base.forward):
        return f"its forward is not nn.{kind}'s own"
    if kind == "MultiheadAttention":
        return (
            ""
            if module._qkv_same_embed_dim
            else "keys or values of another size than embed_dim keep weights apart"
        )
    if not isinstance(module._parameters.get("weight"), nn.Parameter):
        return (
            "its weight is not a Parameter (weight norm or pruning recomputes it): make that permanent first"
        )
    if kind.startswith("Conv") and kind != "Conv1D":
        if module.groups != 1:  # type: ignore[comparison-overlap]
            return f"its {module.groups} groups are block-diagonal already"
        padding = module.padding
        if not isinstance(padding, str) and any(padding):  # type: ignore[arg-type]
            return "it pads its input, where a 1x1 convolution gives the bias"
    return ""


def made_sparse(
    module: nn.Module, kind: str, patterns: Mapping[str, Pattern]
) -> tuple[nn.Module, dict[str, BlockSparseLinear]]:
    """Returns what takes the module's place, and its sparse layers by the names of the weights. Biases stay
    the same Parameters."""
    layers = {}
    for site in sites_of(module, kind):
        if site.weight in patterns:
            cls = BlockSparseConv1D if kind == "Conv1D" else BlockSparseLinear
            layer = packed_layer(cls, site.matrix(site.parameter.detach()), patterns[site.weight])
            layer.bias = site.bias
            layer.values.requires_grad_(site.parameter.requires_grad)
            layers[site.weight] = layer.train(module.training)
    if kind in ("Linear", "Conv1D"):
        return layers["weight"], layers
    made: nn.Module
    if isinstance(module, nn.MultiheadAttention):
        made = BlockSparseMultiheadAttention(
            module, layers.get("in_proj_weight"), layers.get("out_proj.weight")
        )
    else:
        made = BlockSparseConv1x1(layers["weight"], len(module.kernel_size), module.stride)  # type: ignore[arg-type]
    return made.train(module.training), layers


SPARSE = (BlockSparseLinear, BlockSparseConv1x1, BlockSparseMultiheadAttention)


def unpack(layer: BlockSparseLinear, like_values: Tensor) -> Tensor:
    """Returns a tensor of values' shape as [out features, in features], zero where there is no block."""
    index = layer.index
    return torch.as_tensor(
        ops.call("unpack", like_values.contiguous(), index.crow, index.col, index.rows, index.cols)
    )
