"""SparseWeight and SparseModule: the interface of block-sparse modules for packages above nn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

from torch import Tensor, nn

from ... import ops
from ...pattern import Pattern
from . import state
from .sharded import require_whole


@dataclass(frozen=True, eq=False)
class SparseWeight:
    """A view of one block-sparse weight; it holds no tensor, so that it stays true when the module changes.

    Args:
        owner: the nn.Module that holds the tensors. It has ``values``, ``index``, ``pattern`` and ``bias``
            (or None), and its state dict the entries ``values``, ``crow`` and ``col``.
        dense: the name of this weight's Parameter in the module that ``to_dense`` returns.
        part: the suffix of the module's name that sparsify_ matches for this weight; "" for the only one.
        scaled: whether the values have 8 bits and come with factors.
        gated: whether the module multiplies the values with gates in each call: the owner is then no layer
            that could be called, planned or exchanged by itself.
        layout: how the stored elements lie in memory: "bsr", or the name of a layout of sparseloom.layouts;
            the weight is then a LayoutWeight, which has no index, pattern, block and digest.
    """

    owner: Any
    dense: str = "weight"
    part: str = ""
    scaled: bool = False
    gated: bool = False
    layout: str = "bsr"

    @property
    def values(self) -> Tensor:
        """The stored blocks [blocks, bm, bn]; computed anew in each look-up where they are parametrized."""
        values: Tensor = self.owner.values
        return values

    @property
    def index(self) -> ops.Index:
        """Where the blocks lie, on the device of the values; its sizes are known without waiting for it."""
        index: ops.Index = self.owner.index
        return index

    @property
    def pattern(self) -> Pattern:
        """Which blocks exist, on the host; of a dynamic layer at this moment, which waits for the device."""
        pattern: Pattern = self.owner.pattern
        return pattern

    @property
    def shape(self) -> tuple[int, int]:
        """(out features, in features)."""
        return self.index.rows, self.index.cols

    @property
    def taps(self) -> int:
        """The number of values for one element of ``shape``: the taps of a convolution, 1 elsewhere."""
        return 1

    @property
    def whole_shape(self) -> tuple[int, int]:
        """The shape in files, and before tensor parallelism left the owner a part of the weight."""
        cut = getattr(self.owner, "_cut", None)
        return self.shape if cut is None else (cut.pattern.rows, cut.pattern.cols)

    @property
    def block(self) -> tuple[int, int]:
        """(out features, in features) of one block."""
        return self.index.bm, self.index.bn

    @property
    def digest(self) -> int:
        """What plans may know of the pattern; see ops.Index."""
        return self.index.digest

    @property
    def content_hash(self) -> int:
        """A hash of where the blocks lie, the same in every process."""
        return state.content_hash(self.pattern)

    @property
    def density(self) -> float:
        """The share of W that is stored."""
        return self.pattern.density

    @property
    def index_entries(self) -> tuple[str, ...]:
        """The names of the index in the owner's state dict."""
        return state.INDEX_ENTRIES

    @property
    def index_buffers(self) -> tuple[str, ...]:
        """The names of the owner's buffers that hold the index."""
        return (state.INDEX_BUFFER,)

    @property
    def index_bytes(self) -> int:
        """The bytes of the index in a file."""
        return self.index.crow.nbytes + self.index.col.nbytes

    @property
    def directions(self) -> tuple[str, ...]:
        """The products that the owner computes, as plans name them."""
        return ops.DIRECTIONS

    def stored_as(self) -> dict[str, Any]:
        """Returns the metadata that ``save`` writes for the weight."""
        rows, cols = self.whole_shape
        return {"in_features": cols, "out_features": rows, "block": list(self.block)}

    def is_stored_as(self, description: Mapping[str, Any]) -> bool:
        """Returns whether a file that describes its weight so has one of this shape and layout, of any
        pattern."""
        return description == self.stored_as()

    def require_readable(self, tensors: Mapping[str, Any], prefix: str, computed: Tensor | None) -> None:
        """Raises Error unless the entries under ``prefix`` are a weight of this shape and layout, of any
        pattern. ``computed``: the values, where they are computed and have no entry."""
        state.read_entries(self.whole_shape, self.block, computed, tensors, prefix)

    def to_dense(self) -> Tensor:
        """Returns the values in their places [out features, in features], zero where there is no block."""
        return self.unpacked(self.values.detach())

    def unpacked(self, like_values: Tensor) -> Tensor:
        """Returns a tensor of the values' shape, such as their gradient, in the places of the values."""
        require_whole("to_dense", like_values)
        crow, col, (rows, cols) = self.index.crow, self.index.col, self.shape
        dense: Tensor = ops.call("unpack", like_values.contiguous(), crow, col, rows, cols)
        return dense

    def packed(self, like_dense: Tensor) -> Tensor:
        """Returns the stored elements of a tensor [out features, in features], such as the gradient of the
        dense weight, in the shape of the values: undoes ``unpacked``."""
        crow, col = self.index.crow, self.index.col
        packed: Tensor = ops.call("pack", like_dense.detach().contiguous(), crow, col, *self.block)
        return packed


