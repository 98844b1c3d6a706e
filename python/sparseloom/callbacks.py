"""Callbacks that take the steps of a ``sparsify.Run`` in the training loops of transformers' Trainer and of
Lightning, and one that lets a model recover in a Trainer. Neither package is needed to import this module."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from torch import nn

from ._arguments import named_arguments
from .recover import Distillation
from .sparsify.run import Run


@named_arguments
def trainer_callback(run: Run) -> Any:
    """Returns a transformers.TrainerCallback that takes a step of ``run`` after each one of the optimizer.

    The optimizer is the Trainer's own, whose state moves with the blocks. A resumed training goes on at its
    global step; topologies and masks come with the checkpoint of the model. ``state.log_history`` has
    ``flip_rate``, the mean of ``Run.flip_rates``, where there are 2:4 weights that train.

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

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.log_history and (rates := run.flip_rates()):  # the entry was made before this call
                state.log_history[-1]["flip_rate"] = sum(rates.values()) / len(rates)

    return Steps()


@named_arguments
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


def recovery_callback(model: nn.Module, loss: Distillation, minutes: float | None = None) -> Any:
    """Returns a transformers.TrainerCallback that lets a sparse model learn from its teacher in a Trainer.

    While it trains, the loss that the model returns, or its missing one, becomes the ``Distillation``; give
    that ``labels=`` for a share of the model's own. Stored blocks stay the only ones, as in any training;
    call ``unpack_`` before and ``pack_`` after it for layers whose values do not train, such as 2:4.
    ``minutes`` ends the training early.

    >>> teacher = copy.deepcopy(model)
    >>> sparseloom.prune_(model, {r".*fc[12]": BlockSparse(64, density=0.5)}, data=batches)
    >>> learn = recovery_callback(model, Distillation(teacher, logits=1.0, labels=0.1), minutes=10)
    >>> Trainer(model, ..., callbacks=[learn])
    """
    from transformers import TrainerCallback

    class Learn(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.hooks: list[Any] = []
            self.end = math.inf

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.end = math.inf if minutes is None else time.monotonic() + 60 * minutes
            device = next(model.parameters()).device
            loss.teacher.to(device)
            self.on_train_end(args, state, control)  # of a training that raised
            self.hooks = loss.attach(model, args.gradient_accumulation_steps)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = control.should_training_stop or time.monotonic() >= self.end

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for hook in self.hooks:
                hook.remove()
            self.hooks = []

    return Learn()
