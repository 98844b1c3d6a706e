"""CSR and COO weights on a GPU: every kernel beside fp64 and the CPU, layers beside their dense twins."""

from __future__ import annotations

import copy

import pytest
import torch
from test_csr_linear import DTYPES, NAN, OPERATORS, ROUNDING, Products, normal, weight_of
from torch import nn

import sparseloom
from sparseloom import Error, InLayout, sparsify_
from sparseloom.layouts import Csr
from sparseloom.nn import SparseLinear
from sparseloom.ops import csr
from sparseloom.ops.operators import row_of

pytestmark = pytest.mark.gpu
DIRECTIONS = ("forward", "dx", "dw")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "density"), [((40, 33), 0.3), ((1, 5), 0.5), ((300, 700), 0.1), ((5, 1), 0.6), ((513, 129), 1)]
)
def test_every_kernel_is_right(dtype: torch.dtype, shape: tuple[int, int], density: float):
    weight = weight_of(*shape, density, dtype)
    for tokens in (1, 4, 33, 130, 1024):
        products = Products(weight, tokens, "cuda")
        for direction in DIRECTIONS:
            exact, size = products.exact(direction)
            bound = ROUNDING[dtype] * exact.abs() + 2e-6 * size * (dtype != torch.float64) + 1e-7
            kernels = products.kernels(direction)
            assert "dense_on_device" in kernels and (len(kernels) > 1 or dtype == torch.float64)
            for kernel in kernels:
                got = products.run(direction, kernel)
                assert got.dtype == dtype and got.shape == exact.shape
                # Torch lets cuBLAS add up parts of 16-bit products in 16 bits.
                loose = ROUNDING[dtype] * size if kernel == "dense_on_device" else 0
                wrong = (got.double() - exact).abs() > bound + loose
                assert not wrong.any(), (kernel, direction, tokens)
                assert torch.equal(products.run(direction, kernel), got), kernel
            if tokens == 33:
                there = Products(weight, tokens).run(direction).cuda().double()
                assert bool(((products.run(direction).double() - there).abs() <= 2 * (bound + loose)).all())


@pytest.mark.parametrize("name", ["csr", "coo"])
@pytest.mark.parametrize("shape", [(24,), (1, 24), (7, 24), (2, 3, 24), (90, 24), (0, 24)])
def test_a_layer_is_its_dense_twin(name: str, shape: tuple[int, ...]):
    torch.manual_seed(1)
    layer = SparseLinear(24, 16, layout=name, density=0.3, device="cuda")
    assert layer.by_column is layer.layout.by_column() and "by_column" not in layer.state_dict()
    twin, x = layer.to_dense(), normal(*shape).cuda()
    mine, theirs = (x.clone().requires_grad_() for _ in "ab")
    layer(mine).square().sum().backward()
    twin(theirs).square().sum().backward()
    wanted = layer.layout.pack(twin.weight.grad)
    for got, want in (
        (mine.grad, theirs.grad),
        (layer.values.grad, wanted),
        (layer.bias.grad, twin.bias.grad),
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["csr", "coo"])
def test_gradients_hold_to_the_second_order(name: str):
    weight = weight_of(7, 5, 0.5, torch.float64).cuda()
    layout = sparseloom.layouts.get(name).from_dense(weight)
    values = layout.pack(normal(7, 5, dtype=torch.float64).cuda()).requires_grad_()
    x, dy = (normal(3, n, dtype=torch.float64).cuda().requires_grad_() for n in (5, 7))
    for call, operands in ((layout.dx, (dy, values)), (layout.dw, (dy, x))):
        assert torch.autograd.gradcheck(call, operands) and torch.autograd.gradgradcheck(call, operands)


def test_entries_out_of_order_and_duplicates_are_those_of_the_cpu():
    generator = torch.Generator().manual_seed(0)
    places = torch.stack([torch.randint(0, size, (400,), generator=generator) for size in (30, 20)])
    found = []
    for device in ("cpu", "cuda"):
        layout, values = Csr.from_entries(30, 20, places.to(device), normal(400).to(device))
        found.append(layout.linear(normal(5, 20).to(device), values, None).cpu())
    torch.testing.assert_close(found[1], found[0])