@runtime_checkable
class SparseModule(Protocol):
    """A module with block-sparse weights, of this library or of a user.

    io, hf, report, distributed, quantize and patch know block-sparse modules by these three methods alone. A
    module that holds others which are sparse speaks for them: nobody looks inside it.
    """

    def sparse_weights(self) -> dict[str, SparseWeight]:
        """Returns {name of the ``values`` entry, relative to this module: weight}."""

    def to_dense(self) -> nn.Module:
        """Returns a dense module with the same values in their places and zero elsewhere (copied)."""

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns {name as in sparse_weights: plain data that rebuild the weight without its values}:
        "block", "blocks", "activation" where one is fused, and "dense_copy" where it is not False."""


class Layer(NamedTuple):
    """One sparse weight of a model by its full names."""

    name: str  # of the module that owns the tensors
    matched: str  # what sparsify_ matches
    dense: str  # of the weight in a dense model
    weight: SparseWeight
    module: SparseModule  # the one that speaks for it
    entry: str  # its key in the module's sparse_weights


def described(pattern: Pattern, activation: str | None, **more: Any) -> dict[str, Any]:
    """Returns the entry of ``describe`` for a weight with that pattern."""
    entry: dict[str, Any] = {"block": list(pattern.block), "blocks": pattern.blocks}
    return entry | ({} if activation is None else {"activation": activation}) | more


def is_sparse(module: nn.Module) -> TypeGuard[SparseModule]:
    """Returns whether a module speaks for block-sparse weights."""
    # The class is asked, because a wrapper may hand on attributes of the module that it wraps: that of
    # torch.compile would pass for a sparse module, but its entries have other names.
    return issubclass(type(module), SparseModule)


def sparse_modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields the outermost block-sparse modules of a model, the model itself included, each under all its
    names. They are both nn.Module and SparseModule, which types cannot say."""
    return _walk(model, "")


def sparse_layers(model: nn.Module) -> Iterator[Layer]:
    """Yields every block-sparse weight of a model under all its names."""
    for name, module in sparse_modules(model):
        for entry, weight in module.sparse_weights().items():
            owner, part, dense = entry.rpartition(".")[0], weight.part, weight.dense
            names = joined(name, owner), joined(name, part), joined(name, dense)
            yield Layer(*names, weight, module, entry)


def held(module: nn.Module, parts: dict[str, tuple[str, str]]) -> dict[str, SparseWeight]:
    """Returns the weights of a module's sparse children, for the module's own ``sparse_weights``.

    ``parts`` is {name of the child: (dense, part)}, these fields of SparseWeight relative to the module.
    """
    weights = {}
    for child, (dense, part) in parts.items():
        if is_sparse(inner := module.get_submodule(child)):
            for entry, weight in inner.sparse_weights().items():
                weights[f"{child}.{entry}"] = replace(weight, dense=dense, part=part)
    return weights


def held_descriptions(module: nn.Module, children: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns the descriptions of a module's sparse children, under the names of ``held``."""
    inner = {child: module.get_submodule(child) for child in children}
    return {
        f"{child}.{entry}": description
        for child, submodule in inner.items()
        if is_sparse(submodule)
        for entry, description in submodule.describe().items()
    }


def joined(outer: str, inner: str) -> str:
    """Returns the name of something inside a module; either may be ""."""
    return f"{outer}.{inner}" if outer and inner else outer or inner


def _walk(module: nn.Module, name: str) -> Iterator[tuple[str, Any]]:
    if is_sparse(module):
        yield name, module
        return
    for child, inner in module._modules.items():
        if inner is not None:
            yield from _walk(inner, joined(name, child))
