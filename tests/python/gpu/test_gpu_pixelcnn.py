"""`sparseloom experiment pixelcnn` on a GPU: a step by CUDA graph is the step without."""

import dataclasses

import pytest
import torch

from sparseloom_bench.experiment import pixelcnn, runs
from sparseloom_bench.experiment.pixelcnn_model import ARMS, Size

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("arm", ARMS)
def test_a_graph_replays_the_steps(arm: str) -> None:
    setting = pixelcnn.Setting("archive", steps=12, batch=8, size=Size(128, 1, 8))
    parts = pixelcnn.split(pixelcnn.invented().to(torch.device("cuda")))
    run = runs.finals(arm, 1e-3)[0]
    losses = {}
    for graphed in (False, True):
        training = pixelcnn.Training(run, setting, parts, graphed)
        assert training.train(lambda: False, pytest.fail)
        losses[graphed] = training.losses
        assert (training.graph is not None) == graphed
    # the last steps are replays; cuDNN may choose other kernels for a dense step in a graph
    assert losses[True] == pytest.approx(losses[False], rel=0.01)
    outcome = training.outcome()
    cpu = pixelcnn.Training(run, setting, pixelcnn.split(pixelcnn.invented()), graphed=False)
    cpu.net.load_state_dict({name: each.cpu() for name, each in training.net.state_dict().items()})
    assert outcome["test"] == pytest.approx(cpu.outcome()["test"], rel=0.01)
    assert dataclasses.asdict(setting) == outcome["setting"]
