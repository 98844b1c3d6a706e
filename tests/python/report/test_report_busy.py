"""Times on a busy machine: the spread beside every ratio, no difference where none was shown, and a loud
line."""

import html
import json

import pytest
import torch
from torch import nn

import sparseloom
from sparseloom.nn import BlockSparseLinear
from sparseloom.report import layers, measure, whole
from sparseloom.timing import busy, candidates
from sparseloom.timing.rounds import Spread, in_turn, ratios
from sparseloom_bench.bench.sweep.beside_busy import busy_processes, cores


def net():
    return nn.Sequential(
        BlockSparseLinear(64, 64, density=0.5, block=16, seed=torch.Generator().manual_seed(0))
    )


@pytest.fixture
def timed(monkeypatch):
    """Samples that a test names: dense takes 12 us in every round, the sparse side ``timed["ours"]``; the
    watch says ``timed["lost"]``."""
    found = {"ours": [10.0] * 5, "lost": 0.0}

    class Watch:
        def look(self):
            pass

        @property
        def lost(self):
            return found["lost"]

    for module in (layers, whole):
        monkeypatch.setattr(
            module, "in_turn", lambda calls, *a, **k: [found["ours"], [12.0] * 5][: len(calls)]
        )
    for module in (measure, candidates):
        monkeypatch.setattr(module, "Watch", Watch)
    return found


def test_the_spread_of_the_rounds_ratios_stands_behind_every_ratio(timed):
    timed["ours"] = [8.0, 9.0, 10.0, 10.5, 11.0]
    found = sparseloom.report(net(), torch.randn(8, 64))
    row, spread = "12.0      10.0 #######.  1.20x", "1.20x</span> (1.14 to 1.33)"
    # layer and model, forward and backward
    assert str(found).count(row) == 4 and html.unescape(found.to_html()).count(spread) == 4
    assert not found.layers[0].undecided and "~1.20x" not in str(found)
    plain = json.loads(json.dumps(found.to_dict()))
    spread = {"median": 1.2, "p20": pytest.approx(12 / 10.5), "p80": pytest.approx(12 / 9)}
    assert plain["layers"][0]["ratios"]["forward"] == plain["model"]["ratios"]["backward"] == spread
    assert plain["layers"][0]["speedups"]["forward"] == 1.2 and plain["busy"] is False


def test_no_difference_is_shown_where_the_middle_of_the_ratios_holds_one(timed):
    timed["ours"] = [4.0, 5.0, 15.0, 20.0, 30.0]
    found = sparseloom.report(net(), torch.randn(8, 64))
    layer = found.layers[0]
    assert layer.undecided == ["forward", "backward"] and layer.speedups["forward"] == 0.8
    assert layer.slower == [] and "slower than dense" not in str(found)  # which noise would have said
    row, spread = "12.0      15.0 #######> ~0.80x", "0.80x (0.60 to 2.40), no difference shown"
    assert str(found).count(row) == 4 and html.unescape(found.to_html()).count(spread) == 4
    plain = found.to_dict()
    assert (
        plain["layers"][0]["no_difference_shown"]
        == plain["model"]["no_difference_shown"]
        == ["forward", "backward"]
    )
    timed["ours"] = [15.0] * 5
    assert sparseloom.report(net(), torch.randn(8, 64)).layers[0].slower == ["forward", "backward"]


def test_a_busy_machine_is_said_loudly_and_first(timed):
    timed["lost"] = 0.43
    found = sparseloom.report(net(), torch.randn(8, 64))
    loud = "!!! BUSY MACHINE: 43 % of the CPU time went to other work"
    assert str(found).startswith(loud) and (f"</style><p class='busy'><strong>{loud}" in found.to_html())
    assert found.busy and found.to_dict()["busy"] is True and found.to_dict()["lost"] == 0.43
    timed["lost"] = 0.08
    found = sparseloom.report(net(), torch.randn(8, 64))
    assert "BUSY" not in str(found) and "BUSY" not in found.to_html() and not found.busy


