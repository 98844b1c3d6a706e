"""fold_batchnorm_ multiplies batch norms that follow sparse convolutions into their values and biases."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .._arguments import named_arguments
from ..errors import Error
from ..nn.held.dense_copy import own_writes
from ..nn.held.parametrized import values_are_computed
from ..nn.held.sparse_weight import is_sparse
from ..nn.linears import holder_of_convolution
from .announce import announce
from .exchange import Exchange
from .result import Skip
from .sparsify import unwrapped
from .survey import require_patchable

_OP = "fold_batchnorm_"


@dataclass(repr=False)
class Folded:
    """The pairs (convolution, batch norm) that were folded, and the batch norms after a sparse convolution
    that were not, with the reason."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[Skip] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<{str(self).splitlines()[0]}>"

    def __str__(self) -> str:
        count = "1 batch norm" if len(self.pairs) == 1 else f"{len(self.pairs)} batch norms"
        lines = [f"{count} folded into sparse convolutions"]
        lines += [f"  {norm} into {conv}" for conv, norm in self.pairs]
        lines += [f"  skipped {skip.name} ({skip.kind}): {skip.reason}" for skip in self.skipped]
        return "\n".join(lines)


@named_arguments
def fold_batchnorm_(model: nn.Module, pairs: Iterable[tuple[str, str]] | None = None) -> Folded:
    """Multiplies each nn.BatchNorm that follows a sparse convolution into its values and bias, in place, and
    puts nn.Identity in its place: in eval mode the model computes the same, but for rounding.

    It takes BlockSparseConv1d to 3d, BlockSparseConvTranspose1d to 3d and BlockSparseConv1x1 in blocks; those
    with an edge bias, too. Dense convolutions stay: torch.nn.utils.fusion has a function for them. Optimizers
    that hold the Parameters of a batch norm have to be made again.

    Args:
        pairs: [(name of the convolution, name of the batch norm that takes its result, and nothing else
            does)]. Found by torch.fx.symbolic_trace by default.

    Returns what was folded, and what was not with the reason, and prints it as sparsify_ does. Raises Error,
    with the model untouched, for a batch norm in training mode or without running statistics, for a model
    that torch.fx cannot trace, and for ``pairs`` that cannot be folded.
    """
    model = unwrapped(model)
    require_patchable(_OP, model)
    named = dict(model.named_modules(remove_duplicate=False))
    given_pairs = None if pairs is None else [(conv, norm) for conv, norm in pairs]
    result, exchange = Folded(), Exchange(model)
    for conv, norm, reason in _found(model) if given_pairs is None else [(*pair, "") for pair in given_pairs]:
        if absent := [name for name in (conv, norm) if name not in named]:
            raise Error(_OP, "names of modules", f"no {absent[0]}", "see model.named_modules()")
        reason = reason or _reason(named[conv], named[norm])
        if reason and given_pairs is not None:
            raise Error(
                _OP, "a sparse convolution and its batch norm", f"{conv}, {norm}: {reason}", "leave it out"
            )
        if reason:
            result.skipped.append(Skip(norm, type(named[norm]).__name__, reason))
            continue
        _require_statistics(norm, named[norm])
        result.pairs.append((conv, norm))
        exchange.modules.append((named[norm], nn.Identity().train(named[norm].training)))
    layers = [holder_of_convolution(named[conv]) for conv, _ in result.pairs]
    with exchange.whole(written=[part for layer in layers for part in layer.modules()]):
        for layer, (_, norm) in zip(layers, result.pairs, strict=True):
            with torch.no_grad(), own_writes(layer):
                _fold(layer, named[norm])
        exchange.put()
        exchange.settle()
        announce(result)
    return result


