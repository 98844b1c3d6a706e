"""Siblings: layers that read the same x, whose products are one product of their stacked weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import ops
from ...pattern import Pattern
from .. import arguments
from .sparse_weight import sparse_layers
from .with_index import WithIndex

if TYPE_CHECKING:
    from ..linear import BlockSparseLinear

#: The most elements of stacked values that are worth a copy for any x on a GPU: 2 MB in 16 bits, which it
#: copies in the 3 us that one launch less saves. Elsewhere, and beyond it, the copy must be small beside x.
_ALWAYS = 2**20
#: The fewest tokens of a gated unit by sm90_wgmma, and the most by sm90_decode_lines: between them the plan
#: takes two products.
_MANY_GATED, _FEW_GATED = 64, 16
#: What a product of its own costs beside a merged one, in reads of x: its own read of x forward, and in the
#: backward pass the addition of its gradient of x, which reads and writes it.
_READS_SAVED = 3


class Stacked(WithIndex):
    """The index of weights that stand one above the other: [sum of out features, in features]."""

    def __init__(self, patterns: tuple[Pattern, ...], device: torch.device) -> None:
        super().__init__()
        self.patterns = patterns
        whole = stacked_pattern(patterns)
        self.in_features, self.out_features, self.block = whole.cols, whole.rows, whole.block
        self._index = None
        self._set_index(whole, device)


class _Results(NamedTuple):
    """What one product gave all siblings, and the call it stands for."""

    x: Tensor
    version: int  # of x, by torch's count of in-place writes; -1 where it is not counted
    grad: bool
    autocast: bool
    parts: tuple[Tensor, ...]


class Siblings:
    """The layers ``names`` of the module ``owner``, in the order of their calls.

    While the owner's forward runs, the first one's call computes the product of all; a later one takes its
    part where it is called with the very same x in the same mode, and multiplies by itself otherwise. So
    nothing is wrong where a forward calls them otherwise than its source promised. The parts are views of
    one tensor [..., sum of out features]: a feature's neighbours are contiguous, tokens are not. A layer
    whose part no loss depends on gets a gradient of zeros, as a part of one weight does, and not None.

    Parameters, state dict and names stay those of the layers. Values are stacked anew in each call: what a
    view of common memory would save, ``.to()``, optimizers and files would have to know of.
    """

    def __init__(self, owner: nn.Module, names: tuple[str, ...]) -> None:
        self.owner, self.names = owner, names
        self.layers: tuple[BlockSparseLinear, ...] = tuple(owner.get_submodule(name) for name in names)  # type: ignore[misc]
        self.stacked: Stacked | None = None
        self.running = False
        self.results: _Results | None = None
        self._join()
        owner.register_forward_pre_hook(self.begin)
        owner.register_forward_hook(self.end, always_call=True)

    def _join(self) -> None:
        for layer in self.layers:
            layer._siblings = self
        self.settle()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "running": False, "results": None}

    def __setstate__(self, state: dict[str, Any]) -> None:  # in copies and from pickles
        vars(self).update(state)
        for layer in self.layers:
            layer.__dict__["_siblings"] = self

    def begin(self, owner: nn.Module, _: Any) -> None:
        """Is called before the owner's forward."""
        self.running = True

    def end(self, owner: nn.Module, _: Any, __: Any) -> None:
        """Is called behind it."""
        self.running, self.results = False, None

    def dissolve(self) -> None:
        """Lets every layer multiply by itself from now on."""
        for layer in self.layers:
            layer._siblings = None
        for hooks in (self.owner._forward_pre_hooks, self.owner._forward_hooks):
            for number, hook in list(hooks.items()):
                if getattr(hook, "__self__", None) is self:
                    del hooks[number]
                    self.owner._forward_hooks_always_called.pop(number, None)
        self.layers, self.stacked = (), None

    def settle(self) -> None:
        """Looks whether the layers lie elsewhere, or have other blocks, than at the last look."""
        layers, stacked = self.layers, self.stacked
        device = layers[0].packed_index.device
        if any(each.dynamic or each.packed_index.device != device for each in layers):
            self.stacked = None
            return
        patterns = tuple(each._pattern for each in layers)
        same = stacked is not None and all(a is b for a, b in zip(stacked.patterns, patterns, strict=True))
        if not same:
            self.stacked = Stacked(patterns, device)
        elif stacked is not None and stacked.packed_index.device != device:
            stacked._set_index(stacked._pattern, device)

    def product(self, layer: nn.Module, x: Tensor) -> Tensor | None:
        """Returns the layer's part of the product with x [..., in_features]; None where it has to multiply
        by itself."""
        if not self.running:
            return None
        number = next((i for i, each in enumerate(self.layers) if each is layer), -1)
        results = self.results
        if number == 0:
            results = self.results = self._multiplied(x)
        elif results is not None and not _serves(results, x):
            results = None
        if results is None or number < 0:
            return None
        if number == len(self.layers) - 1:
            self.results = None
        return results.parts[number]

    def _multiplied(self, x: Tensor) -> _Results | None:
        """Returns the product of all; None where some layer needs its own."""
        if not torch.compiler.is_compiling():
            self.settle()
        layers, stacked = self.layers, self.stacked
        values = [each._parameters.get("values") for each in layers]
        # One that is computed (parametrized) is no entry, and not to be taken for a bias that is not there.
        biases = [each._parameters.get("bias", each) for each in layers]
        if stacked is None or not 1 <= x.dim() <= 4 or not all(map(_is_simple, layers, values)):
            return None
        if _may_be_gated(layers, self.names, x):
            return None
        if not _stack(values) or not (all(each is None for each in biases) or _stack(biases)):
            return None
        count = sum(each.numel() for each in values if each is not None)
        if not (x.is_cuda and count <= _ALWAYS) and count * _READS_SAVED > x.numel():
            return None
        # Where activations differ, Inductor alone applies them at no cost: it fuses them with what follows.
        activations = {each.activation for each in layers}
        if len(activations) > 1 and not torch.compiler.is_compiling():
            return None
        bias = None if biases[0] is None else torch.cat(biases)  # type: ignore[arg-type]
        taken, whole, bias, _ = arguments.prologue(x, torch.cat(values), bias)  # type: ignore[arg-type]
        if (
            x.shape[-1] != stacked.in_features
            or taken.dtype != whole.dtype
            or taken.device != whole.device
            or whole.shape[0] != stacked._blocks
        ):
            return None  # the layer says what does not fit
        common = layers[0].activation if len(activations) == 1 else None
        strict = any(each.strict for each in layers)
        y = ops.linear(taken, whole, stacked.index, bias, common, strict)
        sizes = [each.out_features for each in layers]
        # As torch.split, but the parts may be written in place, which autograd forbids those of split.
        parts: tuple[Tensor, ...] = torch.unsafe_split_with_sizes(y, sizes, -1)  # type: ignore[attr-defined]
        if common is None:
            pairs = zip(parts, layers, strict=True)
            parts = tuple(ops.activate(part, each.activation) for part, each in pairs)
        return _Results(x, _version(x), torch.is_grad_enabled(), _autocast(x), parts)


