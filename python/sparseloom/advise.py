"""advise(model, example_input): before anything is changed, which layers would gain at which block and density."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import ops
from .advice import Advice, LayerAdvice, Option
from .errors import Error
from .nn import BlockSparseLinear
from .nn.arguments import require_module
from .patch.sites import refusal
from .patch.survey import survey
from .pattern import Block, block_shape
from .report import medians
from .report.break_even import FALLBACKS, Size, break_even, chosen, predicted
from .report.inputs import gpus_of, watched


def advise(
    model: nn.Module,
    example_input: Any,
    *,
    blocks: Sequence[Block] = (16, 32, 64),
    densities: Sequence[float] = (0.1, 0.25, 0.5),
    training: bool = False,
    measure: bool = False,
    seconds: float = 0.2,
    strict: bool = False,
) -> Advice:
    """Runs the model once on example_input (a tensor, a tuple of arguments or a dict of keywords), changes nothing.

    Every dense linear layer that sparsify_ would take is timed (forward, and the backward products with ``training``) on random
    data of the size it saw, for about ``seconds``; each block and density is predicted from the plan of a balanced pattern, and
    with ``measure`` timed beside it: by the sparse kernels, also where the plan would go dense. With ``strict`` a layer that runs
    no sparse kernel at some block and density raises Error, before anything is timed, and is named with what it would run.
    Raises Error on a model without values, and what the model itself raises.
    """
    require_module("advise", model)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise Error("advise", "a model with values", "parameters on the meta device", "call model.to_empty(device='cpu') first")
    directions = ops.DIRECTIONS if training else ops.DIRECTIONS[:1]
    shapes = [block_shape("advise", block) for block in blocks]
    groups, skipped = _groups(model, example_input)
    if strict:
        _require_sparse(groups, shapes, densities, directions)
    advice = Advice([], skipped, directions)
    with torch.random.fork_rng(devices=gpus_of(model)):
        for size, names in groups.items():
            shape, tokens, dtype, device, bias = size
            dense = _Timed(
                nn.utils.skip_init(nn.Linear, shape[1], shape[0], bias=bias, device=device, dtype=dtype), tokens, training
            )
            entry = LayerAdvice(names, shape, tokens, str(dtype).removeprefix("torch."), dense.median(seconds))
            advice.layers.append(entry)
            for block in shapes:
                if shape[0] < block[0] or shape[1] < block[1]:
                    continue
                entry.break_even[block] = break_even(size, block, directions, entry.dense_us)
                for density in densities:
                    us, kernels = predicted(size, block, density, directions)
                    measured = None
                    if measure and us is not None:
                        options: dict[str, Any] = {"density": density, "block": block, "device": device, "dtype": dtype}
                        layer = BlockSparseLinear(shape[1], shape[0], bias, **options)
                        layer.strict = True  # else the time of a plan that goes dense would pass for a sparse one
                        measured = _Timed(layer, tokens, training).median(seconds)
                    entry.options.append(Option(block, density, kernels, us, measured))
    return advice


def _require_sparse(
    groups: dict[Size, list[str]], blocks: Sequence[tuple[int, int]], densities: Sequence[float], directions: Sequence[str]
) -> None:
    """Raises Error naming every layer that would run a dense or reference kernel at a block and density."""
    found = []
    for size, names in groups.items():
        for block in blocks:
            if size.shape[0] >= block[0] and size.shape[1] >= block[1]:
                for density in densities:
                    kernels = chosen(size, block, density, directions)
                    words = ", ".join(f"{direction} {kernel}" for direction, kernel in kernels.items() if kernel in FALLBACKS)
                    if words:
                        found.append(f"{', '.join(names)} at block {block[0]} x {block[1]}, density {density:.3g} ({words})")
    if found:
        remedy = "leave those blocks and densities out, or strict: the advice then says what no sparse kernel takes"
        raise Error("advise", "sparse kernels in every layer (strict=True)", "; ".join(found), remedy)


def _groups(model: nn.Module, example_input: Any) -> tuple[dict[Size, list[str]], dict[str, str]]:
    """Layers by size, and those that cannot become sparse with the reason."""
    sites = survey(model).sites
    seen = _tokens_seen(model, [site.module for site in sites], example_input)
    groups: dict[Size, list[str]] = {}
    skipped = {}
    for site in sites:
        why = refusal(site.module, site.kind)
        if not why and site.parameter.dtype not in ops.DTYPES:
            why = f"its dtype {site.parameter.dtype} has no kernels"
        if not why and site.module not in seen:
            why = "the example input does not reach it"
        if why:
            skipped[site.name] = why
            continue
        weight = site.parameter
        size = Size(site.shape, seen[site.module], weight.dtype, weight.device, site.bias is not None)
        groups.setdefault(size, []).append(site.name)
    return groups, skipped


def _tokens_seen(model: nn.Module, modules: Sequence[nn.Module], example_input: Any) -> dict[nn.Module, int]:
    """The most tokens that each module gave in one call: elements of its result over its output features."""
    seen: dict[nn.Module, int] = {}

    def see(module: nn.Module, arguments: Any, keywords: Any, result: Any) -> None:
        result = result[0] if isinstance(result, tuple) else result
        rows = module.embed_dim if isinstance(module, nn.MultiheadAttention) else _features(module)
        seen[module] = max(seen.get(module, 1), result.numel() // max(1, rows))

    watched(model, modules, example_input, see)
    return seen


def _features(module: nn.Module) -> int:
    return int(getattr(module, "out_features", 0) or getattr(module, "out_channels", 0) or getattr(module, "nf", 1))


class _Timed:
    """Forward, and with ``training`` backward, of one layer on random data."""

    def __init__(self, layer: nn.Module, tokens: int, training: bool) -> None:
        weight = next(layer.parameters())
        self.gpu = weight.device if weight.is_cuda else None
        for parameter in layer.parameters():
            nn.init.uniform_(parameter.detach(), -0.1, 0.1)
        self.layer, self.training = layer, training
        cols = int(layer.in_features)  # type: ignore[arg-type]
        self.x = torch.randn(tokens, cols, device=weight.device, dtype=weight.dtype, requires_grad=training)

    def call(self) -> None:
        if not self.training:
            with torch.no_grad():
                self.layer(self.x)
            return
        y: Tensor = self.layer(self.x)
        torch.autograd.grad(y, [self.x, *self.layer.parameters()], torch.ones_like(y))

    def median(self, seconds: float) -> float:
        return medians([self.call], seconds, *([] if self.gpu is None else [self.gpu]))[0]
