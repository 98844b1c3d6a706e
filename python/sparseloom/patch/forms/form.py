"""Form: one kind of dense module, and how it becomes block-sparse and dense again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from ...layouts.torchs import strided
from ...nn import BlockSparseLinear, MaskedLinear, Semi24Linear, Semi24Training, SparseLinear
from ...nn.held.masked_by_torch import masked
from ...nn.held.sparse_weight import joined
from ...nn.in_layout.dense_entries import packed_layer
from ...pattern import Pattern
from ..recipe import Chosen
from .computed import computed

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Layers(NamedTuple):
    """The layer classes that a weight can become."""

    blocks: type[BlockSparseLinear] = BlockSparseLinear
    semi24: type[Semi24Linear] | None = Semi24Linear  # None: this kind has no 2:4 layer
    masked: type[MaskedLinear] | None = None  # None: this kind has no masked layer


class Form(ABC):
    """One kind of module. It says why a module cannot be replaced, which weights it has as [out features, in
    features] matrices, and by which module it is replaced.

    The replacement is a SparseModule: its weights' ``dense`` are the names that ``parts`` gives, and its
    ``to_dense`` returns a module of this kind.
    """

    #: The layer classes of the weights; ``made`` puts the layers into one module.
    layers = Layers()
    #: The name of the sparse layer below the name that a regex matches; "" if they are the same.
    inside = ""
    #: The nn.SparseLinear class that can replace the module; None if there is none.
    in_any_layout: type[SparseLinear] | None = None
    #: Whether one call of the module multiplies with its weights once for each step of a sequence.
    has_steps = False
    #: Whether the weights are those of linear layers, which a recipe without a key takes.
    is_linear = False

    @abstractmethod
    def matches(self, module: nn.Module) -> bool:
        """Returns whether a module is of this kind."""

    def kind(self, module: nn.Module) -> str:
        """Returns the name of the kind for reports."""
        return type(module).__name__

    def parts(self) -> Mapping[str, str]:
        """Returns {name of a weight's Parameter in the module: suffix of the module's name that a regex
        matches}; the suffix of an only weight is ""."""
        return {"weight": ""}

    def part(self, weight: str) -> str:
        """Returns the suffix of the module's name that a regex matches for a weight."""
        return self.parts()[weight]

    def matrix(self, like_weight: Tensor) -> Tensor:
        """Returns a tensor of a weight's shape as [out features, in features] (a view)."""
        return like_weight

    def stored(self, matrix: Tensor, weight: Tensor) -> Tensor:
        """Returns [out features, in features] in the shape of ``weight``: undoes ``matrix``."""
        return matrix.reshape(weight.shape)

    def ranked(self, matrix: Tensor) -> Tensor:
        """Returns the scores [out features, in features] to rank blocks by, from the result of ``matrix``."""
        return matrix

    def packed(self, site: Site, pattern: Pattern) -> Any:
        """Returns a layer without bias that holds the pattern's blocks of a weight."""
        return packed_layer(self.layers.blocks, site.value, pattern)

    def bias(self, weight: str) -> str:
        """Returns the name of the bias that belongs to a weight."""
        return joined(weight.rpartition(".")[0], "bias")

    def own_forward(self, module: nn.Module) -> type[nn.Module] | None:
        """Returns the class whose forward the sparse module computes, None for any."""
        return None

    def refusal(self, module: nn.Module, in_place: bool = False) -> str:
        """Returns why a module of this kind cannot be replaced, or, ``in_place``, its weight be written; ""
        when it can."""
        for part in [module, *module.children()]:
            if reason := computed(part):
                return reason
            if not in_place and any(getattr(part, hooks, None) for hooks in _HOOKS):
                return (
                    "it has hooks, which a new layer would not have: remove them, or add them after sparsify_"
                )
        if reason := self.not_own_forward(module):
            return reason
        own_weight = module._parameters.get("weight")
        if "weight" in self.parts() and not isinstance(own_weight, nn.Parameter) and not masked(module):
            return (
                "its weight is not a Parameter (weight norm or pruning recomputes it): "
                "make that permanent first"
            )
        return self.refusal_of_kind(module)

    def not_own_forward(self, module: nn.Module) -> str:
        """Returns that the forward of a module is another than its kind's; "" when it is that one."""
        dense_class = self.own_forward(module)
        own = dense_class is None or type(module).forward is dense_class.forward
        return (
            ""
            if own and "forward" not in vars(module)
            else f"its forward is not nn.{self.kind(module)}'s own"
        )

    def cannot_move(self, by_gradient: bool) -> str:
        """Returns why stored blocks of this kind cannot move; "" when they can. ``by_gradient``: whether they
        move to where the gradient of absent blocks is large."""
        return ""

    def semi24_training(self, module: nn.Module) -> type[Semi24Training] | None:
        """Returns the layer that trains the 2:4 weight of a module; None where it has none."""
        return None

    def refusal_of_kind(self, module: nn.Module) -> str:
        """Returns what only this kind refuses; "" for nothing."""
        return ""

    def made(self, module: nn.Module, layers: Mapping[str, Any]) -> nn.Module:
        """Returns the replacement of the module, made of {name of the weight: sparse layer}."""
        return layers["weight"]

    def sites(self, module: nn.Module) -> list[Site]:
        """Returns the weights of a module."""
        return [Site(self, module, weight) for weight in self.parts()]

    def sparse(
        self,
        module: nn.Module,
        chosen: Mapping[str, Chosen],
        strict: bool = False,
        dense_copy: bool | Literal["auto"] = False,
    ) -> tuple[nn.Module, dict[str, Any]]:
        """Returns the replacement of the module, and {name of the weight: sparse layer}. Biases stay the same
        Parameters. ``strict`` and ``dense_copy`` are those of sparsify_."""
        layers = {}
        for site in self.sites(module):
            if site.weight in chosen:
                layer = chosen[site.weight].made(site, strict, dense_copy)
                layer.bias = site.bias
                layers[site.weight] = layer.train(module.training)
        return self.made(module, layers).train(module.training), layers


