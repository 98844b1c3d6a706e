"""advise(model, example_input) says which layers would become faster, at which block and density, and changes
nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from .._arguments import named_arguments
from .._checks import not_negative, require_bool, several, share
from .._progress import Bar
from .._rooms import Room
from ..errors import Error
from ..nn import Semi24Linear, SparseLinear
from ..nn.arguments import require_module
from ..ops.scores import block_scores
from ..patch.forms import Site
from ..patch.survey import survey
from ..pattern import Block, block_shape
from ..report.break_even import FALLBACKS, LADDER, Size, chosen, crossing, predicted
from ..report.inputs import as_arguments, gpus_of
from ..report.trial import Anchor, Trial, bare_rows, overhead, sparse_trial
from ..timing.busy import BUSY, Watch
from ..timing.rounds import Spread, in_turn, quotient
from .advice import Advice, LayerAdvice, Option
from .convolutions import ConvSize
from .convolutions import advised as advised_convolutions
from .convolutions import planned as planned_convolution
from .seen import seen_by
from .whole import foretold

#: Sites by their size, and by the products of each in one call of the model.
Groups = dict[tuple[Size | ConvSize, int], list[Site]]
#: A call that takes this long leaves nothing of earlier calls in the caches.
_LONG_SECONDS = 0.01


@named_arguments
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
    semi24: bool = False,
    csr: bool = False,
    attention: bool = False,
) -> Advice:
    """Runs the model once on example_input (a tensor, a tuple of arguments, or a mapping or
    dataclass of keywords, such as what a tokenizer returns) and returns
    the advice; changes nothing.

    Groups the dense linear layers and convolutions that sparsify_ would take by size. For every size, it
    times the dense layer and one block-sparse layer of each block, at the middle one of ``densities``, in
    turn for about ``seconds`` seconds. The data are random, and of the size that the layer saw; for a
    convolution with its memory format. It times the forward product, and with ``training`` the backward
    products too. The times at other densities are predicted from the plans of balanced patterns and the time
    of that block-sparse layer. With ``measure``, every block and density is timed beside dense.

    What was measured while other work had a share of the CPU is measured once more; what is disturbed again
    is shown, and recommends nothing.

    Without ``training``, Advice.model has the time of the whole model: measured as it is, and predicted with
    Advice.best() from the modules that it changes, each called alone before and after; and in bf16 where the
    machine multiplies that.

    Linear layers call only sparse kernels, also where the plan would go dense. With ``strict``, a layer that
    would run no sparse kernel at some block and density raises Error before anything is timed; the Error
    names the layer and the kernels that it would run.

    With ``semi24``, each size is also called as a 2:4 layer, which does not train: Advice.semi24_patterns()
    has those that gain. With ``csr``, each size that is an nn.Linear is also called as a CSR layer of a
    random pattern at every one of ``densities``, which trains: Advice.csr_patterns(density) has those that
    gain.

    With ``attention``, each call of scaled_dot_product_attention, by torch's modules, transformers' or your
    own, is also called over a part of its blocks of keys, and Advice.attention says what gains and how its
    module gets a pattern. Attention that is written out in products is not seen.

    Raises Error for a model on the meta device, for ``semi24`` with ``training``, and for densities outside
    of (0, 1], and passes on what the model itself raises.
    """
    require_module("advise", model)
    flags = {"training": training, "measure": measure, "strict": strict}
    flags |= {"semi24": semi24, "csr": csr, "attention": attention}
    for name, value in flags.items():
        require_bool("advise", name, value)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise Error(
            "advise",
            "a model with values",
            "parameters on the meta device",
            "call model.to_empty(device='cpu') first",
        )
    seconds = not_negative("advise", "seconds", seconds, "0.3")
    blocks = several("advise", "blocks", blocks, "[16, 32]")
    densities = [share("advise", each) for each in several("advise", "densities", densities, "[0.1, 0.25]")]
    if not densities or not all(0 < density <= 1 for density in densities):
        raise Error("advise", "densities above 0, at most 1", repr(densities), "pass densities=[0.1, 0.25]")
    if semi24 and training:
        remedy = "leave one of them out"
        raise Error("advise", "training of layers that train", "semi24=True with training=True", remedy)
    directions = ops.DIRECTIONS if training else ops.DIRECTIONS[:1]
    shapes = [block_shape("advise", block) for block in blocks]
    from .attention import advised, watched_dense  # `import sparseloom` would wait for it

    example_input = as_arguments("advise", example_input)
    with watched_dense(model, attention) as calls:
        groups, skipped = _groups(model, example_input)
    if strict:
        _require_sparse(groups, shapes, densities, directions)
    advice = Advice([], skipped, directions, tuple(densities))
    asked = _Asked(shapes, densities, directions, measure, seconds, semi24, csr)
    with torch.random.fork_rng(devices=gpus_of(model)), ExitStack() as stack:
        watch = Watch()
        bar = stack.enter_context(Bar("advise"))
        for (size, products), sites in bar.over(groups.items(), lambda group: group[1][0].name):
            advice.layers.append(_of_group(size, sites, asked))
            watch.look()
            if watch.recent > BUSY:  # once more: the other work may be over
                advice.layers[-1] = _of_group(size, sites, asked)
                watch.look()
                advice.layers[-1].disturbed = watch.recent > BUSY
            advice.layers[-1].calls = products
            _add_kept(advice.layers[-1], sites[0].form.ranked(sites[0].value))
        advice.attention, short = advised(calls, densities, training, measure, seconds)
        advice.skipped |= short
        watch.look()
        for each in advice.attention:
            each.disturbed = watch.recent > BUSY
        if groups and not training:
            every = [site for sites in groups.values() for site in sites]
            advice.model = foretold(model, example_input, every, advice.best(), seconds)
            watch.look()
            if advice.model is not None:
                advice.model.disturbed = watch.recent > BUSY
        advice.lost = watch.lost if advice.layers or advice.attention else 0.0
    return advice


class _Asked(NamedTuple):
    """What was asked about every size."""

    blocks: Sequence[tuple[int, int]]
    densities: Sequence[float]
    directions: Sequence[str]
    measure: bool
    seconds: float
    semi24: bool
    csr: bool


def _of_group(size: Size | ConvSize, sites: list[Site], asked: _Asked) -> LayerAdvice:
    """Returns the advice on the layers of one size, in all layouts that were asked for."""
    blocks = [block for block in asked.blocks if size.shape[0] >= block[0] and size.shape[1] >= block[1]]
    if isinstance(size, ConvSize):
        how = blocks, asked.densities, asked.directions, asked.measure, asked.seconds
        return advised_convolutions(size, sites, *how, in_turn)
    names = [site.name for site in sites]
    entry = _advised(size, names, blocks, asked.densities, asked.directions, asked.measure, asked.seconds)
    if asked.semi24:
        entry.semi24 = _two_of_four(size, asked.seconds)
    if asked.csr and (fit := [site.name for site in sites if site.form.in_any_layout]):
        entry.csr = _in_csr(size, asked.densities, asked.directions, asked.seconds)
        entry.csr_names = fit
    return entry


def _advised(
    size: Size,
    names: list[str],
    blocks: Sequence[tuple[int, int]],
    densities: Sequence[float],
    directions: Sequence[str],
    measure: bool,
    seconds: float,
) -> LayerAdvice:
    """Returns the advice on all layers of one size."""
    shape, tokens, dtype, device, bias = size
    training = len(directions) > 1
    linear = nn.utils.skip_init(nn.Linear, shape[1], shape[0], bias=bias, device=device, dtype=dtype)
    dense = Trial(linear, tokens, training)
    plans = {
        (block, density): predicted(size, block, density, directions)
        for block in blocks
        for density in densities
    }
    bare = {block_and_density: bare_rows(shape, *block_and_density) for block_and_density in plans}
    anchors = {
        block: _middle([density for density in densities if not bare[block, density]] or densities)
        for block in blocks
    }
    anchors = {block: density for block, density in anchors.items() if plans[block, density][0] is not None}
    gpu = device if device.type == "cuda" else None
    trials = [sparse_trial(size, *block_and_density, training) for block_and_density in anchors.items()]
    dense_samples, samples = _beside(dense, trials, seconds, gpu)
    timings = {
        block_and_density: _compared(dense_us, us)
        for block_and_density, dense_us, us in zip(anchors.items(), dense_samples, samples, strict=False)
    }
    del trials
    dense_us = Spread.of([us for times in dense_samples for us in times]).median
    entry = LayerAdvice(names, shape, tokens, str(dtype).removeprefix("torch."), dense_us)
    extra = overhead(dtype, device, training) if anchors else 0.0
    for block in blocks:
        anchor = None
        if block in anchors:
            timed = block, anchors[block]
            anchor = Anchor(timings[timed][0], plans[timed][0] or 0.0, extra, gpu is not None)
        curve = (
            [(density, predicted(size, block, density, directions)[0]) for density in LADDER]
            if anchor
            else []
        )
        entry.break_even[block] = crossing([(d, _by(anchor, us)) for d, us in curve], entry.dense_us)
        for density in densities:
            us, kernels = plans[block, density]
            if measure and us is not None and (block, density) not in timings:
                trial = sparse_trial(size, block, density, training)
                dense_again, ours = in_turn([dense.call, trial.call], seconds, gpu)
                timings[block, density] = _compared(dense_again, ours)
            measured_us, ratio, beside_us = timings.get((block, density), (None, None, None))
            dense_in = tuple(
                d for d, kernel in chosen(size, block, density, directions).items() if kernel == "dense"
            )
            entry.options.append(
                Option(
                    block,
                    density,
                    kernels,
                    _by(anchor, us),
                    measured_us,
                    ratio,
                    bare[block, density],
                    dense_in,
                    beside_us,
                )
            )
    return entry


def _two_of_four(size: Size, seconds: float) -> Option:
    """Returns what all layers of one size would take as 2:4 layers, called in turn with dense."""
    (rows, cols), _, dtype, device, bias = size
    layer = Semi24Linear(cols, rows, bias, device=device, dtype=dtype)
    return _called(size, layer, (1, 4), 0.5, {"forward": layer.plan(size.tokens)}, seconds)


def _in_csr(
    size: Size, densities: Sequence[float], directions: Sequence[str], seconds: float
) -> list[Option]:
    """Returns what all layers of one size would take in CSR at each density, called in turn with dense."""
    (rows, cols), tokens, dtype, device, bias = size
    options = []
    for density in densities:
        layer = SparseLinear(cols, rows, bias, layout="csr", density=density, device=device, dtype=dtype)
        plans = {direction: layer.plan(tokens, direction) for direction in directions}
        options.append(_called(size, layer, (1, 1), density, plans, seconds))
    return options


def _called(
    size: Size,
    layer: nn.Module,
    group: tuple[int, int],
    density: float,
    plans: dict[str, dict[str, Any]],
    seconds: float,
) -> Option:
    """Measures a layer in turn with a dense one and returns the result; ``plans`` is by direction."""
    (rows, cols), tokens, dtype, device, bias = size
    linear = nn.utils.skip_init(nn.Linear, cols, rows, bias=bias, device=device, dtype=dtype)
    dense, sparse = (Trial(module, tokens, len(plans) > 1) for module in (linear, layer))
    dense_us, ours = in_turn([dense.call, sparse.call], seconds, device if device.type == "cuda" else None)
    kernels = {direction: str(plan["kernel"]) for direction, plan in plans.items()}
    fallback = tuple(direction for direction, kernel in kernels.items() if kernel in FALLBACKS)
    planned = sum(float(plan["predicted_us"]) for plan in plans.values())
    measured_us, ratio, beside_us = _compared(dense_us, ours)
    return Option(group, density, kernels, planned, measured_us, ratio, 0, fallback, beside_us)


def _compared(dense: list[float], ours: list[float]) -> tuple[float, Spread, float]:
    """Returns the median of our calls, the ratio to dense, and the median of dense, called in turn."""
    return Spread.of(ours).median, quotient(dense, ours), Spread.of(dense).median


def _add_kept(advice: LayerAdvice, matrix: Tensor) -> None:
    """Adds to each option what it keeps of the magnitude of one weight [out features, in features]."""
    magnitudes = matrix.detach().abs().float()
    total = float(magnitudes.sum(dtype=torch.float64))
    if not 0 < total < math.inf:
        return
    advice.options = [
        replace(each, kept=_kept(block_scores(magnitudes, each.block, "l1"), each.density, total))
        for each in advice.options
    ]
    advice.csr = [replace(each, kept=_kept(magnitudes, each.density, total)) for each in advice.csr]
    if advice.semi24 is not None:
        groups = F.pad(magnitudes, (0, -magnitudes.shape[1] % 4)).unflatten(1, (-1, 4))
        two = groups.topk(2, dim=2).values.sum(dtype=torch.float64)
        advice.semi24 = replace(advice.semi24, kept=float(two) / total)


def _kept(scores: Tensor, density: float, total: float) -> float:
    count = round(density * scores.numel())
    return float(scores.flatten().topk(count).values.sum(dtype=torch.float64)) / total


def _beside(
    dense: Trial, trials: list[Trial], seconds: float, gpu: torch.device | None
) -> tuple[list[list[float]], list[list[float]]]:
    """Returns the microseconds of the dense layer's calls beside each trial, and of the trials' calls.

    Trials and dense calls alternate: a call that follows one of its own kind finds its code in the caches,
    which saves a fifth of a call of 35 us. Where a call takes many milliseconds, the trials follow one
    another, with one dense call per round.
    """
    start = time.perf_counter()
    dense.call()
    if not trials or time.perf_counter() - start > _LONG_SECONDS:
        dense_us, *samples = in_turn([trial.call for trial in (dense, *trials)], seconds, gpu)
        return [dense_us] * max(1, len(trials)), samples
    timings = in_turn([call for trial in trials for call in (dense.call, trial.call)], seconds, gpu)
    return timings[::2], timings[1::2]


def _middle(densities: Sequence[float]) -> float:
    return sorted(densities)[(len(densities) - 1) // 2]


def _by(anchor: Anchor | None, planned_us: float | None) -> float | None:
    return None if anchor is None or planned_us is None else anchor.predicted(planned_us)


def _require_sparse(
    groups: Groups,
    blocks: Sequence[tuple[int, int]],
    densities: Sequence[float],
    directions: Sequence[str],
) -> None:
    """Raises Error that names every layer that would run a dense or reference kernel at a block and
    density."""
    refused = []
    for (size, _), sites in groups.items():
        names = ", ".join(site.name for site in sites)
        for block in blocks:
            if size.shape[0] < block[0] or size.shape[1] < block[1]:
                continue
            for density in densities:
                if isinstance(size, ConvSize):
                    _, kernels, _ = planned_convolution(sites[0], size, block, density, directions)
                else:
                    kernels = chosen(size, block, density, directions)
                words = ", ".join(
                    f"{direction} {kernel}" for direction, kernel in kernels.items() if kernel in FALLBACKS
                )
                if words:
                    refused.append(
                        f"{names} at block {block[0]} x {block[1]}, density {density:.3g} ({words})"
                    )
    if refused:
        remedy = (
            "leave those blocks and densities out, or strict: the "
            "advice then says what no sparse kernel takes"
        )
        raise Error("advise", "sparse kernels in every layer (strict=True)", "; ".join(refused), remedy)


def _groups(model: nn.Module, example_input: Any) -> tuple[Groups, dict[str, str]]:
    """Returns the layers by size and by their products in one call, and those that cannot become sparse with
    the reason."""
    sites = survey(model).sites
    seen = seen_by(model, [site.module for site in sites], example_input)
    groups, skipped = Groups(), dict[str, str]()
    for site in sites:
        reason = site.refusal()
        if not reason and site.parameter.dtype not in ops.DTYPES:
            reason = f"its dtype {site.parameter.dtype} has no kernels"
        if not reason and site.module not in seen:
            reason = "the example input does not reach it"
        if reason:
            skipped[site.name] = reason
            continue
        weight, (tokens, calls) = site.parameter, seen[site.module].of(site)
        size: Size | ConvSize = Size(site.shape, tokens, weight.dtype, weight.device, site.bias is not None)
        if site.value.dim() == 3:  # its matrix has taps
            size = ConvSize.of(site, seen[site.module])
        groups.setdefault((size, calls), []).append(site)
    return groups, skipped


Room.of(__name__, "advise")
