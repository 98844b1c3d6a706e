"""What the tests of convolutions and transposed convolutions share, on every device: layers, their options,
and comparisons with dense twins whose weight is masked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from on_gpu import capture
from torch import Tensor, nn

from sparseloom import Error
from sparseloom import nn as sparse
from sparseloom import pattern as patterns
from sparseloom.ops import operators
from sparseloom.ops.conv import plans, product

CONVS = {1: sparse.BlockSparseConv1d, 2: sparse.BlockSparseConv2d, 3: sparse.BlockSparseConv3d}
TRANSPOSED = {
    1: sparse.BlockSparseConvTranspose1d,
    2: sparse.BlockSparseConvTranspose2d,
    3: sparse.BlockSparseConvTranspose3d,
}
DENSE: dict[type[nn.Module], type[nn.Module]] = {
    sparse.BlockSparseConv1d: nn.Conv1d,
    sparse.BlockSparseConv2d: nn.Conv2d,
    sparse.BlockSparseConv3d: nn.Conv3d,
    sparse.BlockSparseConvTranspose1d: nn.ConvTranspose1d,
    sparse.BlockSparseConvTranspose2d: nn.ConvTranspose2d,
    sparse.BlockSparseConvTranspose3d: nn.ConvTranspose3d,
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": False},
    {"kernel_size": 1},
    {"kernel_size": 2, "stride": 2},
    {"padding": 1},
    {"padding": "valid"},
    {"padding": "same", "dilation": 2},
    {"padding": "same", "kernel_size": 4},
    {"padding": 2, "stride": 3, "dilation": 2},
    {"padding": 1, "padding_mode": "reflect"},
    {"padding": 2, "padding_mode": "replicate", "stride": 2},
    {"padding": "same", "padding_mode": "circular"},
]
TRANSPOSED_OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": False},
    {"kernel_size": 1},
    {"kernel_size": 2, "stride": 2},
    {"padding": 1},
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"kernel_size": 4, "stride": 3, "padding": 2, "output_padding": 2},
    {"dilation": 2, "padding": 2, "output_padding": 1},
    {"stride": 2, "dilation": 3, "output_padding": 2},
]
#: How wrong a result may be, of itself and of the largest: what is stored is rounded, and sums are in fp32.
ERRORS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 3e-3}
#: On a GPU torch multiplies fp32 in TF32.
ERROR_OF_GPUS = 1e-2


def made(dimensions: int, channels: tuple[int, int] = (24, 20), **how: Any) -> Any:
    """Returns a convolution in blocks of 8; see made_of."""
    return made_of(CONVS[dimensions], channels, (8, 8), **how)


def made_transposed(dimensions: int, channels: tuple[int, int] = (24, 20), **how: Any) -> Any:
    """Returns a transposed convolution in blocks of 8 x 16, which must be turned; see made_of."""
    return made_of(TRANSPOSED[dimensions], channels, (8, 16), **how)


def made_of(kind: Any, channels: tuple[int, int], block: tuple[int, int], **how: Any) -> Any:
    """Returns a layer, of ragged channels (in, out) by default, in which one block row is empty."""
    (cols, rows), (bm, bn), generator = channels, block, torch.Generator().manual_seed(3)
    mask = torch.rand(-(-rows // bm), -(-cols // bn), generator=generator) < 0.5
    mask[1:2], mask[0, 0], mask[-1, -1] = False, True, True
    found = patterns.from_mask(rows, cols, block, mask)
    how.setdefault("kernel_size", 3)
    return kind(cols, rows, pattern=found, seed=generator, **how)


def stored(layer: Any, weight: Tensor) -> Tensor:
    """Returns 1 where a dense weight of the layer's shape is stored by the pattern, and 0 elsewhere."""
    mask = torch.zeros_like(weight)
    of_outputs = mask.transpose(0, 1) if type(layer) in TRANSPOSED.values() else mask
    bm, bn = layer.block
    for row, col in layer.pattern.mask.nonzero().tolist():
        of_outputs[row * bm : (row + 1) * bm, col * bn : (col + 1) * bn] = 1
    return mask


def require_close(found: Tensor, exact: Tensor) -> None:
    """Compares a result with what another computation gave."""
    error = ERROR_OF_GPUS if found.is_cuda else ERRORS[found.dtype]
    found, exact = found.detach().cpu().double(), exact.detach().cpu().double()
    largest = float(exact.abs().max()) if exact.numel() else 0.0
    torch.testing.assert_close(found, exact, rtol=error, atol=error * largest)


