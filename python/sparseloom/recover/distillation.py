"""Distillation: the loss of a student beside its teacher by logits, hidden states, embeddings and labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .. import ops
from .._arguments import named_init
from .._checks import not_negative
from ..errors import Error
from ..report.inputs import evaluated, run
from ..sparsify.distillation import distillation_loss
from .padding import Paddings, counted

_OP = "Distillation"
#: Makes embeddings [batch, features] of what a model returned for a batch.
Embed = Callable[[Any, Any], Tensor]


@named_init
class Distillation:
    """The loss that trains a student to match its teacher: a weighted sum of up to four terms.

    - ``logits``: T^2 KL(softmax(teacher / T) || softmax(student / T)), mean over all but the classes (Hinton
      et al. 2015). For language models these are the logits of every token.
    - ``hidden``: |student - teacher|^2 / |teacher|^2 of the outputs of modules of the same name, mean over
      them (a form of FitNets, Romero et al. 2015). ``at`` is a regex, matched whole with their names.
    - ``embeddings``: 1 - cosine of the embeddings of student and teacher, mean over the batch.
    - ``labels``: the student's own cross entropy: its ``loss`` where the model returns one.

    Terms of weight 0 are left out. The teacher runs in evaluation mode and without gradients. Tokens that the
    batch's ``attention_mask`` [batch, tokens] leaves out (of a decoder beside an encoder its
    ``decoder_attention_mask``) count in no term; a term of logits or hidden states
    then takes outputs [batch, tokens, ...].

    Args:
        teacher: the dense model; its modules have the student's names.
        logits, hidden, embeddings, labels: weights of the terms, each >= 0.
        at: regex of the modules whose outputs are compared; needed for ``hidden``.
        temperature: T.
        embed: makes embeddings [batch, features] of what the model returned and the batch; left out, the mean
            over tokens of ``last_hidden_state``, or the output itself.

    Raises Error for weights that leave nothing, and for a regex that matches no module of the teacher.
    """

    def __init__(
        self,
        teacher: nn.Module,
        *,
        logits: float = 0.0,
        hidden: float = 0.0,
        embeddings: float = 0.0,
        labels: float = 0.0,
        at: str | None = None,
        temperature: float = 2.0,
        embed: Embed | None = None,
    ) -> None:
        given = {"logits": logits, "hidden": hidden, "embeddings": embeddings, "labels": labels}
        self.weights = {name: not_negative(_OP, name, weight, "1.0") for name, weight in given.items()}
        if not any(self.weights.values()):
            raise Error(_OP, "a weight above 0", "none", "pass logits=1.0, for example")
        if not not_negative(_OP, "temperature", temperature, "2.0"):
            raise Error(_OP, "a temperature above 0", repr(temperature), "pass temperature=2.0, for example")
        self.names: list[str] = []
        if hidden:
            self.names = [name for name, _ in teacher.named_modules() if at and re.fullmatch(at, name)]
            if not self.names:
                some = ", ".join(name for name, _ in list(teacher.named_modules())[1:6])
                remedy = f'pass at= for names such as {some}: at=r".*layer\\.\\d+"'
                raise Error(_OP, "modules whose outputs are compared", f"none for at={at!r}", remedy)
        self.teacher, self.temperature, self.embed = teacher, temperature, embed or pooled

    def __call__(self, student: nn.Module, batch: Any) -> Tensor:
        """Runs both models on the batch (a tensor, a tuple of arguments or a mapping of keywords) and returns
        the loss. Raises Error where they return what a term cannot compare."""
        with _outputs(student, self.names) as student_hidden:
            result = run(student, batch)
        return self._loss(student, result, batch, student_hidden)

    def _loss(self, student: nn.Module, result: Any, batch: Any, student_hidden: dict[str, Tensor]) -> Tensor:
        """Returns the loss of what the student returned for the batch; ``student_hidden`` are the outputs of
        its modules by name."""
        with torch.no_grad(), evaluated(self.teacher), _outputs(self.teacher, self.names) as teacher_hidden:
            expected = run(self.teacher, batch)
        padding = Paddings(student).of(batch)
        terms = []
        if weight := self.weights["logits"]:
            ours, theirs = (
                counted(logits_of(each), padding.of(student)).float() for each in (result, expected)
            )
            terms.append(weight * distillation_loss(ours, theirs, temperature=self.temperature))
        if weight := self.weights["hidden"]:
            parts = [
                _relative(
                    counted(student_hidden[name], keep),
                    counted(_activated(student, name, teacher_hidden[name]), keep),
                )
                for name in self.names
                for keep in [padding.of(student.get_submodule(name))]
            ]
            terms.append(weight * torch.stack(parts).mean())
        if weight := self.weights["embeddings"]:
            ours, theirs = self.embed(result, batch).float(), self.embed(expected, batch).float()
            terms.append(weight * (1 - F.cosine_similarity(ours, theirs, dim=-1)).mean())
        if weight := self.weights["labels"]:
            terms.append(weight * _own_loss(result))
        return torch.stack(terms).sum()

    def attach(self, student: nn.Module, accumulated: int = 1) -> list[RemovableHandle]:
        """Registers hooks by which the student returns this loss as its ``loss`` while it is in training
        mode, as a Trainer reads it; returns their handles. The student is called by keywords.
        ``accumulated`` is the number of batches of a step: a Trainer does not divide by it where it passes
        ``num_items_in_batch``, which the model's own loss would be divided by."""
        states = dict[str, Tensor]()
        modules = [(name, student.get_submodule(name)) for name in self.names]
        hooks = [module.register_forward_hook(_keeping(name, states)) for name, module in modules]

        def replace(module: nn.Module, inputs: Any, batch: dict[str, Any], result: Any) -> Any:
            if not module.training:
                return result
            if not isinstance(result, MutableMapping):
                got, remedy = type(result).__name__, "pass return_dict=True, the default of transformers"
                raise Error(_OP, "a model that returns a mapping, whose loss is replaced", got, remedy)
            loss = self._loss(module, result, batch, states)
            result["loss"] = loss / accumulated if batch.get("num_items_in_batch") is not None else loss
            return result

        return [*hooks, student.register_forward_hook(replace, with_kwargs=True)]


