"""Block-sparse transposed convolutions beside torch's with a masked weight, and the products that their rows
are asked for."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conv_twins import (
    TRANSPOSED_OPTIONS,
    choose,
    choose_all,
    made_transposed,
    require_equal_to_dense,
    require_every_call,
)
from torch import Tensor, nn

from sparseloom import BlockSparse, Error, Semi24, densify_, load, save, sparsify_
from sparseloom.nn import BlockSparseConv2d, BlockSparseConvTranspose2d
from sparseloom.ops import DIRECTIONS, operators
from sparseloom.ops.conv import product
from sparseloom.ops.index import make_index


@pytest.mark.parametrize("by_rows", [(), ("dx",), ("dx", "dw")], ids=str)
@pytest.mark.parametrize("how", TRANSPOSED_OPTIONS, ids=str)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_every_option_is_that_of_the_dense_twin(
    dimensions: int, how: dict[str, Any], by_rows: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, **{each: "rows" if each in by_rows else "dense" for each in DIRECTIONS})
    torch.manual_seed(0)
    require_equal_to_dense(made_transposed(dimensions, **how), torch.randn(2, 24, *(5, 4, 3)[:dimensions]))


class Rows:
    """Stands for the rows of bsr_conv: the same products by torch, of what the operators are given."""

    def __init__(self, rows: int, cols: int, block: tuple[int, int], blocks: int) -> None:
        self.shape, self.block, self.blocks = (rows, cols), block, blocks
        self.called: list[str] = []

    def weight(self, values: Tensor, packed: Tensor, kernel: Any) -> Tensor:
        assert values.is_contiguous()
        index = product.Index(packed, self.blocks, *self.shape, *self.block, -1)
        right = make_index(index.crow, index.col, *self.shape, self.block)
        assert all(torch.equal(*lists) for lists in zip(index.lists(), right.lists(), strict=True))
        return product.dense(values, index, kernel)

    def conv(self, x: Tensor, values: Tensor, packed: Tensor, rows: int, *rest: Any) -> Tensor:
        self.called.append("forward")
        kernel, stride, padding, dilation, *others = rest
        assert others == [None, 0, None, operators.PLAN_CHOOSES, False, False, -1] and rows == self.shape[0]
        conv = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]
        y = conv(x.movedim(-1, 1), self.weight(values, packed, kernel), None, stride, padding, dilation)
        return y.movedim(1, -1)

    def conv_dx(self, dy: Tensor, values: Tensor, packed: Tensor, cols: int, *rest: Any) -> Tensor:
        self.called.append("dx")
        extents, window, (bias, *others) = rest[:3], rest[3:7], rest[7:]
        x = dy.new_zeros(dy.shape[0], *extents[3 - len(window[0]) :], cols, requires_grad=True)
        with torch.enable_grad():
            y = self.conv(x, values, packed, dy.shape[-1], *window, None, *others)
        self.called.pop()
        assert y.shape == dy.shape
        dx = torch.autograd.grad(y, x, dy)[0]
        return dx if bias is None else dx + bias

    def conv_dw(
        self, dy: Tensor, x: Tensor, packed: Tensor, blocks: int, bm: int, bn: int, *rest: Any
    ) -> Tensor:
        self.called.append("dw")
        assert (bm, bn) == self.block
        values = torch.zeros(blocks, math.prod(rest[0]), bm, bn, requires_grad=True)
        with torch.enable_grad():
            y = self.conv(x, values, packed, dy.shape[-1], *rest[:4], None, 0, None, *rest[4:])
        self.called.pop()
        return torch.autograd.grad(y, values, dy)[0]


@pytest.mark.parametrize("how", TRANSPOSED_OPTIONS, ids=str)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_the_rows_are_asked_for_the_products_of_the_turned_convolution(
    dimensions: int, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = made_transposed(dimensions, **how)
    rows = Rows(24, 20, (16, 8), layer.pattern.blocks)
    for name in ("conv", "conv_dx", "conv_dw"):
        monkeypatch.setattr(product, name.upper(), getattr(rows, name))
    require_equal_to_dense(layer, torch.randn(2, 24, *(5, 4, 3)[:dimensions]))
    assert rows.called == ["dx", "forward", "dw"]
    kept = layer._turned
    layer(torch.randn(1, 24, *(5, 4, 3)[:dimensions]))
    assert layer._turned is kept and copy.deepcopy(layer)._turned is None


def test_output_size_takes_the_place_of_output_padding() -> None:
    torch.manual_seed(0)
    layer, x = made_transposed(2, stride=3, padding=1), torch.randn(2, 24, 4, 5)
    twin = layer.to_dense()
    for size in ([10, 15], (2, 20, 12, 14)):
        torch.testing.assert_close(layer(x, size), twin(x, list(size)))
        torch.testing.assert_close(layer(x, output_size=size), twin(x, output_size=list(size)))
    with pytest.raises(Error, match="output_size from \\(10, 13\\) on that leaves fewer than \\(3, 3\\)"):
        layer(x, (13, 14))
    with pytest.raises(Error, match="output_size of 2 numbers"):
        layer(x, (10,))


@pytest.mark.parametrize("kernel", ["rows", "dense"])
def test_every_call_gives_the_same(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_all(monkeypatch, kernel)
    torch.manual_seed(0)
    require_every_call(made_transposed(2, stride=2, output_padding=1), torch.randn(2, 24, 4, 5))


def test_gradients_of_both_orders() -> None:
    torch.manual_seed(0)
    layer = made_transposed(1, (16, 8), dtype=torch.float64, padding=1, kernel_size=2, stride=2)
    x = torch.randn(1, 16, 3, dtype=torch.float64, requires_grad=True)

    def call(x: Tensor, values: Tensor, bias: Tensor) -> Any:
        return torch.func.functional_call(layer, {"values": values, "bias": bias}, (x,))

    operands = (x, layer.values, layer.bias)
    assert torch.autograd.gradcheck(call, operands)
    assert torch.autograd.gradgradcheck(call, operands, atol=1e-4)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"groups": 2}, "groups of 1"),
        ({"padding_mode": "reflect"}, "padding_mode of zeros"),
        ({"padding": "same"}, "padding to be an int"),
        ({"output_padding": 1}, "fewer than \\(1, 1\\) outputs"),
        ({"stride": 0}, "stride to be an int >= 1"),
    ],
    ids=str,
)
def test_arguments_are_refused(how: dict[str, Any], said: str) -> None:
    with pytest.raises(Error, match=said):
        made_transposed(2, **how)


def test_operands_are_refused() -> None:
    layer = made_transposed(2, padding=2)
    with pytest.raises(Error, match=r"\[conv\] expected x"):
        layer(torch.zeros(2, 20, 6, 7))
    with pytest.raises(Error, match="a result of at least one element"):
        layer(torch.zeros(2, 24, 2, 7))
    layer.strict = True
    with pytest.raises(Error, match="bf16, fp16 or fp32 with images"):
        layer.double()(torch.zeros(2, 24, 6, 7, dtype=torch.float64))


def model(groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 16, (1, 3), output_padding=(1, 0), stride=2, groups=groups),
    )


def test_a_model_goes_there_and_back_and_into_a_file(tmp_path: Any) -> None:
    torch.manual_seed(0)
    net, x = model(), torch.randn(2, 16, 4, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    net(x).sum().backward(), optimizer.step()
    weight, before = net[0].weight.detach().clone(), net[0]
    sparsify_(net, {".*": BlockSparse(block=(16, 8), density=0.5)}, optimizer=optimizer)
    assert [type(net[i]) for i in (0, 2)] == [BlockSparseConvTranspose2d] * 2
    assert net[0].bias is before.bias and net[2].output_padding == (1, 0)
    # the blocks [out, in] with the most of |w| over all taps
    sums = weight.abs().sum((2, 3)).t().unflatten(0, (-1, 16)).unflatten(2, (-1, 8)).sum((1, 3))
    best = torch.zeros(4, dtype=torch.bool).scatter(0, sums.flatten().topk(2).indices, True)
    assert torch.equal(net[0].pattern.mask.flatten().bool(), best)
    momentum = optimizer.state[net[0].values]["momentum_buffer"]
    assert momentum.shape == net[0].values.shape
    net(x).sum().backward(), optimizer.step()
    y = net(x)
    save(net, tmp_path / "net.safetensors")
    dense = model()
    load(tmp_path / "net.safetensors", dense, sparsify=True)
    assert torch.equal(dense(x), y)
    densify_(net, optimizer=optimizer)
    assert type(net[0]) is nn.ConvTranspose2d
    assert optimizer.state[net[0].weight]["momentum_buffer"].shape == (16, 32, 4, 4)
    torch.testing.assert_close(net(x), y)


def test_what_stays_dense_says_why() -> None:
    net = model(groups=4)
    result = sparsify_(net, {".*": BlockSparse(block=8, density=0.5)})
    assert any("4 groups" in skip.reason for skip in result.skipped)
    assert type(net[2]) is nn.ConvTranspose2d
    with pytest.raises(Error, match="no 2:4 layer"):
        sparsify_(model(), {".*": Semi24()})


def test_a_dense_checkpoint_is_packed() -> None:
    torch.manual_seed(0)
    dense = nn.ConvTranspose2d(16, 20, 3)
    layer = BlockSparseConvTranspose2d.from_dense(dense, density=0.5, block=8)
    again = BlockSparseConvTranspose2d(16, 20, 3, pattern=layer.pattern)
    again.load_state_dict(dense.state_dict(), strict=False)
    assert torch.equal(again.values, layer.values) and torch.equal(again.bias, layer.bias)
    assert layer.weight.shape == dense.weight.shape == (16, 20, 3, 3)
    with pytest.raises(Error, match=r"an nn.ConvTranspose2d"):
        BlockSparseConvTranspose2d.from_dense(nn.Conv2d(16, 20, 3), density=0.5)


def test_initial_values_are_those_of_the_dense_class_for_the_stored_outputs() -> None:
    dense = nn.ConvTranspose2d(64, 32, 3)
    full = BlockSparseConvTranspose2d(64, 32, 3, density=1.0, block=8)
    assert float(full.values.detach().std()) == pytest.approx(float(dense.weight.detach().std()), rel=0.03)
    layer = BlockSparseConvTranspose2d(64, 64, 3, density=0.25, block=8)
    bound = (64 * 0.25 * 9) ** -0.5
    assert 0.95 * bound < float(layer.values.detach().abs().max()) <= bound


@pytest.mark.parametrize("kind", [BlockSparseConv2d, BlockSparseConvTranspose2d])
@pytest.mark.parametrize("how", [{}, {"stride": 2}, {"dilation": 2, "padding": 0}])
def test_five_by_five_taps_within_seven_by_seven_are_the_same(
    monkeypatch: pytest.MonkeyPatch, kind: Any, how: dict[str, Any]
) -> None:
    """What fp32 without TF32 does on a GPU, whose dW of 5 x 5 taps loses digits."""
    torch.manual_seed(0)
    layer = kind(12, 20, 5, density=0.5, block=8, dtype=torch.float64, **{"padding": 2, **how})
    x = torch.randn(2, 12, 14, 11, dtype=torch.float64, requires_grad=True)
    found: list[list[torch.Tensor]] = []
    for loses in (False, True):
        monkeypatch.setattr(product, "dw_loses_digits", lambda operand, kernel, loses=loses: loses)
        y = layer(x)
        dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
        found.append([y, *torch.autograd.grad(y, [x, layer.values, layer.bias], dy)])
    for narrow, wide in zip(*found, strict=True):
        torch.testing.assert_close(wide, narrow)
