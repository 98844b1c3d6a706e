"""quantize_ turns trained layers in blocks, 2:4, tiles and bitmaps into 8-bit ones, for inference."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from . import ops
from ._arguments import named_arguments
from ._checks import require_bool, warn
from ._progress import Bar
from ._rooms import Room
from .errors import Error
from .nn import MaskedLinear
from .nn.arguments import require_module
from .nn.conv.weight import ConvWeight
from .nn.eight_bit import is_factor
from .nn.held.siblings import names_of_merged
from .nn.held.sparse_weight import SparseWeight, sparse_layers
from .nn.linears import (
    OWN_CLASS,
    EightBitLinear,
    Quantizable,
    eight_bit_of,
    not_own_forward,
    quantizable,
    quantized_as,
)
from .patch.announce import announce
from .patch.exchange import Exchange
from .patch.keys import Key
from .patch.merge import merge_
from .patch.result import Skip, aligned

_OP = "quantize_"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_INT8_INPUTS = 2**17 - 1  # the most inputs whose int8 products int32 can sum


@dataclass(frozen=True)
class QuantizedLayer:
    """One layer that changed. ``bytes`` counts weights, factors and bias (before, after); ``error`` is the
    norm of the weights' rounding error over the norm of the weights."""

    names: tuple[str, ...]
    dtype: str
    x_scale: float | None  # None: each token has its own factor
    shape: tuple[int, int]  # out features, in features
    block: tuple[int, int] | None  # None: the layout has none
    blocks: int
    bytes: tuple[int, int]
    error: float
    layout: str = "bsr"


@dataclass(repr=False)
class Quantized:
    """The changed layers, and the skipped ones (block-sparse and dense linear layers) with their reasons;
    prints as a table."""

    changed: list[QuantizedLayer] = field(default_factory=list)
    skipped: list[Skip] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"<{str(self).splitlines()[0]}>"

    def __str__(self) -> str:
        layers = "1 layer" if len(self.changed) == 1 else f"{len(self.changed)} layers"
        before, after = (sum(layer.bytes[i] for layer in self.changed) for i in (0, 1))
        lines = [
            f"{layers} became 8-bit; their {before:,} bytes became {after:,}",
            *aligned([_row(c) for c in self.changed]),
        ]
        for reason in dict.fromkeys(skip.reason for skip in self.skipped):
            names = [f"{skip.name} ({skip.kind})" for skip in self.skipped if skip.reason == reason]
            lines.append(f"  skipped, {reason}: {', '.join(names)}")
        return "\n".join([*lines, *self.notes])


def _row(c: QuantizedLayer) -> list[str]:
    rows, cols = c.shape
    shared = f" (shared as {', '.join(c.names[1:])})" if len(c.names) > 1 else ""
    scale = "x per token" if c.x_scale is None else f"x scale {c.x_scale:.3g}"
    cells = [
        c.names[0] + shared,
        c.dtype,
        f"{rows} x {cols}",
        c.layout if c.block is None else f"block {c.block[0]} x {c.block[1]}",
        "" if c.block is None else f"{c.blocks} blocks",
        scale,
    ]
    return [*cells, f"weight error {100 * c.error:.2g} %"]


