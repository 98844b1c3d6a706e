"""Runs of methods that are saved and go on, in every way, steps that GradScaler skips, and what is told."""

import copy
import io
import math
import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from method_runs import METHODS, batches, begin, everything, model, start, train
from torch import nn

from sparseloom import BlockSparse, Error, Semi24, pack_, sparsify_
from sparseloom import sparsify as S
from sparseloom.patch import drive
from sparseloom.sparsify import methods as M


def by_state_dict(first, begun):
    for part, saved in zip(begun, copy.deepcopy([part.state_dict() for part in first]), strict=True):
        part.load_state_dict(saved)
    return begun


def by_torch_save(first, _):
    file = io.BytesIO()
    torch.save(first, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = [by_state_dict, lambda first, _: copy.deepcopy(first), by_torch_save]
SAVED = [(name, None) for name in METHODS] + [(name, 0.6) for name in ("rigl", "set", "summed", "falling")]


def begun(name, attached, **more):
    parts = start(name, **more)
    if attached:
        parts[2].attach(parts[1])
    return parts


def go_on(net, optimizer, run, data):
    attached = run._pace is not None
    alone = SimpleNamespace(penalty=run.penalty, step=lambda: None)
    train(net, optimizer, alone if attached else run, data)


@pytest.mark.parametrize("name, capacity", [*SAVED, ("summed", None)])
def test_a_run_goes_on_after_every_way_of_saving_it(monkeypatch, name, capacity):
    """Copied or pickled with its model, a run counted and never grew a block again: the layer's copy told it
    of no gradient. Attached to an optimizer it could not be pickled, and its copy did not count either."""
    monkeypatch.setitem(METHODS, "summed", (M.rigl(17, 4, steps=3), True))
    falling = S.Method(schedule=S.schedules.Cubic(0, 12, 3, initial=0.5), regrow=S.regrow.Gradient())
    monkeypatch.setitem(METHODS, "falling", (falling, True))
    data = batches(10)
    more = {} if capacity is None else {"capacity": capacity}
    for attached in (False, True):
        first = begun(name, attached, **more)
        go_on(*first, data[:6])  # to between two changes, and between two summed gradients
        others = [way(first, begun(name, attached, **more)) for way in WAYS]
        random = torch.get_rng_state()
        for parts in (first, *others):
            torch.set_rng_state(random)
            go_on(*parts, data[6:])
        wanted = everything(*first[:2])
        for net, optimizer, run in others:
            assert run.steps == first[2].steps == 10 and net[0] is not first[0][0]
            got = everything(net, optimizer)
            assert got.keys() == wanted.keys()
            for key, value in wanted.items():
                assert torch.equal(got[key], value), key


@pytest.mark.parametrize("capacity", [None, 0.6])
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("where", ["loss", "bias"])
def test_a_batch_that_grad_scaler_skipped_is_no_part_of_the_growth_signal(capacity, to_none, where):
    """Attached, the skipped batch was added to the next one; with a capacity an inf in it lost the change."""
    ends = []
    for skipping in (True, False):
        net, optimizer, run = start("rigl", capacity=capacity)
        run.attach(optimizer)
        before, scaler = net[0].pattern, torch.amp.GradScaler("cpu", init_scale=4.0)
        for step, (x, y) in enumerate(batches(6), 1):
            optimizer.zero_grad(set_to_none=to_none)
            skipped = step == 4
            if skipped and not skipping:
                continue
            overflows = skipped and where == "loss"
            scaler.scale(F.cross_entropy(net(x), y) * (math.inf if overflows else 1.0)).backward()
            if skipped and where == "bias":  # the gradients of the layers themselves are finite
                net[2].bias.grad[0] = math.inf
            scaler.step(optimizer)
            scaler.update()
        assert run.steps == 5 and net[0].pattern != before
        ends.append(net[0].pattern)
    assert ends[0] == ends[1]


@pytest.mark.parametrize("capacity", [None, 0.6])
@pytest.mark.parametrize("told", [True, False])
def test_a_change_that_a_skipped_step_was_due_for_is_made_after_the_next(capacity, told):
    """With a capacity it was left out. ``told``: whether the run knows the optimizer that makes no step."""
    net, optimizer, run = start("rigl", capacity=capacity)
    if not told:
        run.optimizers = []
    scaler, moved = torch.amp.GradScaler("cpu", init_scale=4.0), []
    for step, (x, y) in enumerate(batches(7), 1):
        optimizer.zero_grad()
        before = net[0].pattern
        scaler.scale(F.cross_entropy(net(x), y) * (math.inf if step == 4 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        run.step()
        moved.append(net[0].pattern != before)
    assert moved == [False] * 4 + [True] + [False] * 2


def test_a_layer_that_is_called_by_name_is_watched_too():
    net, optimizer, run = start("rigl")
    (x, _), before = batches(1)[0], net[0].pattern
    for _ in range(4):
        optimizer.zero_grad()
        net[0](x=x).square().mean().backward()
        optimizer.step()
        run.step()
    assert net[0].pattern != before


@pytest.mark.parametrize("name", ["rigl", "set"])
def test_double_precision_moves_within_a_capacity(name):
    """torch takes no norm of float64 in float32: it raised from inside."""
    recipe = BlockSparse(8, 0.25, method=METHODS[name][0], capacity=0.6)
    net, optimizer, run = begin(recipe, dtype=torch.float64)
    before = net[0].pattern
    train(net, optimizer, run, [(x.double(), y) for x, y in batches(4)])
    assert net[0].pattern != before


def unused(make):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        make()
    texts, ours = [str(each.message) for each in told], ("never", "method", "changes nothing", "semi24")
    return [text for text in texts if any(word in text for word in ours)]


def packed(name, steps, calls=True, asks=True):
    """Trains by a method whose step, or whose penalty, nobody calls; "itself" leaves the steps to the run."""
    net, optimizer, run = start(name)
    if not calls:
        run.detach()
    for x, y in batches(steps):
        optimizer.zero_grad()
        (F.cross_entropy(net(x), y) + (run.penalty() if asks else 0.0)).backward()
        optimizer.step()
        if calls is True:
            run.step()
    pack_(net, optimizer=optimizer)


@pytest.mark.parametrize(
    "name, steps, calls, asks, words",
    [
        ("gradual", 3, False, True, ["made no step"]),
        ("rigl", 3, False, True, ["made no step"]),
        ("ac/dc", 3, False, True, ["made no step"]),
        ("gradual", 9, True, True, ["0.25 was asked for"]),
        ("l0", 3, True, False, ["penalty was never read"]),
        ("soft movement", 3, True, False, ["penalty was never read"]),
        ("supermask", 3, False, False, []),
        ("gradual", 17, True, False, []),
        ("rigl", 3, True, False, []),
        ("rigl", 3, "itself", False, []),
        ("gradual", 17, "itself", False, []),
    ],
)
def test_a_method_that_never_ran_is_told_once_when_it_is_packed(name, steps, calls, asks, words):
    told = unused(lambda: packed(name, steps, calls, asks))
    assert len(told) == len(words) and all(word in each for word, each in zip(words, told, strict=True))


@pytest.mark.parametrize("method", [M.rigl(50), M.set_(10, end=10), M.group_lasso(1.0, 1.0, 0, 5, 9, 10)])
def test_a_schedule_without_a_change_is_told_at_once(method):
    density = 0.25 if method.select.takes_density else None
    (told,) = unused(lambda: begin(BlockSparse(8, density, method=method)))
    assert "changes nothing of 0, 2" in told


@pytest.mark.parametrize("training", [True, False])
def test_an_optimizer_of_2_of_4_is_told_that_values_do_not_train(training):
    net = model().train(training)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    result = sparsify_(net, {"[02]": Semi24("magnitude")}, optimizer=optimizer)
    assert ("the values of 2 layers in 2:4 do not train" in str(result)) == training
    later = torch.optim.SGD(net.parameters(), 0.1)
    told = {each: unused(lambda each=each: (each.step(), each.step())) for each in (optimizer, later)}
    assert not told[optimizer] and len(told[later]) == training
    assert all("SGD holds the values of 2 layers in layout semi24" in text for text in told[later])


def attention():
    return nn.TransformerEncoderLayer(64, 4, 64, batch_first=True, dropout=0.0)


@pytest.mark.parametrize("name", ["gradual", "movement", "spartan", "rigl", "set"])
def test_methods_train_the_projections_of_an_attention(name):
    """All but RigL and SET refused them."""
    torch.manual_seed(0)
    net, x = nn.Sequential(attention()), torch.randn(2, 8, 64)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    recipe = BlockSparse(8, 0.25, method=METHODS[name][0])
    run = sparsify_(net, {"0.self_attn.*": recipe}, optimizer=optimizer).method
    for _ in range(17):
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()
        run.step()
    assert run.densities() == {"0.self_attn.in_proj": 0.25, "0.self_attn.out_proj": 0.25}
    expected = net.eval()(x)
    masked = net[0].self_attn.to_dense().eval()
    torch.testing.assert_close(masked(x, x, x)[0], net[0].self_attn(x, x, x)[0], atol=1e-5, rtol=1e-5)
    pack_(net, optimizer=optimizer)
    torch.testing.assert_close(net(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "module, name, words",
    [
        (nn.Conv2d(16, 16, 3), "rigl", "0: the blocks of a convolution stay"),
        (nn.ConvTranspose1d(16, 16, 3), "set", "0: the blocks of a convolution stay"),
        (nn.Conv2d(16, 16, 3), "gradual", "0: its kind has no masked layer"),
        (nn.LSTM(16, 16), "rigl", r"0.ih_l0: the steps of a recurrent layer tell no gradient"),
        (nn.GRU(16, 16), "movement", r"0.ih_l0: its kind has no masked layer"),
    ],
)
def test_what_a_method_cannot_train_is_refused_at_once_by_name(module, name, words):
    """Convolutions raised at the first change, without a name; RigL never moved blocks of an LSTM."""
    net = nn.Sequential(module)
    with pytest.raises(Error, match=words):
        sparsify_(net, {".*": BlockSparse(8, 0.5, method=METHODS[name][0])})
    if name in ("rigl", "set"):
        sparsify_(net, {".*": BlockSparse(8, 0.5)})
        with pytest.raises(Error, match="0"):
            drive(net, METHODS[name][0])
