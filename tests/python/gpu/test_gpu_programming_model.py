"""The programming model on CUDA tensors: sparse tensors, registered operators, sparsified results and models,
each beside the same on the CPU or beside a dense twin."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from builder_nets import inputs, masked, net, run
from ell import Ell, EllMm
from test_sparse_tensor import ALL, LAYOUTS, made, weight
from torch import Tensor, nn
from torch.nn import functional

import sparseloom as sl
from sparseloom import SparseTensor, ops, sparsified_op
from sparseloom import layouts as L
from sparseloom import sparsify as S

pytestmark = pytest.mark.gpu
HALF = S.ScalarFraction(0.5)
GPU = torch.device("cuda")


def on_gpu(layout: Any) -> SparseTensor:
    options = {
        name: each.cuda() if isinstance(each, Tensor) else each for name, each in LAYOUTS[layout].items()
    }
    return SparseTensor.from_dense(weight().cuda(), layout, **options)


@ALL
def test_it_stores_what_the_cpu_stores_and_moves(layout: Any):
    tensor, there = on_gpu(layout), made(layout)
    assert tensor.is_cuda and all(part.is_cuda for part in tensor.layout_index.tensors().values())
    assert torch.equal(tensor.to_dense().cpu(), there.to_dense())
    for moved in (there.cuda(), tensor.cpu().to("cuda"), pickle.loads(pickle.dumps(tensor))):
        assert moved.format is layout and moved.is_cuda and torch.equal(moved.to_dense(), tensor.to_dense())
    assert tensor.half().dtype == torch.float16 and tensor.half().is_cuda


@pytest.mark.parametrize("layout", [each for each in LAYOUTS if "dw" in each.directions])
@pytest.mark.filterwarnings("error::sparseloom.ops.DenseFallback")
def test_products_gradients_and_optimizers_are_those_of_the_masked_twin(layout: Any):
    tensor = on_gpu(layout).requires_grad_()
    twin = tensor.detach().to_dense().clone().requires_grad_()
    mask = tensor.layout_index.to_dense(torch.ones_like(tensor.stored))
    x = torch.randn(5, 8, device=GPU)
    steps = [torch.optim.Adam([each], 0.1) for each in (tensor, twin)]
    for _ in range(3):
        for each, step in zip((tensor, twin), steps, strict=True):
            step.zero_grad()
            functional.linear(x, each).square().sum().backward()
            if each is twin:
                twin.grad *= mask
            step.step()
    assert tensor.grad.format is layout
    torch.testing.assert_close(tensor.to_dense(), twin, rtol=1e-3, atol=1e-5)


def test_a_registered_operator_runs_forward_and_backward():
    mine = ops.Registry(strict=True)
    mine.register(torch.mm, [Ell, L.Dense], [(S.KeepAll, L.Dense)])(EllMm)
    w = SparseTensor.from_dense(weight().cuda(), Ell, registry=mine, width=3).requires_grad_()
    x = torch.randn(8, 4, device=GPU, requires_grad=True)
    y = torch.mm(w, x)
    assert type(y.grad_fn).__name__ == "EllMmBackward" and y.is_cuda
    y.square().sum().backward()
    twin = w.detach().to_dense().clone().requires_grad_()
    other = x.detach().clone().requires_grad_()
    (twin @ other).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(w.grad.stored, w.layout_index.pack(twin.grad), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", [L.Csr, L.Coo, L.CooNd, L.MaskedDense])
@pytest.mark.parametrize("sparsifier", [S.KeepAll(), S.ScalarThreshold(0.4), HALF], ids=str)
def test_sparsified_results_are_those_of_the_cpu(layout: Any, sparsifier: Any):
    add = sparsified_op(torch.add, [(S.KeepAll(), L.Dense, sparsifier, layout)])
    found = []
    for device in ("cpu", "cuda"):
        a = weight().to(device).requires_grad_()
        y = add(a, weight(1).to(device))
        y.to_dense().square().sum().backward()
        assert y.format is layout and y.device.type == device
        found.append((y.to_dense().detach().cpu(), a.grad.cpu()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_random_results_have_the_fraction_and_its_gradient():
    x = torch.randn(200, 300, device=GPU, requires_grad=True)
    y = sparsified_op(torch.neg, [(S.KeepAll(), L.Coo, S.RandomFraction(0.75), L.Csr)])(x)
    y.to_dense().sum().backward()
    kept = y.to_dense() != 0
    assert 0.23 < kept.float().mean().item() < 0.27
    assert torch.equal(x.grad, -kept.float())


@pytest.mark.parametrize("into", [L.Csr, L.Coo, L.MaskedDense])
@pytest.mark.filterwarnings("ignore::sparseloom.ops.DenseFallback")
def test_a_model_that_was_built_is_that_of_the_cpu(into: Any):
    """Weights, an intermediate and a gradient; copies and the format after optimizer steps."""
    results = []
    for device in ("cpu", "cuda"):
        model = net().to(device)
        builder = sl.SparsityBuilder(model)
        builder.set_weight("layer.up.weight", HALF, out_format=into)
        builder.set_weight("conv.weight", HALF, out_format=into)
        builder.set_weight_grad("head.weight", external_sparsifier=HALF)
        builder.set_interm("layer.gelu", external_sparsifier=HALF, out_format=into)
        built = builder.get_sparse_model()
        x = inputs().to(device)
        y, dx = run(copy.deepcopy(built), x)
        optimizer = torch.optim.SGD(built.parameters(), 0.01)
        for _ in range(2):
            optimizer.zero_grad()
            built(x).square().mean().backward()
            optimizer.step()
        results.append([each.detach().cpu() for each in (y, dx, built(x))])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore::sparseloom.ops.DenseFallback")
def test_layers_train_beside_their_masked_dense_twins():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).cuda()
    twin = copy.deepcopy(model)
    builder = sl.SparsityBuilder(model)
    builder.set_weight("[02].weight", HALF, out_format=L.Csr)
    built = builder.get_sparse_model()
    for layer in (twin[0], twin[2]):
        masked(layer.weight, HALF)
    x = torch.randn(7, 32, device=GPU)
    for each in (built, twin):
        optimizer = torch.optim.AdamW(each.parameters(), 1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            each(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(built(x), twin(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_code_has_no_break_where_it_is_registered(backend: str):
    torch._dynamo.reset()
    mine = ops.Registry(strict=True)
    mine.register(torch.mm, [Ell, L.Dense], [(S.KeepAll, L.Dense)])(EllMm)
    w = SparseTensor.from_dense(weight().cuda(), Ell, registry=mine, width=3)
    fast = torch.compile(lambda w, x: torch.mm(w, x.relu()), fullgraph=True, backend=backend)
    x = torch.randn(8, 4, device=GPU)
    torch.testing.assert_close(fast(w, x), w.to_dense() @ x.relu(), rtol=1e-4, atol=1e-5)
