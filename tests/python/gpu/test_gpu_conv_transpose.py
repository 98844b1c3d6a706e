"""Block-sparse transposed convolutions on a GPU, by the rows of bsr_conv and by torch, beside masked dense
twins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conv_twins import (
    TRANSPOSED_OPTIONS,
    made_transposed,
    require_equal_to_dense,
    require_every_call,
    require_rows_alone,
)

from sparseloom.nn import BlockSparseConvTranspose2d

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("how", TRANSPOSED_OPTIONS, ids=str)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_every_option_of_ragged_channels(dimensions: int, how: dict[str, Any], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = made_transposed(dimensions, dtype=dtype, **how).cuda()
    x = torch.randn(2, 24, *(5, 4, 3)[:dimensions], device="cuda", dtype=dtype)
    require_equal_to_dense(layer, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("block", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("last", [False, True])
def test_every_block_dtype_and_memory_format(dtype: torch.dtype, block: int, last: bool) -> None:
    torch.manual_seed(0)
    how: Any = {"density": 0.5, "block": block, "device": "cuda", "dtype": dtype}
    layer = BlockSparseConvTranspose2d(256, 256, 3, stride=2, padding=1, output_padding=1, **how)
    x = torch.randn(3, 256, 5, 6, device="cuda", dtype=dtype)
    require_equal_to_dense(layer, x.contiguous(memory_format=torch.channels_last) if last else x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_call_gives_the_same(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = made_transposed(2, stride=2, output_padding=1, dtype=dtype).cuda()
    require_every_call(layer, torch.randn(2, 24, 4, 5, device="cuda", dtype=dtype))


def test_the_rows_alone_are_compiled_captured_and_strict() -> None:
    torch.manual_seed(0)
    how: Any = {"density": 0.5, "device": "cuda", "dtype": torch.bfloat16}
    layer = BlockSparseConvTranspose2d(64, 64, 3, stride=2, padding=1, output_padding=1, **how)
    require_rows_alone(layer, torch.randn(2, 64, 8, 8, device="cuda", dtype=torch.bfloat16))
