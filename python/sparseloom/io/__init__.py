"""save and load: one safetensors file with versioned metadata, which is written completely or not at all, and
loaded completely or not at all.

The format is described in docs/formats.md. Any reader of safetensors can read the tensors; model_file.py
writes and reads the metadata.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import layouts
from .._arguments import named_arguments
from .._checks import require_bool, require_sizes, whole
from ..errors import Error
from ..nn.held.as_before import or_as_before
from ..nn.held.fusions import Fusions
from ..nn.held.moments import as_before_on_error
from ..nn.held.sharded import as_entry, gathered, is_sharded, on_first_rank, parts_of
from ..nn.held.sparse_weight import SparseWeight, joined, sparse_layers
from ..nn.held.state import int32_index
from ..nn.masked.linear import masked_layers
from ..pattern import Pattern
from . import foreign
from .export import write_as
from .files import decoded, write_whole
from .fill import fill_from
from .model_file import REPLACE, file_of, read_file
from .ties import retie, ties_of

if TYPE_CHECKING:
    from ..patch.recipe import Recipe

#: The keys that a file has for a weight in any layout.
_SHAPE = ("out_features", "in_features")


@named_arguments
def save(model: nn.Module, path: str | bytes | os.PathLike[str], *, format: str | None = None) -> None:
    """Writes the model's state_dict, dense and sparse layers alike; tensors that share memory are stored
    once.

    The file appears at ``path`` complete or not at all: it is written beside it, flushed to the disk, then
    renamed. If it replaces a file, it keeps that file's permissions; a symbolic link stays one, and the file
    that it points to is written. Raises Error when an entry is not a plain tensor with values, when ``path``
    is a pipe, a device or a socket, and when the folder cannot be written (a full disk included).

    For a model that fully_shard or tensor parallelism has sharded, the file is that of the whole model. All
    ranks have to call this; rank 0 writes, and all raise the Error if it cannot.

    ``format`` writes for others instead, the model untouched: "dense", an ordinary checkpoint with zeros
    where nothing is stored; "sparse-bitmask" and "sparse-24-bitmask", compressed-tensors' formats, of which
    config.json has to tell by quantization_config.sparsity_config.format. load reads them.
    """
    model = _unwrapped("save", model, path, "save(model, path)")
    if format is not None:
        return write_as(format, model, path)
    state = _state("save", model)
    for name, tensor in state.items():
        if tensor.is_meta:
            got, remedy = f"{name} on the meta device", "materialize with to_empty() and load first"
            raise Error("save", "tensors with values", got, remedy)
    if any(is_sharded(tensor) for tensor in state.values()):
        on_first_rank(_write, model, gathered(model, state), path)
    else:
        _write(model, state, path)


def _write(model: nn.Module, state: dict[str, Tensor], path: str | bytes | os.PathLike[str]) -> None:
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    name_of: dict[tuple[Any, ...], str] = {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
        if tensor.numel() and key in name_of:
            aliases[name] = name_of[key]
            continue
        name_of[key] = name
        # We clone because an entry may share a part of its memory with another, and safetensors stores each
        # byte under one name.
        tensors[name] = tensor.detach().cpu().contiguous().clone()
    layers = {name: weight.stored_as() for name, weight in _sparse_layers(model).items()}
    layers |= _masked(model)
    pruning = vars(model).get("_pruning")
    write_whole(path, file_of(tensors, layers, aliases, Fusions.of(model), pruning))


@named_arguments
def load(
    path: str | bytes | os.PathLike[str] | Mapping[str, Any] | nn.Module,
    model: nn.Module | str | bytes | os.PathLike[str] | Mapping[str, Any],
    *,
    sparsify: bool = False,
) -> None:
    """Fills the model from a file that ``save`` wrote; the two may come in either order. Sparse layers take
    the file's patterns; meta tensors become real ones on the CPU.

    ``path`` may also be a file, a folder or a state_dict of another program that stores sparse or masked
    weights. docs/migrating.md lists them: compressed-tensors, torch.nn.utils.prune, SparseML,
    pytorch_block_sparse, nn_pruning, STen, superblock, torch's sparse and semi-structured tensors, and Matrix
    Market for a model that is one layer. A dense layer gets the weight with zeros, and a sparse one packs it
    by its pattern. With ``sparsify``, dense layers whose format says 2:4 or blocks become so.

    With ``sparsify``, dense layers that are block-sparse in the file first become so, as sparsify_ would make
    them. They apply the activations that the saved ones applied, and multiply together where the saved ones
    did. The change is printed as sparsify_ prints it. An optimizer that was made before has to be made again.

    Everything is checked before the model is touched: entries, shapes, dtypes, indices and the checksum. Of a
    model that fully_shard or tensor parallelism has sharded, every rank reads the file and takes its part.
    Raises Error, and leaves the model bitwise as it was, when the file is damaged, truncated, from another
    program or from a newer version, or does not fit the model.
    """
    if isinstance(path, nn.Module) and not isinstance(model, nn.Module):
        path, model = model, path
    model = _unwrapped("load", model, path, "load(path, model)")  # type: ignore[arg-type]
    assert not isinstance(path, nn.Module)
    require_bool("load", "sparsify", sparsify)
    if isinstance(path, Mapping):
        return fill_from(model, foreign.dense_entries(foreign.state_in(path)), sparsify)
    with _named(f"in {decoded('load', path)}"):
        if foreign.is_foreign(Path(decoded("load", path))):
            return fill_from(model, foreign.read(Path(decoded("load", path)), model), sparsify)
        tensors, layers, fusions = read_file(path)
        if not sparsify:
            return _fill(model, tensors, layers)
        require_sizes("load", model)
        from ..patch.from_file import shapes_of, sparsified  # a program that only loads need not import it

        present = {*_sparse_layers(model), *_masked(model)}
        with sparsified(model, _recipes(tensors, layers, present, shapes_of(model)), fusions) as settle:
            _fill(model, tensors, layers, settle)


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Adds the name of a layer or a file to an Error raised in the body."""
    try:
        yield
    except Error as error:
        if place in str(error):
            raise
        got = f"{error.actual} {place}"
        raise Error(error.op, error.expected, got, error.remedy) from error


