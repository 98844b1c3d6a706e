"""What a model's layers multiply in one call: their tokens, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from ..patch.forms import Site
from ..report.inputs import watched

#: The memory format in which channels lie together, by the dimensions of a tensor.
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class Seen(NamedTuple):
    """The largest product of a module, and the number of its calls. ``batch``: the sequences of one step of a
    recurrent layer, 0 for any other module. ``x_shape`` and ``channels_last``: a convolution's input."""

    tokens: int = 0
    calls: int = 0
    batch: int = 0
    x_shape: tuple[int, ...] = ()
    channels_last: bool = False

    def of(self, site: Site) -> tuple[int, int]:
        """Returns the tokens of the largest product with a weight of the module, and how many products one
        call of the model makes. The weights of a recurrent layer's states multiply in every step."""
        if self.batch and not site.weight.startswith("weight_ih"):
            return self.batch, self.calls * -(-self.tokens // self.batch)
        return self.tokens, self.calls


def seen_by(model: nn.Module, modules: Sequence[nn.Module], example_input: Any) -> dict[nn.Module, Seen]:
    """Runs the model once and returns what each module that it reached multiplied."""
    seen: dict[nn.Module, Seen] = {}

    def see(module: nn.Module, arguments: Any, keywords: Any, result: Any) -> None:
        result = result[0] if isinstance(result, tuple) else result
        batch = 0
        if isinstance(module, (nn.LSTM, nn.GRU)):
            tokens, batch = _steps(module, result)
        else:
            rows = module.embed_dim if isinstance(module, nn.MultiheadAttention) else _features(module)
            tokens = result.numel() // max(1, rows)
        before = seen.get(module, Seen())
        now = Seen(max(tokens, 1), before.calls + 1, batch, *_input(module, arguments, keywords))
        largest = max(before, now, key=lambda each: (each.tokens, each.batch))
        seen[module] = largest._replace(calls=now.calls)

    watched("advise", model, modules, example_input, see)
    return seen


def _input(module: nn.Module, arguments: Any, keywords: Any) -> tuple[tuple[int, ...], bool]:
    """Returns the shape of a convolution's input with its images, and whether its channels lie together."""
    if not hasattr(module, "kernel_size"):
        return (), False
    x = arguments[0] if arguments else keywords["input"]
    weight: Any = module.weight
    x = x if x.dim() == weight.dim() else x[None]
    last = CHANNELS_LAST.get(x.dim())
    return tuple(x.shape), last is not None and x.is_contiguous(memory_format=last)


def _steps(module: nn.LSTM | nn.GRU, y: Any) -> tuple[int, int]:
    """Returns the rows of all steps of a recurrent layer's result, and those of its largest step."""
    if isinstance(y, PackedSequence):
        return len(y.data), max(1, int(y.batch_sizes[0]))
    if y.dim() == 2:
        return len(y), 1
    return y.shape[0] * y.shape[1], max(1, y.shape[0 if module.batch_first else 1])


def _features(module: nn.Module) -> int:
    return int(
        getattr(module, "out_features", 0) or getattr(module, "out_channels", 0) or getattr(module, "nf", 1)
    )
