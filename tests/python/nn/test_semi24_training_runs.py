"""Training under 2:4: rules and schedules, decays, resumed runs, compilation, files and what is refused."""

import copy
import io
import pickle

import pytest
import torch
from safetensors.torch import load_file
from semi24_nets import RECIPE, RULES, layer_of, net_of, step_of, trained
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import sparseloom
from sparseloom import BlockSparse, Error, InLayout, Semi24, densify_, pack_, sparsify, sparsify_, unpack_
from sparseloom.nn import MaskedLinear, Semi24Linear, Semi24Training, Semi24TrainingConv2d
from sparseloom.nn.masked import product24
from sparseloom.ops import semi24
from sparseloom.sparsify import methods


@pytest.mark.parametrize("rule", RULES)
def test_methods_train_pack_and_save_what_they_multiplied_with(rule, tmp_path):
    net, opt, run = trained(rule)
    masks = [net[i].mask.clone() for i in (0, 3, 5)]
    assert set(run.flip_rates()) == {"0", "3", "5"} and any(run.flip_rates().values())
    x = torch.randn(3, 5, 4, 4)
    before = net(x).detach()
    sparseloom.save(net, tmp_path / "dense.safetensors", format="dense")
    again = net_of(1)
    again.load_state_dict(load_file(tmp_path / "dense.safetensors"))
    torch.testing.assert_close(again(x), before)
    zeros = [float((again[i].weight == 0).float().mean()) for i in (0, 3, 5)]
    assert all(0.4 <= each <= (0.8 if rule == "s_ste" else 0.56) for each in zeros), zeros
    done = pack_(net, optimizer=opt)
    assert isinstance(net[3], Semi24Linear) and isinstance(net[5], Semi24Linear)
    assert isinstance(net[0], Semi24TrainingConv2d) and any("convolutions" in note for note in done.notes)
    torch.testing.assert_close(net(x), before)
    assert all(int(mask.sum()) > 0 for mask in masks)
    densify_(net)
    assert type(net[0]) is nn.Conv2d and type(net[3]) is nn.Linear
    torch.testing.assert_close(net(x), before)


def test_masks_change_at_the_schedule_and_weights_live_under_them():
    net, opt, run = trained("ste", steps=1, every=3)
    before = net[3].mask.clone()
    for step in range(1, 3):
        assert torch.equal(net[3].mask, before)
        step_of(net, opt, step)
        run.step()
    weight = net[3].weight.detach()
    assert torch.equal(net[3].mask, semi24.mask(weight, "transposable_greedy"))
    assert run.flip_rates()["3"] == float((net[3].mask ^ before).float().mean()) > 0
    assert bool((weight[~net[3].mask] != 0).any())


def test_decoupled_decay_is_geometric_and_adaptive_decay_ends_at_zero():
    for adaptive in (False, True):
        layer = layer_of(8, 8)
        weight, second = layer.weight.detach().clone(), torch.arange(64.0).view(8, 8) + 1
        steps = 0.1 * second.sqrt().mean() / second.sqrt()
        for _ in range(3):
            layer.decay_pruned_(0.1, adaptive, second)
        shrunk = (weight.abs() - 3 * steps).clamp(min=0) * weight.sign() if adaptive else weight * 0.9**3
        torch.testing.assert_close(layer.weight.detach(), torch.where(layer.mask, weight, shrunk))
    net, _, _ = trained("cast", steps=1, optimizer=torch.optim.SGD, decay=10.0)  # it has no moments
    assert bool((net[3].weight[~net[3].mask] == 0).any())


