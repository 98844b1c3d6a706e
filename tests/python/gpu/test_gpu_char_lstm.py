"""`sparseloom experiment char-lstm` and `sentiment` on a GPU: steps by CUDA graph are the steps without, runs
follow each other in one process, and their networks are read there."""

import weakref

import pytest
import torch

from sparseloom_bench.experiment import char_lstm_outcome, checkpoints, reviews, runs, sentiment
from sparseloom_bench.experiment.char_lstm import ARMS, OP, PLAN, Setting, Size, Streams, Training

pytestmark = pytest.mark.gpu
SETTING = Setting("invented", 24, 16, 16, Size(256, 16, 3, 3, 64, 32))


@pytest.fixture(scope="module")
def streams() -> Streams:
    return Streams.of(reviews.invented()).to(torch.device("cuda"))


@pytest.mark.parametrize("arm", ARMS)
def test_a_graph_replays_the_steps(arm: str, streams: Streams) -> None:
    run = runs.Run(arm, 2e-3, 0, False)
    losses = {}
    for graphed in (False, True):
        training = Training(run, SETTING, streams)
        if not graphed:
            training.graph = None
        assert training.train(lambda: False, pytest.fail)
        losses[graphed] = training.losses
    assert losses[True][-1] < losses[True][0]
    # dropout is drawn by the step, so both have the same
    assert losses[True] == pytest.approx(losses[False], rel=0.01)
    outcome = training.outcome()
    cpu = Training(run, SETTING, Streams.of(reviews.invented()))
    cpu.net.load_state_dict({name: each.cpu() for name, each in training.net.state_dict().items()})
    assert cpu.bits(cpu.streams.test) == pytest.approx(outcome["test"], rel=0.01)


def test_a_run_goes_on_from_its_checkpoint(streams: Streams, tmp_path) -> None:
    run, path = runs.Run("barabasi-albert", 2e-3, 1, False), tmp_path / "a.checkpoint"
    whole, first, second = (Training(run, SETTING, streams) for _ in range(3))
    assert whole.train(lambda: False, pytest.fail)
    assert not first.train(lambda: first.step == 10, lambda: checkpoints.save(path, first.state_dict()))
    second.load_state_dict(checkpoints.load(OP, path, torch.device("cuda")))
    assert second.step == 10 and second.train(lambda: False, pytest.fail)
    assert second.losses == pytest.approx(whole.losses, rel=0.01)


def test_runs_follow_each_other_and_their_networks_are_read(streams: Streams, tmp_path) -> None:
    device, made = torch.device("cuda"), []

    def training(run: runs.Run) -> Training:
        assert not [each for each in made if each() is not None], "a run before is still there"
        found = Training(run, SETTING, streams)
        made.append(weakref.ref(found))
        return found

    said: list[str] = []
    for minutes, done in ((0.0, False), (5.0, True)):
        assert runs.go(PLAN, tmp_path, ARMS[:2], training, SETTING, device, minutes, said.append) == done
    assert said[1] == "dense.rate0.002: goes on at step 1 of 6" and len(made) == 13
    record = char_lstm_outcome.record(runs.read(PLAN, tmp_path))
    assert list(record["arms"]) == list(ARMS[:2]) and len(list(tmp_path.glob("*.model"))) == 6
    network = next(sentiment.trained(tmp_path, device))
    texts = reviews.invented()
    on_gpu = sentiment.states(network.net, texts.train)
    on_cpu = sentiment.states(network.net.cpu(), texts.train)
    for pool in sentiment.POOLS:
        assert on_gpu[pool].is_cuda
        torch.testing.assert_close(on_gpu[pool].cpu(), on_cpu[pool], rtol=0.05, atol=0.02)
    found = dict(sentiment.fits(network.net.to(device), texts))
    assert len(found) == 8 and all(0 <= each <= 1 for wrong in found.values() for each in wrong)
