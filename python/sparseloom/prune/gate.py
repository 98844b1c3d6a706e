"""Gate: evaluates a model after each stage, and stops where it got too much worse."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from ..errors import Error

_OP = "prune_"


class Gate:
    """Calls ``evaluate`` with the model. Raises Error for a ``max_loss`` without it, or below 0."""

    def __init__(
        self, evaluate: Callable[[nn.Module], float] | None, max_loss: float | None, allow: bool
    ) -> None:
        if evaluate is not None and not callable(evaluate):
            remedy = "pass a function of the model that returns a number: perplexity(batches)"
            raise Error(_OP, "evaluate to be callable", type(evaluate).__name__, remedy)
        if max_loss is not None and (evaluate is None or not max_loss >= 0):
            got = f"max_loss={max_loss!r}" + (" without evaluate" if evaluate is None else "")
            raise Error(_OP, "max_loss >= 0 beside evaluate", got, "pass evaluate=perplexity(batches)")
        self._evaluate, self._max_loss, self._allow = evaluate, max_loss, allow
        self._sign = -1 if getattr(evaluate, "higher_is_better", False) else 1
        self.stages: list[tuple[str, float]] = []

    def judge(self, stage: str, model: nn.Module) -> None:
        """Evaluates the model. Raises Error if it got worse than the first one by more than allowed, NaN
        included."""
        if self._evaluate is None:
            return
        training = [(module, module.training) for module in model.modules()]
        try:
            value = float(self._evaluate(model))
        finally:
            for module, was in training:
                module.training = was
        self.stages.append((stage, value))
        first = self.stages[0][1]
        loss = self._sign * (value - first)
        if self._max_loss is None or self._allow or loss <= self._max_loss:
            return
        got = f"{value:.5g} once {stage}, from {first:.5g}" if not math.isnan(value) else f"NaN once {stage}"
        remedy = "keep more, or pass a larger max_loss or allow_loss=True"
        raise Error(_OP, f"an evaluation that gets worse by at most {self._max_loss:g}", got, remedy)
