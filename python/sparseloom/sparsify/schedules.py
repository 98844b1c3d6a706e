"""Schedule, the third part of a method: at which steps the blocks change, and to what budget."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real

from .._arguments import named_init, renamed_init
from .._checks import whole
from ..errors import Error


class Schedule(ABC):
    """Steps are counted from 1, after the optimizer's; the weight starts with the budget of step 0."""

    @abstractmethod
    def due(self, step: int) -> bool:
        """Returns whether the blocks change after that step."""

    def budget(self, step: int, target: float) -> float:
        """Returns the budget from that step on, given the density that the weight was asked for."""
        return target

    def progress(self, step: int) -> float:
        """Returns the finished share of the schedule, from 0 to 1, which shares, penalties and temperatures
        follow."""
        return 0.0

    def never_due(self) -> bool:
        """Returns whether no step changes anything, because ``every`` is too long."""
        return False

    def is_fixed(self, target: float) -> bool:
        """Returns whether the budget is ``target`` at every step."""
        return type(self).budget is Schedule.budget


def _require(schedule: Schedule, *steps: float, every: int = 1) -> None:
    """Raises Error unless the steps are numbers that rise from 0, and ``every`` is a whole one from 1."""
    name = f"schedules.{type(schedule).__name__}"
    whole(name, "every", every, 1)
    numbers = all(isinstance(step, Real) for step in steps)
    if not numbers or not all(low <= high for low, high in pairwise((0, *steps))):
        raise Error(name, "0 <= start <= end, in steps", repr(schedule), "pass start=0 and end=1000")


@renamed_init(end_step="end")
@dataclass(frozen=True)
class Constant(Schedule):
    """The same density throughout; a change every ``every`` steps, after ``start`` and before ``end`` (None:
    without end)."""

    every: int = 100
    end: int | None = None
    start: int = 0

    def __post_init__(self) -> None:
        end = self.start if self.end is None else self.end
        _require(self, self.start, end, every=self.every)

    def due(self, step: int) -> bool:
        open_end = self.end is None or step < self.end
        return step > self.start and (step - self.start) % self.every == 0 and open_end

    def never_due(self) -> bool:
        return self.end is not None and self.start + self.every >= self.end

    def progress(self, step: int) -> float:
        if self.end is None:
            return 0.0
        return min(1.0, max(0.0, (step - self.start) / max(1, self.end - self.start)))


@renamed_init(begin="start")
@dataclass(frozen=True)
class Polynomial(Schedule):
    """From density ``initial`` at step ``start`` to the target at ``end``, in changes every ``every`` steps:
    target + (initial - target) (1 - progress)^power. The last change is at ``end`` exactly."""

    start: int = 0
    end: int = 1000
    every: int = 10
    initial: float = 1.0
    power: int = 3

    def __post_init__(self) -> None:
        _require(self, self.start, self.end, every=self.every)

    def due(self, step: int) -> bool:
        at_pace = (step - self.start) % self.every == 0
        return step == self.end or (self.start <= step < self.end and at_pace)

    def progress(self, step: int) -> float:
        if step >= self.end:
            return 1.0
        return max(0.0, (step - self.start) / max(1, self.end - self.start))

    def budget(self, step: int, target: float) -> float:
        remaining = (1 - self.progress(step)) ** self.power
        return target + (self.initial - target) * remaining

    def is_fixed(self, target: float) -> bool:
        return self.initial == target


@renamed_init(begin="start")
@dataclass(frozen=True)
class Cubic(Polynomial):
    """Gradual pruning (Zhu & Gupta 2017): fast while much is left, slow at the end."""


@renamed_init(warm_up="start", phase="every")
@dataclass(frozen=True)
class Alternating(Schedule):
    """AC/DC (Peste et al. 2021): dense until ``start``, then phases of ``every`` steps, compressed and dense
    in turn. The phase that reaches ``end`` is compressed and lasts."""

    start: int
    every: int
    end: int

    def __post_init__(self) -> None:
        _require(self, self.start, self.end, every=self.every)

    def compressed(self, step: int) -> bool:
        """Returns whether the weight is sparse from that step on."""
        if step >= self.end:
            return True
        return step >= self.start and (step - self.start) // self.every % 2 == 0

    def due(self, step: int) -> bool:
        return step > 0 and self.compressed(step) != self.compressed(step - 1)

    def budget(self, step: int, target: float) -> float:
        return target if self.compressed(step) else 1.0

    def progress(self, step: int) -> float:
        return min(1.0, step / max(1, self.end))

    def is_fixed(self, target: float) -> bool:
        return target == 1.0


@named_init
@dataclass(frozen=True)
class Sharpening(Schedule):
    """From ``start`` on the density falls linearly from 1 to the target in ``warm_up`` steps; the progress,
    which a gate's sharpness follows, goes on to ``end``. The budget changes every ``every`` steps."""

    warm_up: int
    end: int
    every: int = 1
    start: int = 0

    def __post_init__(self) -> None:
        _require(self, self.start, self.end, every=self.every)
        _require(self, self.warm_up)
        _require(self, self.start + self.warm_up, self.end)

    def due(self, step: int) -> bool:
        at_pace = (step - self.start) % self.every == 0
        return step == self.end or (self.start <= step < self.end and at_pace)

    def progress(self, step: int) -> float:
        return min(1.0, max(0.0, (step - self.start) / max(1, self.end - self.start)))

    def budget(self, step: int, target: float) -> float:
        done = max(0, step - self.start) / max(1, self.warm_up)
        return target + (1 - target) * max(0.0, 1 - done)

    def is_fixed(self, target: float) -> bool:
        return False


@renamed_init(begin="start")
@dataclass(frozen=True)
class Rising(Schedule):
    """A threshold that rises from 0, for select.Threshold (Narang et al. 2017): by ``rate`` for each change
    between ``start`` and ``turn``, then by ``steeper`` times as much up to ``end``."""

    rate: float
    start: int
    turn: int
    end: int
    every: int = 10
    steeper: float = 1.5

    def __post_init__(self) -> None:
        _require(self, self.start, self.turn, self.end, every=self.every)

    def due(self, step: int) -> bool:
        return self.start <= step <= self.end and (step - self.start) % self.every == 0

    def never_due(self) -> bool:
        return self.every > self.end - self.start

    def budget(self, step: int, target: float) -> float:
        def changes(until: int) -> int:
            return max(0, min(step, until) - self.start) // self.every

        flat = changes(self.turn)
        return self.rate * (flat + self.steeper * (changes(self.end) - flat))

    def progress(self, step: int) -> float:
        return min(1.0, max(0.0, (step - self.start) / max(1, self.end - self.start)))

    def is_fixed(self, target: float) -> bool:
        return False


def cosine(progress: float) -> float:
    """Returns the factor of a share at that progress: from 1 to 0 along half a cosine."""
    return (1 + math.cos(math.pi * min(1.0, progress))) / 2