@dataclass
class Site:
    """One weight that may become block-sparse."""

    form: Form
    module: nn.Module
    weight: str  # the Parameter's name inside the module
    # every name the layer has in the model; several when a module is shared
    names: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)  # names of a module that holds this weight among others
    around: list[nn.Module] = field(default_factory=list)  # modules that contain ``module``, innermost first
    reader: str = ""  # the kind of a module around that reads the weight instead of calling ``module``

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def kind(self) -> str:
        return self.form.kind(self.module)

    def refusal(self, in_place: bool = False) -> str:
        """Returns why the module cannot be replaced, or its weight be written; "" when it can."""
        if self.reader:
            return f"a {self.reader} reads its weight and never calls it: call up and down yourself instead"
        return self.form.refusal(self.module, in_place)

    @property
    def holder(self) -> tuple[nn.Module, str]:
        """The module and the attribute of the weight's Parameter."""
        inner, _, name = self.weight.rpartition(".")
        module = self.module.get_submodule(inner)
        parametrized = masked(module, name)
        return (module, name) if parametrized is None else (parametrized, "original")

    @property
    def parameter(self) -> nn.Parameter:
        module, name = self.holder
        return module.get_parameter(name)

    @property
    def value(self) -> Tensor:
        """The weight that the module multiplies with [out features, in features]: masked, if torch.ao.pruning
        has masked the Parameter."""
        inner, _, name = self.weight.rpartition(".")
        weight: Tensor = getattr(self.module.get_submodule(inner), name)
        return self.matrix(weight.detach())

    @property
    def bias(self) -> nn.Parameter | None:
        holder, name = self._bias()
        return holder._parameters.get(name)

    def set_bias(self, bias: nn.Parameter) -> None:
        """Makes ``bias`` the bias that belongs to the weight."""
        holder, name = self._bias()
        setattr(holder, name, bias)

    def _bias(self) -> tuple[nn.Module, str]:
        inner, _, name = self.form.bias(self.weight).rpartition(".")
        return self.module.get_submodule(inner), name

    def matrix(self, like_weight: Tensor) -> Tensor:
        """Returns a tensor of the weight's shape as [out features, in features]: a view, unless it is in a
        sparse layout of torch."""
        return self.form.matrix(strided(like_weight))

    def matched(self, module_name: str) -> str:
        """Returns the name that a regex is matched with, for a module of that name."""
        return joined(module_name, self.form.part(self.weight))

    @property
    def shape(self) -> tuple[int, int]:
        """(out features, in features)."""
        rows, cols, *_ = self.matrix(self.parameter).shape
        return rows, cols
