"""Makes sparse layers dense while they are narrowed, and sparse again with the stored elements that are
left."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import pattern
from ..nn.held.options import takes
from ..nn.held.sparse_weight import SparseWeight, is_sparse
from ..patch import BlockSparse, densify_, sparsify_
from ..patch.announce import unannounced
from ..patch.forms import form_of
from ..patch.hooks import without_hooks
from ..patch.in_layout import Stored
from ..patch.optimizer import Swap
from ..patch.recipe import Recipe
from .part import Part

#: Attributes of a sparse layer that the narrower one keeps.
_OPTIONS = ("strict", "dense_copy", "fuse")


class Packed:
    """One sparse layer: where its elements are stored, in the shape of its dense twin's weight."""

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        (self._weight,) = module.sparse_weights().values()
        owner = self._weight.owner  # of a 1 x 1 convolution the linear layer inside has the options
        self._options = {each: getattr(owner, each) for each in _OPTIONS if takes(owner, each)}
        self.fuses = self._options.get("fuse", True)

    def follow(self, model: nn.Module) -> None:
        """Finds the layer's dense twin, now in the model, and the stored places of its weight."""
        self._module = model.get_submodule(self.name)
        form, weight = form_of(self._module), self._parameter
        assert form is not None
        ones = torch.ones_like(self._weight.values.detach())
        self._mask = form.stored(self._weight.unpacked(ones), weight)

    @property
    def _parameter(self) -> nn.Parameter:
        return self._module.get_parameter("weight")

    def narrowed(self, swaps: Sequence[Swap]) -> None:
        """Takes out of the mask what was taken out of the weight."""
        chain = {id(swap.new): swap for swap in swaps}
        steps, parameter = list[Swap](), self._parameter
        while (swap := chain.get(id(parameter))) is not None:
            steps.append(swap)
            parameter = swap.old
        for swap in reversed(steps):
            self._mask = swap.carry(self._mask)

    def recipe(self) -> Recipe:
        """Returns what makes the narrower layer sparse."""
        form = form_of(self._module)
        assert form is not None
        mask, weight = form.matrix(self._mask), form.matrix(self._parameter.detach())
        if self._weight.layout != "bsr":
            old = self._weight.owner.layout
            takes = inspect.signature(old.from_mask).parameters  # tiles have a side
            options = {name: value for name, value in old.options().items() if name in takes}
            layout = type(old).from_mask(weight, mask.ne(0), **options)
            return Stored(layout, layout.pack(weight))
        rows, cols, *_ = mask.shape
        stored = mask.ne(0) if mask.dim() == 2 else mask.flatten(2).ne(0).any(2)
        return BlockSparse(select=_blocks_of(stored, self._weight, rows, cols))

    def restore(self, model: nn.Module) -> None:
        """Gives the new sparse layer the options of the old one."""
        module: Any = model.get_submodule(self.name)
        (weight,) = module.sparse_weights().values()
        for option, value in self._options.items():
            setattr(weight.owner, option, value)


def _blocks_of(stored: Tensor, weight: SparseWeight, rows: int, cols: int) -> pattern.Pattern:
    (bm, bn) = weight.block
    padded = nn.functional.pad(stored, (0, -cols % bn, 0, -rows % bm))
    mask = padded.unflatten(1, (-1, bn)).unflatten(0, (-1, bm)).any(3).any(1)
    return pattern.from_mask(rows, cols, weight.block, mask.cpu())


@contextmanager
def dense_for(
    model: nn.Module, parts: Sequence[Part], optimizers: Sequence[Optimizer]
) -> Iterator[list[Swap]]:
    """Makes the sparse ones of these layers dense for the body, which fills the list of exchanged Parameters
    that it is given."""
    packed = {part.name: Packed(part.name, part.module) for part in parts if is_sparse(part.module)}
    swaps: list[Swap] = []
    if not packed:
        yield swaps
        return
    with unannounced():
        densify_(model, "|".join(map(re.escape, packed)), optimizer=optimizers)
        for each in packed.values():
            each.follow(model)
        yield swaps
        for each in packed.values():
            each.narrowed(swaps)
        recipes = {re.escape(name): each.recipe() for name, each in packed.items()}
        with without_hooks(model, packed):
            fuse = any(each.fuses for each in packed.values())
            sparsify_(model, recipes, optimizer=optimizers, fuse=fuse)
        for each in packed.values():
            each.restore(model)
