"""The protocol of experiments: searches, seeds, and a folder that calls go on with."""

import dataclasses
import json
import weakref

import pytest
import torch

from sparseloom import Error
from sparseloom_bench.experiment import runs

PLAN = runs.Plan("experiment test", ("dense",), (0.1, 0.2))


@dataclasses.dataclass(frozen=True)
class Setting:
    sizes: tuple[int, int] = (1, 2)
    steps: int = 2


class Training:
    """A run of two steps whose best learning rate is ``best``; it refers to itself, as CUDA graphs do."""

    def __init__(self, run, best=0.1, setting=Setting()):
        self.run, self.best, self.setting, self.me = run, best, setting, self
        self.step, self.steps = 0, 2

    def train(self, stop, save):
        while self.step < self.steps:
            self.step += 1
            if stop():
                save()
                break
        return self.step == self.steps

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]

    def outcome(self):
        validation = abs(self.run.rate - self.best)
        setting = dataclasses.asdict(self.setting)
        return {**self.run._asdict(), "validation": validation, "setting": setting, "test": 1.0}

    def kept(self):
        return None


def go(folder, made, setting=Setting(), minutes=1.0, only=".*"):
    said = []
    done = runs.go(PLAN, folder, ["dense"], made, setting, torch.device("cpu"), minutes, said.append, only)
    return done, said


def test_no_training_is_left_when_the_next_begins(tmp_path):
    made = []

    def training(run):
        assert not [each for each in made if each() is not None], "the one before is still there"
        found = Training(run)
        made.append(weakref.ref(found))
        return found

    done, said = go(tmp_path, training)
    assert done and len(made) == len(said) == 5
    assert sorted(each.name for each in tmp_path.iterdir())[:2] == [
        "dense.rate0.1.json",
        "dense.rate0.2.json",
    ]
    assert go(tmp_path, pytest.fail) == (True, [])


def test_outcomes_of_another_setting_are_refused_before_any_run(tmp_path):
    go(tmp_path, Training, only="rate0.1")
    with pytest.raises(Error, match=r"\[3, 4\].*pass another --out"):
        go(tmp_path, pytest.fail, Setting((3, 4)))
    assert len(list(tmp_path.iterdir())) == 1


def test_seeds_may_have_other_steps_than_a_search_that_is_done(tmp_path):
    longer = Setting(steps=8)
    go(tmp_path, Training, only="rate0.1")
    with pytest.raises(Error, match=r'"steps": 2.*pass another --out'):
        go(tmp_path, pytest.fail, longer)
    go(tmp_path, Training, only="rate.*")
    assert go(tmp_path, lambda run: Training(run, setting=longer), longer)[0]
    seeds = [each for each in runs.read(PLAN, tmp_path)["dense"] if not each["searching"]]
    assert [each["setting"]["steps"] for each in seeds] == [8] * 3
    with pytest.raises(Error, match="pass another --out"):
        go(tmp_path, pytest.fail, Setting(steps=9))


def test_seeds_of_a_learning_rate_that_was_not_chosen_do_not_count(tmp_path):
    go(tmp_path, Training)
    for rate in PLAN.rates:  # another search, which chooses the other rate
        (tmp_path / f"dense.rate{rate:g}.json").unlink()
    done, said = go(tmp_path, lambda run: Training(run, best=0.2), only="rate.*|seed1")
    found = runs.read(PLAN, tmp_path)["dense"]
    assert done and len(said) == 3 and len(found) == 5
    assert [(each["seed"], each["rate"]) for each in runs.counted(PLAN, found)] == [(1, 0.2)]
    assert [run.seed for run in runs.left(PLAN, tmp_path, ["dense"])] == [0, 2]
    assert runs.counted(PLAN, [each for each in found if not each["searching"]]) == []


def test_a_stop_while_a_run_is_judged_costs_no_step(tmp_path):
    class Killed(Training):
        def outcome(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, Killed, only="rate0.1")
    assert go(tmp_path, Training, only="rate0.1")[1][0] == "dense.rate0.1: goes on at step 2 of 2"
    assert json.loads((tmp_path / "dense.rate0.1.json").read_text())["validation"] == 0
    assert len(list(tmp_path.iterdir())) == 1
