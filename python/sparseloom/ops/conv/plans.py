"""Decides whether a row of bsr_conv or torch with a dense copy of the weight runs a convolution."""

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

#: A compiled graph serves inputs of several sizes and does not ask for a plan. It uses the rows up to this
#: density: on most shapes torch's convolution becomes faster somewhat above it.
COMPILED_DENSITY = 0.5

#: The name in plans of torch's convolution with a dense copy of the weight.
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
    ``device``, in the form of ops.plan. ``dense_us`` is the predicted time of torch's convolution including
    making the dense weight, ``dense_copy_us`` the time with an existing dense weight (None for dw); both are
    None where there is no prediction. If no row can run, raises an Error that lists every refusal."""
    tf32 = device >= 0 and rounds_to_tf32(dtype)
    of_index = index.rows, index.cols, index.bm, index.bn, index.blocks
    sizes = [*of_index, *extents, *(number for numbers in window for number in numbers)]
    options = NO_EPILOGUE, PLAN_CHOOSES, False, tf32, index.digest
    answer = asked("bsr_conv", sizes, direction, DTYPES[dtype], images, device, *options)
    return {"dense_us": None, **answer}


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
    """Returns ``plan`` with ``kernel``, what a call runs: the row, or "dense", torch's convolution with a
    dense copy of the weight; and ``predicted_us``, its time, None where there is no prediction. ``strict``
    forbids that copy; if no row can run, ``kernel`` is "dense" all the same."""
    try:
        answer = plan(direction, dtype, images, extents, window, index, device)
    except Error as refused:
        return {**UNKNOWN, "text": str(refused)}
    dense_us, row = answer["dense_us"], answer["kernel"]
    if dense_us is None:
        return answer
    text = answer["text"]
    dense_text = f"torch's convolution with a dense copy of the weight, predicted {dense_us:.0f} us"
    if strict or answer["predicted_us"] < dense_us:
        return {**answer, "text": f"{text}  not dense: {dense_text}\n"}
    text = text.replace(f"\n  runs {row}", f"\n  runs {dense_text}\n  not {row}", 1)
    return {**answer, "kernel": DENSE, "predicted_us": dense_us, "text": text}


def rows_are_faster(direction: str, x: Tensor, extents: Sequence[int], window: Any, index: Index) -> bool:
    """Returns whether the plan expects a row to be faster than torch's convolution. ``x``: the operand with
    the images; only their number, the dtype and the device are read."""
    if torch.compiler.is_compiling():
        return index.blocks * index.bm * index.bn <= COMPILED_DENSITY * index.rows * index.cols
    times = _predicted_times(direction, x, extents, window, index)
    return times.row is not None and (times.dense is None or times.row < times.dense)


def copy_is_faster(direction: str, x: Tensor, extents: Sequence[int], window: Any, index: Index) -> bool:
    """Returns whether the plan expects torch's convolution with a dense copy that is kept to be faster than
    what a call runs without one; the arguments are those of rows_are_faster. True if no row can run: the call
    would then make the dense weight itself."""
    times = _predicted_times(direction, x, extents, window, index)
    if times.row is None:
        return True
    return times.copy is not None and times.copy < min(times.row, times.dense or times.row)


def _predicted_times(direction: str, x: Tensor, extents: Sequence[int], window: Any, index: Index) -> _Times:
    sizes = index.blocks, index.rows, index.cols, index.bm, index.bn, index.digest
    device = (x.device.index or 0) if x.is_cuda else -1
    # torch's number of threads and TF32 switch are only part of the key: the plan asks torch for them
    threads = torch.get_num_threads() if device < 0 else 0
    tf32 = x.is_cuda and rounds_to_tf32(x.dtype)
    key = direction, x.dtype, x.shape[0], tuple(extents), tuple(window), sizes, device
    return _times(*key, threads, tf32)


def rounds_to_tf32(dtype: torch.dtype) -> bool:
    """Returns whether a convolution of that dtype may round its operands to TF32 on a GPU."""
    return dtype is torch.float32 and conv_tf32_allowed()


class _Sizes(NamedTuple):
    """The fields of an Index that a plan reads."""

    blocks: int
    rows: int
    cols: int
    bm: int
    bn: int
    digest: int


class _Times(NamedTuple):
    """Predicted microseconds of a row, of torch's convolution with a dense weight made in the call, and of
    one with a kept dense copy; None where it cannot run or there is no prediction."""

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
        answer = plan(direction, dtype, images, extents, window, _Sizes(*sizes), device)
    except Error:  # no row runs on this machine
        return _Times()
    return _Times(answer["predicted_us"], answer["dense_us"], answer["dense_copy_us"])
