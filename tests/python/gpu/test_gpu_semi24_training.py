"""2:4 training on a GPU: products of packed W and W^T, refreshes without the host, one CUDA graph."""

import copy

import pytest
import torch
from torch import nn

from sparseloom import InLayout, sparsify_
from sparseloom.nn import Semi24FeedForward, Semi24Training, Semi24TrainingConv2d
from sparseloom.nn.masked import product24
from sparseloom.ops import semi24
from sparseloom.sparsify import methods

pytestmark = pytest.mark.gpu
SIZES = [(64, 64, 128), (100, 70, 130), (3000, 256, 512), (17, 33, 35)]


def within(actual, dense, exact):
    error, allowed = (actual.double() - exact).abs().max(), (dense.double() - exact).abs().max()
    floor = (8 if actual.dtype == torch.float64 else 2) * torch.finfo(actual.dtype).eps  # its own order
    assert error <= 2 * allowed + floor * exact.abs().max(), (error, allowed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("prune", semi24.METHODS)
def test_products_and_gradients_are_those_of_the_masked_twin(prune, dtype):
    torch.manual_seed(0)
    for tokens, rows, cols in SIZES:
        layer = Semi24Training(cols, rows, prune=prune, device="cuda", dtype=dtype)
        assert layer._kind == product24.kind_of(layer.mask)
        layer.multiply = "semi24"
        x = torch.randn(tokens, cols, device="cuda", dtype=dtype, requires_grad=True)
        dy = torch.randn(tokens, rows, device="cuda", dtype=dtype)
        y = layer(x)
        y.backward(dy)

        def twin(to, layer=layer, x=x, dy=dy):
            weight = layer.weight.detach().to(to).masked_fill(~layer.mask, 0)
            own, grad = x.detach().to(to), dy.to(to)
            bias = layer.bias.detach().to(to)
            return nn.functional.linear(own, weight, bias), grad @ weight, grad.t() @ own, grad.sum(0)

        mine = y, x.grad, layer.weight.grad, layer.bias.grad
        for got, one, exact in zip(mine, twin(dtype), twin(torch.float64), strict=True):
            within(got, one, exact)


def test_a_convolution_by_packed_products_is_the_dense_one():
    torch.manual_seed(0)
    dense = nn.Conv2d(24, 40, 3, padding=1, device="cuda", dtype=torch.bfloat16)
    layer = Semi24TrainingConv2d(dense)
    layer.multiply = "semi24"
    x = torch.randn(4, 24, 16, 16, device="cuda", dtype=torch.bfloat16)
    twin = copy.deepcopy(layer.to_dense())  # its bias is the layer's Parameter
    within(layer(x), twin(x), copy.deepcopy(twin).double()(x.double()))


@pytest.mark.parametrize("rule", ["sr_ste", "sr_ste_decoupled", "cast", "s_ste"])
def test_a_refresh_reads_nothing_on_the_host_and_a_cuda_graph_sees_it(rule):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda().bfloat16()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, capturable=True)
    recipe = InLayout("semi24", method=methods.semi24(rule, every=1))
    run = sparsify_(net, {"[02]": recipe}, optimizer=optimizer).method
    for layer in net:
        if isinstance(layer, Semi24Training):
            layer.multiply = "semi24"
    x = torch.randn(4096, 256, device="cuda", dtype=torch.bfloat16)

    def step():
        optimizer.zero_grad(set_to_none=False)
        net(x).float().square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    rates = []
    for _ in range(4):  # the run took its steps with the optimizer's, so that the graph holds a refresh
        graph.replay()
        rates += run.flip_rates().values()
        assert torch.equal(net[0].mask, semi24.mask(net[0].weight, net[0].prune))
    assert any(rates)
    layer = net[0]
    own = torch.randn(4096, 256, device="cuda", dtype=torch.bfloat16)
    exact = own.double() @ layer.effective().double().t() + layer.bias.double()
    within(layer(own), nn.functional.linear(own, layer.effective(), layer.bias), exact)


def test_compiled_by_inductor_it_is_one_graph():
    layer = Semi24Training(512, 256, device="cuda", dtype=torch.bfloat16)
    layer.multiply = "semi24"
    x = torch.randn(4096, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.compile(layer, fullgraph=True)(x).float().square().sum().backward()
    mine = x.grad.clone(), layer.weight.grad.clone()
    x.grad = layer.weight.grad = None
    layer(x).float().square().sum().backward()
    for got, wanted in zip(mine, (x.grad, layer.weight.grad), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2 * float(wanted.abs().max()))


@pytest.mark.parametrize("choose", ["largest", "dropout"])
@pytest.mark.parametrize("prune", ["magnitude", "transposable_greedy"])
def test_feed_forwards_by_packed_activations_are_those_by_dense_products(prune, choose):
    torch.manual_seed(0)
    up, down = (nn.Linear(*sizes, device="cuda", dtype=torch.bfloat16) for sizes in ((96, 260), (260, 80)))
    layer = Semi24FeedForward(up, down, prune=prune, choose=choose)
    x = torch.randn(520, 96, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    found = []
    for layer.multiply in ("semi24", "dense"):
        torch.manual_seed(3)
        torch.cuda.set_sync_debug_mode("error")
        try:
            y = layer(x)
            grads = torch.autograd.grad(y.sum(), [x, *layer.parameters()])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found.append((y, *grads))
    for packed, dense in zip(*found, strict=True):
        torch.testing.assert_close(packed, dense, rtol=2e-2, atol=2e-2 * float(dense.abs().max()))


def test_auto_runs_packed_products_where_they_should_pay():
    torch.manual_seed(0)
    layer = Semi24Training(512, 256, device="cuda", dtype=torch.bfloat16)
    found = {}
    for tokens in (64, 4096):
        x = torch.randn(tokens, 512, device="cuda", dtype=torch.bfloat16)
        for layer.multiply in ("auto", "semi24", "dense"):
            found[tokens, layer.multiply] = layer(x)
    assert torch.equal(found[4096, "auto"], found[4096, "semi24"])
    assert torch.equal(found[64, "auto"], found[64, "dense"])
