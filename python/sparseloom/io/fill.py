"""Fills a model with the dense entries of another program's checkpoint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ..errors import Error
from ..nn.held.as_before import or_as_before
from ..nn.held.moments import as_before_on_error
from ..nn.held.sparse_weight import is_sparse
from ..pattern import Pattern
from .foreign import Dense
from .ties import retie, ties_of

if TYPE_CHECKING:
    from ..patch.recipe import Recipe


def fill_from(model: nn.Module, dense: Dense, sparsify: bool) -> None:
    """Loads the entries; sparse layers pack theirs by their patterns. With ``sparsify``, dense layers whose
    structure the entries say become sparse. Raises Error, with the model as it was, for entries that do not
    fit."""
    ties = ties_of(model)
    entries = _fitting(model, dense.tensors, ties)
    on_meta = any(tensor.is_meta for tensor in model.state_dict().values())
    with as_before_on_error(), or_as_before(model, written=model.modules()):
        try:
            model.load_state_dict(entries, strict=True, assign=on_meta)
        except (Error, MemoryError):
            raise
        except Exception as error:
            got, remedy = " ".join(str(error).split()), "build the model as the saved one"
            raise Error("load", "the entries of this model", got, remedy) from error
        retie(model, ties)
        if sparsify:
            _sparsify(model, dense.structures)
    if hasattr(model, "config"):  # of transformers: it may still say that the weights are compressed
        from ..patch.holders import describe_holders

        describe_holders(model, model.modules())


def _fitting(model: nn.Module, tensors: dict[str, Tensor], ties: list[list[str]]) -> dict[str, Tensor]:
    """Adds entries that are tied to one of the file's or share their memory (such weights are stored once),
    and leaves out those that a transformers model ignores."""
    state, entries = model.state_dict(), dict(tensors)
    for names in ties:
        given = next((entries[name] for name in names if name in entries), None)
        if given is not None:
            entries |= {name: given for name in names if name in state and name not in entries}
    at = {(tensor.data_ptr(), tensor.shape): name for name, tensor in state.items() if name in entries}
    for name, tensor in state.items():
        if name not in entries and tensor.numel() and not tensor.is_meta:
            twin = at.get((tensor.data_ptr(), tensor.shape))
            if twin is not None:
                entries[name] = entries[twin]
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    for name in entries.keys() - state.keys():
        if name.endswith("position_ids") or any(re.search(pattern, name) for pattern in ignored):
            del entries[name]
        elif ".parametrizations." in f".{name}" and name.endswith(".original"):
            remedy = "call squash_mask() of the sparsifier and save again: the state_dict has no mask"
            raise Error("load", "weights that torch.ao.pruning has masked for good", name, remedy)
    return entries


def _sparsify(model: nn.Module, structures: dict[str, str | Pattern]) -> None:
    from ..patch import BlockSparse, Semi24, sparsify_  # a program that only loads need not import it

    modules = dict(model.named_modules())
    recipes: dict[str, Recipe] = {}
    for name, structure in structures.items():
        if name in modules and not is_sparse(modules[name]):
            recipe = Semi24() if structure == "semi24" else BlockSparse(select=structure)
            recipes[re.escape(name)] = recipe
    if recipes:
        sparsify_(model, recipes)
