"""Handles example inputs: calls a model with one, and makes the same input at another batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._home import is_ours
from ..errors import Error


def as_arguments(op: str, example_input: Any) -> Any:
    """Returns an example input as ``run`` takes it: a mapping of any class, such as a tokenizer's
    BatchEncoding, and a dataclass become a dict of keywords. Raises Error for one that holds lists of numbers
    where tensors belong, as a tokenizer gives by default."""
    if example_input is None:
        raise Error(op, "example_input, what the model is called with", "None", f"call {op}(model, x)")
    if isinstance(example_input, (Tensor, tuple, list)):
        return example_input
    if isinstance(example_input, Mapping) or _reads_like_a_mapping(example_input):
        keywords = {str(key): example_input[key] for key in example_input.keys()}  # noqa: SIM118 - no iterator
    elif is_dataclass(example_input) and not isinstance(example_input, type):
        keywords = {field_.name: getattr(example_input, field_.name) for field_ in fields(example_input)}
    else:
        return example_input
    if not any(True for _ in tensors_in(keywords)) and any(
        isinstance(field_, list) for field_ in keywords.values()
    ):
        got = f"lists as {', '.join(keywords)}"
        raise Error(op, "an example input of tensors", got, 'call the tokenizer with return_tensors="pt"')
    return keywords


def _reads_like_a_mapping(value: Any) -> bool:
    return callable(getattr(value, "keys", None)) and hasattr(type(value), "__getitem__")


def run(model: nn.Module, example_input: Any) -> Any:
    """Calls the model on a tensor, a tuple or list of arguments, or a mapping of keywords."""
    if isinstance(example_input, Mapping):
        return model(**example_input)
    if isinstance(example_input, (tuple, list)):
        return model(*example_input)
    return model(example_input)


@contextmanager
def running(op: str, what: str = "example_input") -> Iterator[None]:
    """Turns what the model raises for its input in the body into our Error, from the first one. Errors of
    this package and of too little memory pass."""
    try:
        yield
    except Exception as error:
        if is_ours(type(error)) or isinstance(error, (Error, torch.OutOfMemoryError)):
            raise
        got = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        remedy = f"call the model on {what} first, without {op}"
        raise Error(op, f"a model that runs on {what}", got, remedy) from error


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Puts the model in evaluation mode, and afterwards restores the mode of every module."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def watched(
    op: str, model: nn.Module, modules: Sequence[nn.Module], example_input: Any, see: Callable[..., None]
) -> None:
    """Runs the model once, in evaluation and without gradients. Raises Error where it does not run.

    ``see(module, arguments, keywords, result)`` is called after each call of one of the modules. The hooks
    are removed afterwards, whatever the model raises.
    """
    hooks = [module.register_forward_hook(see, with_kwargs=True) for module in dict.fromkeys(modules)]
    try:
        with evaluated(model), torch.no_grad(), running(op):
            run(model, example_input)
    finally:
        for hook in hooks:
            hook.remove()


def gpus_of(model: nn.Module) -> list[int]:
    """Returns the ordinals of the GPUs that hold the model's parameters: a measurement must restore their
    random number generators too."""
    return sorted({parameter.device.index for parameter in model.parameters() if parameter.is_cuda})


def tensors_in(data: Any) -> Iterator[Tensor]:
    """Yields the tensors of nested mappings, tuples, lists and dataclasses, in order."""
    if isinstance(data, Tensor):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from tensors_in(value)
    elif isinstance(data, (tuple, list)):
        for value in data:
            yield from tensors_in(value)
    elif is_dataclass(data) and not isinstance(data, type):
        for field_ in fields(data):
            yield from tensors_in(getattr(data, field_.name))


def batch_of(example_input: Any) -> int | None:
    """Returns the first dimension of the first tensor that has one."""
    return next((tensor.shape[0] for tensor in tensors_in(example_input) if tensor.dim()), None)


def resized(example_input: Any, batch: int, rows: int) -> Any:
    """Returns the input with every tensor whose first dimension is ``batch`` at ``rows`` rows: its own rows
    in turn, as often as needed."""
    if isinstance(example_input, Tensor):
        if not example_input.dim() or example_input.shape[0] != batch:
            return example_input
        return example_input[torch.arange(rows, device=example_input.device) % batch]
    if isinstance(example_input, Mapping):
        return {key: resized(value, batch, rows) for key, value in example_input.items()}
    if isinstance(example_input, (tuple, list)):
        parts = [resized(value, batch, rows) for value in example_input]
        named = hasattr(example_input, "_fields")  # a named tuple takes its parts one by one
        return type(example_input)(*parts) if named else type(example_input)(parts)
    return example_input