@named_arguments
def quantize_(
    model: nn.Module,
    patterns: Mapping[Any, torch.dtype] | torch.dtype = torch.int8,
    *,
    x_scale: Mapping[str, float] | float | None = None,
    use_fast_accum: bool = False,
) -> Quantized:
    """Replaces linear layers in blocks, 2:4 and bitmaps, in place, by nn.QuantizedBlockSparseLinear,
    nn.QuantizedSemi24Linear and nn.QuantizedSparseLinear: 8-bit weights and inputs, for inference. Tiles
    become blocks, in which 2:4 tiles store their zeros too.

    Weights get one factor per output feature, inputs one per token, found in every call. Layers inside a
    BlockSparseConv1x1 or BlockSparseMultiheadAttention are taken by their own names (conv.linear,
    attn.in_proj).

    Args:
        patterns: {key: torch.int8 or torch.float8_e4m3fn}, with keys as for sparsify_; the first that matches
            counts. Or one dtype for all block-sparse layers.
        x_scale: factors for the inputs that were found beforehand, {regex: factor} or one for all: |x| beyond
            127 (int8) or 448 (float8) times the factor is clipped.
        use_fast_accum: the value of the layers' attribute of that name. True lets float8 sums on CUDA stay in
            the tensor cores, which is faster but keeps about 14 bits (see ``ops.scaled_linear``).

    Returns what changed, and what did not with the reason, and prints it as sparsify_ does. Warns once where
    the machine has no kernel for layers that changed. Raises Error, with the model untouched, when a regex
    matches no block-sparse layer, when no matched layer can change, and when ``model`` is one itself.
    """
    require_module(_OP, model)
    require_bool(_OP, "use_fast_accum", use_fast_accum)
    if isinstance(patterns, torch.dtype):
        patterns = {".*": patterns}
    known = {name for name, _ in model.named_modules(remove_duplicate=False)}
    settings = _compiled(
        patterns, "torch.int8 or torch.float8_e4m3fn", lambda value: value in ops.SCALED_DTYPES, known
    )
    x_scales = x_scale if isinstance(x_scale, Mapping) else {} if x_scale is None else {".*": x_scale}
    scales = _compiled(x_scales, "x_scale factors > 0 and finite", is_factor, known)
    linears: dict[nn.Module, Quantizable] = {layer: layer for layer in quantizable(model)}
    unsupported: dict[nn.Module, SparseWeight] = {
        layer.weight.owner: layer.weight for layer in sparse_layers(model)
    }
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if module in unsupported or isinstance(module, (nn.Linear, MaskedLinear)):
            names.setdefault(module, []).append(name)
    sparse: dict[nn.Module, list[str]] = {
        module: module_names for module, module_names in names.items() if module in linears
    }
    if model in sparse:
        raise Error(
            _OP,
            "a model that holds block-sparse layers",
            "the layer itself",
            "use from_sparse of nn.QuantizedBlockSparseLinear, QuantizedSemi24Linear, QuantizedSparseLinear",
        )
    regex_of = {module: _first(settings, all_names, module) for module, all_names in sparse.items()}
    _require_matches(settings, regex_of, sparse, names, unsupported)
    scaled = {module: _first(scales, all_names, module) for module, all_names in sparse.items()}
    _require_matches(scales, scaled, sparse, names, unsupported)

    merged = names_of_merged(model)
    result, exchange, eight_bit_layers = Quantized(), Exchange(model), list[EightBitLinear]()
    with exchange.whole():
        with Bar(_OP) as bar:
            for module, all_names in bar.over(names.items(), lambda entry: entry[1][0]):
                layer = linears.get(module)
                reason = (
                    _other_reason(module, unsupported)
                    if layer is None
                    else _reason(layer, regex_of[module], settings)
                )
                if layer is None or reason:
                    result.skipped += [Skip(name, type(module).__name__, reason) for name in all_names]
                    continue
                dtype = settings[regex_of[module]][1]
                scale = _first(scales, all_names, module)
                factor = None if scale is None else float(scales[scale][1])
                rounded = quantized_as(layer)
                eight_bit_layers.append(eight_bit_of(rounded, dtype, factor))
                eight_bit_layers[-1].use_fast_accum = use_fast_accum
                exchange.modules.append((layer, eight_bit_layers[-1]))
                result.changed.append(_change(all_names, layer, rounded, eight_bit_layers[-1]))
        if not eight_bit_layers:
            refused = "; ".join(f"{skip.name}: {skip.reason}" for skip in result.skipped) or "none"
            raise Error(
                _OP,
                "block-sparse layers that can be quantized",
                refused,
                "sparsify_ the model first, or fix what is named",
            )
        exchange.put()
        result.notes += exchange.settle()
        merge_(model, merged)
        without = _without_kernel(result.changed, eight_bit_layers)
        announce(result)
    if without:
        warn(without)
    return result


def _without_kernel(changed: Sequence[QuantizedLayer], layers: Sequence[EightBitLinear]) -> str:
    """Returns which layers have no 8-bit kernel where they are, so that their calls raise Error, and what to
    do; "" where all run."""
    refused: dict[tuple[Any, ...], str] = {}
    names: dict[str, list[str]] = {}
    for change, layer in zip(changed, layers, strict=True):
        if layer.values.is_meta:
            continue
        alike = type(layer), layer.dtype, layer.values.device, change.block
        if alike not in refused:
            try:
                layer.plan(tokens=1)
                refused[alike] = ""
            except Error:
                refused[alike] = f"{change.dtype} in {change.layout} on {layer.values.device}"
        if refused[alike]:
            names.setdefault(refused[alike], []).append(change.names[0])
    if not names:
        return ""
    found = "; ".join(
        f"{what}: {', '.join(its[:4])}{', ...' * (len(its) > 4)}" for what, its in names.items()
    )
    return (
        f"quantize_: this machine has no kernel for {found}. These layers are converted, but a call of one "
        "raises Error here: save the model and load it on a GPU (int8 also: on a CPU with AVX-512 VNNI or "
        'AMX), or set layer.kernel = "reference" (slow)'
    )


def _compiled(
    patterns: Mapping[Any, Any], name: str, fits: Any, names: Collection[str]
) -> dict[Any, tuple[Key, Any]]:
    if not isinstance(patterns, Mapping):
        raise Error(
            _OP, f"{{regex: {name}}}, or one for all", repr(patterns), 'pass {r".*mlp.*": torch.int8}'
        )
    compiled = {}
    for regex, value in patterns.items():
        if not fits(value):
            raise Error(_OP, name, f"{value!r} for {regex!r}", "pass one of them")
        compiled[regex] = Key(_OP, regex, names), value
    return compiled


