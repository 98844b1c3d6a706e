"""Block-sparse convolutions on a GPU, by the rows of bsr_conv and by torch, beside masked dense twins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conv_twins import OPTIONS, choose, made, require_equal_to_dense, require_every_call, require_rows_alone

from sparseloom.nn import BlockSparseConv2d, BlockSparseConvTranspose2d
from sparseloom.ops.conv import product

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("how", OPTIONS, ids=str)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_every_option_of_ragged_channels(dimensions: int, how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = made(dimensions, dtype=torch.bfloat16, **how).cuda()
    require_equal_to_dense(
        layer, torch.randn(2, 24, *(7, 6, 5)[:dimensions], dtype=torch.bfloat16, device="cuda")
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("channels", [(24, 20), (32, 24)])
def test_torchs_road_in_every_direction(
    channels: tuple[int, int], dimensions: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All by torch, in fp64 without a plan; then forward by a row."""
    torch.manual_seed(0)
    x = torch.randn(2, channels[0], *(7, 6, 5)[:dimensions], dtype=dtype, device="cuda")
    for forward in ("dense", "rows") if dtype == torch.bfloat16 else ("dense",):
        layer = made(dimensions, channels, padding=1, stride=2, dtype=dtype).cuda()
        with monkeypatch.context() as chosen:
            choose(chosen, forward=forward, dx="dense", dw="dense")
            require_equal_to_dense(layer, x)
            with torch.no_grad():
                y = layer(x)
                assert torch.equal(y, layer(x))
        if dimensions > 1:
            weight = product.dense(layer.values.detach(), layer.index, layer.kernel_size)
            taken = torch.channels_last if dimensions == 2 else torch.channels_last_3d
            assert channels[0] % 8 or weight.is_contiguous(memory_format=taken)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("block", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("last", [False, True])
def test_every_block_dtype_and_memory_format(dtype: torch.dtype, block: int, last: bool) -> None:
    torch.manual_seed(0)
    how: Any = {"density": 0.5, "block": block, "device": "cuda", "dtype": dtype}
    layer = BlockSparseConv2d(256, 256, 3, padding=1, **how)
    x = torch.randn(3, 256, 9, 11, device="cuda", dtype=dtype)
    require_equal_to_dense(layer, x.contiguous(memory_format=torch.channels_last) if last else x)


def test_channels_last_is_read_without_a_copy() -> None:
    layer = BlockSparseConv2d(256, 256, 3, density=0.25, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(8, 256, 32, 32, device="cuda", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        y = layer(x)
        assert y.is_contiguous(memory_format=torch.channels_last)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = layer(x)
    assert torch.cuda.max_memory_allocated() - before < 1.5 * y.nbytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_call_gives_the_same(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = made(2, padding=1, dtype=dtype).cuda()
    require_every_call(layer, torch.randn(2, 24, 6, 7, device="cuda", dtype=dtype))


def test_the_rows_alone_are_compiled_captured_and_strict() -> None:
    torch.manual_seed(0)
    layer = BlockSparseConv2d(64, 64, 3, density=0.5, device="cuda", dtype=torch.bfloat16)
    require_rows_alone(layer, torch.randn(2, 64, 8, 8, device="cuda", dtype=torch.bfloat16))


@pytest.mark.parametrize("channels", [32, 96, 128, 160])
@pytest.mark.parametrize("kind", [BlockSparseConv2d, BlockSparseConvTranspose2d])
def test_dw_of_fp32_without_tf32_is_exact_for_five_by_five_taps(channels: int, kind: Any) -> None:
    torch.manual_seed(0)
    allowed, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        layer = kind(channels, channels, 5, padding=2, density=0.5, block=16).cuda()
        x = torch.randn(8, channels, 28, 28, device="cuda")
        twin = layer.to_dense().double()
        y, exact = layer(x), twin(x.double())
        assert y.shape == exact.shape and (y - exact).abs().max() / exact.abs().max() < 2e-5
        dy = torch.randn_like(exact)
        y.backward(dy.float())
        exact.backward(dy.float().double())
        gradient, stays = twin.weight.grad, twin.weight != 0
        layer.values.data.copy_(layer.values.grad)
        error = (layer.to_dense().weight - gradient * stays).abs().max()
        assert error / gradient.abs().max() < 2e-5
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
