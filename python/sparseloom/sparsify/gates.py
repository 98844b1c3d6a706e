"""Gates: compute factors for the blocks of a dense weight from scores or from the weight in each forward
pass. nn.MaskedLinear holds one as its child ``gate``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.verbs import Map, mapped
from .grid import block_sums
from .scores import Learned
from .select import Select, TopK, require_numbers


class Gate(nn.Module, ABC):
    """Maps a weight to one factor for each block; a block whose factor is 0 is not multiplied with.

    The schedule of the method writes ``budget`` and ``progress``, which are saved with the model.
    ``numbers``, float64 [2], has both on the gate's device, for code that does not use the host: it is
    written in place, so that compiled code and CUDA graphs see new values. It is not a buffer, because
    .half() would round it and DistributedDataParallel would broadcast it.
    """

    numbers: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._budget, self._progress = 1.0, 0.0
        self.numbers = torch.tensor([1.0, 0.0], dtype=torch.float64, device="cpu")

    @property
    def budget(self) -> float:
        """The schedule's budget: a density, or a threshold for select.Threshold."""
        return self._budget

    @budget.setter
    def budget(self, value: float) -> None:
        self._budget = value
        self.numbers[0].fill_(value)

    @property
    def progress(self) -> float:
        """The finished share of the schedule."""
        return self._progress

    @progress.setter
    def progress(self, value: float) -> None:
        self._progress = value
        self.numbers[1].fill_(value)

    def _apply(self, fn: Any, recurse: bool = True) -> Gate:
        super()._apply(fn, recurse)
        self.numbers = fn(self.numbers).double()
        self.budget, self.progress = self._budget, self._progress
        return self

    def get_extra_state(self) -> Tensor:
        """Returns budget and progress for the state dict."""
        return torch.tensor([self.budget, self.progress], dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Takes what ``get_extra_state`` returned."""
        self.budget, self.progress = state.tolist()

    @abstractmethod
    def forward(self, weight: Tensor) -> Tensor:
        """Returns the factors [block rows, block columns], differentiable, for a weight [out, in]."""

    def penalty(self) -> Tensor | None:
        """Returns the term to add to the loss for this weight; None for nothing."""
        return None

    @property
    def on_device(self) -> bool:
        """Whether a call runs without the host, so that compiled code and CUDA graphs may contain it."""
        return False

    def learned(self) -> Tensor | None:
        """Returns the trained scores; None if there are none."""
        return None


class _Through(Map):
    """The straight-through estimator: forward returns the hard mask; backward passes the gradient of the
    mask, the sum of G * W over the block, to the scores unchanged."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def there(self, scores: Tensor) -> Tensor:
        return self.mask.to(scores.dtype)

    def back(self, gradient: Tensor) -> Tensor:
        return gradient


class ScoreGate(Gate):
    """Keeps the blocks with the best trained ``scores`` within the budget; the gradient is straight-through.

    With ``squash``, sigmoids of the scores are compared (soft movement pruning), and ``strength`` is the
    factor of their mean in the penalty, which grows with the schedule.
    """

    def __init__(
        self, score: Learned, select: Select, rows: int, cols: int, squash: bool, strength: float
    ) -> None:
        super().__init__()
        self.select, self.squash, self.strength = select, squash, strength
        self.scores = nn.Parameter(score.start(rows, cols))

    def forward(self, weight: Tensor) -> Tensor:
        scores = self.scores.detach()
        compared = (scores.sigmoid() if self.squash else scores).float()
        if self.on_device:
            mask = self.select.there(compared, self.numbers[0])
        else:
            (mask,) = self.select([compared], [self.budget])
        gates: Tensor = mapped(self.scores, _Through(mask))
        return gates

    def penalty(self) -> Tensor | None:
        if not self.strength:
            return None
        return self.strength * self.progress * self.scores.sigmoid().mean()

    def learned(self) -> Tensor:
        return self.scores

    @property
    def on_device(self) -> bool:
        return not self.scores.is_cpu and self.select.leaves_host_out


#: Up to this many entries (on a GPU, on the CPU), a round of the search below tests 127 candidates at once,
#: which are all in memory; beyond only one. On one core, candidates take 2.3 ms and halvings 3.2 ms for 256
#: entries; 26 and 3.5 ms for 1024.
_FEW, _FEW_ON_HOST = 4096, 256


class SoftTopK(torch.autograd.Function):
    """m = sigmoid(beta v + mu) with mu such that m sums to k: the entropic transport of Spartan with unit
    costs. The backward pass differentiates it implicitly, with mu following v."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, k: float | Tensor, beta: float | Tensor) -> Tensor:
        z = v.double().flatten() * beta
        # bounds of mu: at the lower even the largest entry is closed, at the upper even the smallest is open
        low, high = -z.max()[None] - 50, -z.min()[None] + 50
        bits = 7 if z.numel() <= (_FEW_ON_HOST if z.is_cpu else _FEW) else 1
        steps = torch.arange(2**bits + 1, dtype=z.dtype, device=z.device) / 2**bits
        # Ten times 7 bits bring a distance of 100 or so below the spacing of float64. A GPU waits for each
        # round's launches, so few rounds of many candidates take less time than 70 halvings.
        for _ in range(70 // bits):
            places = low + (high - low) * steps
            few = torch.sigmoid(z + places[1:-1, None]).sum(1) < k
            below = few.sum()[None]
            low, high = places.index_select(0, below), places.index_select(0, below + 1)
        m = torch.sigmoid(z + (low + high) / 2).view_as(v)
        ctx.save_for_backward(m, torch.as_tensor(beta, dtype=m.dtype, device=m.device))
        return m.to(v.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        m, beta = ctx.saved_tensors
        slope, g = m * (1 - m), grad.double()
        mean = (g * slope).sum() / slope.sum().clamp(min=1e-30)
        return (beta * slope * (g - mean)).to(grad.dtype), None, None


class TransportGate(Gate):
    """Spartan (Tai et al. 2022): soft factors for the blocks with the largest sums of |w|, which sharpen with
    the schedule; at its end the mask is fixed and hard. Budget and progress are read on the weight's device,
    so that on a GPU the host takes no part."""

    fixed: Tensor

    def __init__(self, rows: int, cols: int, block: tuple[int, int], sharpness: float) -> None:
        super().__init__()
        self.block, self.sharpness = block, sharpness * math.sqrt(block[0] * block[1])
        self.register_buffer("fixed", torch.zeros(rows, cols, dtype=torch.bool, device="cpu"))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.is_cpu and self.progress >= 1 and bool(self.fixed.any()):
            return self.fixed.to(weight.dtype)
        v = block_sums(weight.abs(), self.block)
        scores = v.detach().float()
        if weight.is_cpu:
            require_numbers(scores)
        budget, progress = self.numbers.unbind()
        hard = TopK().there(scores, budget)
        is_over = progress >= 1
        mask = torch.where(is_over & self.fixed.any(), self.fixed, hard)
        self.fixed.copy_(torch.where(is_over, mask, self.fixed))
        count = hard.sum()
        is_hard = is_over | (count == 0) | (count == v.numel())
        soft: Tensor = SoftTopK.apply(v, count, 1 + progress * (self.sharpness - 1))
        return torch.where(is_hard, mask.to(v.dtype), soft * hard)

    @property
    def on_device(self) -> bool:
        return not self.fixed.is_cpu


class HardConcreteGate(Gate):
    """L0 (Louizos et al. 2018): each block has a random factor in training, and the factor of its log odds in
    evaluation. The penalty is ``strength`` times the expected number of open blocks."""

    LOW, HIGH, BETA = -0.1, 1.1, 2 / 3
    EDGE = 1e-6

    def __init__(self, score: Learned, rows: int, cols: int, strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.log_alpha = nn.Parameter(score.start(rows, cols))

    def _logits(self) -> Tensor:
        return self.log_alpha.clamp(-math.log(100), math.log(100))

    def forward(self, weight: Tensor) -> Tensor:
        logits = self._logits()
        if self.training:
            u = torch.rand_like(logits).clamp(self.EDGE, 1 - self.EDGE)
            open_share = torch.sigmoid((u.log() - (1 - u).log() + logits) / self.BETA)
        else:
            open_share = torch.sigmoid(logits)
        return (open_share * (self.HIGH - self.LOW) + self.LOW).clamp(0, 1)

    def open_chance(self) -> Tensor:
        """Returns the chance of each block's factor to be above zero."""
        return torch.sigmoid(self._logits() - self.BETA * math.log(-self.LOW / self.HIGH))

    def penalty(self) -> Tensor:
        return self.strength * self.open_chance().sum()

    def learned(self) -> Tensor:
        return self.log_alpha

    @property
    def on_device(self) -> bool:
        return True
