"""The plans of convolutions: which kernel a call runs, and why."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import Error
from .. import plans
from ..index import Index
from ..operators import PLAN_CHOOSES, conv_tf32_allowed
from ..plans import DTYPES, NO_EPILOGUE, asked, get_num_threads

#: The row that is torch's convolution with a dense copy of the weight.
DENSE = "dense"
#: The plan of a convolution that no row can run: torch's convolution runs.
UNPLANNED = {"kernel": DENSE, "predicted_us": None, "dense_copy_us": None}


def plan(
    direction: str,
    dtype: torch.dtype,
    images: int,
    extents: Sequence[int],
    window: Any,
    index: Index | _Sizes,
    device: int = -1,
    strict: bool = False,
) -> dict[str, Any]:
    """Returns the plan of a convolution of x [images, cols, *extents] on the CPU, or on the GPU of number
    ``device``, in the form of ops.plan. ``dense_copy_us`` is the predicted time of torch's convolution with a
    dense weight that exists, None for dw and where ``strict`` forbids it or there is no prediction. If no row
    can run, raises an Error that lists every refusal."""
    tf32 = device >= 0 and rounds_to_tf32(dtype)
    of_index = index.rows, index.cols, index.bm, index.bn, index.blocks
    sizes = [*of_index, *extents, *(number for numbers in window for number in numbers)]
    options = NO_EPILOGUE, PLAN_CHOOSES, strict, tf32, index.digest
    return asked("bsr_conv", sizes, direction, DTYPES[dtype], images, device, *options)


def copy_is_faster(x: Tensor, direction: str, extents: Sequence[int], window: Any, index: Index) -> bool:
    """Returns whether the plan expects torch's convolution with a dense copy that is kept to be faster than
    what a call runs without one. ``x``: the operand with the images; only their number, the dtype and the
    device are read. True if no row can run: the call would then make the dense weight itself."""
    sizes = _Sizes(index.blocks, index.rows, index.cols, index.bm, index.bn, index.digest)
    device = (x.device.index or 0) if x.is_cuda else -1
    # the number of threads and torch's TF32 switch are only part of the key: the plan asks for them itself
    threads = get_num_threads() if device < 0 else 0
    tf32 = x.is_cuda and rounds_to_tf32(x.dtype)
    key = direction, x.dtype, x.shape[0], tuple(extents), tuple(window), sizes, device
    return _copy_is_faster(*key, threads, tf32)


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


@lru_cache(maxsize=4096)
def _copy_is_faster(
    direction: str,
    dtype: torch.dtype,
    images: int,
    extents: Sequence[int],
    window: Any,
    sizes: _Sizes,
    device: int,
    *_: int,
) -> bool:
    try:
        answer = plan(direction, dtype, images, extents, window, sizes, device)
    except Error:  # no row runs on this machine
        return True
    return plans.copy_is_faster(answer)