def test_a_measured_plan_shows_spreads_and_what_is_no_difference(timed, monkeypatch):
    layer = BlockSparseLinear(256, 256, density=0.1, block=32)
    told = layer.plan(64)
    able = [c["kernel"] for c in told["candidates"] if not c["refusal"]]

    # the chosen one is even, the others once faster, once slower; the slowest clearly slower
    def samples(calls, *a, **k):
        kernels = [call.args[0] for call in calls]
        rounds = {kernel: [5.0, 6.0, 12.0, 14.0, 20.0] for kernel in kernels} | {told["kernel"]: [10.0] * 5}
        return [rounds[kernel] for kernel in kernels]

    monkeypatch.setattr(candidates, "_SLOWEST", 1e9)
    monkeypatch.setattr(candidates, "in_turn", samples)
    plan = layer.plan(64, measure=True)
    other = next(kernel for kernel in able if kernel != told["kernel"])
    assert (
        f"  runs {told['kernel']}, predicted" in plan["text"]
        and "measured 10.0 us (10.0 to 10.0), workspace" in plan["text"]
    )
    line = next(line for line in plan["text"].split("\n") if line.startswith(f"  not {other}: predicted"))
    assert line.endswith(
        f"measured 12.0 us (6.0 to 14.0), 1.20 of {told['kernel']}'s (0.60 to 1.40), no difference shown"
    )
    entry = next(c for c in plan["candidates"] if c["kernel"] == other)
    assert (
        entry["measured_spread"] == {"median": 12.0, "p20": 6.0, "p80": 14.0}
        and entry["over_chosen"]["p80"] == 1.4
    )
    assert "BUSY" not in plan["text"]
    timed["lost"] = 0.5
    busy_plan = layer.plan(64, measure=True)
    assert busy_plan["text"].startswith("!!! BUSY MACHINE: 50 %") and busy_plan["lost"] == 0.5


def test_ratios_are_of_samples_of_the_same_round():
    # A machine that slows down for both says nothing about either: by medians of each side this would be
    # anything.
    ours, dense = [10.0, 100.0, 30.0, 500.0, 10.0], [20.0, 200.0, 60.0, 1000.0, 20.0]
    assert ratios(dense, ours) == Spread(2.0, 2.0, 2.0) and not ratios(dense, ours).shows_none
    assert (
        Spread(1.3, 0.9, 2.0).shows_none
        and Spread(1.0, 1.0, 1.0).shows_none
        and not Spread(0.9, 0.8, 0.99).shows_none
    )
    assert Spread(0.12345, 0.00041, 2.3456).rounded(2) == {"median": 0.12, "p20": 0.00041, "p80": 2.35}
    order = []
    samples = in_turn([lambda: order.append("a"), lambda: order.append("b")], 0.0)
    assert order == ["a", "b"] * 6 and [len(each) for each in samples] == [5, 5]
    order.clear()
    in_turn([lambda: order.append("a"), lambda: order.append("b")], 0.0, pause=1e-6)
    assert order == ["a", "b", *["a", "a", "b", "b"] * 5]


def test_what_the_watch_says_is_how_far_the_mean_round_is_from_the_fastest(monkeypatch):
    ticks = iter([t for step in [1.0] * 20 + [3.0] * 20 for t in (0.0, step)])
    monkeypatch.setattr(busy.time, "perf_counter", lambda: next(ticks))
    watch = busy.Watch()
    assert watch.lost == 0.0 and not busy.loud(watch.lost)
    watch.look()
    assert watch.lost == 0.5 and busy.loud(watch.lost)


def test_a_report_beside_spinning_processes_is_marked_as_of_a_busy_machine():
    """README's own example printed 130x on such a machine, as a fact."""
    with busy_processes(2 * max(2, cores())):
        for _ in range(10):  # the scheduler may leave the cores to one report
            found = sparseloom.report(net(), torch.randn(8, 64), seconds=0.2)
            if found.busy:
                break
    assert found.busy and str(found).startswith("!!! BUSY MACHINE: ") and 0.2 < found.lost < 1, found.lost


def test_a_machine_is_not_called_busy_where_nothing_was_measured(timed, monkeypatch):
    timed["lost"] = 0.5
    model = nn.Sequential(BlockSparseLinear(16, 16, density=0.5, block=8, device="meta"))
    found = sparseloom.report(model, torch.randn(2, 16, device="meta"))
    assert found.lost == 0 and not found.busy and "BUSY" not in str(found)
    monkeypatch.setattr(sparseloom.advise.Watch, "lost", 0.5)
    assert "BUSY" not in str(sparseloom.advise(nn.Sequential(nn.ReLU()), torch.randn(2, 16)))
