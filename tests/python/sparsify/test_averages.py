"""Averages of weights, by torch.optim.swa_utils and timm, of models that methods train: they have the model's
blocks, and the values of these."""

import copy

import pytest
import torch
import torch.nn.functional as F
from method_runs import METHODS, batches, model, start, train
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from sparseloom import BlockSparse, Error, pack_, sparsify_

EMA = {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}


def timm_kind(name, **options):
    def make(net):
        return getattr(pytest.importorskip("timm.utils"), name)(net, 0.9, **options)

    return make


AVERAGES = {
    "mean": AveragedModel,
    "ema": lambda net: AveragedModel(net, **EMA),
    "ema of buffers": lambda net: AveragedModel(net, **EMA, use_buffers=True),
    "timm 1": timm_kind("ModelEma"),
    "timm 2": timm_kind("ModelEmaV2"),
    "timm 3": timm_kind("ModelEmaV3"),
    "timm 3 but buffers": timm_kind("ModelEmaV3", exclude_buffers=True),
}


def update(average, net):
    getattr(average, "update_parameters" if isinstance(average, AveragedModel) else "update")(net)


def copy_in(average):
    return average.ema if hasattr(average, "ema") else average.module


def masks(net):
    return [net[number].pattern.mask for number in (0, 2)]


