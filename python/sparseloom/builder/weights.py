"""The builder's weights: layers made by sparsify_, or values and an index in the existing module."""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from ..errors import Error
from ..layouts import Bsr, Dense, Layout
from ..layouts.products import watched
from ..nn import BlockSparseLinear
from ..ops.registry import Registry, current
from ..ops.transforms import exporting
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
    format: Format
    input_statistics: Tensor | None
    registry: Registry | None

    def of(self, weight: Tensor, gradient: Tensor | None) -> Tensor:
        """Returns the sparsified weight as [first size, product of the others], without a gradient."""
        context = {"gradient": None if gradient is None else as_rows(gradient), "step": 0}
        context["input_statistics"] = self.input_statistics
        with torch.no_grad():
            only = self.format.final if _keeps_all(self.format) else Dense
            sparse = sparsified(as_rows(weight.detach()), self.initial, only, self.registry, **context)
            return sparse if only is self.format.final else self.format.on(sparse, self.registry, **context)


def as_rows(weight: Tensor) -> Tensor:
    """Returns a weight as [first size, product of the others], as nn.Linear and sparsifiers see it; of one
    dimension as a single row."""
    return weight.flatten(1) if weight.dim() > 1 else weight.reshape(1, -1)


def _keeps_all(format_: Format) -> bool:
    return all(isinstance(sparsifier, KeepAll) for sparsifier in (format_.inline, format_.external))


class Sparsified(InLayout):
    """A recipe of sparsify_ that stores the result of a WeightSpec."""

    _asks_options: ClassVar[bool] = False  # the spec's tensor brings its layout

    def __init__(self, spec: WeightSpec) -> None:
        super().__init__(spec.format.final)
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
    """A parametrization of torch: makes the SparseTensor of a weight from its values in each look-up."""

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
        """Returns the weight: dense where torch records or transforms the module's operators, because they do
        not see a subclass there."""
        if exporting() or (not torch.compiler.is_compiling() and watched()):
            if not torch.compiler.is_compiling():
                registry = current() if self.registry is None else self.registry
                registry.fall_back("torch.func or torch.jit.trace", [self.template.name])
            return self.layout_index.to_dense(values).reshape(self.shape)
        return mapped(values, Made(self.layout_index, self.shape, self.registry))


def _require_loadable(
    steps: Any, state: dict[str, Any], prefix: str, metadata: Any, strict: bool, *_: Any
) -> None:
    """Raises Error, before anything changes, unless the values and the index of a checkpoint belong together
    and have the sizes of the weight's own; another index of the same sizes is accepted."""
    in_format: InFormat = steps[0]
    own_tensors = {
        "original": steps.original,
        **{f"0.{name}": in_format._buffers[name] for name in in_format.parts},
    }
    read = {name: state[prefix + name] for name in own_tensors if prefix + name in state}
    if not read or not all(
        type(tensor) in (Tensor, nn.Parameter) for tensor in (*own_tensors.values(), *read.values())
    ):
        return
    op, expected = "load_state_dict", f"{prefix.rstrip('.')} with {', '.join(own_tensors)}"
    if len(read) < len(own_tensors):
        remedy = "save the whole state_dict: values mean nothing without their index"
        raise Error(op, expected, ", ".join(read) + " alone", remedy)
    sizes = [
        {name: list(tensor.shape) for name, tensor in tensors.items()} for tensors in (own_tensors, read)
    ]
    if sizes[0] != sizes[1]:
        remedy = "build the model from the checkpoint's weights, with the same sparsifiers"
        raise Error(op, f"{prefix.rstrip('.')} of sizes {sizes[0]}", str(sizes[1]), remedy)
    index = in_format.template.with_tensors({name: read[f"0.{name}"] for name in in_format.parts})
    index.require_consistent(op, read["original"])
    if isinstance(index, Bsr) and not index.packed.is_meta:
        in_format.template = Bsr.of(index.pattern())  # the digest is that of the blocks


