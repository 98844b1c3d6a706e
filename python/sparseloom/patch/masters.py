"""Masters: the masked layers that sparsify_ makes for methods with a dense weight, and the methods' run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import layouts
from .._arguments import named_arguments
from ..errors import Error
from ..layouts import Layout
from ..layouts.csr import Csr
from ..layouts.torchs import is_sparse_matrix
from ..nn import MaskedLinear
from ..nn.arguments import require_module
from ..nn.held.sparse_weight import sparse_layers
from ..pattern import Pattern, block_shape
from ..sparsify.gradients import Soft
from ..sparsify.select import Semi24
from .recipe import Chosen, Recipe
from .result import Change

if TYPE_CHECKING:
    from ..sparsify import Method, Run
    from ..sparsify.held import Held
    from .forms import Site


@dataclass(frozen=True, eq=False)
class Master(Chosen):
    """A MaskedLinear that keeps the layer's own Parameter. ``start`` is None if all blocks are kept at first.
    Blocks of 1 x 1 are single elements, which ``pack`` stores in ``layout`` with those options."""

    method: Method
    block: tuple[int, int]
    start: Pattern | Tensor | None
    layout: type[Layout] = Csr
    options: Mapping[str, Any] = field(default_factory=dict)

    def no_copy(self, site: Site) -> str:
        if self.layout.name == "semi24" and site.form.layers.semi24 is None:
            return "a convolution has no packed 2:4 layer"
        if self.block != (1, 1) or self.layout.name == "semi24":
            return ""
        return f"a layer in layout {self.layout.name}, which pack_ makes of it, keeps none"

    def made(
        self, site: Site, strict: bool = False, dense_copy: bool | Literal["auto"] = False
    ) -> MaskedLinear:
        rule, weight = self.method.gradient, site.parameter
        if self.layout.name == "semi24" and not rule.gated:
            return self._semi24(site, strict, dense_copy)
        layer = _over(site, self.block, self.layout, self.options, share=rule.share, decay=rule.decay)
        layer.strict, layer.dense_copy = strict, dense_copy
        if self.start is not None:
            layer.set_mask_(self.start)
        gate = rule.gate(self.method, layer.mask.shape[0], layer.mask.shape[1], layer.block)
        layer.gate = None if gate is None else gate.to(weight.device)
        if rule.frozen:
            weight.requires_grad_(False)
            weight.grad = None
        return layer

    def _semi24(self, site: Site, strict: bool, dense_copy: bool | Literal["auto"]) -> MaskedLinear:
        rule, select, start = self.method.gradient, self.method.select, self.start
        cls = site.form.semi24_training(site.module)
        assert cls is not None and not isinstance(start, Pattern)  # refused
        prune = select.prune if isinstance(select, Semi24) else "magnitude"
        if start is None and not isinstance(select, Semi24):  # its budget falls to 2:4
            start = torch.ones(site.shape, dtype=torch.bool, device=site.parameter.device)
        layer = cls.over(
            site.module, site.parameter, start, prune=prune, share=rule.share, decay=rule.decay,
            soft=isinstance(rule, Soft),
        )  # fmt: skip
        layer.strict, layer.dense_copy = strict, dense_copy
        return layer


@dataclass(frozen=True)
class MaskLater(Recipe, Chosen):
    """Makes a MaskedLinear without a gate, whose mask and weight are read from a file afterwards."""

    block: tuple[int, int]
    layout: type[Layout] = Csr
    options: Mapping[str, Any] = field(default_factory=dict)
    semi24: Mapping[str, Any] | None = None  # of a Semi24Training

    layer: ClassVar[str] = "MaskedLinear"

    def refusal(self, site: Site) -> str:
        return refusal_of_master(site, self.semi24 is not None)

    def chosen(self, site: Site, generator: torch.Generator | None) -> MaskLater:
        return self

    def made(
        self, site: Site, strict: bool = False, dense_copy: bool | Literal["auto"] = False
    ) -> MaskedLinear:
        if self.semi24 is None:
            return _over(site, self.block, self.layout, self.options)
        rule = dict(self.semi24)
        if rule.pop("refreshes", None) == "each call":
            from .torchao import SemiSparseLinear

            return SemiSparseLinear.over(site.module, site.parameter, None, **rule)
        cls = site.form.semi24_training(site.module)
        assert cls is not None  # refused
        return cls.over(site.module, site.parameter, None, **rule)


def mask_later(op: str, description: Mapping[str, Any], name: str = "a masked layer") -> MaskLater:
    """Returns the recipe for a layer that was saved before ``pack_``, from its ``stored_as``. Raises Error
    for one with a gate, which only its method can make."""
    if "gate" in description:
        remedy = "sparsify_ the model with the method that it had, and load into that"
        raise Error(op, f"{name} without a gate", f"a {description['gate']}, saved before pack_", remedy)
    try:
        block = block_shape(op, tuple(description["block"]))
        if block != (1, 1):
            return MaskLater(block)
        index_keys = ("layout", "block", "elements", "in_features", "out_features")
        options = {key: value for key, value in description.items() if key not in index_keys}
        semi24: dict[str, Any] = {
            key: options.pop(key)
            for key in ("prune", "soft", "share", "decay", "refreshes")
            if key in options
        }
        return MaskLater(block, layouts.get(description["elements"]), options, semi24 or None)
    except (KeyError, TypeError) as error:
        remedy = "save the model again, or take an undamaged copy"
        raise Error(op, f"the block of {name}", f"none ({error!r})", remedy) from error


def _over(
    site: Site, block: tuple[int, int], layout: type[Layout], options: Mapping[str, Any], **rule: Any
) -> MaskedLinear:
    """Returns a masked layer without bias and gate over the site's own Parameter."""
    rows, cols = site.shape
    weight = site.parameter
    assert site.form.layers.masked is not None  # refused
    layer = site.form.layers.masked(
        cols, rows, False, block=block, layout=layout, options=options,
        device="meta", dtype=weight.dtype, **rule,
    )  # fmt: skip
    layer.weight = weight
    layer.mask = torch.ones(layer.mask.shape, dtype=torch.bool, device=weight.device)
    return layer


