"""Whether a row of bsr_conv shall run a convolution, or torch with a dense copy of the weight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import Error
from ..index import Index
from ..operators import PLAN_CHOOSES, conv_tf32_allowed
from ..plans import DTYPES, NO_EPILOGUE, asked

#: A compiled graph serves inputs of several sizes and asks no plan. It takes the rows up to this density: on
#: most shapes torch's convolution becomes faster somewhat above it.
COMPILED_DENSITY = 0.5

#: What plans call torch's convolution with a dense copy of the weight.
DENSE = "dense"
#: The plan of a convolution that no row can run.
UNKNOWN = {"kernel": DENSE, "predicted_us": None, "dense_us": None, "dense_copy_us": None}


def plan(
    direction: str,
    dtype: torch.dtype,
    images: int,
    extents: Sequence[int],
    window: Any,
    index: Index | _Sizes,
    device: int = -1,
) -> dict[str, Any]:
    """Returns the plan of a convolution of x [images, cols, *extents] on the CPU, or on the GPU of number
    ``device``, as ops.plan has it. ``dense_us`` is the predicted time of torch's convolution, the making of
    the dense weight included, and ``dense_copy_us`` that with a weight which is there (of dw, that makes the
    weight's gradient, None); None where nobody predicts them. Raises Error listing every refusal where no row
    can run."""
    tf32 = device >= 0 and rounds_to_tf32(dtype)
    of_index = index.rows, index.cols, index.bm, index.bn, index.blocks
    sizes = [*of_index, *extents, *(number for numbers in window for number in numbers)]
    how = NO_EPILOGUE, PLAN_CHOOSES, False, tf32, index.digest
    made = asked("bsr_conv", sizes, direction, DTYPES[dtype], images, device, *how)
    return {"dense_us": None, **made}


def explained(
    direction: str,
    dtype: torch.dtype,
    images: int,
    extents: Sequence[int],
    window: Any,
    index: Index | _Sizes,
    device: int,
    strict: bool,
) -> dict[str, Any]:
    """Returns ``plan``, of which ``kernel`` is what a call runs: the row, or "dense", torch's convolution
    with a dense copy of the weight, and ``predicted_us`` its time; None where nobody predicts it. ``strict``
    forbids that copy; where no row runs, ``kernel`` is "dense" all the same."""
    try:
        found = plan(direction, dtype, images, extents, window, index, device)
    except Error as refused:
        return {**UNKNOWN, "text": str(refused)}
    dense_us, row = found["dense_us"], found["kernel"]
    if dense_us is None:
        return found
    said, text = (
        f"torch's convolution with a dense copy of the weight, predicted {dense_us:.0f} us",
        found["text"],
    )
    if strict or found["predicted_us"] < dense_us:
        return {**found, "text": f"{text}  not dense: {said}\n"}
    text = text.replace(f"\n  runs {row}", f"\n  runs {said}\n  not {row}", 1)
    return {**found, "kernel": DENSE, "predicted_us": dense_us, "text": text}


def rows_are_faster(direction: str, x: Tensor, extents: Sequence[int], window: Any, index: Index) -> bool:
    """Returns whether the plan expects less time of a row than of torch's convolution. ``x``: the operand
    with the images, of which only their number and the dtype are read."""
    if torch.compiler.is_compiling():
        return index.blocks * index.bm * index.bn <= COMPILED_DENSITY * index.rows * index.cols
    found = _asked(direction, x, extents, window, index)
    return found.row is not None and (found.dense is None or found.row < found.dense)


def copy_is_faster(direction: str, x: Tensor, extents: Sequence[int], window: Any, index: Index) -> bool:
    """Returns whether the plan expects less time of torch's convolution with a dense weight that is kept than
    of what a call runs without one; arguments as of rows_are_faster. Where no row runs that is the same
    convolution, which makes the weight."""
    found = _asked(direction, x, extents, window, index)
    if found.row is None:
        return True
    return found.copy is not None and found.copy < min(found.row, found.dense or found.row)


def _asked(direction: str, x: Tensor, extents: Sequence[int], window: Any, index: Index) -> _Times:
    sizes = index.blocks, index.rows, index.cols, index.bm, index.bn, index.digest
    device = (x.device.index or 0) if x.is_cuda else -1
    # torch's number of threads and its switch are in the key alone: the plan asks torch itself
    threads = torch.get_num_threads() if device < 0 else 0
    tf32 = x.is_cuda and rounds_to_tf32(x.dtype)
    key = direction, x.dtype, x.shape[0], tuple(extents), tuple(window), sizes, device
    return _times(*key, threads, tf32)


def rounds_to_tf32(dtype: torch.dtype) -> bool:
    """Returns whether a convolution of that dtype may round its operands to TF32 on a GPU."""
    return dtype is torch.float32 and conv_tf32_allowed()


class _Sizes(NamedTuple):
    """What a plan reads of an Index."""

    blocks: int
    rows: int
    cols: int
    bm: int
    bn: int
    digest: int


class _Times(NamedTuple):
    """Predicted microseconds of a row, of torch's convolution with a weight made in the call, and of that
    with one that is kept; None where none runs, or nobody predicts it."""

    row: float | None = None
    dense: float | None = None
    copy: float | None = None


@lru_cache(maxsize=4096)
def _times(
    direction: str,
    dtype: torch.dtype,
    images: int,
    extents: Sequence[int],
    window: Any,
    sizes: Any,
    device: int,
    *_: int,
) -> _Times:
    try:
        found = plan(direction, dtype, images, extents, window, _Sizes(*sizes), device)
    except Error:  # no row runs on this machine
        return _Times()
    return _Times(found["predicted_us"], found["dense_us"], found["dense_copy_us"])
