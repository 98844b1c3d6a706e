"""Callbacks that take the steps of a ``sparsify.Run`` in the training loops of transformers' Trainer and of
Lightning. Neither package is needed to import this module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .sparsify.run import Run


def trainer_callback(run: Run) -> Any:
    """Returns a transformers.TrainerCallback that takes a step of ``run`` after each one of the optimizer.

    The optimizer is the Trainer's own, whose state moves with the blocks. A resumed training goes on at its
    global step; topologies and masks come with the checkpoint of the model.

    >>> done = sparseloom.sparsify_(model, {r".*fc[12]": BlockSparse(64, density=0.2, method=rigl)})
    >>> Trainer(model, ..., callbacks=[trainer_callback(done.method)])
    """
    from transformers import TrainerCallback

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            optimizer = kwargs["optimizer"]
            run.optimizers = [getattr(optimizer, "optimizer", optimizer)]  # what accelerate has wrapped
            if state.global_step != run.steps:
                waiting = run.state_dict()["waiting"]
                run.load_state_dict({"steps": state.global_step, "waiting": [False] * len(waiting)})

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            run.step()

    return Steps()


def lightning_callback(run: Run | Callable[[], Run]) -> Any:
    """Returns a lightning.Callback that takes a step of ``run`` after each one of the optimizers; its state
    is part of Lightning's checkpoints.

    ``run`` may be a function that returns it, for modules that call sparsify_ in ``configure_model``.
    """
    from lightning import Callback

    class Steps(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.seen = 0
            self.state: dict[str, Any] = {}

        @property
        def run(self) -> Run:
            return run if isinstance(run, Run) else run()

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.run.optimizers = list(trainer.optimizers)
            self.seen = trainer.global_step
            if self.state:
                self.run.load_state_dict(self.state)
                self.state = {}

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step > self.seen:  # else the batch was accumulated only
                self.seen = trainer.global_step
                self.run.step()

        def state_dict(self) -> dict[str, Any]:
            return self.run.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.state = state_dict

    return Steps()
