"""What the trainings of char-lstm and pixelcnn share: parts with a loss each, a warm-up and a cosine, and
states that a run goes on from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sparseloom.errors import Error

from .runs import Run, steps_of
from .steps import Graph, device_name, rate

WARM_UP = 0.02
#: Parts of a run, each of which has one loss in the outcome, and may be the last before a stop.
PARTS = 100


class PartedTraining:
    """A runs.Training of one run at one step. ``setting`` is a dataclass with the ``steps`` of a whole run. A
    subclass makes ``net`` and ``optimizer``, and says what a batch is and what its gradients are."""

    #: The experiment's name in errors.
    op: ClassVar[str]
    #: What a loss is divided by in the outcome.
    unit: ClassVar[float] = 1.0
    net: nn.Module
    optimizer: torch.optim.Optimizer
    graph: Graph | None = None

    def __init__(self, run: Run, setting: Any, device: torch.device) -> None:
        self.run, self.setting, self.device = run, setting, device
        self.steps = steps_of(run, setting.steps)
        self.step, self.seconds = 0, 0.0
        self.losses: list[float] = []  # the mean of each part

    def train(self, stop: Callable[[], bool], save: Callable[[], None]) -> bool:
        """Trains until all steps are done, and returns True, or until ``stop`` says so after a part. Calls
        ``save`` then."""
        part = max(1, self.steps // PARTS)
        self.net.train()
        while self.step < self.steps:
            begin, count = time.monotonic(), min(part, self.steps - self.step)
            total = torch.zeros((), device=self.device)
            for _ in range(count):
                total += self._step()
            self.losses.append(float(total) / count / self.unit)
            self.seconds += time.monotonic() - begin
            if stop():
                save()
                break
        return self.step == self.steps

    def _step(self) -> Tensor:
        """Takes one step, and returns its loss."""
        batch = self._batch()
        for group in self.optimizer.param_groups:
            group["lr"] = self.run.rate * rate((self.step + 1) / self.steps, WARM_UP)
        if self.graph is None:
            self.optimizer.zero_grad()
            loss = self._gradients(*batch)
        else:
            loss = self.graph(*batch)
        self._update()
        self.step += 1
        return loss

    def _batch(self) -> tuple[Tensor, Tensor]:
        """Returns the rows and uniform numbers of this step's batch."""
        raise NotImplementedError

    def _gradients(self, rows: Tensor, u: Tensor) -> Tensor:
        """Adds the gradients of a batch, and returns its loss."""
        raise NotImplementedError

    def _update(self) -> None:
        """Changes the parameters by their gradients."""
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the steps that are left depend on."""
        return {
            "run": tuple(self.run), "setting": asdict(self.setting), "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step, "losses": self.losses, "seconds": self.seconds,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there. Raises Error for the state of another run or setting."""
        expected = {"run": tuple(self.run), "setting": asdict(self.setting)}
        got = {name: state[name] for name in expected}
        if got != expected:
            raise Error(self.op, f"a checkpoint of {expected}", f"one of {got}", "pass another --out")
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.losses, self.seconds = state["step"], state["losses"], state["seconds"]

    def _reached(self, found: Mapping[str, float], **more: Any) -> dict[str, Any]:
        """Returns an outcome with these results, None where they are no number."""
        return {
            **self.run._asdict(), "setting": asdict(self.setting),
            **{name: _number(each) for name, each in found.items()}, **more,
            "steps": self.steps, "seconds": self.seconds, "losses": [_number(each) for each in self.losses],
            "device": device_name(self.device), "torch": torch.__version__,
        }  # fmt: skip


def _number(x: float) -> float | None:
    return x if math.isfinite(x) else None
