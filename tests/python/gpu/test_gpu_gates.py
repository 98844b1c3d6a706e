"""Gates of stored blocks on the GPU: against dense twins in float64, in CUDA graphs, and without a wait."""

import pytest
import torch
from on_gpu import capture, sleeping
from test_gates import KINDS, SHAPES, compare, operands

from sparseloom import nn, ops

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_and_gradients_are_those_of_the_dense_twin(shape, kind, dtype):
    compare(shape, kind, dtype, device="cuda")


def step(leaves, index, dy):
    x, values, gates, bias = leaves
    y = ops.gated_linear(x, values, index, gates, bias)
    return (y, *torch.autograd.grad(y, leaves, dy))


def test_a_graph_sees_each_change_of_the_gates():
    _, index, leaves = operands((32, 32), 256, 320, dtype=torch.bfloat16, tokens=128, device="cuda")
    dy = torch.randn(128, 256, device="cuda", dtype=torch.bfloat16)
    gates = leaves[2]
    graph, found = capture(lambda: step(leaves, index, dy))
    for kept in (1.0, 0.5, 0.0):
        with torch.no_grad():
            gates.copy_(torch.rand_like(gates) + 0.5).mul_(torch.rand_like(gates) < kept)
        graph.replay()
        wanted = step(leaves, index, dy)
        for got, want in zip(found, wanted, strict=True):
            assert torch.equal(got, want)


def test_nothing_waits():
    _, index, leaves = operands((32, 32), 256, 320, dtype=torch.bfloat16, tokens=128, device="cuda")
    dy = torch.randn(128, 256, device="cuda", dtype=torch.bfloat16)
    step(leaves, index, dy)
    with sleeping() as event:
        step(leaves, index, dy)
        assert not event.query()


def test_a_gated_layer_trains_and_packs():
    torch.manual_seed(0)
    layer = nn.GatedBlockSparseLinear(nn.BlockSparseLinear(128, 64, block=16, density=0.5), strength=1e-2)
    layer = layer.cuda()
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    x, y = torch.randn(64, 128, device="cuda"), torch.randn(64, 64, device="cuda")
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (layer(x) - y).square().mean()
        (loss + layer.penalty()).backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    layer.eval()
    torch.testing.assert_close(layer.pack()(x), layer(x), rtol=1e-3, atol=1e-3)
