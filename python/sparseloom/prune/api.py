"""prune_ prunes a trained model in place, by one-shot methods over calibration data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from .._arguments import named_arguments
from .._checks import as_optimizers, require_bool, require_sizes, whole
from .._progress import Bar
from ..errors import Error
from ..nn.held.as_before import or_as_before
from ..patch.announce import announce
from ..patch.choose import Match, match
from ..patch.config import BlockSparse
from ..patch.keys import with_keys
from ..patch.recipe import Recipe
from ..patch.result import Patched, Skip
from ..patch.semi24 import Semi24
from ..patch.sparsify import patched, unwrapped
from ..patch.survey import parameter_count, require_patchable
from ..recover.fingerprint import digest, digest_of_data, digest_of_model
from ..sparsify import Sparsifier
from .calibration import Data
from .checkpoint import Checkpoint
from .flow import Budget, Flow, quiet, recipes
from .gate import Gate
from .methods import Method
from .progress import reporter
from .residence import Residence
from .result import Plan, Pruned, with_kept
from .statistics import matrix_of
from .targets import Pending, observed, target_of

_OP = "prune_"
Forward = Callable[[nn.Module, Any], object]


@named_arguments
def prune_(
    model: nn.Module,
    patterns: Mapping[Any, Recipe] | Recipe,
    *,
    method: str | Sparsifier = "sparsegpt",
    data: Iterable[Any] | None = None,
    forward: Forward | None = None,
    device: str | torch.device | None = None,
    damping: float = 0.01,
    swaps: int = 0,
    refit: int = 0,
    reconstruct: int = 0,
    quantize: Literal["int8", "e4m3"] | None = None,
    compensate_bias: bool = False,
    budget: Budget | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    max_loss: float | None = None,
    allow_loss: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[int, int, str], None] = True,
    exchange: bool = True,
    strict: bool = False,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    dense_copy: bool | Literal["auto"] = False,
    fuse: bool = True,
) -> Pruned:
    """Prunes the linear layers whose names match, and replaces them by sparse ones as sparsify_ does.

    Repeated blocks (those of a decoder or encoder, the children of a Sequential) are pruned one after the
    other. Each gets the inputs that the pruned blocks before it produce. All other layers follow in one run
    of the whole model. What will be done, and the memory it takes, is printed first.

    Args:
        patterns: {key: recipe}, or one recipe, as for sparsify_: BlockSparse(block=32, density=0.5) keeps
            blocks, Semi24() 2:4, InLayout("nm", n=2, m=4) n of each m, and InLayout("csr", density=0.5)
            single elements. A recipe that brings a Pattern, a mask or a sparsifier of its own is taken at its
            choice, and the method corrects the values alone.
        method: "magnitude" (|w|; needs no data), "wanda" (|w| times the norm of its input, per output;
            arXiv 2306.11695), "sparsegpt" (the least error of the outputs, with the kept values corrected;
            arXiv 2301.00774; blocks by the error of removing them whole), or a ``sparsify.Sparsifier``, which
            gets the inputs' statistics in its Context.
        data: batches that the model is run on, some hundred samples: a tensor is the model's argument, a
            mapping its named ones, a tuple or list all of them. Padding by "attention_mask" does not count.
        forward: called as forward(model, batch) where that does not run the model.
        device: computes there, with one block at a time, while the model stays where it is.
        damping: the share of the Hessian's mean diagonal that is added to it.
        swaps: the most swaps of a kept and a removed element in each row that lower the error (arXiv
            2512.10922); not for blocks.
        refit: steps of least squares on the kept values, after the method.
        reconstruct: steps of Adam on the kept values of each block, towards the dense block's outputs.
        quantize: rounds what is kept to 8 bits, with one factor for each output feature, and lets the values
            that follow make up for it too (GPTQ, arXiv 2210.17323). The weights stay floats; ``quantize_``
            to that dtype stores them without another rounding.
        compensate_bias: adds to each layer's bias what its outputs lose on average (FLAP, arXiv 2312.11983);
            layers without a bias stay as they are.
        budget: {layer: density} in place of the recipes' own, such as ``sparsify.densities`` makes; or called
            with {layer: prune.Statistics} of the dense model to return it. See owl.
        evaluate: called with the model before and after each stage; the numbers are in the result. Lower is
            better, unless it has an attribute ``higher_is_better`` that is true.
        max_loss: the most by which the evaluation may get worse. More raises Error, with the model restored,
            unless ``allow_loss``.
        checkpoint: a folder for finished blocks. The same call on the same model, after the process was
            killed, goes on there and ends with the same bits.
        progress: a bar on a terminal, or called with (done, total, name) after each block.
        exchange: False leaves dense layers with zeros in their weights.
        strict, optimizer, dense_copy, fuse: see sparsify_.

    Returns what sparsify_ returns, with each layer's error and the evaluations. Raises Error, with the model
    untouched, where sparsify_ would, for data that is empty, not finite, or has fewer tokens than a layer has
    inputs (64 for "wanda"), and for a checkpoint of another run.
    """
    model = unwrapped(model)
    names = (("allow_loss", allow_loss), ("exchange", exchange), ("strict", strict), ("fuse", fuse))
    for name, value in names:
        require_bool(_OP, name, value)
    optimizers = as_optimizers(_OP, optimizer)
    whole(_OP, "reconstruct", reconstruct)
    gate = Gate(evaluate, max_loss, allow_loss)
    bar = Bar(_OP, 0)
    told = reporter(progress, bar)
    how = Method(method, damping, swaps, refit, quantize, compensate_bias)
    if quantize and reconstruct:
        raise Error(_OP, "quantize or reconstruct", "both", "leave one out: reconstruct moves rounded values")
    needs_data = how.needs_data or reconstruct > 0 or callable(budget)
    batches = _data(data, forward, needs_data)
    choices, skipped = _choices(model, patterns, needs_data or not exchange, strict, not exchange)
    if quantize and exchange:
        _require_eight_bits(choices)
    kept = None
    if checkpoint is not None:
        asked = {choice.site.name: choice.rule for choice in choices}
        read = digest_of_data(batches.batches if batches else [])
        kept = Checkpoint(
            checkpoint, digest([asked, how, reconstruct, forward, read, digest_of_model(model)])
        )
    residence = Residence(model, None if device is None else torch.device(device))
    flow = Flow(model, choices, how, batches, residence, reconstruct, kept, budget, told)
    written = {id(holder): holder for c in choices for holder in [c.site.holder[0]]}
    with or_as_before(model, optimizers, written.values()):
        gate.judge("dense", model)
        with quiet(model):
            plan = flow.plan()
            announce(plan)
            with bar:
                flow.run()
        gate.judge("pruned", model)
        if exchange:
            with _named():
                options: dict[str, Any] = {"dense_copy": dense_copy, "fuse": fuse}
                by_name = {re.escape(name): each for name, each in recipes(flow, choices).items()}
                result = patched(model, by_name, strict=strict, optimizer=optimizer, **options)
            gate.judge("exchanged", model)
        else:
            count = parameter_count(model)
            result = Patched([], [], (count, count), notes=[f"{len(choices)} layers pruned, and left dense"])
        # save writes it into the file's metadata
        vars(model)["_pruning"] = {"method": plan.method, "stages": dict(gate.stages)}
        if quantize:
            vars(model)["_pruning"]["quantize"] = quantize
        facts = vars(result) | {"skipped": skipped, "changed": with_kept(result, flow.layers)}
        if reconstruct and plan.outside:
            note = f"{plan.outside} layers outside of repeated blocks were not reconstructed"
            facts["notes"] = [*result.notes, note]
        if flow.without_bias:
            note = f"{flow.without_bias} layers have no bias that could make up for what their outputs lose"
            facts["notes"] = [*facts["notes"], note]
        pruned = Pruned(**facts, plan=plan, layers=flow.layers, stages=gate.stages)
        announce(pruned)
    return pruned


@named_arguments
def prune_plan(
    model: nn.Module,
    patterns: Mapping[Any, Recipe] | Recipe,
    *,
    method: str | Sparsifier = "sparsegpt",
    data: Iterable[Any] | None = None,
    forward: Forward | None = None,
    device: str | torch.device | None = None,
    swaps: int = 0,
    refit: int = 0,
    reconstruct: int = 0,
    quantize: Literal["int8", "e4m3"] | None = None,
) -> Plan:
    """Returns what prune_ would do with these arguments, and the memory it would take. It runs the model on
    one batch, and changes nothing. Raises Error as prune_ does for arguments that it refuses."""
    model = unwrapped(model)
    how = Method(method, 0.01, swaps, refit, quantize)
    needs_data = how.needs_data or reconstruct > 0
    batches = _data(data, forward, needs_data)
    choices, _ = _choices(model, patterns, needs_data, False)
    residence = Residence(model, None if device is None else torch.device(device))
    with quiet(model):
        return Flow(model, choices, how, batches, residence, reconstruct).plan()


def _require_eight_bits(choices: list[Match[Pending]]) -> None:
    for choice in choices:
        site, recipe = choice.site, choice.rule.target.recipe
        slides = matrix_of(site).shape[1] != site.shape[1]
        if not isinstance(recipe, (BlockSparse, Semi24)) or slides or site.form.has_steps:
            got = f"{recipe!r} for {site.name}, a {site.kind}"
            remedy = "quantize_ has 8-bit layers for these alone; exchange=False leaves dense layers"
            raise Error(_OP, "BlockSparse or Semi24() of linear layers with quantize", got, remedy)


def _data(data: Iterable[Any] | None, forward: Forward | None, needed: bool) -> Data | None:
    if data is None and needed:
        remedy = 'pass data=[batch, ...], or method="magnitude"'
        raise Error(_OP, "data to run the model on", "none", remedy)
    return Data(data, forward) if data is not None and needed else None


def _choices(
    model: nn.Module,
    patterns: Mapping[Any, Recipe] | Recipe,
    observes: bool,
    strict: bool,
    in_place: bool = False,
) -> tuple[list[Match[Pending]], list[Skip]]:
    require_patchable(_OP, model)
    patterns = with_keys(patterns, Recipe)
    if not isinstance(patterns, Mapping):
        remedy = 'pass {r".*mlp.*": Semi24()}'
        raise Error(_OP, "{regex: recipe}", repr(patterns), remedy)
    require_sizes(_OP, model)
    if torch.is_inference_mode_enabled() or any(each.is_inference() for each in model.parameters()):
        got = "a call in torch.inference_mode(), or a model that was made in it"
        raise Error(_OP, "weights that can be written", got, "call it outside: it takes no gradients itself")
    targets = {regex: target_of(regex, recipe) for regex, recipe in patterns.items()}
    pending = {regex: Pending(target, observes, in_place) for regex, target in targets.items()}
    with _named():
        choices, skipped = match(model, pending, strict)
    for choice in choices:
        weight = choice.site.value
        if not weight.numel():
            got = f"{list(weight.shape)} of {choice.site.name}"
            raise Error(_OP, "weights with elements", got, "leave that layer out of the patterns")
        sides = zip(weight.shape, weight.stride(), strict=True)
        if any(size > 1 and step == 0 for size, step in sides):
            got, remedy = f"{choice.site.name}, which expand() made", "clone it first"
            raise Error(_OP, "weights whose elements lie apart", got, remedy)
        if observed(choice.site) and not bool(weight.isfinite().all()):
            raise Error(_OP, "finite weights", f"NaN or Inf in {choice.site.name}", "check the checkpoint")
    return choices, skipped


@contextmanager
def _named() -> Iterator[None]:
    """Gives errors of sparsify_'s parts the name of this operation."""
    try:
        yield
    except Error as error:
        if error.op != "sparsify_":
            raise
        raise Error(_OP, error.expected, error.actual, error.remedy) from error
