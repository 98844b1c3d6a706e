"""What the builder makes of weights: layers by sparsify_, or values and an index in the module that is
there."""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from ..errors import Error
from ..layouts import Bsr, Dense, Layout
from ..layouts.products import watched
from ..nn import BlockSparseLinear
from ..ops.registry import Registry, current
from ..ops.verbs import mapped
from ..patch import InLayout, sparsify_
from ..patch import optimizer as swapping
from ..patch.config import Blocks
from ..patch.forms import Site
from ..patch.in_layout import Stored
from ..patch.survey import survey
from ..sparsify import KeepAll
from ..tensors import SparseTensor
from ..tensors.sparse_tensor import Made
from ..tensors.sparsifying import Format, sparsified

_OP = "SparsityBuilder"


@dataclass(frozen=True)
class WeightSpec:
    """How a weight becomes sparse: the initial sparsifier, and then the format."""

    initial: Any
    into: Format
    input_statistics: Tensor | None
    registry: Registry | None

    def of(self, weight: Tensor, gradient: Tensor | None) -> Tensor:
        """Returns what stays of a weight, as [first size, product of the others] and without a gradient."""
        known = {"gradient": None if gradient is None else as_rows(gradient), "step": 0}
        known["input_statistics"] = self.input_statistics
        with torch.no_grad():
            only = self.into.final if _keeps_all(self.into) else Dense
            chosen = sparsified(as_rows(weight.detach()), self.initial, only, self.registry, **known)
            return chosen if only is self.into.final else self.into.on(chosen, self.registry, **known)


def as_rows(weight: Tensor) -> Tensor:
    """Returns a weight as [first size, product of the others], as nn.Linear and sparsifiers see it; of one
    dimension as a single row."""
    return weight.flatten(1) if weight.dim() > 1 else weight.reshape(1, -1)


def _keeps_all(into: Format) -> bool:
    return all(isinstance(each, KeepAll) for each in (into.inline, into.external))


class Sparsified(InLayout):
    """A recipe of sparsify_: what a WeightSpec leaves of a weight."""

    def __init__(self, spec: WeightSpec) -> None:
        super().__init__(spec.into.final)
        self.spec = spec

    def __repr__(self) -> str:
        return f"{self.spec.initial!r} into {self.layout.name}"

    def chosen(self, site: Site, generator: torch.Generator | None) -> Any:
        grad = site.parameter.grad
        tensor = self.spec.of(site.value, None if grad is None else site.matrix(grad))
        assert isinstance(tensor, SparseTensor)
        index = tensor.layout_index
        if isinstance(index, Bsr):
            return StoredBlocks(index.pattern(), values=tensor.stored)
        return Stored(index, tensor.stored)


@dataclass(frozen=True)
class StoredBlocks(Blocks):
    """Blocks with values of their own: a sparsifier may have removed some of a block's elements."""

    values: Tensor = field(kw_only=True)

    def made(self, site: Site, strict: bool = False, dense_copy: Any = False) -> BlockSparseLinear:
        layer = super().made(site, strict, dense_copy)
        with torch.no_grad():
            layer.values.copy_(self.values)
        return layer


class InFormat(nn.Module):
    """A parametrization of torch's: makes the SparseTensor of a weight from its values, in each look-up."""

    def __init__(self, index: Layout, shape: Sequence[int], registry: Registry | None) -> None:
        super().__init__()
        self.template, self.shape, self.registry = index, tuple(shape), registry
        self.parts = tuple(index.tensors())
        for name, part in index.tensors().items():
            self.register_buffer(name, part)

    @property
    def layout_index(self) -> Layout:
        """The layout with the module's own index, wherever that is now."""
        index: dict[str, Any] = {name: self._buffers[name] for name in self.parts}
        return self.template.with_tensors(index)

    def __prepare_scriptable__(self) -> None:
        remedy = "use torch.jit.trace, or torch.export.export(strict=False)"
        raise Error("torch.jit.script", "a model without SparseTensors", "a weight that is one", remedy)

    def forward(self, values: Tensor) -> Tensor:
        """Returns the weight: dense where torch records or takes apart the module's operators, which do not
        see a subclass there."""
        if torch.compiler.is_exporting() or (not torch.compiler.is_compiling() and watched()):
            if not torch.compiler.is_compiling():
                registry = current() if self.registry is None else self.registry
                registry.fall_back("torch.func or torch.jit.trace", [self.template.name])
            return self.layout_index.to_dense(values).reshape(self.shape)
        return mapped(values, Made(self.layout_index, self.shape, self.registry))


def _require_loadable(
    held: Any, state: dict[str, Any], prefix: str, metadata: Any, strict: bool, *told: Any
) -> None:
    """Raises Error, before anything changes, unless the values and the index that a checkpoint has for a
    weight belong together and have the sizes of the weight's own; another index of these is taken."""
    made: InFormat = held[0]
    own = {"original": held.original, **{f"0.{name}": made._buffers[name] for name in made.parts}}
    read = {name: state[prefix + name] for name in own if prefix + name in state}
    if not read or not all(type(each) in (Tensor, nn.Parameter) for each in (*own.values(), *read.values())):
        return
    op, expected = "load_state_dict", f"{prefix.rstrip('.')} with {', '.join(own)}"
    if len(read) < len(own):
        remedy = "save the whole state_dict: values mean nothing without their index"
        raise Error(op, expected, ", ".join(read) + " alone", remedy)
    sizes = [{name: list(each.shape) for name, each in tensors.items()} for tensors in (own, read)]
    if sizes[0] != sizes[1]:
        remedy = "build the model from the checkpoint's weights, with the same sparsifiers"
        raise Error(op, f"{prefix.rstrip('.')} of sizes {sizes[0]}", str(sizes[1]), remedy)
    index = made.template.with_tensors({name: read[f"0.{name}"] for name in made.parts})
    index.require_consistent(op, read["original"])
    if isinstance(index, Bsr) and not index.packed.is_meta:
        made.template = Bsr.of(index.pattern())  # the digest is that of the blocks