def _first(compiled: Mapping[Any, tuple[Key, Any]], names: list[str], module: nn.Module) -> Any:
    return next(
        (given for given, (key, _) in compiled.items() if any(key.takes_module(n, module) for n in names)),
        None,
    )


def _require_matches(
    compiled: Mapping[Any, Any],
    regex_of: Mapping[nn.Module, Any],
    sparse: Mapping[nn.Module, list[str]],
    names: Mapping[nn.Module, list[str]],
    weights: Mapping[nn.Module, SparseWeight],
) -> None:
    listed = [name for all_names in sparse.values() for name in all_names]
    if listed:
        remedy = f"they are {', '.join(listed[:8])}"
    elif any(weight.scaled for weight in weights.values()):
        remedy = "the model's are quantized already: quantize_ once, with all patterns"
    elif weights:
        remedy = "no sparse layer of the model has one"
    else:
        remedy = "the model has none: sparsify_ first"
    for regex, (key, _) in compiled.items():
        if regex in regex_of.values():
            continue
        without = {
            name: _other_reason(module, weights)
            for module, all_names in names.items()
            for name in all_names
            if module not in sparse and key.takes_module(name, module)
        }
        reasons = "; ".join(dict.fromkeys(without.values()))
        got = (
            f"only {', '.join([*without][:5])}, which have no 8-bit layer: {reasons}"
            if without
            else "nothing"
        )
        if any(key.takes_module(name, module) for module, its in sparse.items() for name in its):
            got = "only layers that a pattern before it has taken"
        raise Error(_OP, f"sparse layers with an 8-bit twin for {regex!r}", got, remedy)


def _other_reason(module: nn.Module, unsupported: Mapping[nn.Module, SparseWeight]) -> str:
    """Returns why a module that has no 8-bit layer stays as it is."""
    if isinstance(module, MaskedLinear):
        return "it trains a dense weight under a mask: call pack_ first"
    weight = unsupported.get(module)
    if weight is None:
        return "it is not block-sparse"
    if weight.gated:
        return "gates multiply its blocks in each call: call pack_ first"
    if weight.scaled:
        return "it is quantized already"
    if weight.layout not in ("bsr", "semi24", "tiles", "bitmap"):
        return f"8-bit products are of blocks, tiles, 2:4 and bitmaps, not of layout {weight.layout}"
    if isinstance(weight, ConvWeight):
        return "there is no 8-bit product for convolutions with taps"
    return OWN_CLASS


def _reason(module: Quantizable, regex: Any, settings: Mapping[Any, tuple[Key, Any]]) -> str:
    """Returns why a block-sparse layer stays as it is; "" if it can change."""
    if regex is None:
        return "no pattern matches"
    if reason := not_own_forward(module):
        return reason
    if parametrize.is_parametrized(module):
        return "it is parametrized: call torch.nn.utils.parametrize.remove_parametrizations first"
    if any(getattr(module, hooks, None) for hooks in _HOOKS):
        return "it has hooks, which a new layer would not have: remove them, or add them after quantize_"
    if getattr(module, "dense_copy", False):
        return "it may keep a dense copy, which 8-bit layers have not: set dense_copy = False first"
    if getattr(module, "dynamic", False):
        return "its topology is dynamic: call fix_topology_() first"
    if module.values.dtype is torch.float64:
        return "it is float64, in which 8-bit products are not asked for"
    if settings[regex][1] is torch.int8 and module.in_features > _INT8_INPUTS:
        return f"int8 sums of more than {_INT8_INPUTS} inputs do not fit int32"
    return ""


def _change(names: list[str], old: Quantizable, rounded: nn.Module, new: EightBitLinear) -> QuantizedLayer:
    weights: Tensor = rounded.values.detach().float()  # type: ignore[operator, union-attr]
    error = 0.0
    if not weights.is_meta and bool(weights.any()):
        error = float((new.dequantized().values.detach() - weights).norm() / weights.norm())
    bias = 0 if old.bias is None else old.bias.nbytes
    sizes = old.values.nbytes + bias, new.values.nbytes + new.w_scale.nbytes + bias
    x_scale = None if new.x_scale is None or new.x_scale.is_meta else float(new.x_scale)
    shape, weight = (new.out_features, new.in_features), new.sparse_weights()["values"]
    in_blocks = weight.layout == "bsr"
    return QuantizedLayer(
        tuple(names),
        ops.SCALED_DTYPES[new.dtype],
        x_scale,
        shape,
        weight.block if in_blocks else None,
        weight.pattern.blocks if in_blocks else 0,
        sizes,
        error,
        weight.layout,
    )


Room.of(__name__)
