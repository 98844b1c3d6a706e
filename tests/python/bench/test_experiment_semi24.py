"""`sparseloom experiment semi24` on a CPU: tiny runs of every arm, and runs that go on."""

import json

import pytest
import torch

from sparseloom import Error
from sparseloom.cli import main
from sparseloom_bench.experiment import lm_prune, runs, semi24, semi24_cli

TINY = semi24.Setting("", steps=10, batch=2, size=(32, 1, 2, 32), every=2, tested=4)


def run_command(arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


def test_a_smoke_run_trains_every_arm_and_writes_the_table(tmp_path, capsys):
    arguments = ["experiment", "semi24", "--smoke", "--out", str(tmp_path)]
    run_command(arguments)
    outcomes = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert len(outcomes) == len(semi24.ARMS) * (len(semi24.PLAN.rates) + runs.SEEDS)
    text = (tmp_path / "semi24.md").read_text()
    assert all(arm.text in text for arm in semi24.ARMS.values()) and text in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    run_command([*arguments, "--arm", "tail"])  # nothing is left
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    shown = {each["arm"]: each for each in outcomes if each["seed"] == 2}
    assert shown["sr-ste"]["flips"] is not None and shown["tail"]["flips"] is shown["dense"]["flips"] is None
    assert 0 < shown["relu2-24"]["lost"] < 1 and shown["dense"]["lost"] is None


@pytest.mark.parametrize("arm", semi24.ARMS)
def test_a_run_that_goes_on_is_the_run_that_never_stopped(arm, tmp_path):
    texts, run = lm_prune.Texts(None, torch.device("cpu")), runs.Run(arm, 1e-2, 1, False)

    def made():
        return semi24.Training(run, TINY, texts, torch.device("cpu"))

    whole, stopped, resumed = made(), made(), made()
    assert whole.train(lambda: False, lambda: None)
    asked = iter([False] * 7 + [True])
    assert not stopped.train(lambda: next(asked), lambda: None) and stopped.step == 8
    torch.save(stopped.state_dict(), tmp_path / "state.pt")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert resumed.train(lambda: False, lambda: None)
    states = whole.net.state_dict(), resumed.net.state_dict()
    assert all(torch.equal(a, b) for a, b in zip(*(state.values() for state in states), strict=True))
    assert whole.outcome()["test"] == resumed.outcome()["test"] and whole.losses == resumed.losses


@pytest.mark.parametrize("arguments, words", [(["--arm", "sparse"], "--arm as one of"), ([], "--data")])
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises(Error, match=words):
        semi24_cli.semi24_command(arm=arguments[1] if arguments else None)