class Weights:
    """The weights of a model that become sparse. All choices are made before anything changes."""

    def __init__(self, model: nn.Module, specs: dict[str, WeightSpec]) -> None:
        self.model, self.recipes, self.rest = (
            model,
            dict[str, Sparsified](),
            dict[str, tuple[WeightSpec, Tensor]](),
        )
        sites = {
            id(site.parameter): site
            for site in survey(model).sites
            if site.form.in_any_layout and site.name and not site.form.refusal(site.module)
        }
        for name, spec in specs.items():
            parameter = model.get_parameter(name)
            site = sites.get(id(parameter))
            if site is not None and spec.into.final is not Dense:
                self.recipes[re.escape(site.name)] = Sparsified(spec)
                continue
            modules = [
                each for each in model.modules() if any(p is parameter for p in each._parameters.values())
            ]
            if len(modules) > 1:
                got = f"{', '.join(type(each).__name__ for each in modules)} that share it"
                raise Error(_OP, f"{name} in one module", got, "untie it first")
            self.rest[name] = spec, spec.of(parameter, parameter.grad)

    def parametrized(self, path: str) -> bool:
        """Returns whether a weight of that very module becomes a SparseTensor that the module sees."""
        return any(name.rpartition(".")[0] == path for name in self.rest)

    def put(self, optimizers: list[Optimizer]) -> None:
        """Makes them sparse, and carries the optimizers' state."""
        if self.recipes:
            # what lies between a layer and its activation may be an intermediate that has a format
            sparsify_(self.model, self.recipes, optimizer=optimizers or None, fuse=False)
        for name, (spec, tensor) in self.rest.items():
            path, _, own = name.rpartition(".")
            module = self.model.get_submodule(path)
            old = module.get_parameter(own)
            if not isinstance(tensor, SparseTensor):
                with torch.no_grad():
                    old.copy_(tensor.view_as(old))
                continue
            index, new = tensor.layout_index, nn.Parameter(tensor.stored, old.requires_grad)
            setattr(module, own, new)
            made = InFormat(index, old.shape, spec.registry)
            parametrize.register_parametrization(module, own, made, unsafe=True)
            held: Any = module.parametrizations
            held[own].register_load_state_dict_pre_hook(_require_loadable)
            if isinstance(module, nn.RNNBase):
                own_class: Any = type(module)  # torch has made it for this module alone
                own_class.__deepcopy__ = _copied_recurrent
            swap = swapping.Swap(name, old, new, functools.partial(_packed, index))
            swapping.apply([swap], optimizers)


def _copied_recurrent(module: nn.RNNBase, memo: dict[int, Any]) -> nn.RNNBase:
    """Returns a deep copy of a recurrent layer of torch's, which keeps the computed weights of its last call:
    those have a graph behind them and are made anew."""
    if id(module) in memo:
        return memo[id(module)]
    copied = memo[id(module)] = module.__new__(type(module))
    computed: dict[str, Any] = {"_flat_weights": [], "_flat_weight_refs": []}
    copied.__dict__ = copy.deepcopy({**module.__dict__, **computed}, memo)
    copied._init_flat_weights()
    return copied


def _packed(index: Layout, like_weight: Tensor) -> Tensor:
    return index.pack(as_rows(like_weight))


@dataclass(eq=False)
class GradientHook:
    """Makes the gradient of a Parameter sparse; of values in a layout, as that of the weight that they are.

    ``unpacked`` makes the weight's gradient of the Parameter's, ``packed`` goes back.
    """

    into: Format
    registry: Registry | None
    unpacked: Callable[[Tensor], Tensor] | None = None
    packed: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        self._steps = itertools.count()

    def __call__(self, gradient: Tensor) -> Tensor:
        dense = gradient if self.unpacked is None else self.unpacked(gradient)
        made = self.into.on(dense, self.registry, step=next(self._steps))
        if self.packed is None:
            return made
        return self.packed(made.to_dense() if isinstance(made, SparseTensor) else made)


def hook_gradient(module: nn.Module, name: str, into: Format, registry: Registry | None) -> None:
    """Makes the gradient of a module's weight sparse from now on, whatever the weight has become."""
    held: Any = getattr(module, "parametrizations", {})
    if name in held:
        steps = held[name]
        hook = GradientHook(
            into,
            registry,
            lambda gradient: steps[0].layout_index.to_dense(gradient),
            lambda dense: steps[0].layout_index.pack(dense),
        )
        steps.original.register_hook(hook)
    elif name in module._parameters:
        module.get_parameter(name).register_hook(GradientHook(into, registry))
    else:
        layer: Any = module
        (weight,) = layer.sparse_weights().values()
        weight.values.register_hook(GradientHook(into, registry, weight.unpacked, weight.packed))
