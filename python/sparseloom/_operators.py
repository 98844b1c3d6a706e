"""The C++ operators as Python holds them: loaded, looked up once, their codes and their errors. Nobody else
touches torch.ops.

The operators have no autograd kernel: registering one costs every eager call several microseconds, with or
without gradients (2.6 us against 6.0 without and 18.8 with, on two cores). ops.py calls them straight when
nothing needs a gradient, _autograd.py inside one autograd.Function when something does. An operator called
raw (torch.ops.sparseloom...) with inputs that need gradients reaches torch's own fallback, which warns when a
backward pass arrives there; below that warning is turned into an error.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from . import _flops, _library
from .errors import translated

_library.load()
from . import _fakes as _fakes  # noqa: E402 - the operators must exist

_flops.register(torch.ops.sparseloom)

warnings.filterwarnings("error", message=r"sparseloom::.*autograd kernel was not registered")

#: Activations a forward product can fuse, by name, with the operators' code for each. "gelu" is the erf form.
ACTIVATIONS: dict[str | None, int] = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "relu2": 5}
PLAN_CHOOSES = -1

# Overloads are looked up once: the packet's own resolution costs about a microsecond a call.
linear = torch.ops.sparseloom.linear.default
linear_dx = torch.ops.sparseloom.linear_dx.default
linear_dw = torch.ops.sparseloom.linear_dw.default
linear_train = torch.ops.sparseloom.linear_train.default
linear_backward = torch.ops.sparseloom.linear_backward.default


def call(name: str, *arguments: Any) -> Any:
    """An operator that is not differentiated, by name: patterns, indices, packing, plans. Raises Error for
    what C++ refuses."""
    try:
        return getattr(torch.ops.sparseloom, name).default(*arguments)
    except RuntimeError as error:
        raise translated(error) from None


def tf32_allowed() -> bool:
    """Whether torch's own switches let float32 products on CUDA round their operands to TF32. A compiled
    graph keeps what it found; torch guards the switch and compiles again when it changes."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


# What torch.compiler.assume_constant_result sets; the decorator itself imports all of dynamo, a second of
# everybody's import.
tf32_allowed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def tf32_of(x: Tensor) -> bool:
    """tf32_allowed for a product with this operand."""
    return x.dtype is torch.float32 and x.is_cuda and tf32_allowed()
