"""`sparseloom experiment lm` on a GPU: steps by CUDA graph are the steps without, also where blocks move."""

import pytest
import torch

from sparseloom_bench.experiment import corpus, lm, runs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "arm",
    [
        "dense",
        "mlp25",
        "deep50",
        "mlp25-set",
        "mlp25-rigl",
        "mlp25-rigl-plain",
        "mlp25-rigl-grace",
        "gradual60",
        "tail",
    ],
)
def test_a_graph_replays_the_steps(arm: str) -> None:
    setting = lm.Setting("", steps=120, batch=8, preset="tiny", block=16, tested=8)
    texts, run = corpus.invented().to(torch.device("cuda")), runs.Run(arm, 2e-3, 1, False)
    reached = {}
    for graphed in (False, True):
        training = lm.Training(run, setting, texts, graphed)
        assert training.train(lambda: False, lambda: None)
        assert (training.graph is not None) == graphed
        reached[graphed] = training.outcome()
    assert reached[True]["losses"] == pytest.approx(reached[False]["losses"], rel=0.03)
    assert reached[True]["test"] == pytest.approx(reached[False]["test"], rel=0.03)
    if "moves" in reached[True]:
        changes = [[each["step"] for each in reached[how]["moves"]["changes"]] for how in reached]
        assert changes[0] == changes[1] and len(changes[0]) > 10


@pytest.mark.parametrize("arm", ["dense", "mlp25", "mlp25-rigl", "gradual60"])
def test_compiled_blocks_take_the_steps_of_blocks_that_are_not(arm: str) -> None:
    setting = lm.Setting("", steps=40, batch=8, preset="tiny", block=16, tested=8)
    texts, run = corpus.invented().to(torch.device("cuda")), runs.Run(arm, 2e-3, 1, False)
    reached = []
    for compiled in (False, True):
        training = lm.Training(run, setting, texts, compiled=compiled)
        assert bool(training.net.compiled) == compiled
        assert training.train(lambda: False, lambda: None)
        reached.append(training.outcome())
    assert reached[1]["losses"] == pytest.approx(reached[0]["losses"], rel=0.03)
    assert reached[1]["test"] == pytest.approx(reached[0]["test"], rel=0.03)
