"""Weights of dense, 2:4 and absent tiles on a GPU: forward by one kernel where there is one, beside a masked
dense twin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparseloom.layouts import Tiles
from sparseloom.nn import SparseLinear
from sparseloom.ops import tiles as tiles_ops

pytestmark = pytest.mark.gpu
DTYPES = [torch.float16, torch.bfloat16]
#: Rows, columns, side, shares of the dense and of the 2:4 tiles.
WEIGHTS = {
    "side 64": (512, 768, 64, 0.4, 0.5),
    "side 128": (640, 512, 128, 0.4, 0.5),
    "ragged": (328, 200, 64, 0.3, 0.4),
    "ragged 128": (136, 328, 128, 0.5, 0.5),
    "mostly absent": (512, 512, 64, 0.1, 0.1),
    "all 2:4": (256, 256, 64, 0.0, 1.0),
    "odd sizes": (333, 201, 64, 0.4, 0.5),  # which TMA cannot read: the products of blocks
}


def layer_of(name: str, dtype: torch.dtype, activation: str | None = None) -> tuple[SparseLinear, Tensor]:
    rows, cols, side, dense, half = WEIGHTS[name]
    torch.manual_seed(0)
    drawn = torch.rand(-(-rows // side), -(-cols // side))
    kinds = torch.where(drawn < dense, 2, torch.where(drawn < dense + half, 1, 0))
    kinds.view(-1)[0] = 1
    dense = nn.Linear(cols, rows, device="cuda", dtype=dtype)
    layout = Tiles.from_kinds(dense.weight, kinds, side)
    layer = SparseLinear.from_dense(dense, layout, activation=activation)
    return layer, layout.to_dense(layer.values.detach()).double()


def close(y: Tensor, *terms: Tensor) -> bool:
    """Whether y is the sum of the terms, each of which may have been rounded."""
    loose, size = torch.finfo(y.dtype).eps, sum(term.double().abs() for term in terms)
    return bool(((y.double() - sum(terms)).abs() <= loose * (2 * size + size.mean())).all())


@pytest.mark.parametrize("tokens", [1, 16, 64, 300, 1500])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WEIGHTS)
def test_products_are_those_of_the_masked_dense_twin(name: str, dtype: torch.dtype, tokens: int):
    layer, twin = layer_of(name, dtype, activation="relu")
    x = torch.randn(tokens, layer.in_features, device="cuda").to(dtype).requires_grad_()
    residual = torch.randn(tokens, layer.out_features, device="cuda").to(dtype)
    sums = x.double() @ twin.T + layer.bias.double()
    assert close(layer(x, residual=residual), sums.relu(), residual)
    y = layer(x)
    assert close(y, sums.relu())
    dy = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, dy)
    assert close(dx, (dy.double() * (y > 0)) @ twin)  # a sum may round to 0
    if name != "odd sizes":
        hopper = ("sm90_decode", "sm90_wgmma") if torch.cuda.get_device_capability() == (9, 0) else ()
        assert layer.plan(tokens)["kernel"] in (*hopper, "sm80_mma")


@pytest.mark.parametrize("tokens", [1, 17, 64, 300])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in WEIGHTS if name != "odd sizes"])
def test_every_kernel_multiplies(name: str, dtype: torch.dtype, tokens: int):
    layer, twin = layer_of(name, dtype)
    layout, values = layer.layout, layer.values.detach()
    table = tiles_ops.table(layout.kinds, layout.rows, layout.cols, layout.side).cuda()
    x = torch.randn(tokens, layer.in_features, device="cuda").to(dtype)
    bias, residual = layer.bias.detach(), torch.randn(tokens, layer.out_features, device="cuda").to(dtype)
    rest = bias, "relu", residual
    plan = tiles_ops.plan("forward", dtype, tokens, layout._sizes, "cuda", True, "relu", True)
    kernels = [each["kernel"] for each in plan["candidates"] if not each["refusal"]]
    for kernel in (*kernels, "sm80_mma"):  # which no plan chooses
        y = tiles_ops.linear(
            x, values, table, layout.positions, None, layout.rows, layout.side, *rest, kernel=kernel
        )
        assert close(y, (x.double() @ twin.T + bias.double()).relu(), residual), kernel


def test_operands_off_sixteen_bytes_are_copied():
    layer, twin = layer_of("side 64", torch.bfloat16)
    flat = torch.randn(33 * 768 + 1, device="cuda", dtype=torch.bfloat16)
    for x in (flat[1:].view(33, 768), torch.randn(768, 33, device="cuda", dtype=torch.bfloat16).t()):
        with torch.no_grad():
            assert close(layer(x), x.double() @ twin.T + layer.bias.double())


def test_a_captured_call_reads_new_values():
    layer, _ = layer_of("side 128", torch.bfloat16)
    x = torch.randn(128, 512, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        for _ in range(2):
            layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        layer.values.mul_(-0.5)
        graph.replay()
        assert torch.equal(y, layer(x))


def test_a_compiled_layer_calls_the_kernel():
    layer, _ = layer_of("side 64", torch.bfloat16)
    x = torch.randn(128, 768, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        assert torch.equal(torch.compile(layer, fullgraph=True)(x), layer(x))
