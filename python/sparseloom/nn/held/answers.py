"""What every layer kind answers to the same questions: whether an option is set that it does not have, how
dense it is, and what a call would run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..._checks import whole
from ...errors import Error


class Answer:
    """An attribute that is computed where a layer does not have it itself: one that it sets is found
    first."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        self.ask = ask

    def __get__(self, layer: Any, owner: type) -> Any:
        return self if layer is None else self.ask(layer)


def of_layers_inside(name: str, without: Any) -> Answer:
    """Returns what all layers inside a module answer, and ``without`` for a module that holds none. Raises
    Error where their answers differ."""

    def ask(module: nn.Module) -> Any:
        known = {repr(answer := getattr(part, name)): answer for part in inside(module)}
        if len(known) > 1:
            got, remedy = " and ".join(known), "ask the layers inside: for layer in module.modules()"
            raise Error(f"{type(module).__name__}.{name}", "one answer of all layers inside", got, remedy)
        return next(iter(known.values()), without)

    return Answer(ask)


def inside(module: nn.Module) -> list[Any]:
    """Returns the sparse layers of this library inside another one."""
    from .options import WithOptions  # which asks here

    layers = [part for part in module.modules() if part is not module and isinstance(part, WithOptions)]
    within = {part for layer in layers for part in layer.modules() if part is not layer}
    return [layer for layer in layers if layer not in within]


def density_of(module: Any) -> float:
    """Returns the stored share of a module's sparse weights, of all together. Raises Error where it has
    none."""
    speaking = [part for part in (module, *inside(module)) if hasattr(part, "sparse_weights")]
    if speaking and (weights := list(speaking[0].sparse_weights().values())):
        weights += [each for part in speaking[1:] for each in part.sparse_weights().values()]
        weights = weights if speaking[0] is not module else list(module.sparse_weights().values())
        sizes = [math.prod(weight.shape) * weight.taps for weight in weights]
        stored = sum(weight.density * size for weight, size in zip(weights, sizes, strict=True))
        return float(stored / max(1, sum(sizes)))
    mask = getattr(module, "mask", None)
    if mask is not None and not mask.is_meta:
        return float(mask.float().mean())
    got, remedy = "none", "it is sparse after sparsify_, or ask the pattern"
    raise Error(f"{type(module).__name__}.density", "a sparse weight with values", got, remedy)


def to_dense_of(module: nn.Module) -> nn.Module:
    """Raises Error: the module has no dense twin in torch."""
    got, remedy = "none", "densify_ makes the sparse layers inside dense again"
    raise Error(f"{type(module).__name__}.to_dense", "a layer with a twin in torch.nn", got, remedy)


def plan_of(
    module: nn.Module, tokens: Any = None, direction: str = "forward", **options: Any
) -> dict[str, Any]:
    """Returns {name of a layer inside: its plan}; the arguments are as in the layers' own. Raises Error for a
    module that has no plan."""
    plans = {name: part for name, part in module.named_modules() if part in inside(module)}
    if not plans:
        got, remedy = "none", "pack_ gives the layer that multiplies by its blocks, and has one"
        raise Error(f"{type(module).__name__}.plan", "a layer with a plan", got, remedy)
    positional = () if tokens is None else (tokens,)
    return {name: part.plan(*positional, direction=direction, **options) for name, part in plans.items()}


def tokens_of(tokens: int | None, shape: Sequence[int] | None, features: int) -> int:
    """Returns the rows of x, given as a number or by the shape [..., in features] of x. Raises Error for
    both, for neither, and for another shape."""
    if (tokens is None) == (shape is None):
        got = "neither" if tokens is None else "both"
        raise Error("plan", "tokens or shape", got, f"pass plan(128) or plan(shape=[1, 128, {features}])")
    if shape is None:
        return whole("plan", "tokens", tokens)
    if not isinstance(shape, Sequence) or not shape or shape[-1] != features:
        got = str(list(shape)) if isinstance(shape, Sequence) else repr(shape)
        raise Error("plan", f"shape [..., {features}]", got, "the last dimension is in_features")
    return math.prod(whole("plan", "shape", side) for side in shape[:-1])
