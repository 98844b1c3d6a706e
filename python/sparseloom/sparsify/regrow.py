"""Regrow, the last part of a method: which blocks grow again, with which values, and further changes of the
blocks after a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import torch
from torch import Tensor

from .._arguments import named_init
from .._checks import not_negative, share, whole
from ..errors import Error
from ..ops.scores import NORMS
from ..pattern import draw_seed
from .grid import expanded
from .schedules import cosine

if TYPE_CHECKING:
    from .held import Held


class Regrow:
    """Drops a share of the blocks beyond what the budget demands, and lets as many others grow."""

    #: Whether ``scores`` reads the gradient of all blocks, which the layer then watches in such steps.
    needs_gradient: ClassVar[bool] = False
    #: The number of steps that it watches, up to the one before the change.
    steps: int = 1
    #: Steps over which the rate of a new block rises: ``optim.AdamW.warm_up``.
    warm_up: int = 0
    #: Steps of its own before which a block is not dropped.
    grace: int = 0

    def share_at(self, progress: float) -> float:
        """Returns the share of the kept blocks that is dropped and regrown at that progress."""
        return 0.0

    def scores(self, held: Held, step: int) -> Tensor | None:
        """Returns the growth score of each block [block rows, block columns]; None if this step gives none,
        and the change has to wait for the next step."""
        return None

    def growth(self, held: Held, step: int) -> Tensor | None:
        """Returns ``scores`` on the weight's device, without waiting for it, for a weight with
        ``moves_on_device``; None if the host has to choose."""
        return None

    def grown(self, held: Held, step: int, mask: Tensor) -> Tensor | None:
        """Returns a weight [out, in] with the initial values of new blocks; None for zeros. ``mask`` is the
        next topology."""
        return None

    def after_step(self, held: Held, lr: float) -> None:
        """Is called after every step of the optimizer, whose learning rate is ``lr``."""
        return None


@dataclass(frozen=True)
class _Growing(Regrow):
    share: float = 0.3
    decay: bool = True
    init: str = "zeros"
    seed: int | torch.Generator = 0
    warm_up: int = 0
    grace: int = 0

    def __post_init__(self) -> None:
        name = f"regrow.{type(self).__name__}"
        whole(name, "warm_up", self.warm_up)
        whole(name, "grace", self.grace)
        if not 0 <= share(name, self.share, "share") <= 1:
            raise Error(name, "a share in [0, 1]", repr(self.share), "pass share=0.3, for example")
        if self.init not in ("zeros", "uniform"):
            raise Error(name, "init 'zeros' or 'uniform'", repr(self.init), "pass init='zeros'")
        # a generator gives its next number here: every draw is a function of the seed and the step
        object.__setattr__(self, "seed", draw_seed(self.seed))

    def share_at(self, progress: float) -> float:
        return self.share * (cosine(progress) if self.decay else 1.0)

    def _generator(self, held: Held, step: int, stream: int) -> torch.Generator:
        # A function of these numbers only: ranks agree, and a resumed run draws the same numbers.
        mixed = ((cast("int", self.seed) * 1_000_003 + held.number) * 1_000_003 + step) * 2 + stream
        return torch.Generator("cpu").manual_seed(mixed % 2**62)

    def grown(self, held: Held, step: int, mask: Tensor) -> Tensor | None:
        if self.init == "zeros":
            return None
        rows, cols = held.shape
        fan_in = (mask.sum(1) * held.block[1]).clamp(min=1).float()
        values = torch.empty(rows, cols, dtype=torch.float32, device="cpu").uniform_(
            -1, 1, generator=self._generator(held, step, 1)
        )
        return values * expanded(fan_in.rsqrt()[:, None].expand(mask.shape), held.block, held.shape)


@named_init
@dataclass(frozen=True)
class Random(_Growing):
    """SET (Mocanu et al. 2018): grows blocks drawn uniformly.

    Args:
        share: of the kept blocks, dropped and regrown in each change.
        decay: whether the share falls along half a cosine to the schedule's end.
        init: "zeros", or "uniform" within 1 / sqrt(stored inputs of the output feature), as nn.Linear does.
        seed: of the draws, an int or a torch.Generator; the same one gives the same blocks on every rank and
            after a resumption.
        warm_up: steps over which the rate of a new block rises on a line (SMET, Xiao et al. 2026, arXiv
            2606.00888); needs stored blocks and ``optim.AdamW``, which counts the steps of each.
        grace: steps before which a new block is not dropped; needs the same. New blocks start at zero, and
            have the smallest norms when the next change comes.
    """

    decay: bool = False

    def scores(self, held: Held, step: int) -> Tensor:
        generator = self._generator(held, step, 0)
        return torch.rand(held.grid, generator=generator, dtype=torch.float32, device="cpu")

    def growth(self, held: Held, step: int) -> Tensor | None:
        return self.scores(held, step).to(held.device, non_blocking=True) if self.init == "zeros" else None


@named_init
@dataclass(frozen=True)
class Gradient(_Growing):
    """RigL (Evci et al. 2020): grows the blocks whose part of dY^T X is largest in ``norm``, of the step
    before the change. The arguments are as in ``Random``.

    With micro-batches it is the norm of their sum; on several ranks the sum of squared norms decides.
    With ``steps`` above 1 it is the norm of the sum over that many steps before the change, since most of
    one batch's gradient is noise; the operands of all of them are kept until then, also in the state dict of
    a run that is saved in between. What GradScaler skips does not count.
    """

    needs_gradient: ClassVar[bool] = True
    norm: str = "l2"
    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in NORMS:
            expected = f"norm to be one of {', '.join(NORMS)}"
            raise Error("regrow.Gradient", expected, repr(self.norm), "pass one of them")
        whole("regrow.Gradient", "steps", self.steps, 1)

    def scores(self, held: Held, step: int) -> Tensor | None:
        return held.gradient_scores(self.norm)

    def growth(self, held: Held, step: int) -> Tensor | None:
        return held.gradient_norms(self.norm) if self.init == "zeros" else None


@named_init
@dataclass(frozen=True)
class GroupLasso(Regrow):
    """The proximal step of the penalty ``rate`` * sum of the blocks' l2 norms, after every step: blocks
    shrink by lr * rate, those with a smaller norm become exactly zero."""

    rate: float = 1e-3

    def after_step(self, held: Held, lr: float) -> None:
        held.shrink(lr * self.rate)


@named_init
@dataclass(frozen=True)
class PrunedDecay(Regrow):
    """Decays the pruned part of a 2:4 master after every step, apart from the optimizer's moments.

    Without ``adaptive`` by lr * rate * w (SR-STE, Zhou et al. 2021, arXiv 2102.04010, decoupled as AdamW's).
    With it by lr * rate in magnitude, at most to zero, divided by the root of the optimizer's second moment
    (of which 1 is the mean; none: undivided): weights that get little gradient vanish first, as with CAST's
    optimizer (Huang et al. 2025, arXiv 2509.25996). Raises Error for a negative rate.
    """

    rate: float = 2e-4
    adaptive: bool = False

    def __post_init__(self) -> None:
        not_negative("regrow.PrunedDecay", "rate", self.rate)

    def after_step(self, held: Held, lr: float) -> None:
        held.decay_pruned(lr * self.rate, self.adaptive)


def shrunk(blocks: Tensor, amount: float, dims: Sequence[int]) -> Tensor:
    """Returns blocks, whose elements are along ``dims``, with their l2 norms reduced by ``amount``; zero if
    the norm is smaller."""
    norm = blocks.float().square().sum(tuple(dims), keepdim=True).sqrt()
    return blocks * (1 - amount / norm.clamp(min=1e-12)).clamp(min=0).to(blocks.dtype)