def change_of_master(names: Sequence[str], kind: str, layer: MaskedLinear) -> Change:
    """Returns the report of a layer that trains a dense weight under a mask: its parameters stay, and its
    gate adds more."""
    elements = layer.block == (1, 1)
    # a gate writes its mask in the first call
    mask = layer.mask if layer.gate is None or layer.mask.is_meta else layer.factors() != 0
    stored, cells = int(mask.sum()), max(1, mask.numel())
    bias_size = 0 if layer.bias is None else layer.bias.numel()
    dense_size = layer.weight.numel() + bias_size
    size = sum(parameter.numel() for parameter in layer.parameters())
    shape = (layer.out_features, layer.in_features)
    block, blocks = (None, 0) if elements else (layer.block, stored)
    return Change(tuple(names), kind, shape, block, stored / cells, blocks, (dense_size, size), "masked")


def refusal_of_master(site: Site, semi24: bool = False) -> str:
    """Returns why a weight cannot train under a mask, or ``semi24``: in 2:4; "" when it can."""
    if semi24 and site.form.semi24_training(site.module) is None:
        return f"no 2:4 layer trains in the place of a {site.kind}"
    if not semi24 and site.form.layers.masked is None:
        remedy = "" if site.form.cannot_move(False) else ": choose a method with gradient=Stored()"
        return f"its kind has no masked layer{remedy}"
    if site.holder[1] == "original":
        return "torch.ao.pruning masks its weight: call its squash_mask first"
    if is_sparse_matrix(site.parameter):
        return f"its weight is {site.parameter.layout}: give it a dense one, weight.to_dense(), first"
    return ""


def run_of(
    layers: Iterable[tuple[str, Any, float | None, Method]], optimizers: Sequence[Optimizer] | None
) -> Run:
    """Returns the run of the methods of (name, layer, density, method). Trained scores are added to the
    optimizer that has the layer's weight; None: the optimizers are not known yet."""
    from ..nn.held.driven import MaskedWeight, StoredWeight
    from ..sparsify.run import Run

    groups: dict[int, tuple[Method, list[Held]]] = {}
    for name, layer, density, method in layers:
        target = method.require_target(density, getattr(layer, "capacity", None) is not None)
        if isinstance(layer, MaskedLinear):
            _admit(layer, method, optimizers or ())
            held_weight: Held = MaskedWeight(name, layer, target, method.gradient.keeps_pruned)
        else:
            (weight,) = layer.sparse_weights().values()
            held_weight = StoredWeight(name, weight, target)
        groups.setdefault(id(method), (method, []))[1].append(held_weight)
    return Run(list(groups.values()), optimizers)


def _admit(layer: MaskedLinear, method: Method, optimizers: Sequence[Optimizer]) -> None:
    scores = [] if layer.gate is None else list(layer.gate.parameters())
    if not scores:
        return
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if any(parameter is layer.weight for parameter in group["params"]):
                param_group: dict[str, Any] = {"params": scores}
                param_group |= {"weight_decay": 0.0} if "weight_decay" in group else {}
                param_group |= {"lr": group["lr"] if method.gradient.lr is None else method.gradient.lr}
                optimizer.add_param_group(param_group)
                return


@named_arguments
def drive(model: nn.Module, method: Method, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> Run:
    """Returns a Run that applies the method to all block-sparse weights of a model; each keeps its number of
    blocks.

    The modules may be yours: those with ``sparse_weights()`` whose owners have ``set_topology_``. Raises
    Error for a method that needs a dense master, and for a model without such weights.
    """
    from ..nn.held.driven import StoredWeight
    from ..sparsify.run import Run

    op = "drive"
    require_module(op, model)
    if method.gradient.dense_master:
        got = type(method.gradient).__name__
        raise Error(
            op, "a method with gradient=Stored()", got, "pass it to sparsify_, in BlockSparse(method=)"
        )
    owners = {layer.weight.owner: layer for layer in sparse_layers(model)}
    if not owners:
        raise Error(op, "a model with block-sparse weights", "none", "call sparsify_ first")
    by_gradient = method.regrow is not None and method.regrow.needs_gradient
    weights = [StoredWeight(s.name, s.weight, s.weight.density, by_gradient) for s in owners.values()]
    return Run([(method, weights)], optimizer)
