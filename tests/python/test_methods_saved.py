"""Runs of methods that are saved and go on, in every way, and steps that GradScaler skips."""

import copy
import io
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from method_runs import METHODS, batches, begin, everything, start, train

from sparseloom import BlockSparse
from sparseloom import sparsify as S
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
