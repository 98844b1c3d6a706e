"""Predicts the time of the whole model after the advice: its own time, and what the changed modules gain."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import ops
from ..patch import Recipe
from ..patch.forms import Site
from ..patch.sparsify import sparsify_
from ..report.inputs import evaluated, run, tensors_in, watched
from ..report.whole import gpu_of
from ..timing.rounds import Spread, in_turn

#: A gain of bf16 below this is not worth a mention: it is within the noise of two measurements.
_WORTH = 1.05
#: Modules of one kind that are called one after the other: a single one would find its weight in the caches,
#: where the model's next token finds others' (a decoder was predicted at 1.6 times its time).
_MEMBERS = 8


@dataclass
class ModelAdvice:
    """The forward pass of the whole model, in microseconds."""

    dense_us: float  # measured, as it is
    #: dense_us, with each module that Advice.best() changes called alone, before and after, for its part
    predicted_us: float
    changed: int  # modules that Advice.best() changes
    bf16_us: float | None = (
        None  # measured, dense in bf16; None where it is that already, or bf16 is no faster
    )
    disturbed: bool = False  # whether other work had a share of the CPU meanwhile

    @property
    def bf16_first(self) -> bool:
        """Whether bf16 alone gains more than sparse layers do."""
        return self.bf16_us is not None and self.bf16_us < min(self.predicted_us, self.dense_us / _WORTH)

    def line(self) -> str:
        """Returns what was found, in a sentence or two."""
        words = f"The whole model takes {_ms(self.dense_us)} a call"
        if self.changed and not self.disturbed:
            speedup = self.dense_us / self.predicted_us
            words += f"; with advice.best() {_ms(self.predicted_us)} are predicted ({speedup:.2f}x)"
        if self.bf16_us is not None and not self.disturbed:
            words += f"; dense in bf16 {_ms(self.bf16_us)} ({self.dense_us / self.bf16_us:.2f}x)"
        return words + (". Go to bf16 first: that is the larger gain." if self.bf16_first else ".")

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return asdict(self) | {"bf16_first": self.bf16_first}


def foretold(
    model: nn.Module, example_input: Any, sites: list[Site], best: Mapping[str, Recipe], seconds: float
) -> ModelAdvice | None:
    """Measures the model's forward pass, in evaluation, and each kind of module that ``best`` changes, before
    and after, on the input that the model gives it; returns the prediction. Modules of one kind, size and
    input are timed once. None where one of them cannot be copied."""
    gpu = gpu_of(model)
    changes = dict[nn.Module, dict[str, Recipe]]()
    for site in sites:
        if (recipe := best.get(re.escape(site.name))) is not None:
            changes.setdefault(site.module, {})[re.escape(site.matched("m"))] = recipe
    kinds = dict[Any, tuple[dict[nn.Module, None], Any, Any]]()
    calls = dict[Any, int]()

    def see(module: nn.Module, arguments: Any, keywords: Any, result: Any) -> None:
        shapes = tuple((tuple(each.shape), each.dtype) for each in tensors_in([arguments, keywords]))
        kind = type(module), module.extra_repr(), shapes, repr(changes[module])
        members, *_ = kinds.setdefault(kind, ({}, arguments, keywords))
        if len(members) < _MEMBERS:
            members[module] = None
        calls[kind] = calls.get(kind, 0) + 1

    watched("advise", model, list(changes), example_input, see)
    bf16 = _in_bf16(model, example_input)
    with torch.no_grad(), evaluated(model):
        whole: list[Callable[[], object]] = [partial(run, model, example_input), *([bf16] if bf16 else [])]
        dense_us, *bf16_us = (Spread.of(times).median for times in in_turn(whole, seconds, gpu, least=3))
        del bf16, whole
        predicted_us, least = dense_us, 0.0
        for kind, (members, arguments, keywords) in kinds.items():
            twins = []
            try:
                for module in members:
                    holder = nn.Sequential()
                    holder.m = copy.deepcopy(module)
                    sparsify_(holder, changes[module])
                    twins.append(holder.m)
            except Exception:  # a module that cannot be copied, or is refused alone: no prediction
                return None
            pair = [partial(_all, list(each), arguments, keywords) for each in (members, twins)]
            timed: list[Callable[[], object]] = [*pair]
            before, after = (
                Spread.of(times).median / len(twins) for times in in_turn(timed, seconds, gpu, least=3)
            )
            predicted_us += calls[kind] * (after - before)
            least += calls[kind] * after
    narrow = bf16_us[0] if bf16_us else None
    return ModelAdvice(dense_us, max(predicted_us, least), len(changes), narrow)


def _all(modules: list[nn.Module], arguments: Any, keywords: Any) -> None:
    for module in modules:
        module(*arguments, **keywords)


def _in_bf16(model: nn.Module, example_input: Any) -> Any:
    """Returns a call of the model in bf16, None where that is what it is, or where no unit multiplies it."""
    parameters = list(model.parameters())
    if not parameters or any(each.dtype is not torch.float32 for each in parameters):
        return None
    rates = ops.info()["rates"]
    native = all(each.is_cuda for each in parameters) or any(
        rates.get(name, 0) > 0 for name in ("bf16_avx512", "bf16_amx")
    )
    if not native:
        return None
    try:
        twin = copy.deepcopy(model).to(torch.bfloat16).eval()
        given = _cast(example_input)
        with torch.no_grad():
            run(twin, given)
    except Exception:  # whatever the model's own parts raise when copied, or called in bf16
        return None
    return partial(run, twin, given)


def _cast(data: Any) -> Any:
    if isinstance(data, torch.Tensor):
        return data.bfloat16() if data.dtype is torch.float32 else data
    if isinstance(data, Mapping):
        return {key: _cast(value) for key, value in data.items()}
    return [_cast(value) for value in data] if isinstance(data, (tuple, list)) else data


def _ms(us: float) -> str:
    return f"{us / 1e3:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"
