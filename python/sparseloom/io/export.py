"""Writes a model for other programs: dense with zeros, or in compressed-tensors' bitmask formats."""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor, nn

from .._checks import require_sizes
from ..errors import Error
from ..nn.held.convert import Activation
from ..nn.held.sparse_weight import is_sparse
from ..nn.masked.linear import MaskedLinear
from .files import write_whole
from .foreign import bitmask
from .model_file import file_bytes

FORMATS = ("dense", bitmask.BITMASK, bitmask.BITMASK24)


def write_as(form: str, model: nn.Module, path: str | bytes | os.PathLike[str]) -> None:
    """Writes one safetensors file with the entries of a dense model, the metadata that transformers reads,
    and tied weights once. In the bitmask formats linear weights that are shorter so are stored so; in 2:4,
    those that are 2:4."""
    if form not in FORMATS:
        known = ", ".join(map(repr, FORMATS))
        raise Error("save", f"format to be None or one of {known}", repr(form), "leave it out for our own")
    entries = dense_state(model)
    if form != "dense":
        entries = _compressed(entries, _linear_names(model), form == bitmask.BITMASK24)
    write_whole(path, file_bytes(entries, {"format": "pt"}))


def dense_state(model: nn.Module) -> dict[str, Tensor]:
    """Returns the state_dict that the model would have with dense layers, on the CPU, tied weights once."""
    require_sizes("save", model)
    dense, seen = dict[str, Tensor](), set[tuple[Any, ...]]()
    sparse = {name: module for name, module in model.named_modules() if _stands_for_dense(module)}
    inner = tuple(f"{name}." if name else "" for name in sparse)
    for name, value in model.state_dict().items():
        if inner and name.startswith(inner):
            continue
        if not isinstance(value, Tensor) or value.is_meta:
            got, remedy = f"{name} on the meta device", "keep other state outside the model"
            raise Error("save", "a state_dict of tensors with values", got, remedy)
        key = (value.data_ptr(), value.dtype, value.shape, value.stride())
        if value.numel() and key in seen:
            continue
        seen.add(key)
        dense[name] = value.detach().cpu().contiguous().clone()
    for name, module in sparse.items():
        if any(name.startswith(f"{outer}.") or (not outer and name) for outer in sparse if outer != name):
            continue  # the outer module speaks for it
        twin: Any = module.to_dense()  # type: ignore[operator]
        if isinstance(twin, nn.Sequential) and len(twin) == 2 and isinstance(twin[1], Activation):
            twin = twin[0]
        prefix = f"{name}." if name else ""
        for entry, value in twin.state_dict().items():
            dense[prefix + entry] = value.detach().cpu().contiguous()
    return dense


def _stands_for_dense(module: nn.Module) -> bool:
    return is_sparse(module) or isinstance(module, MaskedLinear)


def _linear_names(model: nn.Module) -> list[str]:
    """Returns the names of layers with a weight [out, in], which compressed-tensors compresses."""
    kinds = (nn.Linear, MaskedLinear)
    return [name for name, m in model.named_modules() if isinstance(m, kinds) or is_sparse(m)]


def _compressed(entries: dict[str, Tensor], layers: list[str], is_24: bool) -> dict[str, Tensor]:
    found = False
    for layer in layers:
        name = f"{layer}.weight" if layer else "weight"
        weight = entries.get(name)
        if weight is None or weight.dim() != 2 or not _worthwhile(weight, is_24):
            continue
        del entries[name]
        entries |= bitmask.encode(layer, weight, is_24)
        found = True
    if not found:
        expected = "a linear weight that is 2:4" if is_24 else "a linear weight with an eighth of zeros"
        raise Error("save", expected, "none", "prune first, or save with format='dense'")
    return entries


def _worthwhile(weight: Tensor, is_24: bool) -> bool:
    if is_24:
        return weight.shape[1] % 4 == 0 and not bool((weight.ne(0).unflatten(1, (-1, 4)).sum(2) > 2).any())
    return int(weight.ne(0).sum()) * 8 <= 7 * weight.numel()
