"""Block-sparse convolutions on a GPU, by the rows of bsr_conv and by torch, beside masked dense twins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_conv import OPTIONS, made
from torch import Tensor

from sparseloom import Error
from sparseloom.nn import BlockSparseConv2d

pytestmark = pytest.mark.gpu


def require_close(layer: Any, x: Tensor) -> None:
    """Compares values and gradients with those of a dense twin in fp64 on the CPU: each may be wrong by the
    rounding of what is stored, beside 1 % of the largest (sums are in fp32)."""
    twin = layer.to_dense().cpu().double()
    ours, theirs = x.clone().requires_grad_(), x.detach().cpu().double().requires_grad_()
    y, expected = layer(ours), twin(theirs)
    assert y.dtype == x.dtype and y.shape == expected.shape
    dy = torch.randn(expected.shape).to(x.dtype)
    y.backward(dy.to(x.device)), expected.backward(dy.double())
    weight = layer.sparse_weights()["values"]
    kept = weight.unpacked(torch.ones_like(layer.values)).cpu().reshape(twin.weight.shape)
    dw = weight.unpacked(layer.values.grad).reshape(twin.weight.shape)
    pairs = [(y, expected), (ours.grad, theirs.grad), (dw, twin.weight.grad * kept)]
    pairs += [] if layer.bias is None else [(layer.bias.grad, twin.bias.grad)]
    for got, exact in pairs:
        assert got.dtype == x.dtype
        torch.testing.assert_close(
            got.detach().cpu().double(), exact.detach(), rtol=2**-7, atol=0.01 * float(exact.abs().max())
        )


@pytest.mark.parametrize("how", OPTIONS, ids=str)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_every_option_of_ragged_channels(dimensions: int, how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = made(dimensions, dtype=torch.bfloat16, **how).cuda()
    require_close(layer, torch.randn(2, 24, *(7, 6, 5)[:dimensions], dtype=torch.bfloat16, device="cuda"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("block", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("last", [False, True])
def test_every_block_dtype_and_memory_format(dtype: torch.dtype, block: int, last: bool) -> None:
    torch.manual_seed(0)
    how: Any = {"density": 0.5, "block": block, "device": "cuda", "dtype": dtype}
    layer = BlockSparseConv2d(256, 256, 3, padding=1, **how)
    x = torch.randn(3, 256, 9, 11, device="cuda", dtype=dtype)
    require_close(layer, x.contiguous(memory_format=torch.channels_last) if last else x)


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


def test_no_images_compiled_captured_and_strict() -> None:
    torch.manual_seed(0)
    layer = BlockSparseConv2d(64, 64, 3, density=0.5, device="cuda", dtype=torch.bfloat16)
    assert layer(torch.zeros(0, 64, 8, 8, device="cuda", dtype=torch.bfloat16)).shape == (0, 64, 6, 6)
    x = torch.randn(2, 64, 8, 8, device="cuda", dtype=torch.bfloat16)
    layer.strict = True
    expected = layer(x)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), expected)
    with torch.no_grad():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        graph.replay()
        assert torch.equal(y, expected)
    with pytest.raises(Error, match="bf16 or fp16 on a GPU"):
        layer.float()(x.float())
