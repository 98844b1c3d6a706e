"""Part: one linear layer or convolution of a role, dense or sparse, as a matrix that can be narrowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .. import ops
from ..nn import MaskedLinear
from ..nn.held.convert import Activation, applies_the_models
from ..nn.held.sparse_weight import SparseWeight, is_sparse
from ..patch.forms import form_of
from ..patch.forms.computed import computed
from ..patch.optimizer import Swap

#: The layouts whose stored elements can be found again by their places in a narrower weight.
_LAYOUTS = ("bsr", "csr", "coo", "bitmap", "tiles")


@dataclass(frozen=True, eq=False)
class Part:
    """A layer by its name in the model. Sparse ones are looked at through their dense twins."""

    name: str
    module: nn.Module

    @cached_property
    def dense(self) -> nn.Module:
        """The layer itself, or a dense copy of a sparse one, without its activation, until ``forget``."""
        if not is_sparse(self.module):
            return self.module
        twin = self.module.to_dense()
        if isinstance(twin, nn.Sequential) and len(twin) == 2 and isinstance(twin[1], Activation):
            return twin[0]
        return twin

    def forget(self) -> None:
        """Drops the dense copy of a sparse layer."""
        vars(self).pop("dense", None)

    @property
    def weight(self) -> Tensor:
        """W [out features, in features], of a convolution [out, in, taps]."""
        weight = self.dense.get_parameter("weight").detach()
        return weight.flatten(2) if weight.dim() > 2 else weight.t() if _is_turned(self.dense) else weight

    @property
    def bias(self) -> Tensor | None:
        bias = self.sparse.owner.bias if is_sparse(self.module) else self.module._parameters.get("bias")
        return bias.detach() if isinstance(bias, Tensor) else None

    @property
    def sparse(self) -> SparseWeight:
        """The weight of a sparse layer."""
        (weight,) = self.module.sparse_weights().values()  # type: ignore[operator,union-attr]
        return weight

    @property
    def shape(self) -> tuple[int, int]:
        """(out features, in features)."""
        rows, cols = self.sparse.shape if is_sparse(self.module) else self.weight.shape[:2]
        return rows, cols

    def activate(self, x: Tensor) -> Tensor:
        """Applies the activation that a sparse layer applies itself."""
        name = getattr(self.module, "activation", None) if is_sparse(self.module) else None
        return x if name is None else ops.activate(x, name)

    @property
    def blocks(self) -> tuple[int, int]:
        """(out features, in features) of a block; (1, 1) for a layer without."""
        return self.sparse.block if is_sparse(self.module) and self.sparse.layout == "bsr" else (1, 1)

    @property
    def refusal(self) -> str:
        """Why the layer cannot be narrowed; "" if it can."""
        if isinstance(self.module, MaskedLinear):
            return f"{self.name} trains under a mask: pack_ or densify_ it first"
        if is_sparse(self.module):
            weights = list(self.module.sparse_weights().values())
            if len(weights) != 1 or weights[0].scaled or weights[0].layout not in _LAYOUTS:
                kind = "8-bit" if weights[0].scaled else f"in layout {weights[0].layout}"
                return f"{self.name} is {kind}: shrink first, or densify_ it"
            own = getattr(self.module, "activation", None) is not None and not applies_the_models(self.module)
            return f"{self.name} has an activation of its own: densify_ it" if own else ""
        form = form_of(self.module)
        if form is None or type(self.module).__name__ not in ("Linear", "Conv1D", "Conv2d"):
            return f"{self.name} is a {type(self.module).__name__}"
        dense_class = form.own_forward(self.module)
        replaced = dense_class is not None and type(self.module).forward is not dense_class.forward
        if replaced or "forward" in vars(self.module):
            return f"{self.name} has a forward of its own"
        if reason := computed(self.module):
            return f"{self.name}: {reason}"
        weight = self.module._parameters.get("weight")
        if weight is None or is_lazy(weight) or type(weight.data) is not Tensor:
            return f"{self.name} has no ordinary weight"
        return ""

    def size_after(self, out: int | None, inner: int | None) -> tuple[int, int]:
        """Returns the weight's shape, as stored, with other numbers of out and in features; None keeps
        one."""
        rows, cols = self.shape
        shape = rows if out is None else out, cols if inner is None else inner
        return (shape[1], shape[0]) if _is_turned(self.module) else shape


def _is_turned(module: nn.Module) -> bool:
    """transformers' Conv1D, and the dense twins of sparse ones, store their weight as [in, out]."""
    return "Conv1D" in type(module).__name__


def narrow(
    name: str, module: nn.Module, rows: Tensor | None = None, cols: Tensor | None = None
) -> list[Swap]:
    """Keeps these out features and in features of a dense layer, in this order, or these channels (``rows``)
    of a batch norm. Returns the exchanged Parameters."""
    swaps = []
    turned = _is_turned(module)
    for entry, axis, kept in (("weight", turned, rows), ("weight", not turned, cols), ("bias", False, rows)):
        if kept is not None and isinstance(module._parameters.get(entry), nn.Parameter):
            swaps.append(taken(name, module, entry, int(axis), kept))
    if rows is not None:
        for entry in ("running_mean", "running_var"):
            if isinstance(buffer := module._buffers.get(entry), Tensor):
                module._buffers[entry] = buffer.index_select(0, rows.to(buffer.device))
    for kept, attributes in (
        (rows, ("out_features", "out_channels", "num_features", "nf")),
        (cols, ("in_features", "in_channels", "nx")),
    ):
        for attribute in attributes:
            if kept is not None and attribute in vars(module):
                setattr(module, attribute, len(kept))
    return swaps


def taken(name: str, module: nn.Module, entry: str, axis: int, kept: Tensor) -> Swap:
    """Keeps these places along an axis of a Parameter. Returns the exchange."""

    def carry(like: Tensor) -> Tensor:
        return like.index_select(axis, kept.to(like.device)).contiguous()

    return exchanged(name, module, entry, carry)


def exchanged(
    name: str, module: nn.Module, entry: str, carry: Callable[[Tensor], Tensor], value: Tensor | None = None
) -> Swap:
    """Replaces a Parameter by ``value``, by default what ``carry`` makes of it."""
    old = module.get_parameter(entry)
    new = nn.Parameter(carry(old.detach()) if value is None else value, old.requires_grad)
    vars(new).update(vars(old))
    module._parameters[entry] = new
    return Swap(f"{name}.{entry}", old, new, carry)


def add_to_bias(name: str, module: nn.Module, more: Tensor) -> list[Swap]:
    """Gives a layer another bias, or a batch norm another mean: the sum, rounded once. Returns the exchanged
    Parameter; nothing is written in place, so that nothing has to be copied to undo it."""
    entry = (
        "bias" if "bias" in module._parameters and "running_mean" not in module._buffers else "running_mean"
    )
    old = getattr(module, entry)
    exact = torch.promote_types(old.dtype, torch.float32)
    summed = (old.detach().to(exact) + more.to(old.device, exact)).to(old.dtype)
    if entry != "bias":
        module._buffers[entry] = summed
        return []
    return [exchanged(name, module, "bias", Tensor.clone, summed)]