def logits_of(result: Any) -> Tensor:
    """Returns the logits [..., classes] of what a model returned. Raises Error where there are none."""
    found = result if isinstance(result, Tensor) else _field(result, "logits")
    if not isinstance(found, Tensor):
        remedy = "compare hidden states or embeddings, or let the model return a tensor or an object with it"
        raise Error(_OP, "logits", type(result).__name__, remedy)
    return found


def pooled(result: Any, batch: Any, op: str = _OP) -> Tensor:
    """Returns embeddings [batch, features]: the output [batch, features] itself, or the mean over tokens of
    ``last_hidden_state``, or of an output [batch, tokens, features]. Padding that the
    batch's masks say does not count. Raises Error for anything else."""
    state = result if isinstance(result, Tensor) else _field(result, "last_hidden_state")
    if isinstance(state, Tensor) and state.dim() == 2:
        return state
    if not isinstance(state, Tensor) or state.dim() != 3:
        got = f"a tensor {list(state.shape)}" if isinstance(state, Tensor) else type(result).__name__
        remedy = "pass a function that makes them: embed=, or forward= of an evaluator"
        raise Error(op, "embeddings, or a last_hidden_state [batch, tokens, features]", got, remedy)
    keep = Paddings().of(batch).of(None)
    if keep is None:
        return state.mean(1)
    counts = keep.unsqueeze(-1).to(state.dtype)
    return (state * counts).sum(1) / counts.sum(1).clamp(min=1)


def _field(result: Any, name: str) -> Any:
    return result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)


def _own_loss(result: Any) -> Tensor:
    loss = _field(result, "loss")
    if not isinstance(loss, Tensor):
        remedy = "put labels into the batch of a model that returns a loss, or leave labels= out"
        raise Error(_OP, "a loss beside the labels", type(result).__name__, remedy)
    return loss


def _activated(student: nn.Module, name: str, output: Tensor) -> Tensor:
    """Returns a teacher's output as the student's layer of that name gives it: behind the activation that
    sparsify_ fused into the latter."""
    activation = getattr(student.get_submodule(name), "activation", None)
    return ops.activate(output, activation) if isinstance(activation, str) else output


def _relative(student: Tensor, teacher: Tensor) -> Tensor:
    student, teacher = student.float(), teacher.float()
    scale = teacher.square().mean().clamp(min=torch.finfo(torch.float32).tiny)
    return (student - teacher).square().mean() / scale


@contextmanager
def _outputs(model: nn.Module, names: list[str]) -> Iterator[dict[str, Tensor]]:
    """Collects the outputs of the modules of these names while the body calls the model; of a tuple the
    first one."""
    found = dict[str, Tensor]()
    hooks = []
    try:
        for name in names:
            hooks.append(model.get_submodule(name).register_forward_hook(_keeping(name, found)))
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _keeping(name: str, found: dict[str, Tensor]) -> Callable[..., None]:
    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        found[name] = output[0] if isinstance(output, (tuple, list)) else output

    return keep
