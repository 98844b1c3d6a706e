"""The C++ operators in Python: their look-up, codes and errors. Only this file and fakes.py, which loads them
and describes them to compilers, use torch.ops.

The operators have no autograd kernel, because registering one costs every eager call several microseconds,
with or without gradients (measured on two cores: 2.6 us without a registered kernel; with one, 6.0 us without
gradients and 18.8 us with them). __init__.py calls them directly when nothing needs a gradient; autograd.py
calls them inside one autograd.Function when something does. An operator called directly
(torch.ops...) with inputs that need gradients reaches torch's own fallback, which warns when a
backward pass arrives there; the filter below turns that warning into an error.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .._home import NAMESPACE
from ..errors import Error, translated
from . import fakes as fakes
from . import library

library.tag_compiled_code(library.packet("version").default())

warnings.filterwarnings("error", message=rf"{NAMESPACE}::.*autograd kernel was not registered")

PLAN_CHOOSES = -1


def overload(name: str) -> Any:
    """Returns an operator by its name. Modules look theirs up once: the packet's own resolution costs about a
    microsecond per call."""
    return library.packet(name).default


linear = overload("bsr_linear")
linear_eagerly = linear._op  # what an overload's __call__ calls; Dynamo traces the overload alone
linear_dx = overload("bsr_linear_dx")
linear_dw = overload("bsr_linear_dw")
linear_train = overload("bsr_linear_train")
linear_backward = overload("bsr_linear_backward")
gate_blocks = overload("gate_blocks")
gate_gradients = overload("gate_gradients")


def run(operator: Any, *arguments: Any) -> Any:
    """Calls an operator, without autograd. Translates the errors of C++ to Error."""
    try:
        return operator(*arguments)
    except RuntimeError as error:
        raise translated(error) from None


def call(name: str, *arguments: Any) -> Any:
    """Calls an operator by name: patterns, indices, packing, plans. Translates the errors of C++ to Error."""
    return run(overload(name), *arguments)


@cache
def row_number(name: str) -> int:
    """Returns the operators' number for a kernel name. Raises Error when no family has it."""
    return int(call("row_number", name))


def row_of(kernel: str) -> int:
    """Returns the operators' ``row`` for a kernel's name, or for "", the plan's own choice."""
    return row_number(kernel) if kernel else PLAN_CHOOSES


#: The activations that a forward product can fuse, by name, with the operators' code for each. "gelu" is the
#: erf form. include/sparseloom/activation.h has the table.
ACTIVATIONS: dict[str | None, int] = {
    None if name == "none" else name: code for code, name in enumerate(call("activation_names").split())
}


def unknown_activation(op: str, activation: object, remedy: str) -> Error | None:
    """Returns the Error for an activation that the products do not support, else None."""
    if activation in tuple(ACTIVATIONS):  # a tuple, because the activation may not be hashable
        return None
    names = ", ".join(map(repr, ACTIVATIONS))
    return Error(op, f"activation to be one of {names}", repr(activation), remedy)


def activation_code(op: str, activation: str | None) -> int:
    """Returns the operators' code of an activation. Raises Error, in the name of ``op``, for one that the
    products do not support."""
    try:
        return ACTIVATIONS[activation]
    except (KeyError, TypeError):
        unknown = unknown_activation(op, activation, "apply any other one after the product")
        raise unknown or AssertionError from None


def tf32_allowed() -> bool:
    """Returns whether torch's own switches let float32 products on CUDA round their operands to TF32. A
    compiled graph keeps the value that it found; torch guards the switch and compiles again when it
    changes."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


# This is what torch.compiler.assume_constant_result sets. The decorator itself would import all of Dynamo,
# which would add a second to every import of this package.
tf32_allowed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def conv_tf32_allowed() -> bool:
    """Returns whether torch's own switches let float32 convolutions on CUDA round their operands to TF32, as
    they do unless told otherwise (torch.backends.cudnn.allow_tf32); see tf32_allowed."""
    return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")  # type: ignore[attr-defined]


conv_tf32_allowed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def tf32_of(x: Tensor) -> bool:
    """Returns whether a product with this operand may use TF32: see tf32_allowed."""
    return x.dtype is torch.float32 and x.is_cuda and tf32_allowed()
