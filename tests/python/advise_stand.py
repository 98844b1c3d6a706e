"""A clock for advise that does not depend on the machine, and a model to advise on."""

import sys

import torch
from torch import nn

from sparseloom.nn import BlockSparseLinear


class Share:
    """A watch that saw so much of the CPU go to other work: in all, and in one look after the other."""

    lost, looks = 0.0, []

    def look(self):
        pass

    @property
    def recent(self):
        return self.looks.pop(0) if self.looks else self.lost


def clock_of(monkeypatch):
    """Makes advise take times by what is called, not by this machine. Returns them to be set: "dense", and
    "sparse" as a function of the layer, in microseconds. Nothing else uses the machine."""
    found = {"dense": 100.0, "sparse": lambda layer: 50.0, "rounds": [1.0] * 5, "called": []}
    monkeypatch.setattr(sys.modules["sparseloom.advise"], "Watch", type("Quiet", (Share,), {}))

    def in_turn(calls, seconds, gpu=None, **options):
        samples = []
        for call in calls:
            layer = call.__self__.layer
            found["called"].append(layer)
            sparse = isinstance(layer, BlockSparseLinear)
            samples.append(
                [(found["sparse"](layer) if sparse else found["dense"] * each) for each in found["rounds"]]
            )
        return samples

    monkeypatch.setattr(sys.modules["sparseloom.advise"], "in_turn", in_turn)
    monkeypatch.setattr(sys.modules["sparseloom.advise"], "overhead", lambda *a: 10.0)
    # Which plans go dense is this machine's matter, too.
    monkeypatch.setattr(sys.modules["sparseloom.advise"], "chosen", lambda *a: {})
    return found


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.Linear(256, 512), nn.Linear(512, 4)
    )