@pytest.mark.parametrize("rule", ["sr_ste", "sr_ste_decoupled", "cast"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_step_that_grad_scaler_skipped_decays_nothing(steps, rule):
    net, opt, run = trained(rule, steps=steps, decay=0.5)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(3):
        opt.zero_grad()
        scaler.scale((net(torch.randn(4, 5, 4, 4)) * float("inf")).sum()).backward()
        scaler.step(opt)
        scaler.update()
        run.step()
    for parameter, old in zip(net.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


#: How a step may compute its gradient: GradScaler, micro-batches, calls of a layer, a closure, a copied run.
COMPUTED = ["plain", "scaled", "unscaled", "fused", "batches", "twice", "closure", "named", "copied", "late"]


@pytest.mark.parametrize("kind", ["linear", "conv", "elements", "blocks"])
@pytest.mark.parametrize("how", COMPUTED)
def test_coupled_decay_is_added_once_to_the_gradient_of_a_step(how, kind):
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 8, 3, padding=1) if kind == "conv" else nn.Linear(64, 64)
    net, x = nn.Sequential(layer), torch.randn(4, 8, 3, 3) if kind == "conv" else torch.randn(4, 64)
    opt = torch.optim.SGD(net.parameters(), lr=0.5, fused=how == "fused")
    known = None if how == "late" else opt
    if kind in ("linear", "conv"):
        recipe = InLayout("semi24", method=methods.semi24("sr_ste", 100, decay=0.1))
    else:
        rule = sparsify.gradients.Straight(decay=0.1)
        method = sparsify.Method(schedule=sparsify.schedules.Constant(100), gradient=rule)
        blocks = BlockSparse(block=16, density=0.5, method=method)
        recipe = blocks if kind == "blocks" else InLayout("csr", density=0.5, method=method)
    run = sparsify_(net, {"0": recipe}, optimizer=known).method
    if how == "late":
        run.optimizers = opt
    if how == "copied":
        net, opt, run = copy.deepcopy((net, opt, run))
    weight, kept = net[0].weight, net[0]._mask_of_parameter()
    before = weight.detach().clone()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=how in ("scaled", "unscaled", "fused"))

    def loss():
        y = net(x) + net(x) if how == "twice" else net(x)
        scaler.scale(0 * y.sum()).backward()

    for _ in range(4 if how == "batches" else 0 if how in ("closure", "named") else 1):
        loss()
    if how == "unscaled":
        scaler.unscale_(opt)
    if how == "closure":
        opt.step(loss)
    elif how == "named":
        opt.step(closure=loss)
    else:
        scaler.step(opt)
    torch.testing.assert_close(weight.detach(), torch.where(kept, before, 0.95 * before))
    run.detach()
    opt.zero_grad()
    (0 * net(x).sum()).backward()  # without a run the backward pass adds it
    torch.testing.assert_close(weight.grad, (0.1 * weight.detach()).masked_fill(kept, 0))


def test_flips_are_no_number_before_the_first_refresh():
    net, opt, run = trained("ste", steps=1, every=2)
    assert run.flip_rates() == {} and net[3].flips.isnan()
    step_of(net, opt, 1)
    run.step()
    assert set(run.flip_rates()) == {"0", "3", "5"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_factors_and_statistics_stay_float32(dtype):
    net, _, _ = trained("s_ste")
    for layer in (net[0], net[3]):
        before = layer.scale.clone(), layer.flips.clone()
        for again in (layer.to(dtype), layer.type(dtype)):
            assert again.weight.dtype == dtype and again.mask.dtype == torch.bool
            assert (again.scale.dtype, again.flips.dtype) == (torch.float32, torch.float32)
            assert torch.equal(again.scale, before[0]) and torch.equal(again.flips, before[1])


@pytest.mark.parametrize("rule", ["sr_ste", "cast", "s_ste"])
def test_a_resumed_run_is_the_same_to_the_bit_and_a_tail_is_dense(rule):
    whole = trained(rule, steps=7)
    net, opt, run = trained(rule, steps=4)
    stored = io.BytesIO()
    torch.save([net.state_dict(), opt.state_dict(), run.state_dict()], stored)
    stored.seek(0)
    net, opt, run = trained(rule, steps=0)
    for target, state in zip((net, opt, run), torch.load(stored), strict=True):
        target.load_state_dict(state)
    for step in range(4, 7):
        step_of(net, opt, step)
        run.step()
    assert all(
        torch.equal(a, b)
        for a, b in zip(net.state_dict().values(), whole[0].state_dict().values(), strict=True)
    )
    parameters = list(net.parameters())
    run.dense_tail()
    assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))
    twin = net_of(1)
    twin.load_state_dict({k: v for k, v in net.state_dict().items() if k.endswith(("weight", "bias"))})
    x = torch.randn(2, 5, 4, 4)
    torch.testing.assert_close(net(x), twin(x))
    for step in range(3):
        step_of(net, opt, step)
        run.step()
    assert bool(net[3].mask.all()) and run.state_dict()["tail"]
    again, _, other = trained(rule, steps=0)
    again.load_state_dict(net.state_dict())
    other.load_state_dict(run.state_dict())
    torch.testing.assert_close(again(x), net(x))
    with pytest.raises(Error, match="can store"):
        pack_(net)
    densify_(net)
    torch.testing.assert_close(net(x), again(x))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("multiply", ["semi24", "dense"])