def require_equal_to_dense(layer: Any, x: Tensor) -> None:
    """Compares values and gradients with those of the dense twin in fp64 on the CPU."""
    twin = layer.to_dense()
    assert type(twin) is DENSE[type(layer)] and twin.weight.device == x.device
    twin = twin.cpu().double()
    mask = stored(layer, twin.weight.detach())
    assert not bool(twin.weight[mask == 0].any())
    assert int(twin.weight.count_nonzero()) == int(layer.values.count_nonzero())
    ours, theirs = x.clone().requires_grad_(), x.detach().cpu().to(torch.float64, copy=True).requires_grad_()
    y, expected = layer(ours), twin(theirs)
    dy = torch.randn(expected.shape).to(x.dtype)
    y.backward(dy.to(x.device)), expected.backward(dy.double())
    dw = layer.sparse_weights()["values"].unpacked(layer.values.grad)
    dw = layer.of_channels(dw.unflatten(2, layer.kernel_size))
    pairs = [(y, expected), (ours.grad, theirs.grad), (dw, twin.weight.grad * mask)]
    pairs += [] if layer.bias is None else [(layer.bias.grad, twin.bias.grad)]
    for found, exact in pairs:
        assert found.dtype == x.dtype and found.device == x.device and found.shape == exact.shape
        require_close(found, exact)


def require_every_call(layer: Any, x: Tensor) -> None:
    """Compares the calls of one layer that differ in form alone: x in channels-last memory, without its
    batch, compiled, recorded by fx, under autocast, and without images."""
    y = layer(x)
    if x.dim() == 4:
        require_close(layer(x.contiguous(memory_format=torch.channels_last)), y)
    require_close(layer(x[0]), y[0])
    require_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), y)
    require_close(torch.fx.symbolic_trace(nn.Sequential(layer))(x), y)
    with torch.autocast(x.device.type, torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    empty = x[:0].clone().requires_grad_()
    none = layer(empty)
    assert none.shape == (0, *y.shape[1:]) and none.dtype == y.dtype
    none.sum().backward()
    assert empty.grad is not None and empty.grad.shape == empty.shape
    assert not bool(layer.values.grad.any())


def choose(monkeypatch: pytest.MonkeyPatch, **kernels: str) -> None:
    """Decides for the plan who computes in a direction of bsr_conv (forward, dx, dw), in calls and in plans:
    "rows", the sparse ones, or "dense", torch's convolution."""
    directions = {product.CONV: "forward", product.CONV_DX: "dx", product.CONV_DW: "dw"}
    options = {"rows": (operators.PLAN_CHOOSES, True), "dense": (operators.row_of("dense"), False)}
    run, asked = operators.run, plans.asked

    def run_chosen(operator: Any, *arguments: Any) -> Any:
        if kernel := kernels.get(directions.get(operator, "")):
            *operands, _, _, tf32, digest = arguments
            arguments = (*operands, *options[kernel], tf32, digest)
        return run(operator, *arguments)

    def ask_chosen(
        family: str, sizes: Any, direction: str, dtype: str, m: int, device: int, epilogue: Any, *rest: Any
    ) -> Any:
        if kernel := kernels.get(direction):
            rest = (*options[kernel], *rest[2:])
        return asked(family, sizes, direction, dtype, m, device, epilogue, *rest)

    monkeypatch.setattr(operators, "run", run_chosen)
    monkeypatch.setattr(plans, "asked", ask_chosen)


def choose_all(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    choose(monkeypatch, forward=kernel, dx=kernel, dw=kernel)


def require_rows_alone(layer: Any, x: Tensor) -> None:
    """Compares calls on a GPU in 16 bits, which the rows serve without a dense copy, to the last bit: strict,
    compiled and captured; y lies in channels-last memory. In fp32, they round to TF32 where torch may; where
    it may not, strict says that no row can."""
    layer.strict = True
    expected = layer(x)
    assert expected.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), expected)
    with torch.no_grad():
        graph, y = capture(lambda: layer(x))
        graph.replay()
        assert torch.equal(y, expected)
    y = layer.float()(x.float())
    require_close(y, expected)
    with (
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False),
        pytest.raises(Error, match="where torch allows TF32"),
    ):
        layer(x.float())