def stacked_pattern(patterns: tuple[Pattern, ...]) -> Pattern:
    """Returns the pattern of weights that stand one above the other. All of them but the last must end with
    whole blocks."""
    first, rows = patterns[0], sum(each.rows for each in patterns)
    return Pattern(rows, first.cols, first.block, torch.cat([each.mask for each in patterns]))


def _is_simple(layer: BlockSparseLinear, values: Tensor | None) -> bool:
    """Returns whether a layer's product is that of plain values, without anything that it alone knows."""
    plain = type(values) in (nn.Parameter, Tensor)  # Dynamo of torch 2.11 knows no __class__ of a Parameter
    return plain and layer._cut is None and not layer.fuse_wgrad_accumulation and not layer._dense_copy


def _may_be_gated(layers: Sequence[BlockSparseLinear], names: Sequence[str], x: Tensor) -> bool:
    """Returns whether two layers may be the gates and the factors of a gated unit that a compiled call
    without gradients computes by one kernel on Hopper as they are (ops/inductor/gated.py)."""
    if len(layers) != 2 or layers[0].out_features != layers[1].out_features or not x.is_cuda:
        return False
    named = layers[0].activation != layers[1].activation or "gate" in names[0]  # k and v are pairs, too
    blocks = [each.block for each in layers]
    many = x.numel() >= _MANY_GATED * x.shape[-1] and {rows for rows, _ in blocks} <= {32, 64}
    few = x.numel() <= _FEW_GATED * x.shape[-1] and min(map(min, blocks)) >= 32
    fit = (many or few) and x.dtype in (torch.float16, torch.bfloat16)
    compiled = torch.compiler.is_compiling() and not torch.is_grad_enabled()
    return named and fit and compiled and _on_hopper(x.device.index)


def _on_hopper(device: int | None) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)


_on_hopper._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as ops.operators.tf32_allowed


def _stack(tensors: Sequence[object]) -> bool:
    """Returns whether plain tensors can be joined as they are: torch.cat would promote their dtypes."""
    first = tensors[0]
    return isinstance(first, Tensor) and all(
        type(each) in (nn.Parameter, Tensor) and each.dtype == first.dtype and each.device == first.device  # type: ignore[attr-defined]
        for each in tensors
    )


def _serves(results: _Results, x: Tensor) -> bool:
    same = results.x is x and results.grad == torch.is_grad_enabled()
    return same and results.autocast == _autocast(x) and results.version == _version(x)


def _autocast(x: Tensor) -> bool:
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def _version(x: Tensor) -> int:
    # Inference tensors keep no count, and a compiled graph has in-place writes in their order.
    return -1 if torch.compiler.is_compiling() or x.is_inference() else x._version


def siblings_in(model: nn.Module) -> list[Siblings]:
    """Returns the groups of siblings of a model."""
    found = dict[int, Siblings]()
    for module in model.modules():
        if (group := getattr(module, "_siblings", None)) is not None:
            found[id(group)] = group
    return list(found.values())


def names_of_merged(model: nn.Module) -> list[str]:
    """Returns the layers whose products are merged with those of others, by the names that sparsify_
    matches."""
    layers = {id(layer) for group in siblings_in(model) for layer in group.layers}
    return sorted(each.matched for each in sparse_layers(model) if id(each.weight.owner) in layers)
