"""Methods with a dense master on a GPU: blocks and single elements, gates in CUDA graphs, AdamW by blocks."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from method_runs import METHODS, batches, begin, train
from on_gpu import capture, sleeping
from test_methods_elements import recipe_of

from sparseloom import BlockSparse, InLayout, pack_
from sparseloom import sparsify as S
from sparseloom.nn import MaskedLinear
from sparseloom.optim import AdamW

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
MASTERS = [name for name in METHODS if METHODS[name][0].gradient.dense_master]


def data(steps):
    return [(x.to(DEVICE), y.to(DEVICE)) for x, y in batches(1) * steps]


@pytest.mark.parametrize("kind", ["blocks", "elements"])
@pytest.mark.parametrize("name", MASTERS)
def test_a_method_trains_and_packs_what_it_kept(name, kind):
    method, takes = METHODS[name]
    recipe = recipe_of(name)
    if kind == "blocks":
        recipe = BlockSparse(8, 0.25 if takes else None, method=method)
    net, optimizer, run = begin(recipe, device=DEVICE)
    torch.manual_seed(0)
    train(net, optimizer, run, data(20))
    x = data(1)[0][0]
    expected = net.eval()(x)
    if takes:
        kept, sizes = [int(each.present().sum()) for each in run.weights], [(96, 64), (40, 96)]
        cells = [rows * cols // (64 if kind == "blocks" else 1) for rows, cols in sizes]
        assert kept == [cell // 4 for cell in cells] or ("global" in name and sum(kept) == sum(cells) // 4)
    pack_(net, optimizer=optimizer)
    assert not any(isinstance(layer, MaskedLinear) for layer in net.modules())
    torch.testing.assert_close(net(x), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", ["nm", "semi24"])
@pytest.mark.parametrize("name", ["gradual", "supermask"])
def test_n_of_m_trains_and_packs(name, layout):
    method = dataclasses.replace(METHODS[name][0], select=S.select.NM(4))
    net, optimizer, run = begin(InLayout(layout, method), device=DEVICE)
    train(net, optimizer, run, data(20))
    x = data(1)[0][0]
    expected = net.eval()(x)
    masks = [each.present() for each in run.weights]
    assert all((mask.unflatten(1, (-1, 4)).sum(-1) == 2).all() for mask in masks)
    pack_(net, optimizer=optimizer)
    torch.testing.assert_close(net(x), expected, atol=1e-4, rtol=1e-4)


def gated(method, block):
    rows, cols = 96 // block, 64 // block
    torch.manual_seed(0)
    gate = method.gradient.gate(method, rows, cols, (block, block))
    layer = MaskedLinear(64, 96, block=block, gate=gate).to(DEVICE)
    layer.multiply = "dense"
    assert gate.on_device
    return layer


GATED = {
    "spartan": S.methods.spartan(10, 2),
    "movement": S.methods.movement(0, 10),
    "n:m": dataclasses.replace(S.methods.supermask(), select=S.select.NM(4)),
}


@pytest.mark.parametrize("block", [1, 8])
@pytest.mark.parametrize("method", GATED.values(), ids=GATED)
def test_a_graph_sees_each_budget(method, block):
    layer = gated(method, block)
    x, dy = torch.randn(32, 64, device=DEVICE), torch.randn(32, 96, device=DEVICE)

    def step():
        y = layer(x)
        return (y, *torch.autograd.grad(y, list(layer.parameters()), dy))

    graph, found = capture(step)
    for budget, progress in ((0.75, 0.1), (0.5, 0.5), (0.25, 1.0)):
        layer.gate.budget, layer.gate.progress = budget, progress
        graph.replay()
        seen, kept = [each.clone() for each in found], layer.mask.clone()
        assert int(kept.sum()) == budget * kept.numel()
        for got, want in zip(seen, step(), strict=True):
            torch.testing.assert_close(got, want)
        assert torch.equal(layer.mask, kept)


@pytest.mark.parametrize("method", GATED.values(), ids=GATED)
def test_a_gate_waits_for_nothing(method):
    layer = gated(method, 8)
    x = torch.randn(32, 64, device=DEVICE)
    layer(x).sum().backward()
    with sleeping() as event:
        layer.gate.budget, layer.gate.progress = 0.5, 0.5
        layer(x).sum().backward()
        assert not event.query()


def test_the_budget_buys_the_blocks_that_it_buys_on_the_host():
    scores = torch.randint(0, 9, (7, 10), generator=torch.Generator().manual_seed(0)).float()
    for select in (S.select.TopK(), S.select.NM(4)):
        for share in [i / 30 for i in range(31)]:
            budget = torch.tensor(share, dtype=torch.float64, device=DEVICE)
            assert torch.equal(select.there(scores.to(DEVICE), budget).cpu(), *select([scores], [share])), (
                share
            )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adamw_by_blocks_is_that_of_the_cpu_and_waits_for_nothing(dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 8, 8), (0, 8, 8), (3, 16, 8), (40, 24), (7,)]
    here = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    there = [each.detach().to(DEVICE).requires_grad_() for each in here]
    optimizers = AdamW(here, 1e-2), AdamW(there, 1e-2)
    for step in range(4):
        for mine, theirs in zip(here, there, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator).to(dtype)
            theirs.grad = mine.grad.to(DEVICE)
        optimizers[0].step()
        if step == 0:
            optimizers[1].step()
            continue
        with sleeping() as event:
            optimizers[1].step()
            assert not event.query()
    loose = {"atol": 1e-2, "rtol": 1e-2} if dtype == torch.bfloat16 else {"atol": 1e-6, "rtol": 1e-5}
    for mine, theirs in zip(here, there, strict=True):
        torch.testing.assert_close(theirs.cpu(), mine, **loose)


def test_a_compiled_gate_is_the_eager_one():
    layer = gated(GATED["spartan"], 8)
    compiled = torch.compile(layer, fullgraph=True)
    x = torch.randn(32, 64, device=DEVICE)
    for budget, progress in ((0.75, 0.1), (0.25, 0.5), (0.25, 1.0)):
        layer.gate.budget, layer.gate.progress = budget, progress
        loss = F.mse_loss(compiled(x), torch.zeros(32, 96, device=DEVICE))
        (got,) = torch.autograd.grad(loss, [layer.weight])
        loss = F.mse_loss(layer(x), torch.zeros(32, 96, device=DEVICE))
        (wanted,) = torch.autograd.grad(loss, [layer.weight])
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)