def test_nothing_stored_and_nothing_to_multiply():
    for shape in ((0, 4), (4, 0), (3, 5)):
        layout, bias = Csr.from_dense(torch.zeros(shape, device="cuda")), normal(shape[0]).cuda()
        for tokens in (0, 1, 70):
            x, dy = (normal(tokens, size).cuda() for size in (shape[1], shape[0]))
            none = x.new_empty(0)
            assert torch.equal(layout.linear(x, none, bias), bias.expand(tokens, shape[0]))
            assert torch.equal(layout.dx(dy, none), x.new_zeros(tokens, shape[1]))
            assert layout.dw(dy, x).shape == (0,)
    one = Csr.from_dense(torch.ones(1, 1, device="cuda"))
    assert one.dw(bias.new_empty(0, 1), bias.new_empty(0, 1)).tolist() == [0]


def test_nan_stays_where_it_is_stored():
    weight = weight_of(60, 70, 0.2).cuda()
    layout = Csr.from_dense(weight)
    values = layout.pack(weight)
    for tokens in (1, 70):
        x = normal(tokens, 70).cuda()
        x[0, 5] = NAN
        for kernel in ("sm80_gather", "sm80_slabs"):
            y = OPERATORS.csr_linear(x, values, *layout.csr(), None, 0, None, row_of(kernel))
            assert torch.equal(y[0].isnan(), weight[:, 5] != 0) and not y[1:].isnan().any()


def test_operands_on_views_and_without_the_column_index():
    products = Products(weight_of(50, 40, 0.3), 20, "cuda")
    layout, values = products.layout, products.values
    wide = normal(20, 83, seed=1).cuda()
    x = wide[:, 3:43]
    want = x @ products.weight.t()
    for kernel in ("sm80_gather", "sm80_slabs", "dense_on_device"):
        got = OPERATORS.csr_linear(x, values, *layout.csr(), None, 0, None, row_of(kernel))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    with pytest.raises(Error, match="by_column on a CUDA device"):
        csr.dx(products.dy, values, *layout.csr(), 40)


def test_opcheck():
    products = Products(weight_of(9, 7, 0.4), 3, "cuda")
    index, values, columns = products.layout.csr(), products.values, products.layout.by_column()
    for op, arguments in (
        (OPERATORS.csr_linear.default, (products.x, values, *index, products.bias)),
        (OPERATORS.csr_dx.default, (products.dy, values, *index, columns, 7)),
        (OPERATORS.csr_dw.default, (products.dy, products.x, *index)),
    ):
        assert set(torch.library.opcheck(op, arguments).values()) == {"SUCCESS"}, op


def test_a_model_moves_compiles_is_captured_and_loads(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 64))
    sparsify_(net, {"0": InLayout("csr", density=0.1), "2": InLayout("coo", density=0.1)})
    x = normal(32, 128)
    want = net(x).detach().cuda()
    assert net[0].by_column is None
    net, x = net.cuda(), x.cuda()
    assert net[0].by_column is not None and copy.deepcopy(net)[2].by_column is not None
    torch.testing.assert_close(net(x), want)
    net(x).square().sum().backward()
    gradient, net[0].values.grad = net[0].values.grad, None
    compiled = torch.compile(net, fullgraph=True)
    torch.testing.assert_close(compiled(x), want)
    compiled(x).square().sum().backward()
    torch.testing.assert_close(net[0].values.grad, gradient, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = net(x)
        graph.replay()
        torch.testing.assert_close(y, want)
    with torch.autocast("cuda", torch.bfloat16):
        assert net(x).dtype == torch.bfloat16
    sparseloom.save(net, tmp_path / "net.safetensors")
    other = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 64)).cuda()
    sparseloom.load(tmp_path / "net.safetensors", other, sparsify=True)
    torch.testing.assert_close(other(x), want)


def test_a_layer_trains_beside_its_masked_dense_twin():
    torch.manual_seed(0)
    layer = SparseLinear(96, 64, layout="csr", density=0.2, device="cuda")
    twin, mask = layer.to_dense(), layer.layout.to_dense(torch.ones_like(layer.values))
    optimizers = [torch.optim.Adam(each.parameters(), 0.01) for each in (layer, twin)]
    for step in range(10):
        x = normal(48, 96, seed=step).cuda()
        for each, optimizer in zip((layer, twin), optimizers, strict=True):
            optimizer.zero_grad()
            each(x).tanh().square().sum().backward()
            if each is twin:
                twin.weight.grad *= mask
            optimizer.step()
    torch.testing.assert_close(layer.to_dense().weight, twin.weight, rtol=1e-3, atol=1e-4)