@pytest.mark.parametrize("kind", AVERAGES)
@pytest.mark.parametrize("name, capacity", [*((name, None) for name in METHODS), ("rigl", 0.6), ("set", 0.6)])
def test_an_average_has_the_blocks_of_its_model(name, capacity, kind):
    """Movement's, soft movement's and Spartan's were dense, masks rounded up to ones, and values of RigL and
    SET were those of several places."""
    net, optimizer, run = start(name, **({} if capacity is None else {"capacity": capacity}))
    average = AVERAGES[kind](net)
    for batch in batches(18):
        train(net, optimizer, run, [batch])
        update(average, net)
    twin, x = copy_in(average), batches(1)[0][0]
    with torch.no_grad():
        net.eval()(x), twin.eval()(x)
    assert all(torch.equal(*pair) for pair in zip(masks(net), masks(twin), strict=True))
    expected = twin(x)
    if name not in ("rigl", "set"):
        pack_(net), pack_(twin)
        assert all(torch.equal(*pair) for pair in zip(masks(net), masks(twin), strict=True))
        torch.testing.assert_close(twin(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("capacity", [None, 0.6])
@pytest.mark.parametrize("kind", ["ema", "ema of buffers", "timm 2"])
@pytest.mark.parametrize("name", ["rigl", "set"])
def test_the_values_of_stored_blocks_are_averages_at_their_places(name, kind, capacity, followed, late):
    net, optimizer, run = start(name, capacity=capacity)
    average = AVERAGES[kind](net)
    if followed:
        run.follow(copy_in(average))
    weight = net[0].sparse_weights()["values"]
    expected, first = weight.to_dense(), True

    def go_on():
        nonlocal expected, first
        for step, batch in enumerate(batches(15)):
            train(net, optimizer, run, [batch])
            now = weight.to_dense()
            expected = expected * (now != 0)
            if not late or step >= 6:  # blocks have moved by then
                update(average, net)
                copies = first and kind != "timm 2"
                expected, first = now if copies else 0.9 * expected + 0.1 * now, False

    if kind == "timm 2" and late and not followed:
        with pytest.raises(Error, match=r"call run\.follow"):
            go_on()  # no update has copied the values of the moved blocks
        return
    go_on()
    twin = copy_in(average)[0]
    assert twin.pattern == net[0].pattern
    # a new block is zero until its first step
    torch.testing.assert_close(twin.sparse_weights()["values"].to_dense(), expected)


@pytest.mark.parametrize("name", METHODS)
def test_a_copy_that_nobody_averages_stays_what_it_was(name):
    net, optimizer, run = start(name)
    train(net, optimizer, run, batches(6))
    x = batches(1)[0][0]
    snapshot, refreshed = copy.deepcopy(net).eval(), copy.deepcopy(net).eval()
    train(net, optimizer, run, batches(3))
    refreshed.load_state_dict(net.state_dict())
    with torch.no_grad():
        expected = snapshot(x), refreshed(x)
    places = masks(snapshot), masks(refreshed)
    train(net, optimizer, run, batches(9))
    with torch.no_grad():
        assert torch.equal(snapshot(x), expected[0]) and torch.equal(refreshed(x), expected[1])
    for copied, before in zip((snapshot, refreshed), places, strict=True):
        assert all(torch.equal(*pair) for pair in zip(masks(copied), before, strict=True))


@pytest.mark.parametrize("name", ["rigl", "set", "gradual", "movement", "spartan"])
def test_a_copy_that_trains_by_itself_keeps_its_own_blocks(name):
    net, optimizer, run = start(name)
    train(net, optimizer, run, batches(5))
    alone = copy.deepcopy(net)
    own = torch.optim.SGD(alone.parameters(), 0.1)
    before = masks(alone)
    for batch in batches(12):
        own.zero_grad()
        F.cross_entropy(alone(batch[0]), batch[1]).backward()
        own.step()
        own.zero_grad()
        train(net, optimizer, run, [batch])
    if name in ("rigl", "set", "gradual"):
        assert all(torch.equal(*pair) for pair in zip(masks(alone), before, strict=True))
    else:
        assert alone[0].gate.progress != net[0].gate.progress


def test_an_average_outlives_its_model():
    net, optimizer, run = start("movement")
    average = AveragedModel(net)
    for batch in batches(18):
        train(net, optimizer, run, [batch])
        average.update_parameters(net)
    del net, optimizer, run
    x = batches(1)[0][0]
    with torch.no_grad():
        average(x)
    assert [float(mask.float().mean()) for mask in masks(average.module)] == [0.25, 0.25]


@pytest.mark.parametrize("name", ["rigl", "set", "movement", "gradual"])
def test_a_copy_of_all_together_is_averaged_on(name):
    first = start(name)
    first = (*first, AveragedModel(first[0], **EMA))
    second, ends = None, []
    for step, batch in enumerate(batches(14)):
        if step == 6:
            second = copy.deepcopy(first)
        for net, optimizer, run, average in filter(None, (first, second)):
            train(net, optimizer, run, [batch])
            average.update_parameters(net)
    for _, _, _, average in (first, second):
        with torch.no_grad():
            ends.append(average(batches(1)[0][0]))
        assert average.module[0].pattern.blocks
    assert torch.equal(*ends)


@pytest.mark.parametrize("moves", [False, True])
def test_an_averaged_index_is_mended_before_it_is_used(moves):
    """Rounded down it names other blocks; only train() and state_dict() looked at it."""
    net = model()
    result = sparsify_(
        net, {"0": BlockSparse(8, 0.25, method=METHODS["set"][0] if moves else None)}, optimizer=[]
    )
    average = AveragedModel(net, **EMA, use_buffers=True)
    x = batches(1)[0][0]
    with torch.no_grad():
        average.module[0].packed_index[3:].sub_(1)  # as truncation does
        average.update_parameters(net)
        average.module[0].packed_index[3:].sub_(1)
        assert torch.equal(average(x), net(x))
    assert average.module[0].pattern == net[0].pattern and (result.run is not None) == moves


def test_a_masked_model_is_followed_when_it_is_asked_to():
    net, optimizer, run = start("gradual")
    other = copy.deepcopy(net)
    other[0]._places = other[2]._places = None  # as after pickling it alone
    assert run.follow(other) is run
    for batch in batches(17):
        train(net, optimizer, run, [batch])
        with torch.no_grad():
            for ours, theirs in zip(other.parameters(), net.parameters(), strict=True):
                ours.lerp_(theirs, 0.1)
    assert all(torch.equal(*pair) for pair in zip(masks(net), masks(other), strict=True))
    with pytest.raises(Error, match="a copy of 0"):
        run.follow(nn.Linear(3, 3))
