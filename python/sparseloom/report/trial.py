"""Times one layer, called as a model calls it, and the overhead of such a call besides its products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from .. import ops
from .. import pattern as patterns
from ..nn import BlockSparseLinear
from ..timing.rounds import Spread, in_turn
from .break_even import Size, predicted


class Trial:
    """Calls one layer on random data: forward, and with ``training`` backward to the input and all
    parameters."""

    def __init__(self, layer: nn.Module, tokens: int, training: bool) -> None:
        weight = next(layer.parameters())
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


def sparse_trial(size: Size, block: tuple[int, int], density: float, training: bool) -> Trial:
    """Returns a trial of a balanced layer of that size that runs only sparse kernels: if its plan chose
    dense, we would measure the dense time."""
    (rows, cols), pattern = size.shape, patterns.balanced(*size.shape, block, density, 0)
    layer = BlockSparseLinear(cols, rows, size.bias, pattern=pattern, device=size.device, dtype=size.dtype)
    layer.strict = True
    return Trial(layer, size.tokens, training)


def bare_rows(shape: tuple[int, int], block: tuple[int, int], density: float) -> int:
    """Returns the number of block rows without a block in a balanced pattern: their outputs are only the
    bias."""
    return int((patterns.balanced(*shape, block, density, 0).mask.sum(1) == 0).sum())


def overhead(dtype: torch.dtype, device: torch.device, training: bool) -> float:
    """Returns the microseconds of a module call without its products.

    Python, autograd, torch's dispatch and allocating the results take them. They are measured once in a
    process, on a layer so small that little else remains.
    """
    return _overhead(dtype, device, training, ops.get_num_threads())


@cache
def _overhead(dtype: torch.dtype, device: torch.device, training: bool, threads: int) -> float:
    size, block, density = Size((64, 64), 1, dtype, device, True), (32, 32), 0.5
    us, _ = predicted(size, block, density, ops.DIRECTIONS if training else ops.DIRECTIONS[:1])
    trial = sparse_trial(size, block, density, training)
    (samples,) = in_turn([trial.call], 0.03, device if device.type == "cuda" else None)
    call_us = Spread.of(samples).p20  # disturbances only make so short a call longer
    return call_us if device.type == "cuda" else max(0.0, call_us - (us or 0.0))


@dataclass(frozen=True)
class Anchor:
    """A timed layer, from which others of its size and block are predicted.

    Its time includes effects that the plan does not model, such as the sum for the bias's gradient, or the
    cache contents that the model's other layers leave.
    """

    us: float
    planned_us: float  # of its products, by their plans
    overhead_us: float
    # on a GPU: the host's part of a call overlaps the kernels, and the longer of the two counts
    queued: bool

    def predicted(self, planned_us: float) -> float:
        """Returns the microseconds of a call whose products the plans predict to take ``planned_us``."""
        if self.queued:
            slope = self.us / self.planned_us if self.us > _HOST_BOUND * self.overhead_us else 1.0
            return max(self.overhead_us, slope * planned_us)
        slope = min(max((self.us - self.overhead_us) / self.planned_us, _SLOPES[0]), _SLOPES[1])
        return max(self.overhead_us, self.us + _BY_BLOCKS * slope * (planned_us - self.planned_us))


#: An anchor on a GPU that takes less than this many times the host's own part says nothing about its kernels.
_HOST_BOUND = 1.2
#: Limits of an anchor's time over the planned time, both without overhead. If an anchor is nearly all
#: overhead, the rest is noise: products take half to four times the planned time.
_SLOPES = (0.5, 4.0)
#: The share of an anchor's time without overhead that grows with its blocks; the rest of a call depends on
#: the tokens. It was fitted to 141 layers, where density .25 predicts .1 and .5; without it, .1 was predicted
#: 12 % too fast and .5 equally too slow.
_BY_BLOCKS = 0.85
