"""Evaluators that ship with prune_: functions of a model that return a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._arguments import named_arguments
from ..errors import Error
from ..recover.distillation import pooled
from ..report.inputs import evaluated


class _OfBatches:
    def __init__(
        self, op: str, batches: Iterable[Any], forward: Callable[[nn.Module, Any], Any] | None
    ) -> None:
        self._op, self._batches, self._forward = op, list(batches), forward
        if not self._batches:
            raise Error(op, "at least one batch", "none", "pass a list of batches")

    def _outputs(self, model: nn.Module) -> Iterable[tuple[Any, Any]]:
        model.eval()
        for batch in self._batches:
            if self._forward is not None:
                yield batch, self._forward(model, batch)
            elif isinstance(batch, Tensor):
                yield batch, model(batch)
            else:
                yield batch, model(**batch)


class _Perplexity(_OfBatches):
    @torch.no_grad()
    def __call__(self, model: nn.Module) -> float:
        total, tokens = 0.0, 0
        for batch, output in self._outputs(model):
            ids = batch if isinstance(batch, Tensor) else batch["input_ids"]
            logits = getattr(output, "logits", output)[:, :-1].float()
            labels = ids[:, 1:].to(logits.device)
            losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            mask = None if isinstance(batch, Tensor) else batch.get("attention_mask")
            counted = torch.ones_like(losses) if mask is None else _follows(mask).to(losses)
            total += float((losses * counted).sum())
            tokens += int(counted.sum())
        if not tokens:
            raise Error(self._op, "sequences of two tokens or more", "none", "pass longer ones")
        return math.exp(min(total / tokens, 700.0))


def _follows(mask: Tensor) -> Tensor:
    """Returns which next tokens count: those that follow one that counts, so not the first after padding."""
    return (mask[:, 1:] * mask[:, :-1]).flatten()


class _Agreement(_OfBatches):
    higher_is_better = True

    def __init__(
        self,
        op: str,
        batches: Iterable[Any],
        forward: Callable[[nn.Module, Any], Any] | None,
        model: nn.Module,
    ) -> None:
        super().__init__(op, batches, forward)
        self._before = self._embeddings(model)

    def __call__(self, model: nn.Module) -> float:
        pairs = zip(self._embeddings(model), self._before, strict=True)
        return float(torch.cat([F.cosine_similarity(now, before) for now, before in pairs]).mean())

    @torch.no_grad()
    def _embeddings(self, model: nn.Module) -> Sequence[Tensor]:
        with evaluated(model):
            outputs = self._outputs(model)
            return [pooled(output, batch, self._op).double().cpu() for batch, output in outputs]


@named_arguments
def perplexity(
    batches: Iterable[Any], *, forward: Callable[[nn.Module, Any], Any] | None = None
) -> Callable[[nn.Module], float]:
    """Returns an evaluator: exp of the mean cross entropy of each next token.

    Args:
        batches: token ids [samples, tokens], or mappings with "input_ids" and perhaps "attention_mask", whose
            zeros do not count. They lie on the model's device.
        forward: called as forward(model, batch); returns logits [samples, tokens, vocabulary], or an object
            with them as ``logits``.

    Raises Error for no batches.
    """
    return _Perplexity("perplexity", batches, forward)


@named_arguments
def embedding_agreement(
    model: nn.Module, batches: Iterable[Any], *, forward: Callable[[nn.Module, Any], Any] | None = None
) -> Callable[[nn.Module], float]:
    """Returns an evaluator: the mean cosine of a model's embeddings with those of ``model`` as it is now, 1
    at most; higher is better.

    Args:
        model: the dense model.
        batches: tensors, or mappings of named arguments, on the model's device.
        forward: called as forward(model, batch); returns [samples, features]. By default the mean of the
            last hidden states [samples, tokens, features] over the tokens that count.

    Raises Error for no batches, and for outputs that are no embeddings.
    """
    return _Agreement("embedding_agreement", batches, forward, model)
