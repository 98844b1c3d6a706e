"""Score, the first part of a method: the value of each block."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._arguments import named_init
from .._checks import share
from ..errors import Error
from ..ops.scores import NORMS, block_scores
from .context import Context
from .grid import elements

if TYPE_CHECKING:
    from .held import Held


class Score(ABC):
    """Computes a value for each block of a weight; a method keeps the blocks with the highest ones."""

    @abstractmethod
    def __call__(self, context: Context) -> Tensor:
        """Returns float32 [block rows, block columns] on the CPU."""

    def of_blocks(self, held: Held) -> Tensor | None:
        """Returns float32 [slots] on the weight's device, for a weight with ``moves_on_device``; None if the
        score needs the host."""
        return None


@named_init
@dataclass(frozen=True)
class Norm(Score):
    """The norm of the block's values: "l1" (the sum of |w|), "l2" or "max".

    A block at a ragged edge counts as if its missing elements were like the others: without that, edges would
    always be pruned first. Signs never count: a block of large negative values is as strong as its opposite.
    """

    norm: str = "l2"

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            expected = f"norm to be one of {', '.join(NORMS)}"
            raise Error("scores.Norm", expected, repr(self.norm), "pass one of them")

    def __call__(self, context: Context) -> Tensor:
        scores = block_scores(context.weight, context.block, self.norm)
        (rows, cols), (bm, bn) = context.shape, context.block
        if self.norm == "max" or not (rows % bm or cols % bn):
            return scores
        return scores * self._missing(context.shape, context.block)

    def of_blocks(self, held: Held) -> Tensor | None:
        (rows, cols), (bm, bn) = held.shape, held.block
        norms = held.block_norms(self.norm)
        if self.norm == "max" or not (rows % bm or cols % bn):
            return norms
        factors = self._missing(held.shape, held.block).to(norms.device, non_blocking=True)
        return norms * factors.flatten()[held.cells()]

    def _missing(self, shape: tuple[int, int], block: tuple[int, int]) -> Tensor:
        """Returns the factor by which the norm of each block would grow with its missing elements."""
        missing = block[0] * block[1] / elements(shape, block)
        return missing if self.norm == "l1" else missing.sqrt()


@named_init
@dataclass(frozen=True)
class Learned(Score):
    """A Parameter with one score for each block, trained beside the weight or in its place.

    Args:
        init: "kaiming" (uniform, as superblock draws them), "zeros" (movement pruning), or "open" (the log
            odds of hard-concrete gates that drop ``drop`` of the blocks).
        drop: see ``init``.
    """

    init: str = "kaiming"
    drop: float = 0.5

    def __post_init__(self) -> None:
        if self.init not in ("kaiming", "zeros", "open"):
            raise Error(
                "scores.Learned", "init 'kaiming', 'zeros' or 'open'", repr(self.init), "pass one of them"
            )
        if not 0 < share("scores.Learned", self.drop, "drop") < 1:
            remedy = "its log odds are infinite at 0 and 1: pass drop=0.1, say"
            raise Error("scores.Learned", "drop in (0, 1)", repr(self.drop), remedy)

    def start(self, rows: int, cols: int) -> Tensor:
        """Returns the first scores of a grid [block rows, block columns], drawn from torch's default
        generator."""
        scores = torch.zeros(rows, cols, dtype=torch.float32, device="cpu")
        if self.init == "kaiming":
            bound = 1 / math.sqrt(max(1, cols))  # kaiming_uniform_ with a = sqrt(5)
            scores.uniform_(-bound, bound)
        elif self.init == "open":
            scores.normal_(math.log((1 - self.drop) / self.drop), 0.01)
        return scores

    def __call__(self, context: Context) -> Tensor:
        return context.need("learned").detach().float().cpu()
