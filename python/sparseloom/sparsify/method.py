"""Method: combines five parts to a method of sparse training, and changes blocks with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._arguments import named_init
from ..errors import Error
from .gradients import Gradient, Stored
from .held import Held
from .regrow import Regrow
from .schedules import Constant, Schedule
from .scores import Norm, Score
from .select import NM, Select, Semi24, TopK


@named_init
@dataclass(frozen=True)
class Method:
    """A method of sparse training, for ``BlockSparse(method=...)``.

    Args:
        score: the value of each block.
        select: which blocks are kept within a budget.
        schedule: when the blocks change, and to what budget.
        gradient: which tensor trains, and which gradient it gets.
        regrow: which blocks grow again, and further changes after a step; None for nothing.

    Raises Error for parts that cannot be combined.
    """

    score: Score = field(default_factory=Norm)
    select: Select = field(default_factory=TopK)
    schedule: Schedule = field(default_factory=Constant)
    gradient: Gradient = field(default_factory=Stored)
    regrow: Regrow | None = None

    def __post_init__(self) -> None:
        parts = {"score": Score, "select": Select, "schedule": Schedule, "gradient": Gradient}
        for name, kind in parts.items():
            if not isinstance(part := getattr(self, name), kind):
                raise Error("Method", f"{name} to be a {kind.__name__}", repr(part), f"see sparsify.{name}s")
        if self.regrow is not None and not isinstance(self.regrow, Regrow):
            raise Error("Method", "regrow to be a Regrow or None", repr(self.regrow), "see sparsify.regrow")
        if isinstance(self.select, (NM, Semi24)) and self.regrow is not None and self.regrow.share_at(0.0):
            got = type(self.regrow).__name__
            raise Error(
                "Method",
                f"no regrowth beside select.{type(self.select).__name__}",
                got,
                "use select.TopK() to regrow",
            )
        by_age = self.regrow is not None and (self.regrow.warm_up or self.regrow.grace)
        if by_age and self.gradient.dense_master:
            got = f"{type(self.gradient).__name__}, whose blocks have no step counts of their own"
            raise Error("Method", "gradients.Stored() beside warm_up and grace", got, "leave them out")
        one_budget = isinstance(self.select, TopK) and self.select.scope == "global"
        if one_budget and not self.gradient.dense_master:
            got = 'gradients.Stored() with scope="global"'
            raise Error("Method", "stored blocks, whose number is fixed for each layer", got, "use Masked()")

    def require_target(self, density: float | None, roomy: bool = False) -> float:
        """Returns the density, 1 if the method decides it. Raises Error if such a method is given a density,
        and if another one is not. Raises Error if the number of stored blocks would change, unless the layer
        is ``roomy``: it has a capacity."""
        decides = self.gradient.decides or not self.select.takes_density
        if decides != (density is None):
            expected = "no density, because a threshold or a penalty decides" if decides else "a density"
            remedy = "leave it out" if decides else "pass density=, the share of blocks that stay"
            raise Error("Method", expected, "none" if density is None else str(density), remedy)
        fixed = density is not None and (roomy or self.schedule.is_fixed(density))
        if not self.gradient.dense_master and not fixed:
            expected = "a schedule with one density, because the number of stored blocks is fixed"
            remedy = "pass gradient=gradients.Masked(), or capacity= with the most blocks that there will be"
            raise Error("Method", expected, repr(self.schedule), remedy)
        return 1.0 if density is None else density

    def begin(self, weights: Sequence[Held]) -> None:
        """Gives weights the budget of step 0, before the first step."""
        budgets = [self.schedule.budget(0, held.target) for held in weights]
        progress = self.schedule.progress(0)
        if self._adjusted(weights, budgets, progress) or all(
            self.schedule.is_fixed(held.target) for held in weights
        ):
            return
        masks = self.select([self._score(held, 0) for held in weights], budgets)
        for held, mask in zip(weights, masks, strict=True):
            held.move(mask, [], None)

    def needs_gradient(self, step: int) -> bool:
        """Returns whether the change after that step uses the gradient of all blocks."""
        regrow = self.regrow
        if regrow is None or not regrow.needs_gradient:
            return False
        return regrow.share_at(self.schedule.progress(step)) > 0

    def change(self, weights: Sequence[Held], step: int, optimizers: Sequence[Optimizer]) -> bool:
        """Moves the weights of the method to the topology that is due after that step. Returns False, with
        nothing changed, if the gradient that it needs was not finite."""
        budgets = [self.schedule.budget(step, held.target) for held in weights]
        progress = self.schedule.progress(step)
        if self._adjusted(weights, budgets, progress):
            for held in weights:
                _require_numbers(held.name, held.learned())
            return True
        by_layer = isinstance(self.select, Semi24) and type(self.score) is Norm
        if by_layer and all(held.refreshes for held in weights):
            for held, budget in zip(weights, budgets, strict=True):
                held.refresh(budget)
            return True
        share = 0.0 if self.regrow is None else self.regrow.share_at(progress)
        if self._may_change_on_device(weights):
            done = self._change_on_device(weights, budgets, share, step, optimizers)
            if done is not None:
                return done
        scores = [self._score(held, step) for held in weights]
        grown: list[Tensor | None] = [None] * len(weights)
        if self.regrow is None or not share:
            masks = self.select(scores, budgets)
        else:
            growth = [self.regrow.scores(held, step) for held in weights]
            known_growth = [score for score in growth if score is not None]
            if len(known_growth) < len(growth):
                return False
            for held, score in zip(weights, scores, strict=True):
                if (young := self._young(held, optimizers)) is not None:
                    present = held.present()  # in the order of the slots, of which the first are taken
                    score[present] = score[present].masked_fill(young.cpu()[: int(present.sum())], math.inf)
            masks = self._regrown(weights, scores, budgets, share, known_growth)
            grown = [self.regrow.grown(held, step, mask) for held, mask in zip(weights, masks, strict=True)]
        for held, mask, start in zip(weights, masks, grown, strict=True):
            held.move(mask, optimizers, start)
        return True

    def _may_change_on_device(self, weights: Sequence[Held]) -> bool:
        layerwise = isinstance(self.select, TopK) and self.select.scope == "layer"
        return layerwise and all(held.moves_on_device for held in weights)

    def _change_on_device(
        self,
        weights: Sequence[Held],
        budgets: Sequence[float],
        share: float,
        step: int,
        optimizers: Sequence[Optimizer],
    ) -> bool | None:
        """Changes the weights on their devices, without waiting, and returns True. With nothing changed,
        returns None if a part of the method needs the host, and False if the gradient is not finite, which is
        checked only on the CPU, where it needs no waiting."""
        scores = [self.score.of_blocks(held) for held in weights]
        growth: list[Tensor | None]
        if self.regrow is None or not share:  # a larger budget adds any blocks
            growth = [torch.zeros(held.grid, dtype=torch.float32, device=held.device) for held in weights]
        else:
            growth = [self.regrow.growth(held, step) for held in weights]
        pairs = [(a, b) for a, b in zip(scores, growth, strict=True) if a is not None and b is not None]
        if len(pairs) < len(weights):
            return None
        if not all(bool((grown < math.inf).all()) for _, grown in pairs if grown.is_cpu):
            return False
        for held, budget, (score, grown) in zip(weights, budgets, pairs, strict=True):
            if (young := self._young(held, optimizers)) is not None:
                score = score.masked_fill(young, math.inf)
            held.drop_and_grow(_count(budget, held), share, score, grown, optimizers)
        return True

    def _young(self, held: Held, optimizers: Sequence[Optimizer]) -> Tensor | None:
        """Returns which slots have a block within its grace: bool on the weight's device; None without any.
        The oldest blocks, those of the start, have none: else the first changes could drop nothing."""
        grace = 0 if self.regrow is None else self.regrow.grace
        ages = held.ages(optimizers) if grace else None
        return None if ages is None or not len(ages) else ages < ages.max().clamp(max=grace)

    def _adjusted(self, weights: Sequence[Held], budgets: Sequence[float], progress: float) -> bool:
        """Tells the gates of the weights their budgets. Returns whether gates decide on the masks."""
        gated = [held.adjust(budget, progress) for held, budget in zip(weights, budgets, strict=True)]
        return any(gated)

    def _score(self, held: Held, step: int) -> Tensor:
        scores = self.score(held.context(step))
        _require_numbers(held.name, scores)
        return scores

    def _regrown(
        self,
        weights: Sequence[Held],
        scores: Sequence[Tensor],
        budgets: Sequence[float],
        share: float,
        growth: Sequence[Tensor],
    ) -> list[Tensor]:
        """Keeps the best of the existing blocks, and fills the budget from all others by ``growth``. A block
        that was just dropped may come back, with its values."""
        counts = [_count(budget, held) for budget, held in zip(budgets, weights, strict=True)]
        stays, keeps = [], []
        for held, score, count in zip(weights, scores, counts, strict=True):
            present = held.present()
            stay = min(int(present.sum()), count)
            stays.append(score.masked_fill(~present, -math.inf))
            keeps.append(stay - int(share * stay))
        kept_masks = self.select.take(stays, keeps)
        candidates = [
            candidate.masked_fill(mask, -math.inf) for candidate, mask in zip(growth, kept_masks, strict=True)
        ]
        missing = [count - int(mask.sum()) for count, mask in zip(counts, kept_masks, strict=True)]
        new_masks = self.select.take(candidates, missing)
        return [mask | grown for mask, grown in zip(kept_masks, new_masks, strict=True)]


def _require_numbers(name: str, scores: Tensor | None) -> None:
    if scores is not None and bool(scores.isnan().any()):
        remedy = "the blocks stay where they are: look for a NaN in the weight or its gradient"
        raise Error("Method", f"scores of {name} without NaN", "a NaN", remedy)


def _count(budget: float, held: Held) -> int:
    """Returns the number of blocks of a density."""
    return math.floor(budget * held.grid[0] * held.grid[1] + 0.5)