class Weights:
    """The weights of a model that become sparse. Everything is chosen before anything changes."""

    def __init__(self, model: nn.Module, specs: dict[str, WeightSpec]) -> None:
        self.model, self.recipes, self.rest = (
            model,
            dict[str, Sparsified](),
            dict[str, tuple[WeightSpec, Tensor]](),
        )
        sites = {
            id(site.parameter): site
            for site in survey(model).sites
            if site.form.in_any_layout and site.name and not site.refusal()
        }
        for name, spec in specs.items():
            parameter = model.get_parameter(name)
            site = sites.get(id(parameter))
            if site is not None and spec.format.final is not Dense:
                self.recipes[re.escape(site.name)] = Sparsified(spec)
                continue
            modules = [
                owner for owner in model.modules() if any(p is parameter for p in owner._parameters.values())
            ]
            if len(modules) > 1:
                got = f"{', '.join(type(owner).__name__ for owner in modules)} that share it"
                raise Error(_OP, f"{name} in one module", got, "untie it first")
            self.rest[name] = spec, spec.of(parameter, parameter.grad)

    def parametrized(self, path: str) -> bool:
        """Returns whether a weight of that module itself becomes a SparseTensor."""
        return any(name.rpartition(".")[0] == path for name in self.rest)

    def written(self) -> list[nn.Module]:
        """Returns the modules whose weights stay dense and are written in place."""
        return [
            self.model.get_submodule(name.rpartition(".")[0])
            for name, (_, tensor) in self.rest.items()
            if not isinstance(tensor, SparseTensor)
        ]

    def put(self, optimizers: list[Optimizer]) -> None:
        """Makes the weights sparse, and carries the optimizers' state over."""
        if self.recipes:
            # no fusion: the layer's result may be an intermediate with a format
            sparsify_(self.model, self.recipes, optimizer=optimizers or None, fuse=False)
        for name, (spec, tensor) in self.rest.items():
            path, _, attribute = name.rpartition(".")
            module = self.model.get_submodule(path)
            old = module.get_parameter(attribute)
            if not isinstance(tensor, SparseTensor):
                with torch.no_grad():
                    old.copy_(tensor.view_as(old))
                continue
            index, new = tensor.layout_index, nn.Parameter(tensor.stored, old.requires_grad)
            setattr(module, attribute, new)
            _compute(module, attribute, InFormat(index, old.shape, spec.registry))
            swap = swapping.Swap(name, old, new, functools.partial(_packed, index))
            swapping.apply([swap], optimizers)


def _compute(module: nn.Module, name: str, in_format: InFormat) -> None:
    """Lets a module compute the SparseTensor ``name`` from the Parameter of that name, its values."""
    parametrize.register_parametrization(module, name, in_format, unsafe=True)
    parametrizations: Any = module.parametrizations
    parametrizations[name].register_load_state_dict_pre_hook(_require_loadable)
    own_class: Any = type(module)  # torch has made it for this module alone, and refuses to pickle it
    own_class.__reduce__ = _pickled
    if isinstance(module, nn.RNNBase):
        own_class.__deepcopy__ = _copied_recurrent


def _pickled(module: nn.Module) -> tuple[Any, ...]:
    """Implements __reduce__: the module before its parametrizations, and what these hold. Leaves the refusal
    to torch if somebody else has parametrized the module, too."""
    lists: Any = module.parametrizations
    if not all(len(steps) == 1 and isinstance(steps[0], InFormat) for steps in lists.values()):
        module.__getstate__()
    modules = {name: child for name, child in module._modules.items() if name != "parametrizations"}
    state = {**module.__dict__, "_modules": modules}
    if isinstance(module, nn.RNNBase):  # the computed weights of the last call have a graph
        state |= {"_flat_weights": [], "_flat_weight_refs": []}
    weights = [(name, steps[0], steps.original) for name, steps in lists.items()]
    return _unpickled, (parametrize.type_before_parametrizations(module), state, weights)


def _unpickled(
    cls: type[nn.Module], state: dict[str, Any], weights: list[tuple[str, InFormat, nn.Parameter]]
) -> nn.Module:
    module = cls.__new__(cls)
    module.__dict__.update(state)
    for name, in_format, values in weights:
        module.register_parameter(name, values)
        _compute(module, name, in_format)
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()
    return module


def _copied_recurrent(module: nn.RNNBase, memo: dict[int, Any]) -> nn.RNNBase:
    """Returns a deep copy of a recurrent layer of torch. The layer keeps the computed weights of its last
    call, which have a graph and cannot be copied: they are made anew."""
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
    """Makes the gradient of a Parameter sparse; for the values of a layout, as a gradient of the weight.

    ``unpacked`` converts the Parameter's gradient to the weight's, ``packed`` converts it back.
    """

    format: Format
    registry: Registry | None
    unpacked: Callable[[Tensor], Tensor] | None = None
    packed: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        self._steps = itertools.count()

    def __call__(self, gradient: Tensor) -> Tensor:
        dense = gradient if self.unpacked is None else self.unpacked(gradient)
        sparse = self.format.on(dense, self.registry, step=next(self._steps))
        if self.packed is None:
            return sparse
        return self.packed(sparse.to_dense() if isinstance(sparse, SparseTensor) else sparse)


def hook_gradient(module: nn.Module, name: str, into: Format, registry: Registry | None) -> None:
    """Makes the gradient of a module's weight sparse from now on, whatever kind of layer the weight is in."""
    parametrizations: Any = getattr(module, "parametrizations", {})
    if name in parametrizations:
        steps = parametrizations[name]
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
