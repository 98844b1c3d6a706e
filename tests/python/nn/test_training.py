"""Block-sparse models under everything that torch offers for training, on the CPU."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from sparseloom import BlockSparse, sparsify_
from sparseloom.nn import BlockSparseLinear

EVERY = {".*": BlockSparse(block=16, density=0.5)}


def model(dtype=torch.float32):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 70), nn.GELU(), nn.Linear(70, 32)
    )
    sparsify_(net, EVERY)
    return net.to(dtype)


def data(rows=24):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 64, generator=generator), torch.randn(rows, 32, generator=generator)


def loss_of(net, x, y):
    return (net(x) - y).square().mean()


def gradients(net):
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters()}


def require_close(mine, theirs, tolerance=1e-5):
    assert mine.keys() == theirs.keys()
    for name in mine:
        torch.testing.assert_close(mine[name], theirs[name], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_of_both_kinds(reentrant):
    net, (x, y) = model(), data()
    loss_of(net, x, y).backward()
    expected = gradients(net)
    net.zero_grad()
    x.requires_grad_()  # the reentrant kind looks at its inputs only
    calls = []
    net[0].register_forward_pre_hook(lambda *a: calls.append(1))
    (checkpoint(net, x, use_reentrant=reentrant) - y).square().mean().backward()
    require_close(gradients(net), expected)
    assert len(calls) == 2  # run again for the backward pass


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_a_sparse_layer_keeps_nothing_of_its_forward_pass(reentrant):
    """The layer alone: what it saves has to go through autograd, where checkpointing takes it away."""
    net, x = model()[:1], data()[0].requires_grad_()
    runs, kept = [], []
    net[0].register_forward_pre_hook(lambda *a: runs.append(1))
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.shape) or tensor, lambda tensor: tensor
    ):
        y = checkpoint(net, x, use_reentrant=reentrant)
    assert net[0].values.shape not in kept and len(runs) == 1
    y.sum().backward()
    assert len(runs) == 2 and net[0].values.grad.abs().sum() > 0


def test_gradient_accumulation_adds_up_to_the_whole_batch():
    net, (x, y) = model(), data()
    loss_of(net, x, y).backward()
    expected = gradients(net)
    net.zero_grad()
    for part in range(3):
        rows = slice(8 * part, 8 * part + 8)
        (loss_of(net, x[rows], y[rows]) / 3).backward()
    require_close(gradients(net), expected)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_fused_and_foreach_optimizers_take_the_steps_of_the_plain_one(options):
    nets = [model(), model()]
    how = [options, {"foreach": False}]
    optimizers = [
        torch.optim.AdamW(net.parameters(), 1e-2, **each) for net, each in zip(nets, how, strict=True)
    ]
    x, y = data()
    before = nets[0][0].values.detach().clone()
    for _ in range(3):
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(net, x, y).backward()
            optimizer.step()
    assert (nets[0][0].values - before).abs().median() > 5e-3  # AdamW moves an element by up to 1e-2 a step
    require_close(dict(nets[0].named_parameters()), dict(nets[1].named_parameters()), 1e-4)


def test_clip_grad_norm_sees_the_norm_of_the_dense_gradient_of_the_kept_blocks():
    net, (x, y) = model(), data()
    loss_of(net, x, y).backward()
    squares = sum(float(grad.double().square().sum()) for grad in gradients(net).values())
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    assert float(norm) == pytest.approx(squares**0.5, rel=1e-5)
    clipped = sum(float(grad.double().square().sum()) for grad in gradients(net).values())
    assert clipped**0.5 == pytest.approx(1e-3, rel=1e-3)


def test_an_exponential_moving_average_keeps_the_pattern_and_averages_the_values():
    net, (x, y) = model(), data()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=False)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    before, expected = net[0].values.detach().clone(), None
    for step in range(3):
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()
        average.update_parameters(net)
        expected = (
            net[0].values.detach().clone() if step == 0 else 0.5 * expected + 0.5 * net[0].values.detach()
        )
    torch.testing.assert_close(average.module[0].values.detach(), expected)
    assert not torch.equal(expected, before) and not torch.equal(expected, net[0].values)
    assert average.module[0].pattern == net[0].pattern and average(x).isfinite().all()


@pytest.mark.parametrize("way", ["eval", "state_dict"])
def test_an_average_that_takes_buffers_along_does_not_round_the_indices_down(way, caplog):
    """decay * 5 + (1 - decay) * 5 is 4.9999995 in fp32, and 4 in int32: AveragedModel(use_buffers=True) and
    its like do that."""
    net, (x, _) = model(), data()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    average(x)  # its plan is made and kept
    memory = average.module[0].col.data_ptr()
    for _ in range(30):
        average.update_parameters(net)
    # or this test shows nothing; col would mend it
    assert not torch.equal(average.module[0].packed_index, net[0].packed_index)
    if way == "eval":
        torch.testing.assert_close(average.eval()(x), net.eval()(x), atol=1e-5, rtol=1e-5)
    saved = average.module.state_dict()
    assert all(
        torch.equal(saved[name], net.state_dict()[name]) for name in saved if name.endswith(("crow", "col"))
    )
    assert average.module[0].col.data_ptr() == memory and "changed in place" in caplog.text
    caplog.clear()
    average.eval().train().eval()
    assert not caplog.text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_with_a_gradient_scaler(dtype):
    net, (x, y) = model(), data()
    optimizer, scaler = (
        torch.optim.AdamW(net.parameters(), 1e-2),
        torch.amp.GradScaler("cpu", init_scale=2.0**10),
    )
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            out = net(x)
            assert out.dtype == dtype
            loss = (out.float() - y).square().mean()
        scaler.scale(loss).backward()
        assert net[0].values.grad.dtype == torch.float32
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0] and scaler.get_scale() == 2.0**10


def test_the_scaler_skips_a_step_with_an_infinite_gradient():
    net, (x, y) = model(), data()
    optimizer, scaler = (
        torch.optim.SGD(net.parameters(), 0.1),
        torch.amp.GradScaler("cpu", init_scale=2.0**10),
    )
    before = net[0].values.detach().clone()
    scaler.scale(loss_of(net, x, y)).backward()
    net[0].values.grad[0, 0, 0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(net[0].values, before) and scaler.get_scale() == 2.0**9


# torch's own, at inductor's import
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_export_and_aot_inductor(tmp_path):
    net, (x, _) = model()[:2].eval().requires_grad_(False), data(6)
    rows = torch.export.Dim("rows", min=2, max=64)
    exported = torch.export.export(net, (x,), dynamic_shapes=({0: rows},))
    package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "net.pt2"))
    loaded = torch._inductor.aoti_load_package(package)
    for count in (2, 6, 33):
        x, _ = data(count)
        torch.testing.assert_close(loaded(x), net(x), atol=1e-5, rtol=1e-5)


def trained(net):
    optimizer, (x, y) = torch.optim.AdamW(net.parameters(), 1e-2), data()
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()
    return net


def through_state_dict(net):
    other = model().to("meta")
    other.load_state_dict(net.state_dict(), assign=True)
    return other


WAYS = {
    "steps": lambda net: net,
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "to": lambda net: net.to(torch.float64).to(torch.float32),
    "state_dict(assign=True)": through_state_dict,
}


@pytest.mark.parametrize("way", WAYS)
def test_b29_no_mask_is_lost(way):
    """There is none: what is absent stays absent after steps, copies, casts and loading, and training goes on
    there alone."""
    net = model()
    absent = {
        name: layer.to_dense().weight == 0
        for name, layer in net.named_children()
        if isinstance(layer, BlockSparseLinear)
    }
    for _ in range(2):
        net = WAYS[way](trained(net))
    for name, mask in absent.items():
        weight = net.get_submodule(name).to_dense().weight
        assert (weight[mask] == 0).all() and (weight[~mask] != 0).any() and 0 < mask.float().mean() < 1