class _Tracer(fx.Tracer):
    """Records a call of a sparse module as one node."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return is_sparse(module) or super().is_leaf_module(module, name)


def _found(model: nn.Module) -> list[tuple[str, str, str]]:
    """Returns (convolution, batch norm, why they cannot be folded) for each batch norm that takes the result
    of a sparse module."""
    try:
        graph = _Tracer().trace(model)
    except Exception as error:
        got = f"{type(error).__name__}: {error}"
        remedy = "name them: pairs=[('conv', 'norm'), ...]"
        raise Error(_OP, "a model that torch.fx can trace", got, remedy) from error
    calls = [node for node in graph.nodes if node.op == "call_module"]
    module_of = {node: model.get_submodule(str(node.target)) for node in calls}
    times = Counter(module_of.values())
    pairs = []
    for node, module in module_of.items():
        source: Any = node.args[0] if node.args else None
        if not isinstance(module, _BatchNorm) or source not in module_of or not is_sparse(module_of[source]):
            continue
        conv, reason = module_of[source], ""
        if times[module] > 1 or times[conv] > 1:
            reason = "it or the convolution before it is called several times"
        elif len(source.users) > 1:
            reason = "something else takes the convolution's result, too"
        elif _arguments(conv, source).get("residual") is not None:
            reason = "the convolution adds a residual"
        pairs.append((str(source.target), str(node.target), reason))
    return pairs


def _arguments(module: nn.Module, call: fx.Node) -> dict[str, Any]:
    return inspect.signature(module.forward).bind(*call.args, **call.kwargs).arguments


def _reason(conv: nn.Module, norm: nn.Module) -> str:
    """Returns why two modules cannot be folded; "" if they can."""
    layer = holder_of_convolution(conv)
    if layer is None:
        return f"a {type(conv).__name__} is no sparse convolution in blocks"
    if not isinstance(norm, _BatchNorm):
        return f"a {type(norm).__name__} is no batch norm"
    if layer.activation is not None:
        return f"the convolution applies {layer.activation} before it"
    if values_are_computed(layer):
        return "the convolution's values are parametrized, normed or pruned: remove that first"
    if norm.num_features != layer.out_features:
        return f"it is for {norm.num_features} channels, and the convolution has {layer.out_features}"
    return ""


def _require_statistics(name: str, norm: Any) -> None:
    if norm.training:
        raise Error(_OP, "batch norms in eval mode", f"{name} in training mode", "call model.eval() first")
    if norm.running_mean is None or norm.running_var is None:
        got = f"{name} without them (track_running_stats=False)"
        raise Error(_OP, "batch norms with running statistics", got, "leave it out: it needs the batch")


def _fold(layer: Any, norm: Any) -> None:
    values: nn.Parameter = layer.values
    exact = torch.promote_types(values.dtype, torch.float32)
    device = values.device
    mean, variance = norm.running_mean.to(device, exact), norm.running_var.to(device, exact)
    factor = torch.rsqrt(variance + norm.eps)
    factor = factor if norm.weight is None else factor * norm.weight.to(device, exact)
    shift = -mean * factor if norm.bias is None else norm.bias.to(device, exact) - mean * factor
    bm, grid = layer.block[0], len(layer.crow) - 1
    rows = torch.repeat_interleave(torch.arange(grid, device=device), layer.crow.diff().long())
    by_row = nn.functional.pad(factor, (0, grid * bm - len(factor))).unflatten(0, (grid, bm))[rows]
    by_block = by_row.reshape(len(rows), *(1,) * (values.dim() - 3), bm, 1)
    stored = values[: len(rows)]  # free slots of a layer with a capacity follow
    stored.copy_(stored.to(exact) * by_block)
    bias = torch.zeros_like(mean) if layer.bias is None else layer.bias.to(exact)
    _set(layer, (bias * factor + shift).to(values.dtype))
    edges = getattr(layer, "edges", None)
    if edges is not None:  # gain (f y + s) + b', where f (gain y + b) + s was: b' = f b + s (1 - gain)
        edges.bias.copy_(edges.bias.to(exact) * factor + shift * (1 - edges.gain.to(exact)))


def _set(layer: Any, bias: Tensor) -> None:
    if layer.bias is None:
        layer.bias = nn.Parameter(bias, layer.values.requires_grad)
    else:
        layer.bias.copy_(bias)
