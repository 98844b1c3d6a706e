"""The advice on convolutions of more than one tap. They are called as the model calls them, since their taps,
steps and extents decide what a sparse one gains."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import pattern as patterns
from ..nn.conv.base import ConvModule
from ..patch.forms import Site
from ..report.break_even import FALLBACKS, crossing
from ..report.trial import bare_rows
from ..timing.rounds import Spread, quotient
from .advice import LayerAdvice, Option
from .seen import CHANNELS_LAST, Seen

#: (calls, seconds, GPU) -> the microseconds of each call, taken in turn.
InTurn = Callable[..., list[list[float]]]


class ConvSize(NamedTuple):
    """What tells convolutions apart: their channels, what one call gets, and their own settings in words."""

    shape: tuple[int, int]  # out channels, in channels
    tokens: int  # of the result: images x pixels
    x_shape: tuple[int, ...]
    channels_last: bool
    dtype: torch.dtype
    device: torch.device
    settings: str

    @classmethod
    def of(cls, site: Site, seen: Seen) -> ConvSize:
        """Returns the size of a site by the largest input that its module got."""
        settings = f"{type(site.module).__name__}({site.module.extra_repr()})"
        weight = site.parameter
        return cls(
            site.shape, seen.tokens, seen.x_shape, seen.channels_last, weight.dtype, weight.device, settings
        )

    def words(self) -> str:
        """Returns the input and the taps as text."""
        images, _, *space = self.x_shape
        taps = self.settings.partition("kernel_size=(")[2].partition(")")[0].rstrip(",").replace(", ", " x ")
        return f"{images} of {' x '.join(map(str, space))}, {taps} taps"


class ConvTrial:
    """Calls one convolution on random data, as Trial does a linear layer."""

    def __init__(self, layer: nn.Module, size: ConvSize, training: bool) -> None:
        self.layer, self.training = layer, training
        x = torch.randn(size.x_shape, device=size.device, dtype=size.dtype)
        if size.channels_last:
            x = x.contiguous(memory_format=CHANNELS_LAST[x.dim()])
        self.x = x.requires_grad_(training)

    def call(self) -> None:
        if not self.training:
            with torch.no_grad():
                self.layer(self.x)
            return
        y: Tensor = self.layer(self.x)
        torch.autograd.grad(y, [self.x, *self.layer.parameters()], torch.ones_like(y))


def planned(
    site: Site, size: ConvSize, block: tuple[int, int], density: float, directions: Sequence[str]
) -> tuple[ConvModule, dict[str, str], float | None]:
    """Returns the site's convolution with a balanced pattern, the kernel of each direction, and the sum of
    the predicted times, None where one is not predicted."""
    layer: Any = site.form.packed(site, patterns.balanced(*size.shape, block, density, 0))
    plans = {direction: layer.plan(size.x_shape, direction) for direction in directions}
    times = [plan["predicted_us"] for plan in plans.values()]
    kernels = {direction: str(plan["kernel"]) for direction, plan in plans.items()}
    return layer, kernels, None if None in times else sum(times)


def advised(
    size: ConvSize,
    sites: Sequence[Site],
    blocks: Sequence[tuple[int, int]],
    densities: Sequence[float],
    directions: Sequence[str],
    measure: bool,
    seconds: float,
    in_turn: InTurn,
) -> LayerAdvice:
    """Returns the advice on all convolutions of one size. Each block is called in turn with dense at the
    middle density whose block rows all have one, with ``measure`` at every density; the others are predicted
    from that call by the plans."""
    training, gpu = len(directions) > 1, size.device if size.device.type == "cuda" else None
    dense = ConvTrial(copy.deepcopy(sites[0].module).requires_grad_(training), size, training)
    names, dtype = [site.name for site in sites], str(size.dtype).removeprefix("torch.")
    entry = LayerAdvice(names, size.shape, size.tokens, dtype, 0.0, window=size.words())
    dense_us = [] if blocks else in_turn([dense.call], seconds, gpu)[0]
    for block in blocks:
        made = {density: planned(sites[0], size, block, density, directions) for density in densities}
        bare = {density: bare_rows(size.shape, block, density) for density in densities}
        whole = sorted([density for density in densities if not bare[density]] or densities)
        anchor, timed = whole[(len(whole) - 1) // 2], dict[float, tuple[float, Spread, float]]()
        for density in densities if measure else [anchor]:
            beside, ours = in_turn(
                [dense.call, ConvTrial(made[density][0], size, training).call], seconds, gpu
            )
            timed[density] = Spread.of(ours).median, quotient(beside, ours), Spread.of(beside).median
            dense_us += beside
        anchor_us, anchor_plan = timed[anchor][0], made[anchor][2]
        for density, (_, kernels, plan) in made.items():
            predicted = None if plan is None or not anchor_plan else anchor_us * plan / anchor_plan
            us, ratio, beside_us = timed.get(density, (None, None, None))
            fallback = tuple(direction for direction, kernel in kernels.items() if kernel in FALLBACKS)
            entry.options.append(
                Option(block, density, kernels, predicted, us, ratio, bare[density], fallback, beside_us)
            )
    entry.dense_us = Spread.of(dense_us).median
    for block in blocks:
        curve = sorted((each.density, each.us) for each in entry.options if each.block == block)
        entry.break_even[block] = crossing(curve, entry.dense_us)
    return entry
