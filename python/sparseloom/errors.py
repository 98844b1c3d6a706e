"""Error, the one exception of the library, with the same text as in the C++ core."""

from __future__ import annotations

import re

import torch

from ._home import NAMESPACE

#: Messages of torch's dispatcher, which come before our operator runs: it has no kernel for that kind of
#: tensor, or an argument has another type.
_BACKEND = re.compile(rf"Could not run '{NAMESPACE}::(?P<op>\w+)'.*?from the '(?P<backend>\w+)' backend")
_ARGUMENT = re.compile(
    rf"{NAMESPACE}::(?P<op>\w+)\(\) Expected a value of type "
    r"'(?P<expected>[^']+)' for argument '(?P<name>\w+)' but instead found "
    r"type '(?P<actual>[^']+)'"
)
#: torch's stable ABI, which all operators are called by, has no name for the dtypes of quantized tensors.
_DTYPE = re.compile(r"Not yet supported ScalarType (?P<number>\d+)")
#: The dispatcher takes None for a tensor; the stable ABI then says that it has no device, dtype or size.
_NONE = re.compile(r"aoti_torch_get_(device_type|dtype|dim|sizes|numel)\(.*API call failed")
_TEXT = re.compile(
    r"\[(?P<op>[\w.]+)\] expected (?P<expected>.*?), got (?P<actual>.*?); (?P<remedy>.*)", re.DOTALL
)


class Error(RuntimeError, ValueError):
    """Names the operation, what it expected, what it got instead, and what to do about it.

    It is both a RuntimeError (what torch's own operators raise) and a ValueError, so that code written for
    either catches it. ``str(error)`` reads ``[op] expected <expected>, got <actual>; <remedy>``.
    """

    def __init__(self, op: str, expected: str, actual: str, remedy: str) -> None:
        super().__init__(f"[{op}] expected {expected}, got {actual}; {remedy}")
        self.op = op
        self.expected = expected
        self.actual = actual
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[Error], tuple[str, str, str, str]]:
        return type(self), (self.op, self.expected, self.actual, self.remedy)


class MissingAttribute(Error, AttributeError):
    """The Error for an attribute that something does not have. ``hasattr`` and ``getattr`` with a default
    take it for Python's own."""


class WrongArguments(Error, TypeError):
    """The Error for a call whose arguments do not fit the signature: code that catches Python's TypeError
    catches it."""


def translated(error: RuntimeError) -> RuntimeError:
    """Returns the Error that the C++ core raised, or ``error`` itself when it is not one of ours.

    Only the text comes through the binding, with torch's additions around it. Too little memory on a GPU
    becomes torch's own OutOfMemoryError, which batch-size finders and training loops look for.
    """
    match = _TEXT.search(str(error))
    if isinstance(error, Error):
        return error
    if match is None:
        return _before_the_operator(str(error)) or error
    ours = Error(**match.groupdict())
    return torch.OutOfMemoryError(str(ours)) if ours.actual == "out of memory" else ours


def unsupported_layout(op: str, name: str, layout: str) -> Error:
    """Returns the Error for a sparse, nested or mkldnn operand. ``layout`` is torch's name for the layout."""
    remedy = "convert it with .to_dense()"
    if "nested" in layout.lower() or "jagged" in layout:
        remedy = "pass its .values() (layout torch.jagged), or .to_padded_tensor(0.0)"
    return Error(op, f"{name} strided (dense in memory)", layout, remedy)


def _before_the_operator(text: str) -> Error | None:
    if match := _BACKEND.search(text):
        op, backend = match["op"], match["backend"]
        if any(kind in backend for kind in ("Sparse", "Mkldnn", "Nested")):
            return unsupported_layout(op, "all operands", f"one of torch's {backend}")
        return Error(
            op,
            "operands on the CPU or a CUDA device",
            f"one of torch's {backend}",
            "move them with .cpu() or .cuda()",
        )
    if match := _ARGUMENT.search(text):
        kind = match["expected"].replace("Optional[Tensor]", "Tensor or None")
        return Error(match["op"], f"{match['name']} to be of type {kind}", match["actual"], "pass that type")
    if _NONE.search(text):
        return Error("sparseloom", "a tensor as every operand", "None, or a part of an Index that is None",
                     "pass a tensor, or what make_index returned")  # fmt: skip
    if match := _DTYPE.search(text):
        actual = f"torch.ScalarType {match['number']}, as of torch's quantized tensors"
        remedy = "call .dequantize() on it"
        return Error("sparseloom", "operands of floats, integers or bools", actual, remedy)
    return None
