"""Recurrent layers on the GPU: beside torch's own in fp32, in bf16, and a sequence as one CUDA graph."""

import pytest
import torch
from on_gpu import capture
from recurrent_twins import OPTIONS, expect_as_torch, inputs, make, run
from unit_norm_twin import CASES, by_torch, operands

from sparseloom import pattern
from sparseloom.nn import SmallWorldLSTM
from sparseloom.ops.recurrent.norms import Norm, Reach

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("case", [*CASES, (128, 1, 18432, 36, 0, True, 1.0, True)])
def test_norms_between_steps_are_those_of_float64(case, shift, dtype):
    z, *others = operands(case, dtype, "cuda")
    if shift:  # rows that are no whole vectors
        z = torch.cat([z.detach().flatten()[:1], z.detach().flatten()])[1:].view(z.shape).requires_grad_()
    leaves = [each for each in (z, *others) if each is not None]
    exact = [each.detach().double().requires_grad_() for each in leaves]
    y = Norm(*others[:2], 1e-5, dtype, 1, case[-1])(z, others[2], Reach(max(1, case[3]), *case[4:7]))
    wanted = by_torch(case, *exact, *[None] * (4 - len(exact)))
    tolerance = 2e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(y.double(), wanted, atol=4 * tolerance, rtol=tolerance)
    dy = torch.randn(y.shape, device="cuda").to(dtype)
    # where y is near zero its rounding decides whether relu passes the gradient on
    dy = torch.where((wanted.abs() < 1e-4) & (wanted != 0), 0, dy)
    y.backward(dy)
    wanted.backward(dy.double())
    for mine, theirs in zip(leaves, exact, strict=True):
        scale = theirs.grad.abs().max()
        torch.testing.assert_close(mine.grad.double() / scale, theirs.grad / scale, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_world_is_that_of_the_cpu_and_one_graph(dtype):
    def drawn(step):
        return pattern.barabasi_albert(768, 768, 32, 2, step)

    torch.manual_seed(0)
    layer, rounded, there = (
        SmallWorldLSTM(16, 768, pattern=drawn, steps=4, inputs=96, outputs=48, dropout=0.0) for _ in range(3)
    )
    for twin in (rounded, there):
        twin.load_state_dict(layer.state_dict())
    rounded.to(dtype)
    there.to("cuda", dtype)
    x = torch.randn(5, 24, 16)

    def gradients(module, x):
        return torch.autograd.grad(module(x)[0].float().square().sum(), list(module.parameters()))

    def step():
        return gradients(there, x.to("cuda", dtype))

    exact = gradients(layer, x)
    for mine, theirs, wanted in zip(step(), gradients(rounded, x.to(dtype)), exact, strict=True):
        # what 16 bits cost by themselves, up to .14 of a gradient that five products lie behind
        error, usual = ((each.float().cpu() - wanted).norm() for each in (mine, theirs))
        assert error <= 1.5 * usual + 1e-3 * (wanted.norm() + 1)
    x = x.to("cuda", dtype)
    graph, found = capture(step)
    x.copy_(torch.randn_like(x))
    graph.replay()
    for mine, theirs in zip(found, step(), strict=True):
        assert torch.equal(mine, theirs)
