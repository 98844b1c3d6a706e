"""recover: trains what a sparse model stores, so that it does what its dense teacher does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._arguments import named_arguments
from .._checks import whole
from ..errors import Error
from ..patch.pack import pack_
from ..report.inputs import as_arguments, tensors_in
from .checkpoint import Checkpoint
from .distillation import Distillation
from .fingerprint import digest, digest_of_model
from .masks import Masks
from .result import Recovery

if TYPE_CHECKING:  # with it come the parts of all methods
    from ..sparsify.run import Run

_OP = "recover"
#: The loss of a model for a batch.
Loss = Callable[[nn.Module, Any], Tensor]
#: Entries of the result's losses: this many, whatever the number of steps.
_ENTRIES = 50


@named_arguments
def recover(
    model: nn.Module,
    teacher: nn.Module | Distillation | Loss,
    data: Iterable[Any],
    *,
    steps: int | None = None,
    minutes: float | None = None,
    lr: float = 1e-4,
    weight_decay: float = 0.0,
    warm_up: float = 0.05,
    max_norm: float = 1.0,
    rank: int | None = None,
    dtype: torch.dtype | None = None,
    method: Run | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    checkpoint: str | Path | None = None,
) -> Recovery:
    """Trains a sparse model in place until it does what its teacher does; what is pruned stays pruned.

    All Parameters that require a gradient train with AdamW. Layers whose values do not train by themselves
    (2:4, n:m; on a GPU all single elements) train a dense weight under their mask meanwhile, and are sparse
    again afterwards, whatever is raised.

    Args:
        model: a model with sparse layers, on the device on which it trains.
        teacher: the dense model, whose logits are learned; or a ``Distillation``, which compares other things
            too; or any function of (model, batch) that returns a loss.
        data: batches, each a tensor, a tuple of arguments or a mapping of keywords for the model. It is
            iterated again where it ends; a generator, which cannot be, ends the recovery. Tensors are moved
            to the model's device.
        steps, minutes: the budget; whichever ends first.
        lr: the largest rate: it rises linearly over the share ``warm_up`` of the budget, and falls by a
            cosine to zero at its end.
        weight_decay, max_norm: AdamW's decay, and the norm to which gradients are clipped.
        rank: trains adapters of this rank in the sparse layers in place of their weights (LoRA, Hu et al.
            2021), and merges them under the mask at the end. Everything outside of sparse layers is frozen
            meanwhile.
        dtype: the dtype of autocast, such as torch.bfloat16; None for none.
        method: the run of a method that changes masks in training, ``sparsify_(...).method``; it takes a step
            after each one of the optimizer, and the model is packed at the end.
        evaluate: a number for the model, before and after, in evaluation mode and without gradients.
        checkpoint: a file that holds the state of the recovery; a call that finds one goes on from it. With
            ``steps`` and data that comes in the same order, the result then has the same bits as without the
            interruption. It is written once a minute, and removed at the end.

    Returns what was done. Raises Error for no budget, data without a batch, and a loss or gradient that is
    not finite: the values are those of the last step that was, and in the first one nothing has changed.
    """
    if steps is None and minutes is None:
        raise Error(_OP, "a budget", "neither steps nor minutes", "pass minutes=10, for example")
    if steps is not None:
        whole(_OP, "steps", steps, 1)
    if minutes is not None and not minutes > 0:
        raise Error(_OP, "minutes above 0", repr(minutes), "pass the time that the recovery may take")
    if rank is not None:
        whole(_OP, "rank", rank, 1)
    if rank is not None and method is not None:
        raise Error(_OP, "rank or method", "both", "leave one out: adapters need a fixed mask")
    loss_of: Any = Distillation(teacher, logits=1.0) if isinstance(teacher, nn.Module) else teacher
    if isinstance(loss_of, Distillation) and loss_of.teacher is model:
        got, remedy = "the model itself", "keep a copy of the dense model: copy.deepcopy before pruning"
        raise Error(_OP, "a teacher beside the model", got, remedy)
    batches = _Batches(data, next(model.parameters()).device)
    _require_finite(_probe(model, loss_of, batches, dtype), 0)
    # before adapters are drawn
    options = [steps, minutes, lr, weight_decay, warm_up, rank]
    asked = "" if checkpoint is None else digest([options, digest_of_model(model)])
    result = Recovery()
    result.before = _evaluated(model, evaluate)
    masks = Masks(model, rank, method)
    result.masked = masks.names
    try:
        loop = _Loop(model, loss_of, batches, dtype, max_norm, method, masks.optimizer(lr, weight_decay))
        saved = None if checkpoint is None else Checkpoint(Path(checkpoint), loop, asked)
        loop.run(result, _Budget(steps, minutes), lr, warm_up, saved)
    finally:
        masks.end()
    if method is not None:
        pack_(model)
    result.after = _evaluated(model, evaluate)
    if saved is not None:
        saved.remove()
    return result


class _Budget:
    """Steps, minutes, or both."""

    def __init__(self, steps: int | None, minutes: float | None) -> None:
        self.steps, self.seconds = steps, None if minutes is None else minutes * 60

    def progress(self, steps: int, seconds: float) -> float:
        """Returns the share that is used."""
        by_steps = 0.0 if self.steps is None else steps / self.steps
        return max(by_steps, 0.0 if self.seconds is None else seconds / self.seconds)

    def ended(self, steps: int, seconds: float) -> str:
        """Returns what ended, "" if nothing did."""
        if self.steps is not None and steps >= self.steps:
            return "steps"
        return "minutes" if self.seconds is not None and seconds >= self.seconds else ""


class _Batches:
    """Batches on a device, over and over, and how many were taken of the current pass."""

    def __init__(self, data: Iterable[Any], device: torch.device) -> None:
        self.data, self.device, self.taken = data, device, 0
        self._one_pass = isinstance(data, Iterator)
        self._first: list[Any] = []
        self._iterator: Iterator[Any] | None = None

    def first(self) -> Any:
        """Returns the first batch, which ``next`` returns again. Raises Error where there is none."""
        iterator = iter(self.data)
        for batch in iterator:
            if self._one_pass:
                self._first.append(batch)
            return self._moved(batch)
        raise Error(_OP, "data with a batch", "none", "pass batches; a generator may be used up")

    def next(self) -> Any | None:
        """Returns the next batch; None where data that cannot be iterated again ended."""
        if self._first:
            self.taken += 1
            return self._moved(self._first.pop())
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self.data)
            for batch in self._iterator:
                self.taken += 1
                return self._moved(batch)
            if self._one_pass:
                return None
            self._iterator, self.taken = None, 0
        return None

    def skip(self, count: int) -> None:
        """Takes batches that an earlier process has used."""
        while self.taken < count and self.next() is not None:
            pass

    def _moved(self, batch: Any) -> Any:
        batch = as_arguments(_OP, batch)
        if isinstance(batch, Tensor):
            return batch.to(self.device)
        if isinstance(batch, dict):
            return {key: self._moved(value) if _moves(value) else value for key, value in batch.items()}
        if isinstance(batch, (tuple, list)):
            return tuple(self._moved(value) if _moves(value) else value for value in batch)
        return batch


def _moves(value: Any) -> bool:
    return any(True for _ in tensors_in(value))


class _Loop:
    """The steps of a recovery."""

    def __init__(
        self, model: nn.Module, loss_of: Loss, batches: _Batches, dtype: torch.dtype | None, max_norm: float,
        method: Run | None, optimizer: Optimizer,
    ) -> None:  # fmt: skip
        self.model, self.loss_of, self.batches, self.dtype = model, loss_of, batches, dtype
        self.max_norm, self.method, self.optimizer = max_norm, method, optimizer
        self.steps, self.seconds = 0, 0.0
        if method is not None:
            method.optimizers = [optimizer]

    def run(
        self, result: Recovery, budget: _Budget, lr: float, warm_up: float, saved: Checkpoint | None
    ) -> None:
        """Takes steps until the budget or the data ends."""
        if saved is not None:
            saved.resume()
        begin = time.monotonic() - self.seconds
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        modes = [(module, module.training) for module in self.model.modules()]
        sums, counted = torch.zeros((), device=self.batches.device), 0
        every = max(1, (budget.steps or 1000) // _ENTRIES)
        self.model.train()
        try:
            while not (ended := budget.ended(self.steps, self.seconds)):
                batch = self.batches.next()
                if batch is None:
                    ended = "data"
                    break
                rate = lr * _schedule(budget.progress(self.steps, self.seconds), warm_up)
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                self.optimizer.zero_grad()
                loss = _loss(self.model, self.loss_of, batch, self.dtype)
                if self.method is not None:
                    loss = loss + self.method.penalty()
                _require_finite(loss.detach(), self.steps)
                loss.backward()
                norm = nn.utils.clip_grad_norm_(parameters, self.max_norm)
                _require_finite(norm, self.steps, "gradient")
                self.optimizer.step()
                if self.method is not None:
                    self.method.step()
                self.steps, self.seconds = self.steps + 1, time.monotonic() - begin
                sums, counted = sums + loss.detach().float(), counted + 1
                if self.steps % every == 0:
                    result.losses[self.steps] = float(sums / counted)
                    sums, counted = torch.zeros_like(sums), 0
                if saved is not None:
                    saved.save_if_due(self.seconds)
        finally:
            self.optimizer.zero_grad()
            for module, training in modes:
                module.training = training
        if counted:
            result.losses[self.steps] = float(sums / counted)
        result.steps, result.seconds, result.ended_by = self.steps, self.seconds, ended
        if ended == "data":
            result.notes.append("the data ended before the budget: pass a list or a DataLoader")


def _schedule(progress: float, warm_up: float) -> float:
    """Returns the share of the largest rate at a share of the budget: a linear rise, then half a cosine."""
    if progress < warm_up:
        return max(progress, 1e-3) / warm_up
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warm_up) / max(1e-9, 1 - warm_up))))


def _loss(model: nn.Module, loss_of: Loss, batch: Any, dtype: torch.dtype | None) -> Tensor:
    device = next(model.parameters()).device.type
    with nullcontext() if dtype is None else torch.autocast(device, dtype):
        loss = loss_of(model, batch)
    if not isinstance(loss, Tensor) or loss.dim():
        got = f"{list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise Error(_OP, "a loss without dimensions", got, "take its mean")
    return loss


@torch.no_grad()
def _probe(model: nn.Module, loss_of: Loss, batches: _Batches, dtype: torch.dtype | None) -> Tensor:
    """Returns the loss of the first batch, with the random numbers put back: nothing changes by it."""
    from ..report.inputs import evaluated, gpus_of

    with torch.random.fork_rng(gpus_of(model)), evaluated(model):
        return _loss(model, loss_of, batches.first(), dtype)


def _require_finite(value: Tensor, step: int, kind: str = "loss") -> None:
    if not torch.isfinite(value):
        remedy = "look for NaN in the data and the teacher, or pass a smaller lr"
        raise Error(_OP, f"a finite {kind} in step {step}", repr(float(value)), remedy)


@torch.no_grad()
def _evaluated(model: nn.Module, evaluate: Callable[[nn.Module], float] | None) -> float | None:
    from ..report.inputs import evaluated

    if evaluate is None:
        return None
    with evaluated(model):
        return float(evaluate(model))
