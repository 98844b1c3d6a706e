"""Recurrent layers on the GPU: beside torch's own in fp32, in bf16, and a sequence as one CUDA graph."""

import pytest
import torch
from on_gpu import capture
from recurrent_twins import OPTIONS, expect_as_torch, inputs, make, run

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def full_precision(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_results_and_gradients_are_torchs(kind, options):
    layer = make(kind, device="cuda", **OPTIONS[options])
    expect_as_torch(layer, inputs(layer, device="cuda"), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_packed_sequences_are_torchs(kind):
    layer = make(kind, device="cuda", num_layers=2, bidirectional=True)
    expect_as_torch(layer, inputs(layer, device="cuda"), (1, 4, 6, 2, 6), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_bf16_is_near_fp32(kind):
    layer = make(kind, device="cuda")
    x, *states = inputs(layer, device="cuda")
    with torch.no_grad():
        wanted = run(layer, x, states)
        half = layer.to(torch.bfloat16)
        found = run(half, x.bfloat16(), [state.bfloat16() for state in states])
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.float(), theirs, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_sequence_is_one_graph(kind):
    layer = make(kind, device="cuda", num_layers=2)
    leaves = inputs(layer, device="cuda")
    wanted_of = [*leaves, *layer.parameters()]

    def step():
        results = run(layer, leaves[0], leaves[1:])
        return (*results, *torch.autograd.grad(sum(y.square().sum() for y in results), wanted_of))

    graph, found = capture(step)
    with torch.no_grad():
        leaves[0].copy_(torch.randn_like(leaves[0]))
    graph.replay()
    for mine, theirs in zip(found, step(), strict=True):
        assert torch.equal(mine, theirs)
