"""prune_ on the GPU: its sweep and its flow against the CPU's, and how little of the model lies there."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

from sparseloom import BlockSparse, InLayout, Semi24, prune_
from sparseloom.ops.operators import call
from sparseloom.prune import solve

pytestmark = pytest.mark.gpu

SIZES = [(1, 1), (7, 24), (33, 100), (64, 128), (1000, 128)]
GROUPS = [(0, 0), (2, 4), (1, 4), (4, 8), (3, 6), (5, 16), (7, 32), (0, 4), (4, 4)]


def operands(rows: int, cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, factor and mask. The factor is of a Hessian that is almost diagonal, so that no sum cancels
    and few elements cost almost the same."""
    generator = torch.Generator().manual_seed(rows * 1000 + cols)
    x = torch.randn(4 * cols + 8, cols, generator=generator, dtype=torch.float64)
    hessian = solve.damped(x.t() @ x, 0.1)
    factor = torch.linalg.cholesky(solve.inverse_of(hessian), upper=True).float().contiguous()
    weights = torch.randn(rows, cols, generator=generator)
    return weights, factor, torch.rand(rows, cols, generator=generator) < 0.5


def swept(weights: Tensor, factor: Tensor, mask: Tensor, n: int, m: int, device: str) -> list[Tensor]:
    wide = torch.cat([weights, weights], 1).to(device)  # rows that lie further apart than they are long
    part, kept = wide[:, : weights.shape[1]], mask.to(device).clone()
    errors = torch.full(weights.shape, torch.nan, device=device)
    call("column_sweep", part, factor.to(device), kept, errors, n, m)
    assert torch.equal(wide[:, weights.shape[1] :].cpu(), weights)
    return [part.cpu(), kept.cpu(), errors.cpu()]


@pytest.mark.parametrize(("size", "group"), list(itertools.product(SIZES, GROUPS)))
def test_the_sweep_is_that_of_the_cpu(size: tuple[int, int], group: tuple[int, int]) -> None:
    operands_of_size = operands(*size)
    here, there = (swept(*operands_of_size, *group, device) for device in ("cpu", "cuda"))
    same = (here[1] == there[1]).all(1)  # a row goes another way from the first choice that rounding decides
    assert float(same.double().mean()) > 0.98
    for a, b in zip(here, there, strict=True):
        torch.testing.assert_close(a[same], b[same], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["int8", "e4m3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sweep_rounds_as_the_cpus(kind: str, dtype: torch.dtype) -> None:
    """Most values are the same; a sum that rounds otherwise moves one to the next number of its grid, and
    that those of its row that follow."""
    weights, factor, mask = operands(500, 100)
    inverse = (factor.double().t() @ factor.double()).double()
    grid = solve.Grid.of(weights, mask, dtype, kind)
    here, _ = solve.swept(weights, inverse, mask, grid=grid)
    on_gpu = solve.Grid(grid.kind, grid.tops.cuda(), grid.pins.cuda())
    there, kept = solve.swept(weights.cuda(), inverse.cuda(), mask.cuda(), grid=on_gpu)
    assert torch.equal(kept.cpu(), mask)
    assert float((here == there.cpu()).double().mean()) > 0.95
    assert torch.equal(there.cpu().abs().amax(1), grid.tops)
    step = grid.tops[:, None] / (127 if kind == "int8" else 14)  # the largest step of e4m3 is 32 of 448
    assert float(((here - there.cpu()).abs() / step).max()) <= 2


def test_the_sweep_is_captured_in_a_graph() -> None:
    weights, factor, mask = (tensor.cuda() for tensor in operands(64, 128))
    expected = swept(weights.cpu(), factor.cpu(), mask.cpu(), 2, 4, "cuda")
    errors, start, graph = torch.empty_like(weights), weights.clone(), torch.cuda.CUDAGraph()
    call("column_sweep", weights, factor, mask, errors, 2, 4)  # loads the kernel
    with torch.cuda.graph(graph):
        call("column_sweep", weights, factor, mask, errors, 2, 4)
    weights.copy_(start)
    graph.replay()
    assert torch.equal(weights.cpu(), expected[0])
    assert torch.equal(mask.cpu(), expected[1])


def net(width: int = 96, depth: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        for _ in range(depth)
    ]
    return nn.Sequential(
        nn.Sequential(*blocks), nn.Linear(width, width)
    ).eval()  # the last is outside of blocks


def batches(width: int = 96) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    mix = torch.randn(width, width, generator=generator) / width**0.5
    return [torch.randn(256, width, generator=generator) @ mix for _ in range(3)]


TARGETS = {
    "2:4": Semi24(),
    "n:m": InLayout("nm", n=2, m=8),
    "csr": InLayout("csr", density=0.4),
    "blocks": BlockSparse(block=16, density=0.5),
}


@pytest.mark.parametrize("method", ["magnitude", "wanda", "sparsegpt"])
@pytest.mark.parametrize("target", TARGETS)
def test_the_flow_loses_no_more_than_on_the_cpu(target: str, method: str) -> None:
    dense, data = net(), batches()
    y, losses = dense(torch.cat(data)).detach(), []
    for device in (None, "cuda"):
        model = copy.deepcopy(dense)
        prune_(model, {".*": TARGETS[target]}, method=method, data=data, device=device, exchange=False)
        assert all(parameter.is_cpu for parameter in model.parameters())
        losses.append(float((model(torch.cat(data)) - y).square().mean().detach()))
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_everything_runs_on_a_model_on_the_gpu() -> None:
    dense, data = net().cuda(), [batch.cuda() for batch in batches()]
    y, losses = dense(torch.cat(data)).detach(), []
    for more in ({}, {"swaps": 20, "refit": 10, "reconstruct": 40}):
        model = copy.deepcopy(dense)
        prune_(model, {".*": Semi24()}, data=data, **more)
        losses.append(float((model(torch.cat(data)) - y).square().mean().detach()))
    assert losses[1] < losses[0]


def test_one_block_lies_on_the_gpu() -> None:
    model, data = net(1024, 6), batches(1024)
    block = sum(parameter.numel() * 4 for parameter in model[0][0].parameters())
    options = {"method": "wanda", "data": data, "device": "cuda", "exchange": False}
    prune_(copy.deepcopy(model), {".*": Semi24()}, **options)  # cuBLAS takes 64 MB of its own in a process
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    plans = prune_(model, {".*": Semi24()}, **options).plan
    peak = torch.cuda.max_memory_allocated() - before
    assert plans is not None
    assert peak < plans.on_device + 3 * 256 * 2048 * 4 * 2
    assert peak < 5 * block + 3 * 256 * 2048 * 4 * 2
