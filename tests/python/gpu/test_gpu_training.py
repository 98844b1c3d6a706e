"""A converted model under what torch offers for training on a GPU: fp16 with a scaler, CUDA graphs,
checkpointing, export."""

import copy

import pytest
import torch
from on_gpu import random
from torch import nn
from torch.utils.checkpoint import checkpoint

from sparseloom import BlockSparse, sparsify_

pytestmark = [
    pytest.mark.gpu,
    # torch's own, at inductor's import
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),
]


def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(96, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64)).cuda()
    sparsify_(net, {"0|3": BlockSparse(block=32, density=0.4)})
    return net


def data(seed=0):
    return random(200, 96, seed=seed), random(200, 64, seed=100)


def loss_of(net, x, target):
    return (net(x).float() - target).square().mean()


@pytest.mark.parametrize("fused", [False, True])
def test_fp16_autocast_with_a_gradient_scaler(fused):
    net, (x, target) = model(), data()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            out = net(x)
            assert out.dtype == torch.float16
            loss = (out.float() - target).square().mean()
        scaler.scale(loss).backward()
        assert net[0].values.grad.dtype == torch.float32
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0] and scaler.get_scale() == 2.0**10


def test_the_scaler_finds_an_overflow_in_our_gradient_and_skips_the_step():
    net, (x, target) = model(), data()
    optimizer, scaler = (
        torch.optim.SGD(net.parameters(), 0.1),
        torch.amp.GradScaler("cuda", init_scale=2.0**40),
    )
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    with torch.autocast("cuda", dtype=torch.float16):
        loss = loss_of(net, x, target)
    scaler.scale(loss).backward()  # gradients of 2^40 times the loss are infinite in fp16
    assert not net[0].values.grad.isfinite().all()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**39 and all(
        torch.equal(p, before[name]) for name, p in net.named_parameters()
    )


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_of_both_kinds_gives_the_same_bits(reentrant):
    net, (x, target) = model(), data()
    loss_of(net, x, target).backward()
    expected = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
    net.zero_grad()
    x.requires_grad_()  # the reentrant kind looks at its inputs only
    (checkpoint(net, x, use_reentrant=reentrant) - target).square().mean().backward()
    assert all(torch.equal(parameter.grad, expected[name]) for name, parameter in net.named_parameters())


@pytest.mark.parametrize("autocast", [False, True])
def test_a_cuda_graph_around_a_training_step(autocast):
    """Forward, backward, clipping and fused AdamW of a converted model, beside an eager twin that takes the
    same steps."""
    nets = [model()]
    nets.append(copy.deepcopy(nets[0]))
    optimizers = [torch.optim.AdamW(net.parameters(), 1e-2, fused=True, capturable=True) for net in nets]
    x, target = data()

    def step(net, optimizer):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast, cache_enabled=False):
            loss = loss_of(net, x, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # real steps, which the twin takes too
            step(nets[0], optimizers[0])
    torch.cuda.current_stream().wait_stream(side)
    for _ in range(3):
        step(nets[1], optimizers[1])
    optimizers[0].zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(nets[0], optimizers[0])
    losses = []
    for seed in range(1, 9):
        x.copy_(data(seed)[0])
        graph.replay()
        eager = step(nets[1], optimizers[1])
        assert torch.equal(captured, eager)
        losses.append(eager.item())
    for (name, mine), theirs in zip(nets[0].named_parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(mine, theirs), name
    assert len(set(losses)) == len(losses)


def test_a_compiled_bf16_step_trains_like_an_eager_one():
    nets = [model(), model()]
    calls = [torch.compile(nets[0], fullgraph=True), nets[1]]
    optimizers = [torch.optim.AdamW(net.parameters(), 1e-2, fused=True) for net in nets]
    x, target = data()
    losses = ([], [])
    for _ in range(20):
        for call, optimizer, seen in zip(calls, optimizers, losses, strict=True):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = loss_of(call, x, target)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
    assert losses[0][-1] < 0.8 * losses[0][0]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


# torch 2.11.0+cu130 dies (signal 11) in aoti_load_package, with a package of nn.Linear alone as well.
@pytest.mark.torch_at_least("2.12")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_export_and_aot_inductor(dtype, tmp_path):
    net = model()[:2].to(dtype).eval().requires_grad_(False)
    rows = torch.export.Dim("rows", min=2, max=64)
    exported = torch.export.export(net, (random(6, 96, dtype=dtype),), dynamic_shapes=({0: rows},))
    package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "net.pt2"))
    loaded = torch._inductor.aoti_load_package(package)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    for count in (2, 6, 33):
        x = random(count, 96, dtype=dtype, seed=count)
        torch.testing.assert_close(loaded(x), net(x), atol=tolerance, rtol=tolerance)
