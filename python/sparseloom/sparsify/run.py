"""Run: methods at work on the weights of a model, one step after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._optimizers import as_optimizers
from ..errors import Error
from .held import Held
from .method import Method


class Run:
    """What ``sparsify_(...).method`` is: counts steps and changes blocks when their schedules say so.

    Call ``step()`` after each step of the optimizer, or ``attach(optimizer)`` once. ``state_dict`` has the
    count; topologies, masks, scores and moments are saved with the model and the optimizer, so that a resumed
    run is the same to the last bit.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Method, Sequence[Held]]],
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
    ) -> None:
        self._optimizers = None if optimizer is None else as_optimizers("Run", optimizer)
        self.steps = 0
        self._groups = [(method, list(weights)) for method, weights in groups]
        self._waiting = [False] * len(self._groups)  # a change was due, and its gradient was not finite
        for number, held in enumerate(self.weights):
            held.number = number
        self._attached: Any = None
        with torch.no_grad():
            for method, weights in self._groups:
                method.begin(weights)
        self._watch()

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers whose state moves with the blocks. They may be assigned."""
        return self._optimizers or []

    @optimizers.setter
    def optimizers(self, optimizer: Optimizer | Sequence[Optimizer]) -> None:
        self._optimizers = as_optimizers("Run", optimizer)

    @property
    def weights(self) -> list[Held]:
        """The weights of all methods."""
        return [held for _, weights in self._groups for held in weights]

    def attach(self, optimizer: Optimizer) -> Run:
        """Takes a step after each one of the optimizer, whose state moves with the blocks; returns self. A
        step that GradScaler skips does not count then."""
        (found,) = as_optimizers("Run.attach", optimizer)
        if self._attached is not None:
            raise Error(
                "Run.attach", "one optimizer that gives the pace", "another one", "call step() yourself"
            )
        self._attached = found.register_step_post_hook(lambda *_: self.step())
        if all(found is not each for each in self.optimizers):
            self.optimizers = [*self.optimizers, found]
        return self

    def follow(self, copy: nn.Module) -> Run:
        """Lets the blocks of a copy of the model, such as an average of its weights
        (torch.optim.swa_utils.AveragedModel's ``module``), move with those of the model; returns self. The
        copy has the model's blocks now. Raises Error where it lacks a layer that the run drives."""
        for held in self.weights:
            held.follow(copy)
        return self

    def detach(self) -> None:
        """Undoes ``attach``, and lets go of the layers."""
        if self._attached is not None:
            self._attached.remove()
            self._attached = None
        for held in self.weights:
            held.watching = False
            held.pairs.clear()

    @torch.no_grad()
    def step(self) -> None:
        """Counts a step of the optimizer, and makes the changes that are due. Where one needs a gradient and
        this step had none that is finite, it is made after the next step that has. Raises Error for scores
        that are NaN: nothing of that method has changed then. Raises Error where no optimizer is known whose
        state would have to move."""
        if self._optimizers is None and not all(m.gradient.keeps_pruned for m, _ in self._groups):
            remedy = "pass optimizer= to sparsify_, assign run.optimizers (may be []), or attach one"
            raise Error("Run.step", "an optimizer whose state moves with the blocks", "none", remedy)
        self.steps += 1
        for number, (method, weights) in enumerate(self._groups):
            if method.regrow is not None:
                for held in weights:
                    method.regrow.after_step(held, held.learning_rate(self.optimizers))
            if self._waiting[number] or method.schedule.due(self.steps):
                self._waiting[number] = not method.change(weights, self.steps, self.optimizers)
        self._watch()

    def penalty(self) -> Tensor | float:
        """Returns what the methods add to the loss: 0.0 where none of them does."""
        found = [each for held in self.weights if (each := held.penalty()) is not None]
        return sum(found[1:], found[0]) if found else 0.0

    def densities(self) -> dict[str, float]:
        """Returns the share of present blocks of each weight now."""
        return {held.name: float(held.present().float().mean()) for held in self.weights}

    def state_dict(self) -> dict[str, Any]:
        """Returns plain data for ``load_state_dict``."""
        return {"steps": self.steps, "waiting": list(self._waiting)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from that step. Load the model and the optimizer, too. Raises Error for the state of a run
        of other methods."""
        if len(state["waiting"]) != len(self._groups):
            got = f"{len(state['waiting'])} methods"
            raise Error("Run", f"a state of {len(self._groups)} methods", got, "call sparsify_ as before")
        self.steps, self._waiting = int(state["steps"]), list(state["waiting"])
        self._watch()

    def _watch(self) -> None:
        """Lets layers keep the operands of the next step where a change after it, or soon, needs them."""
        for waiting, (method, weights) in zip(self._waiting, self._groups, strict=True):
            ahead = method.regrow.steps if method.regrow is not None and method.regrow.needs_gradient else 0
            due = method.schedule.due
            wanted = ahead > 0 and (waiting or any(due(self.steps + 1 + i) for i in range(ahead)))
            goes_on = wanted and not waiting and not due(self.steps)
            for held in weights:
                if not goes_on:
                    held.pairs.clear()
                held.watching = wanted