def test_compiled_training_is_one_graph_that_sees_each_next_mask(rule, multiply):
    torch._dynamo.reset()
    net, opt, run = trained(rule, steps=0, multiply=multiply)
    twin, opt_twin, run_twin = trained(rule, steps=0, multiply=multiply)
    graphs = []
    call = torch.compile(net, fullgraph=True, backend=lambda gm, _: graphs.append(gm) or gm)
    for step in range(5):
        step_of(net, opt, step, call)
        step_of(twin, opt_twin, step)
        run.step()
        run_twin.step()
    assert len(graphs) == 1
    for mine, theirs in zip(net.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_inductor_compiles_forward_and_backward():
    torch._dynamo.reset()
    layer, x = layer_of(16, 24, decay=0.1), torch.randn(6, 24, requires_grad=True)
    for layer.multiply in ("semi24", "dense"):
        torch.compile(layer, fullgraph=True)(x).square().sum().backward()
        mine = x.grad, layer.weight.grad
        x.grad = layer.weight.grad = None
        layer(x).square().sum().backward()
        torch.testing.assert_close(mine, (x.grad, layer.weight.grad))
        x.grad = layer.weight.grad = None


def test_autocast_checkpoints_and_copies():
    net, opt, run = trained("sr_ste")
    x = torch.randn(4, 5, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        y = net(x)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16 and net[3].weight.grad.dtype == torch.float32
    outcomes = []
    for through in (lambda m, v: m(v), lambda m, v: checkpoint(m, v, use_reentrant=False)):
        net.zero_grad()
        through(net, x).sum().backward()
        outcomes.append([each.grad.clone() for each in net.parameters()])
    torch.testing.assert_close(*outcomes)
    copied, _, _ = copy.deepcopy((net, opt, run))
    assert copied[3]._kind == net[3]._kind and torch.equal(copied(x), net(x))


def test_a_packed_layer_comes_back_as_one_that_trains():
    net = nn.Sequential(nn.Linear(16, 8))
    sparsify_(net, {"0": Semi24("magnitude")})
    x = torch.randn(3, 16)
    before = net(x)
    unpack_(net)
    assert isinstance(net[0], Semi24Training) and net[0]._kind == product24.ROWS
    net[0].multiply = "semi24"
    y = net(x)
    torch.testing.assert_close(y, before)
    y.sum().backward()
    assert bool((net[0].weight.grad[~net[0].mask] == 0).all())


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: setattr(Semi24Training(8, 8), "multiply", "blocks"), "'semi24', 'dense', got 'blocks'"),
        (lambda: setattr(MaskedLinear(8, 8), "multiply", None), "'auto', 'blocks', 'dense'"),
        (lambda: methods.semi24("sr_ste", decay=-1.0), "decay to be a finite number"),
        (lambda: methods.semi24("cast", decay=float("nan")), "decay to be a finite number"),
        (lambda: methods.semi24("ste", decay="much"), "decay to be a finite number"),
        (lambda: methods.semi24(end=0), "end to be an int >= 1"),
        (lambda: methods.semi24(end=2.5), "end to be an int >= 1"),
        (lambda: methods.semi24(every=0), "every to be an int >= 1"),
        (lambda: Semi24Training(8, 8, decay=-1.0), r"\[Semi24Training\] expected decay"),
        (lambda: Semi24Training(8, 8, share=5.0), r"share in \[0, 1\], got 5.0"),
        (lambda: Semi24Training(8, 8, share=float("nan")), r"share in \[0, 1\]"),
        (lambda: sparsify.gradients.Straight(decay=float("inf")), "decay to be a finite number"),
        (lambda: sparsify.regrow.PrunedDecay(float("inf")), "rate to be a finite number"),
        (lambda: methods.semi24("best"), "a rule of 'ste'"),
        (lambda: methods.semi24("s_ste", prune="transposable_exact"), "threshold"),
        (lambda: InLayout("csr", method=methods.semi24("s_ste"), density=0.5), "gradients.Soft"),
        (lambda: Semi24Training(8, 8, prune="largest"), "'largest'"),
        (lambda: Semi24TrainingConv2d(nn.Conv2d(8, 8, 3, groups=2)), "2 groups"),
        (lambda: Semi24Training(8, 8)(torch.randn(2, 7)), r"\[2, 7\]"),
        (lambda: Semi24TrainingConv2d(nn.Conv2d(4, 4, 3))(torch.randn(2, 5, 8, 8)), r"\[2, 5, 8, 8\]"),
        (lambda: sparsify_(nn.Sequential(nn.Conv1d(8, 8, 3)), {"0": RECIPE}),
         "no 2:4 layer trains in the place of a Conv1d"),
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong(call, words):
    with pytest.raises(Error, match=words):
        call()


def test_a_refresh_of_nan_is_an_error_on_the_cpu():
    layer = layer_of(8, 8)
    with torch.no_grad():
        layer.weight[0, 0] = float("nan")
    with pytest.raises(Error, match="NaN"):
        layer.refresh_()


@pytest.mark.parametrize("rule", ["sr_ste", "s_ste"])
def test_files_pickles_averages_and_programs_have_the_mask(rule, tmp_path):
    net, opt, run = trained(rule)
    x = torch.randn(3, 5, 4, 4)
    sparseloom.save(net, tmp_path / "masked.safetensors")
    again = net_of(1)
    sparseloom.load(tmp_path / "masked.safetensors", again, sparsify=True)
    for layer, saved in zip(again, net, strict=True):
        assert type(layer) is type(saved)
        if isinstance(layer, Semi24Training):
            names = ("prune", "soft", "share", "decay", "_kind")
            assert [getattr(layer, n) for n in names] == [getattr(saved, n) for n in names]
    torch.testing.assert_close(again(x), net(x))
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), net(x))
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for step in (8, 9):
        step_of(net, opt, step)
        run.step()
        average.update_parameters(net)
    average(x)
    assert torch.equal(average.module[3].mask, net[3].mask)
    frozen = copy.deepcopy(net).eval().requires_grad_(False)
    program = torch.export.export(frozen, (x,), strict=False).module()
    torch.testing.assert_close(program(x), net(x))
    torch.testing.assert_close(torch.jit.trace(frozen, x)(x), net(x))
    assert net.half()[3].mask.dtype == torch.bool