def _fill(
    model: nn.Module,
    tensors: dict[str, Tensor],
    layers: dict[str, Any],
    settle: Callable[[], None] = lambda: None,
) -> None:
    state = _state("load", model)
    tensors = _renamed(state, tensors)
    _require_fit(model, state, tensors, layers)
    on_meta = any(tensor.is_meta for tensor in state.values())
    if on_meta and any(is_sharded(tensor) for tensor in state.values()):
        remedy = "call to_empty() on the model first"
        raise Error("load", "sharded tensors with memory", "some on the meta device", remedy)
    if on_meta:  # entries that share memory only in the file must not share it in the model
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    ties = ties_of(model)
    with as_before_on_error(), or_as_before(model, written=model.modules()):
        entries = {name: as_entry(state[name], tensor) for name, tensor in tensors.items()}
        try:
            model.load_state_dict(entries, strict=True, assign=on_meta)
        except (Error, MemoryError):
            raise
        except Exception as error:
            remedy = "see the module's own load hooks"
            raise Error("load", "a model that takes its state_dict", str(error), remedy) from error
        retie(model, ties)
        _require_loaded(_state("load", model), tensors)
        settle()


def _renamed(state: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the entries with the names of torch's for attention that was saved as in_proj.weight before."""
    before = {name.replace("in_proj_", "in_proj."): name for name in state.keys() - tensors.keys()}
    return {before.get(name, name): tensor for name, tensor in tensors.items()}


def _recipes(
    tensors: dict[str, Tensor],
    layers: dict[str, Any],
    without: Collection[str],
    shapes: Mapping[str, tuple[int, int]],
) -> dict[str, Recipe]:
    """Returns {name: recipe} for the file's sparse layers. ``shapes`` are those of the model's weights.
    Raises Error for an invalid description or index."""
    recipes: dict[str, Recipe] = {}
    for name in (layer for layer in layers if layer not in without):
        with _named(f"in {name or 'the layer'}"):
            try:
                _require_shape(layers[name], shapes.get(name))
                recipes[name] = _recipe(tensors, layers[name], name)
            except (Error, MemoryError):
                raise
            # Python, torch or a layout raises others for invalid numbers and names.
            except Exception as error:
                got = f"{type(error).__name__}: {error}"
                raise Error("load", "a description of a sparse layer, and its index", got, REPLACE) from error
    return recipes


def _require_shape(described: Mapping[str, Any], shape: tuple[int, int] | None) -> None:
    """Raises Error if the described layer does not fit the model's, before anything of its size is
    allocated."""
    file_shape = tuple(whole("load", side, described.get(side)) for side in _SHAPE)
    if shape is not None and file_shape != shape:
        expected, got = (" x ".join(map(str, sizes)) for sizes in (shape, file_shape))
        remedy = "load into a model of the sizes that were saved"
        raise Error("load", f"a weight of {expected}, as the model's", got, remedy)


def _recipe(tensors: dict[str, Tensor], described: Mapping[str, Any], name: str) -> Recipe:
    """Returns the recipe for a layer of the file."""
    from ..patch import BlockSparse
    from ..patch.in_layout import Stored
    from ..patch.masters import mask_later
    from ..patch.semi24 import ReadLater

    prefix = f"{name}." if name else ""
    rows, cols = (described[side] for side in _SHAPE)
    if "layout" not in described:
        block = tuple(described["block"])
        crow, col = (int32_index("load", prefix + part, tensors[prefix + part]) for part in ("crow", "col"))
        return BlockSparse(select=Pattern.from_index(crow, col, rows, cols, block))
    if described["layout"] == "semi24":
        return ReadLater()
    if described["layout"] == "masked":
        return mask_later("load", described, name)
    cls = layouts.get(described["layout"])
    options = {key: value for key, value in described.items() if key not in ("layout", *_SHAPE)}
    # We copy because layers in two places of the model may share one tensor in the file.
    parts = {part: tensors[prefix + part].clone() for part in cls.fields() - options.keys()}
    layout, values = cls(rows, cols, **parts, **options), tensors[prefix + "values"].clone()
    layout.require_consistent("load", values)
    return Stored(layout, values)


def _unwrapped(op: str, model: nn.Module, path: object, call: str) -> nn.Module:
    """Returns the module that torch.compile wraps, so that the entries carry no _orig_mod prefix in the file.
    Raises Error for anything that is not an nn.Module, and for swapped arguments of ``call``."""
    inner = getattr(model, "_orig_mod", model)
    if not isinstance(inner, nn.Module):
        got, remedy = type(model).__name__, "pass the model itself, not its state_dict"
        if isinstance(path, nn.Module):
            got, remedy = f"{got}, and a {type(path).__name__} as the path", f"swap the arguments: {call}"
        raise Error(op, "an nn.Module as the model", got, remedy)
    takes_state = op == "load" and isinstance(path, Mapping)
    if not takes_state and not isinstance(path, (str, bytes, os.PathLike)):
        raise Error(op, "a path as str, bytes or os.PathLike", type(path).__name__, f"call {call}")
    return inner


def _state(op: str, model: nn.Module) -> dict[str, Tensor]:
    require_sizes(op, model)
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            got = f"a {value.layout} tensor" if isinstance(value, Tensor) else type(value).__name__
            raise Error(
                op,
                "a state_dict of strided tensors",
                f"{got} at {name}",
                "keep other state outside the model",
            )
    return state


def _sparse_layers(model: nn.Module) -> dict[str, SparseWeight]:
    """Returns the weights that the file describes, by layer. 8-bit weights are not among them: they are read
    into layers with the same number of blocks."""
    return {layer.name: layer.weight for layer in sparse_layers(model) if not layer.weight.scaled}


def _masked(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Returns the file's metadata for layers that train under a mask, by all their names."""
    return {name: layer.stored_as() for layer, names in masked_layers(model).items() for name in names}


def _remedy(model: nn.Module, layers: dict[str, Any]) -> str:
    """Returns the remedy if a file has other entries than the model."""
    masked = _masked(model).keys()
    if masked - layers.keys():
        return "the model trains under masks: pack_ it first, or load into a dense one with sparsify=True"
    if layers.keys() - _sparse_layers(model).keys() - masked:
        return "pass sparsify=True if the model is dense"
    return "load into a model built as the saved one"


def _require_fit(
    model: nn.Module, state: dict[str, Tensor], tensors: dict[str, Tensor], layers: dict[str, Any]
) -> None:
    for kind, names in (
        ("missing", state.keys() - tensors.keys()),
        ("unexpected", tensors.keys() - state.keys()),
    ):
        if names:
            listed = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")
            remedy = _remedy(model, layers)
            raise Error(
                "load", "the entries of this model", f"a file with {len(names)} {kind}: {listed}", remedy
            )
    sparse, masked = _sparse_layers(model), _masked(model)
    if layers.keys() != sparse.keys() | masked.keys():
        different = ", ".join(sorted(layers.keys() ^ sparse.keys())[:5])
        remedy = "pass sparsify=True, or sparsify the model as the saved one was"
        raise Error("load", "the same sparse layers", f"others: {different}", remedy)
    for name, description in masked.items():
        if layers[name] != description:
            raise Error(
                "load", f"{name} of {description}", f"{layers[name]}", "build the layer as the saved one"
            )
    free = set()  # entries whose size the pattern decides
    for name, weight in sparse.items():
        prefix = f"{name}." if name else ""
        if not weight.is_stored_as(layers[name]):
            expected, got = f"{name or 'the layer'} of {weight.stored_as()}", f"{layers[name]}"
            raise Error("load", expected, got, "build the layer as the saved one")
        computed = None if joined(name, "values") in state else weight.values
        with _named(f"in {name or 'the layer'}"):
            weight.require_readable(tensors, prefix, computed)
        free |= {prefix + entry for entry in ("values", *weight.index_entries)}
    for name, tensor in state.items():
        read = tensors[name]
        if read.dtype != tensor.dtype:
            raise Error(
                "load",
                f"{name} of {tensor.dtype}",
                str(read.dtype),
                f"convert the model with .to({read.dtype})",
            )
        if name not in free and read.shape != tensor.shape:
            raise Error(
                "load",
                f"{name} {list(tensor.shape)}",
                f"{list(read.shape)}",
                "build the model as the saved one",
            )


def _require_loaded(state: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    """Raises Error unless the model holds the file's tensors bitwise. It does not if two entries share memory
    in the model but differ in the file."""
    for name, tensor in state.items():
        read = tensors[name]
        pieces = parts_of(tensor, read) if is_sharded(tensor) else [(tensor, read)]
        if not all(torch.equal(_bytes(loaded), _bytes(stored)) for loaded, stored in pieces):
            remedy = "the model ties tensors that the file holds apart: untie them, or save a tied model"
            raise Error("load", f"{name} to hold what the file has", "something else", remedy)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
